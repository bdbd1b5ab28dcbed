"""The metadata of a cluster beside a store that is not its own: a folder that is not mounted."""

from __future__ import annotations

import pytest

from streamlog.errors import (
    Corrupt,
    ForeignCluster,
    Invalid,
    LineageFenced,
    UnknownTopicOrPartition,
)
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.objectstore.cluster.guard import claim
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import CLUSTER_KEY
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.repair.findings import FindingKind, Severity
from streamlog.repair.recover.recover import RecoverOptions, recover
from streamlog.runtime.rand import SeededRandom
from tests.repair.cluster import Cluster, partition, produce, recovered, run


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
        with pytest.raises(Corrupt, match="no objects of this cluster"):
            await rebuild(cluster)
        await rebuild(cluster, accept_data_loss=True)
        async with cluster.node() as engine:
            with pytest.raises(UnknownTopicOrPartition):
                await partition(engine, "t")

    run(scenario)


async def two_clusters(*, checkpoint: bool) -> tuple[Cluster, Cluster]:
    """A cluster, and one whose store has more objects, the first of them under the same ids."""
    mine, other = Cluster(random=SeededRandom(1)), Cluster(random=SeededRandom(2))
    await filled(mine, checkpoint=checkpoint)
    await filled(other, checkpoint=checkpoint)
    async with other.node(crash=True) as engine:
        log = await partition(engine, "t")
        for number in range(20):
            await produce(log, b"b%d" % number)
    async with mine.node():
        # It ends its tenure, so that ids past its objects are nobody's any more.
        pass
    return mine, other


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_store_of_another_cluster_gets_no_cluster_file_and_keeps_its_objects(
    checkpoint: bool,
) -> None:
    async def scenario() -> None:
        mine, other = await two_clusters(checkpoint=checkpoint)
        cluster_id = (await mine.fsck()).cluster_id
        await other.store.delete([CLUSTER_KEY])
        before = await keys(other.store)
        mixed = Cluster()
        mixed.kv, mixed.store = mine.kv, other.store
        for force, typed in ((False, None), (True, None), (True, cluster_id)):
            report = await mixed.fsck(repair=True, force=force, cluster_id=typed)
            assert report.of_kind(FindingKind.OBJECT_FOREIGN)
            (told,) = report.of_kind(FindingKind.CLUSTER_FILE)
            assert "another cluster" in told.detail
            assert "mount the folder" in told.advice
            assert not any("streamlog recover" in finding.advice for finding in report.findings)
            assert await keys(other.store) == before
        async with mine.node():
            pass
        assert "wrote cluster.json" in (await other.fsck(repair=True)).repaired
        async with other.node() as engine:
            assert (await partition(engine, "t")).high_watermark == 21

    run(scenario)


def test_a_store_that_has_foreign_objects_keeps_them_also_with_a_cluster_file() -> None:
    """That of the metadata's cluster, which somebody copied to the wrong place."""

    async def scenario() -> None:
        mine, other = await two_clusters(checkpoint=False)
        own = bytes(await mine.store.get(CLUSTER_KEY))
        await other.store.put(CLUSTER_KEY, [own])
        before = await keys(other.store)
        mixed = Cluster()
        mixed.kv, mixed.store = mine.kv, other.store
        report = await mixed.fsck(repair=True, force=True)
        assert report.repaired == [
            "deleted nothing: this is probably not the store of this cluster"
        ]
        assert await keys(other.store) == before
        with pytest.raises(Corrupt, match="no objects of this cluster"):
            await rebuild(mixed)

    run(scenario)


