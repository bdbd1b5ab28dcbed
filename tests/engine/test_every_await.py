"""Every await of writes and reads fails in turn, and every caller is cancelled at each of its own.

Whatever was struck: all other callers are answered, and either the node is well, with no object id
open and all bytes given back, or it has failed and says why to all who come later. No task is left.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any

import pytest

import streamlog
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.engine.config import AppendConfig, ReadConfig, StreamEngineConfig
from streamlog.errors import DiskFull, StreamlogError
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.model.batch import AppendContext, CreateStreamOptions, OpenStreamOptions
from streamlog.model.partition import TopicPartition
from streamlog.model.stream import Stream
from streamlog.objectstore.interface import ObjectInfo
from streamlog.runtime.buffers import Buffer, parts_size
from streamlog.runtime.rand import SeededRandom
from streamlog.wal.config import WalConfig, WalMode
from streamlog.wiring import OpenEngine
from tests.engine.harness import batch, read_all
from tests.support.every_await import Kind, Lab, every, start
from tests.support.server_harness import batch as log_batch

LARGE_BYTES = 40 << 10
CONFIG = StreamEngineConfig(
    append=AppendConfig(append_bytes_max=64 << 10, batch_bytes_max=48 << 10),
    wal=WalConfig(wal_bytes_max=1 << 20, file_bytes=256 << 10),
    compaction=CompactionConfig(
        compaction_process="inline", compaction_interval_ms=10**9, small_objects_min=2
    ),
)
ANSWER_S = 300.0


READS = replace(CONFIG, read=ReadConfig(tail_cache_bytes=0))
"""Every read is of objects."""


@dataclass(slots=True)
class Streams:
    mine: Stream
    others: list[Stream]
    log: AbstractLog | None = None
    """Of the cases that are about a log."""


Call = Callable[[OpenEngine, Streams], Awaitable[object]]


async def append(engine: OpenEngine, streams: Streams) -> object:
    return await streams.mine.append(batch(b"mine"))


async def append_and_drain(engine: OpenEngine, streams: Streams) -> object:
    await streams.mine.append(batch(b"mine"))
    return await engine.drain()


async def create(engine: OpenEngine, streams: Streams) -> object:
    return await engine.streams.create_and_open_streams(
        [CreateStreamOptions()] * 2, lambda ids: [(ids[0], batch(b"first"))]
    )


async def trim(engine: OpenEngine, streams: Streams) -> object:
    return await streams.mine.trim(1)


async def close_stream(engine: OpenEngine, streams: Streams) -> object:
    return await streams.mine.close()


async def destroy(engine: OpenEngine, streams: Streams) -> object:
    return await streams.mine.destroy()


async def reopen(engine: OpenEngine, streams: Streams) -> object:
    options = OpenStreamOptions(epoch=streams.mine.stream_epoch + 1)
    return await engine.streams.open_stream(streams.mine.stream_id, options)


async def compact(engine: OpenEngine, streams: Streams) -> object:
    assert engine.compactor is not None
    return await engine.compactor.compact_all()


async def stage_and_attach(engine: OpenEngine, streams: Streams) -> object:
    staged = engine.staging
    stage = await staged.stage("writer", "attempt", {streams.mine.stream_id: [batch(b"staged")]})
    return await staged.attach("writer", 1, [stage.object_id])


async def create_topic(engine: OpenEngine, streams: Streams) -> object:
    return await engine.logs.create_topic("topic", 2)


async def fetch(engine: OpenEngine, streams: Streams) -> object:
    result = await streams.mine.fetch(0, 2, 1 << 20)
    return result, await streams.mine.attributes(0, 2)


async def reserve(engine: OpenEngine, streams: Streams) -> object:
    # Behind the appends of others: it waits for room.
    await asyncio.sleep(0)
    reservation = await streams.mine.reserve(LARGE_BYTES)
    try:
        return await streams.mine.append(
            batch(bytes(LARGE_BYTES)), AppendContext(reservation=reservation)
        )
    finally:
        reservation.release()


async def set_token(engine: OpenEngine, streams: Streams) -> object:
    # Of the stream to which others append: they wait at its gate.
    return await streams.others[0].set_fencing_token(b"token")


async def append_to_log(engine: OpenEngine, streams: Streams) -> object:
    assert streams.log is not None
    return await append_and_fetch(streams.log)


async def append_and_fetch(log: AbstractLog) -> object:
    appended = await log.append(log_batch(b"mine"))
    result = await appended
    fetched = await log.fetch(result.base_offset, 1 << 20)
    assert fetched.next_offset > result.base_offset
    return fetched


async def close(engine: OpenEngine, streams: Streams) -> object:
    return await engine.close()


BOTH_MODES: list[Call] = [append_and_drain, create, destroy, reopen, set_token, close]
"""Their awaits differ with the mode."""
ONE_MODE: list[Call] = [
    trim,
    close_stream,
    compact,
    stage_and_attach,
    create_topic,
    fetch,
    reserve,
    append_to_log,
]


async def made(engine: OpenEngine) -> Streams:
    streams = [await engine.streams.create_and_open_stream() for _ in range(4)]
    for payload in (b"1", b"2"):
        await asyncio.gather(*(stream.append(batch(payload)) for stream in streams))
        await engine.drain()
    return Streams(streams[0], streams[1:])


def opening(
    lab: Lab, mode: WalMode, config: StreamEngineConfig = CONFIG
) -> AbstractAsyncContextManager[OpenEngine]:
    components = lab.components(has_disk=mode == "disk")
    return streamlog.open("memory://", wal=mode, config=config, components=components)


async def strike(lab: Lab, mode: WalMode, call: Call) -> None:
    async with opening(lab, mode, READS if call is fetch else CONFIG) as engine:
        streams = await made(engine)
        others = streams.others
        if call is append_to_log:
            await engine.logs.create_topic("topic", 1)
            streams.log = await engine.logs.log(TopicPartition("topic", 0))
        victim = lab.striker.arm(call(engine, streams))
        tasks = [
            # The second waits until the first has made room.
            start("other append", others[0].append(batch(bytes(LARGE_BYTES)))),
            start("other append behind it", others[0].append(batch(bytes(LARGE_BYTES)))),
            start("other trim", others[1].trim(2)),
            start("other create", engine.streams.create_and_open_stream()),
            start("other destroy", others[2].destroy()),
        ]
        if streams.log is not None:
            tasks.append(start("other append to the log", append_and_fetch(streams.log)))
        await lab.answered(victim, *tasks, within_s=ANSWER_S)
        await lab.calm_down()
        if streams.log is not None:
            await check_log(lab, engine, streams.log)
        await check_after(
            lab, engine, others[0], is_closed=call is close, is_compacting=call is compact
        )
        ending = start("other close", engine.close())
        await lab.answered(ending, within_s=ANSWER_S)
    check_no_task(lab)
    await lab.close()


async def strike_opening(lab: Lab, mode: WalMode) -> None:
    async with opening(lab, mode) as engine:
        stream = (await made(engine)).mine
        appends = [start("other append", stream.append(batch(b"%d" % n))) for n in range(3)]
        await lab.answered(*appends)
        await engine.kill()
    lab.restart()
    opened = opening(lab, mode)
    victim = lab.striker.arm(opened.__aenter__())
    await lab.answered(victim, within_s=ANSWER_S)
    lab.striker.disarm()
    if not victim.cancelled() and victim.exception() is None:
        await victim.result().kill()
        await opened.__aexit__(None, None, None)
    check_no_task(lab)
    lab.restart()
    async with opening(lab, mode) as engine:
        again = await engine.streams.open_stream(stream.stream_id)
        stored = await read_all(again)
        assert stored == [b"1", b"2", b"0", b"1", b"2"], f"{lab.striker.struck}: {stored}"
        await check_after(lab, engine, again)
    await lab.close()


class CrampedStore:
    """A store on a disk that is nearly full: it takes no object larger than `object_bytes_max`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.object_bytes_max = 1 << 30
        self.refusals = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        if parts_size(parts) > self.object_bytes_max:
            await asyncio.sleep(0)
            self.refusals += 1
            raise DiskFull("storing an object failed: No space left on device", path=key)
        info: ObjectInfo = await self._inner.put(key, parts, if_absent=if_absent)
        return info


