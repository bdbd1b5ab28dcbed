"""At the end of simulated histories the metadata is thrown away: what was readable comes back."""

from __future__ import annotations

from typing import Any

import pytest

from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.repair.findings import Severity
from streamlog.repair.fsck.fsck import FsckOptions, fsck
from streamlog.repair.recover.recover import RecoverOptions, recover
from streamlog.repair.recover.resolve import Piece
from streamlog.repair.recover.stream_reader import read_batches
from streamlog.repair.view import MetadataView, load_view
from streamlog.testing.simulation import history
from streamlog.testing.simulation.world.incarnation import SimulationClock
from streamlog.testing.simulation.world.offload import InlineOffload

Content = dict[int, tuple[int, int, dict[int, bytes]]]
"""Stream → start, end, payload by offset."""


async def content(view: MetadataView, store: Any, offload: Any) -> Content:
    contents: Content = {}
    for row in view.streams():
        pieces, objects, payloads = [], {}, {}
        async for page in view.ranges(row):
            for one in page:
                pieces.append(Piece(one.start, one.end, one.object.object_id))
                objects[one.object.object_id] = one.object
        async for batch in read_batches(store, offload, row.stream_id, pieces, objects):
            payloads[batch.base_offset] = b"".join(bytes(part) for part in batch.parts)
        contents[row.stream_id] = row.start, row.end, payloads
    return contents


async def has_attached(view: MetadataView, stream_id: int) -> bool:
    (row,) = (row for row in view.streams() if row.stream_id == stream_id)
    return any([one.object.placements async for page in view.ranges(row) for one in page])


async def check_recovery(world: Any, *, with_checkpoints: bool) -> int:
    """How many batches were compared."""
    tools: dict[str, Any] = {
        "clock": SimulationClock(world.loop),
        "random": world.fork(),
        "offload": InlineOffload(),
    }
    store, kv = MemoryObjectStore(tools["clock"]), MemoryKVStore(tools["clock"])
    for info in (await world.store.list("", limit=1 << 20)).objects:
        if with_checkpoints or not info.key.startswith("checkpoint/"):
            await store.put(info.key, [await world.store.get(info.key)])
    cluster_id = (await fsck(world.kv, world.store, **tools)).cluster_id
    view = await load_view(world.kv, world.store, cluster_id, **tools)
    before = await content(view, world.store, tools["offload"])
    # Where a staged object was attached stands in checkpoints alone (until compaction).
    attached = {stream_id for stream_id in before if await has_attached(view, stream_id)}
    await recover(kv, store, options=RecoverOptions(accept_data_loss=not with_checkpoints), **tools)
    report = await fsck(kv, store, options=FsckOptions(deep=True), **tools)
    assert not report.by_severity[Severity.ERROR], report.findings
    view = await load_view(kv, store, cluster_id, **tools)
    after = await content(view, store, tools["offload"])
    for stream_id, (start, end, payloads) in before.items():
        if start == end or (stream_id in attached and not with_checkpoints):
            continue
        new_start, new_end, new = after[stream_id]
        assert new_start <= start
        assert new_end >= end
        assert payloads.items() <= new.items()
    return sum(len(payloads) for _, _, payloads in before.values())


@pytest.mark.parametrize("seed", [1000, 1001, 5000, 5002])
def test_readable_records_come_back(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    plain = history._History._check_store

    async def check(self: Any) -> None:
        nonlocal compared
        await plain(self)
        for with_checkpoints in (True, False):
            compared += await check_recovery(self._world, with_checkpoints=with_checkpoints)

    monkeypatch.setattr(history._History, "_check_store", check)
    history.run_history(seed, None)
    assert compared > 100
