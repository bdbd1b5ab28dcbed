"""A checkpoint with a damaged byte is told and left out: what the objects hold comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from streamlog.metadata.checkpoint.files import Levels
from streamlog.model.batch import CreateStreamOptions
from streamlog.objectstore.keys import CHECKPOINT_PREFIX, DATA_PREFIX
from streamlog.repair.findings import Finding, FindingKind, RepairReport, Severity
from streamlog.repair.view import load_view
from tests.compaction.compacting_engine import BY_HAND
from tests.repair.cluster import Cluster, append, backed_up, read, recovered, restored, run
from tests.support.replacing import replace_method

Content = dict[int, dict[int, bytes]]


async def written(cluster: Cluster) -> Content:
    """Three streams, all of them in a checkpoint; what each holds."""
    async with cluster.node() as engine:
        options = [CreateStreamOptions()] * 3
        streams = await engine.streams.create_and_open_streams(options)
        for number in range(4):
            for stream in streams:
                await append(stream, b"%d" % number)
        await engine.metadata.checkpoint()
        return {stream.stream_id: await read(stream) for stream in streams}


async def newest(cluster: Cluster) -> Levels:
    """The files of the newest checkpoint."""
    view = await load_view(
        cluster.kv,
        cluster.store,
        (await cluster.fsck()).cluster_id,
        clock=cluster.clock,
        random=cluster.random,
        offload=cluster.offload,
    )
    return view.state.levels


async def damage(cluster: Cluster, where: str) -> str:
    """Flips a bit of the newest checkpoint file's first block of ranges or objects; its key."""
    delta = (await newest(cluster)).delta
    assert delta is not None
    at = (delta.range_bytes if where == "ranges" else delta.object_bytes)(0, 1)[0] + 12
    await flip(cluster, delta.ref.name, at)
    return delta.ref.name


async def flip(cluster: Cluster, key: str, at: int) -> None:
    flipped = bytearray(await cluster.store.get(key))
    flipped[at] ^= 1
    await cluster.store.put(key, [bytes(flipped)])


def told(report: RepairReport) -> Finding:
    (finding,) = report.of_kind(FindingKind.CHECKPOINT_CORRUPT)
    assert finding.severity is Severity.WARNING
    return finding


async def check(cluster: Cluster, content: Content) -> None:
    async with cluster.node(2) as engine:
        for stream_id, expected in content.items():
            assert await read(await engine.streams.open_stream(stream_id)) == expected


@pytest.mark.parametrize("where", ["ranges", "objects"])
def test_a_recovery_leaves_out_a_checkpoint_with_a_damaged_block(where: str) -> None:
    async def scenario() -> None:
        cluster = Cluster(config=BY_HAND)
        content = await written(cluster)
        key = await damage(cluster, where)
        cluster.lose_metadata()
        assert key in told(await recovered(cluster)).detail
        await cluster.is_clean()
        await check(cluster, content)

    run(scenario)


@pytest.mark.parametrize("where", ["ranges", "objects"])
def test_a_restore_leaves_out_a_checkpoint_with_a_damaged_block(where: str) -> None:
    """The backup names that very checkpoint."""

    async def scenario() -> None:
        cluster = Cluster(config=BY_HAND)
        content = await written(cluster)
        backup = await backed_up(cluster)
        key = await damage(cluster, where)
        cluster.lose_metadata()
        assert key in told(await restored(cluster, backup)).detail
        await check(cluster, content)

    run(scenario)


@pytest.mark.parametrize("lost_bytes", [0, 1, 20])
def test_a_checkpoint_whose_end_is_damaged_is_told_where_an_older_one_is_left(
    lost_bytes: int,
) -> None:
    """Only the damaged one tells that what lies before the gap was trimmed."""

    async def scenario() -> None:
        cluster = Cluster(config=BY_HAND)
        delete = cluster.store.delete

        async def keeps_checkpoints(keys: Sequence[str]) -> None:
            await delete([key for key in keys if not key.startswith(CHECKPOINT_PREFIX)])

        replace_method(cluster.store, "delete", keeps_checkpoints)
        async with cluster.node() as engine:
            stream = await engine.streams.create_and_open_stream()
            await append(stream, b"0", b"1")
            await stream.trim(2)
            await engine.metadata.checkpoint()
            await append(stream, b"2", b"3")
            await stream.trim(4)
            await engine.metadata.checkpoint()
            await cluster.store.delete(await data_keys(cluster))
            await append(stream, b"4", b"5")
            content = {stream.stream_id: await read(stream)}
        older, newer = sorted(
            info.key for info in (await cluster.store.list(CHECKPOINT_PREFIX)).objects
        )
        if lost_bytes:
            whole = bytes(await cluster.store.get(newer))
            await cluster.store.put(newer, [whole[:-lost_bytes]])
        else:
            await flip(cluster, newer, -1)
        cluster.lose_metadata()
        report = await recovered(cluster)
        assert newer in told(report).detail
        assert older in report.repaired[0]
        await check(cluster, content)

    run(scenario)


async def data_keys(cluster: Cluster) -> list[str]:
    return [info.key for info in (await cluster.store.list(DATA_PREFIX)).objects]


def test_a_base_that_no_checkpoint_names_is_no_damage() -> None:
    """An interrupted checkpoint, or an interrupted recovery, leaves one."""

    async def scenario() -> None:
        small = replace(BY_HAND.metadata, delta_bytes_min=0)
        cluster = Cluster(config=replace(BY_HAND, metadata=small))
        content = await written(cluster)
        base = (await newest(cluster)).base
        assert base is not None
        stray = f"{CHECKPOINT_PREFIX}1.1/99"
        await cluster.store.put(stray, [bytes(await cluster.store.get(base.ref.name))])
        cluster.lose_metadata()
        assert (await recovered(cluster)).is_clean
        await check(cluster, content)
        await flip(cluster, stray, -1)
        cluster.lose_metadata()
        assert stray in told(await recovered(cluster)).detail

    run(scenario)