ROOMY = dataclasses.replace(
    CONFIG,
    append=AppendConfig(append_bytes_max=1 << 20, batch_bytes_max=48 << 10, retry_backoff_ms=50),
)
ROOM_S = [(0.1, 48 << 10), (0.3, 1 << 30)]
"""When room appears: for one batch, and for all."""


async def strike_on_full_disk(lab: Lab, mode: WalMode) -> int:
    """Uploads are refused, cut, and wait for each other and for room. Counts the awaits."""
    components = lab.components(has_disk=mode == "disk")
    store: Any = CrampedStore(components.store)
    components = dataclasses.replace(components, store=store)
    async with streamlog.open("memory://", wal=mode, config=ROOMY, components=components) as engine:
        streams = await made(engine)
        # Nothing is saved by compression.
        payload = SeededRandom(9).bytes(LARGE_BYTES)
        store.object_bytes_max = 10 << 10

        async def several() -> None:
            await asyncio.gather(*(streams.mine.append(batch(payload)) for _ in range(3)))
            await engine.drain()

        victim = lab.striker.arm(several())
        other = start("other append", streams.others[0].append(batch(payload)))
        for after_s, object_bytes_max in ROOM_S:
            lab.loop.call_later(after_s, setattr, store, "object_bytes_max", object_bytes_max)
        await lab.answered(victim, other, within_s=ANSWER_S)
        await lab.calm_down()
        await check_after(lab, engine, streams.others[0])
        assert engine.engine.uploader.limit_bytes is None or engine.engine.failure is not None
        ending = start("other close", engine.close())
        await lab.answered(ending, within_s=ANSWER_S)
    check_no_task(lab)
    await lab.close()
    refusals: int = store.refusals
    return refusals