@pytest.mark.parametrize("newer_objects", [False, True])
@pytest.mark.parametrize("recoveries", [1, 2])
def test_metadata_that_a_recovery_replaced_gets_no_cluster_file_back(
    newer_objects: bool, recoveries: int
) -> None:
    """The file is lost, which had fenced the old metadata."""

    async def scenario() -> None:
        cluster = Cluster()
        await filled(cluster, checkpoint=True)
        for _ in range(recoveries):
            old, cluster.kv = cluster.kv, MemoryKVStore(cluster.clock)
            await recovered(cluster, grace_ms=0)
        if newer_objects:
            async with cluster.node(crash=True) as engine:
                await produce(await partition(engine, "t"), b"b")
        new, cluster.kv = cluster.kv, old
        with pytest.raises(LineageFenced):
            await cluster.fsck()
        await cluster.store.delete([CLUSTER_KEY])
        before = await keys(cluster.store)
        cluster_id = (await cluster.fsck()).cluster_id
        for typed in (None, cluster_id):
            report = await cluster.fsck(repair=True, force=True, cluster_id=typed)
            assert report.of_kind(FindingKind.OBJECT_NEWER)
            (told,) = report.of_kind(FindingKind.CLUSTER_FILE)
            assert "put the newer metadata back" in told.advice
            assert await keys(cluster.store) == before
        cluster.kv = new
        assert "wrote cluster.json" in (await cluster.fsck(repair=True)).repaired
        async with cluster.node() as engine:
            assert (await partition(engine, "t")).high_watermark == 1 + newer_objects
        cluster.kv = old
        with pytest.raises(LineageFenced):
            await cluster.fsck()

    run(scenario)


def test_an_old_copy_of_the_cluster_file_is_not_raised_to_metadata_that_was_replaced() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        await filled(cluster, checkpoint=True)
        first = bytes(await cluster.store.get(CLUSTER_KEY))
        for _ in range(2):
            old, cluster.kv = cluster.kv, MemoryKVStore(cluster.clock)
            await recovered(cluster, grace_ms=0)
        new, cluster.kv = cluster.kv, old
        await cluster.store.put(CLUSTER_KEY, [first])
        report = await cluster.fsck(repair=True)
        assert report.of_kind(FindingKind.CLUSTER_FILE)
        assert bytes(await cluster.store.get(CLUSTER_KEY)) == first
        cluster.kv = new
        assert "into cluster.json, an older copy" in "".join(
            (await cluster.fsck(repair=True)).repaired
        )
        async with cluster.node() as engine:
            assert (await partition(engine, "t")).high_watermark == 1

    run(scenario)


def test_where_nothing_proves_the_store_a_lost_cluster_file_takes_the_cluster_id() -> None:
    """Metadata without topics names no object."""

    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node():
            pass
        cluster.store = MemoryObjectStore(cluster.clock)
        report = await cluster.fsck(repair=True, force=True)
        (told,) = report.of_kind(FindingKind.CLUSTER_FILE)
        assert told.severity is Severity.ERROR
        assert "mount the folder" in told.advice
        assert not await keys(cluster.store)
        with pytest.raises(Invalid, match="not other"):
            await cluster.fsck(repair=True, cluster_id="other")
        report = await cluster.fsck(repair=True, cluster_id=report.cluster_id)
        assert "wrote cluster.json" in report.repaired
        async with cluster.node():
            pass

    run(scenario)


def test_a_run_that_writes_the_cluster_file_deletes_nothing() -> None:
    """The next one does: it has the file to go by."""

    async def scenario() -> None:
        cluster = Cluster()
        await filled(cluster, checkpoint=True)
        (stray,) = (await cluster.store.list("checkpoint/")).objects
        content = bytes(await cluster.store.get(stray.key))
        async with cluster.node() as engine:
            await produce(await partition(engine, "t"), b"b")
            await engine.metadata.checkpoint()
        await cluster.store.put(stray.key, [content])
        await cluster.store.delete([CLUSTER_KEY])
        report = await cluster.fsck(repair=True)
        assert report.repaired == [
            "wrote cluster.json",
            "deleted nothing: the store had no cluster.json",
        ]
        assert stray.key in await keys(cluster.store)
        assert (await cluster.fsck(repair=True)).repaired == ["deleted 1 checkpoint files"]

    run(scenario)


def test_a_checkpoint_file_that_tells_nothing_leaves_it_open_whose_the_store_is() -> None:
    """It may be that of a recovery, whose end is damaged."""

    async def scenario() -> None:
        cluster = Cluster()
        await filled(cluster, checkpoint=True)
        await cluster.store.put("checkpoint/0.1/2", [b"?"])
        await cluster.store.delete([CLUSTER_KEY])
        report = await cluster.fsck(repair=True)
        assert CLUSTER_KEY not in await keys(cluster.store)
        report = await cluster.fsck(repair=True, cluster_id=report.cluster_id)
        assert "wrote cluster.json" in report.repaired

    run(scenario)
