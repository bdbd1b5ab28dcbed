"""The metadata of a cluster beside a store that is not its own: a folder that is not mounted."""

from __future__ import annotations

import pytest

from streamlog.errors import Corrupt, ForeignCluster, Invalid, UnknownTopicOrPartition
from streamlog.objectstore.cluster.guard import claim
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import CLUSTER_KEY
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.repair.findings import FindingKind
from streamlog.repair.recover.recover import RecoverOptions, recover
from tests.repair.cluster import Cluster, partition, produce, run


async def filled(cluster: Cluster, *, checkpoint: bool) -> None:
    async with cluster.node(crash=True) as engine:
        await engine.logs.create_topic("t", 1)
        await produce(await partition(engine, "t"), b"a")
        if checkpoint:
            await engine.metadata.checkpoint()


async def keys(store: ObjectStore) -> list[str]:
    return [info.key for info in (await store.list("")).objects]


async def rebuild(cluster: Cluster, *, accept_data_loss: bool = False) -> None:
    await recover(
        cluster.kv,
        cluster.store,
        clock=cluster.clock,
        random=cluster.random,
        offload=cluster.offload,
        options=RecoverOptions(overwrite=True, accept_data_loss=accept_data_loss),
    )


@pytest.mark.parametrize("checkpoint", [False, True])
def test_an_empty_store_beside_metadata_in_use_is_claimed_by_nothing(checkpoint: bool) -> None:
    """Else recover would take the empty store for the cluster's, and replace the metadata."""

    async def scenario() -> None:
        cluster = Cluster()
        await filled(cluster, checkpoint=checkpoint)
        right, cluster.store = cluster.store, MemoryObjectStore(cluster.clock)
        with pytest.raises(ForeignCluster, match="Mount the folder"):
            async with cluster.node():
                raise AssertionError
        for repair in (False, True):
            report = await cluster.fsck(repair=repair, force=repair)
            advice = [str(finding) for finding in report.findings]
            assert "mount the folder" in "".join(advice), advice
            assert "rebuild it" not in "".join(advice), advice
        with pytest.raises(Invalid, match="check the prefix"):
            await rebuild(cluster)
        assert not await keys(cluster.store)
        cluster.store = right
        async with cluster.node():
            pass
        await cluster.is_clean()

    run(scenario)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_lost_cluster_file_alone_is_written_by_fsck(checkpoint: bool) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await filled(cluster, checkpoint=checkpoint)
        whole = bytes(await cluster.store.get(CLUSTER_KEY))
        await cluster.store.delete([CLUSTER_KEY])
        with pytest.raises(ForeignCluster, match="fsck --repair writes it again"):
            async with cluster.node():
                raise AssertionError
        report = await cluster.fsck(repair=True)
        assert FindingKind.CLUSTER_FILE in {finding.kind for finding in report.findings}
        assert "wrote cluster.json" in report.repaired
        assert bytes(await cluster.store.get(CLUSTER_KEY)) == whole
        async with cluster.node():
            pass
        await cluster.is_clean()

    run(scenario)


def test_where_a_checkpoint_is_lost_too_fsck_writes_the_file_that_recover_needs() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await filled(cluster, checkpoint=True)
        lost = [key for key in await keys(cluster.store) if key.startswith("checkpoint/")]
        assert lost
        await cluster.store.delete([CLUSTER_KEY, *lost])
        report = await cluster.fsck(repair=True)
        assert "wrote cluster.json" in report.repaired
        assert "streamlog recover" in "".join(map(str, report.findings))
        await rebuild(cluster, accept_data_loss=True)
        async with cluster.node() as engine:
            assert (await partition(engine, "t")).high_watermark == 1

    run(scenario)


def test_recover_replaces_no_metadata_in_use_by_that_of_a_store_without_objects() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await filled(cluster, checkpoint=True)
        cluster_id = (await cluster.fsck()).cluster_id
        cluster.store = MemoryObjectStore(cluster.clock)
        await claim(cluster.store, cluster_id)
        with pytest.raises(Corrupt, match="no objects at all"):
            await rebuild(cluster)
        await rebuild(cluster, accept_data_loss=True)
        async with cluster.node() as engine:
            with pytest.raises(UnknownTopicOrPartition):
                await partition(engine, "t")

    run(scenario)