def check_no_task(lab: Lab) -> None:
    left = lab.engine_tasks()
    assert not left, f"{lab.striker.struck}: tasks are left: {left}"


async def check_log(lab: Lab, engine: OpenEngine, log: AbstractLog) -> None:
    """The engine takes appends and has the acknowledged ones; or it has failed with a reason."""
    later = start("other later append to the log", append_and_fetch(log))
    await lab.answered(later, within_s=ANSWER_S)
    error = later.exception()
    if engine.engine.failure is None and error is not None:
        # The partition was closed: the next look-up opens it again.
        assert isinstance(error, StreamlogError), f"{lab.striker.struck}: {error!r}"
        again = start("other look-up", engine.logs.log(TopicPartition("topic", 0)))
        await lab.answered(again, within_s=ANSWER_S)
        await check_log(lab, engine, again.result())


async def check_after(
    lab: Lab,
    engine: OpenEngine,
    stream: Stream,
    *,
    is_closed: bool = False,
    is_compacting: bool = False,
) -> None:
    struck = lab.striker.struck
    later = [
        start("other later append", stream.append(batch(b"later"))),
        start("other later create", engine.streams.create_and_open_stream()),
        start("other later drain", engine.drain()),
    ]
    await lab.answered(*later, within_s=ANSWER_S)
    errors = [call.exception() for call in later if not call.cancelled()]
    if engine.engine.failure is not None or is_closed:
        assert all(error is None or isinstance(error, StreamlogError) for error in errors), struck
        assert is_closed or errors[1] is not None, f"{struck}: a create on a failed engine works"
        return
    assert errors == [None] * 3, f"{struck}: {errors}"
    # The WAL needs new files.
    for _ in range(8 if engine.wal == "disk" else 0):
        large = start("other large append", stream.append(batch(bytes(LARGE_BYTES))))
        await lab.answered(large, within_s=ANSWER_S)
        assert large.exception() is None, f"{struck}: {large.exception()}"
    if engine.compactor is not None and is_compacting:
        again = start("other compaction", engine.compactor.compact_all())
        await lab.answered(again, within_s=ANSWER_S)
        assert again.exception() is None, f"{struck}: {again.exception()}"
    await engine.drain()
    # An id may be open for as long as a cancelled call's work goes on.
    for _ in range(1000):
        if not engine.metadata.open_object_ids:
            break
        await asyncio.sleep(0.01)
    assert not engine.metadata.open_object_ids, struck
    assert engine.engine.budget.used_bytes == 0, struck
    assert engine.engine.pending_upload_bytes == 0, struck


def cases() -> list[Any]:
    return [
        pytest.param(kind, mode, call, id=f"{kind}-{mode}-{call.__name__}")
        for kind in ("fail", "cancel")
        for mode, calls in (("object", BOTH_MODES + ONE_MODE), ("disk", BOTH_MODES))
        for call in calls
    ]


@pytest.mark.parametrize("mode", ["object", "disk"])
@pytest.mark.parametrize("kind", ["fail", "cancel"])
def test_every_await_of_opening(kind: Kind, mode: WalMode) -> None:
    async def scenario(lab: Lab) -> None:
        await strike_opening(lab, mode)

    assert every(kind, scenario) > 0


@pytest.mark.parametrize(("kind", "mode", "call"), cases())
def test_every_await(kind: Kind, mode: WalMode, call: Call) -> None:
    async def scenario(lab: Lab) -> None:
        await strike(lab, mode, call)

    assert every(kind, scenario) > 0


@pytest.mark.parametrize("mode", ["object", "disk"])
@pytest.mark.parametrize("kind", ["fail", "cancel"])
def test_every_await_on_a_full_disk(kind: Kind, mode: WalMode) -> None:
    refusals = 0

    async def scenario(lab: Lab) -> None:
        nonlocal refusals
        refusals += await strike_on_full_disk(lab, mode)

    assert every(kind, scenario) > 0
    assert refusals > 0
