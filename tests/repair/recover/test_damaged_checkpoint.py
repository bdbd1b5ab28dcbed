"""A checkpoint with a damaged byte is told and left out: what the objects hold comes back."""

from __future__ import annotations

import pytest

from streamlog.model.batch import CreateStreamOptions
from streamlog.repair.findings import Finding, FindingKind, RepairReport, Severity
from streamlog.repair.view import load_view
from tests.compaction.compacting_engine import BY_HAND
from tests.repair.cluster import Cluster, append, backed_up, read, recovered, restored, run

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


async def damage(cluster: Cluster, where: str) -> str:
    """Flips a bit of the newest checkpoint file's first block of ranges or objects; its key."""
    view = await load_view(
        cluster.kv,
        cluster.store,
        (await cluster.fsck()).cluster_id,
        clock=cluster.clock,
        random=cluster.random,
        offload=cluster.offload,
    )
    delta = view.state.levels.delta
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
