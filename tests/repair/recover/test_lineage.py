"""A node still runs on the old metadata while a recovery or restore makes newer metadata.

The old node deletes nothing that the newer metadata needs, acknowledges nothing that is lost
unseen, and ends with an error that names both lineages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from streamlog.compaction.collect.collector import CollectorConfig
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.engine.config import ReadConfig, StreamEngineConfig
from streamlog.errors import Conflict, Invalid, LineageFenced, OutcomeUnknown, StreamlogError
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.metadata.config import MetadataConfig
from streamlog.model.stream import Stream
from streamlog.objectstore.cluster.guard import Lineage, encode, read_cluster
from streamlog.objectstore.interface import ObjectInfo, ObjectStore
from streamlog.objectstore.keys import CLUSTER_KEY
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.repair.findings import Severity
from streamlog.repair.recover.recover import RecoverOptions, recover
from streamlog.runtime.buffers import Buffer
from streamlog.wiring import OpenEngine, open_object_store
from tests.repair.cluster import Cluster, append, backed_up, read, recovered, restored, run
from tests.support.metadata_insides import checkpointer_of, follower_of
from tests.support.s3 import S3Tests
from tests.support.slow_store import SlowStore

NEVER = 1 << 30
CONFIG = StreamEngineConfig(
    collector=CollectorConfig(deletion_delay_ms=0, collect_interval_ms=NEVER),
    read=ReadConfig(tail_cache_bytes=0),
    metadata=MetadataConfig(lineage_check_interval_ms=NEVER),
    compaction=CompactionConfig(
        compaction_process="inline", compaction_interval_ms=NEVER, small_objects_min=4
    ),
)
LOOKS = replace(CONFIG, metadata=MetadataConfig(lineage_check_interval_ms=100))
COUNT = 12


def collect(engine: OpenEngine) -> Awaitable[None]:
    return engine.collector.tick()


async def fill(engine: OpenEngine) -> Stream:
    stream = await engine.streams.create_and_open_stream()
    for number in range(COUNT):
        await append(stream, b"record %d" % number)
    return stream


async def compact(engine: OpenEngine) -> None:
    """The node deletes next all objects that held the stream's records before."""
    assert engine.compactor is not None
    await engine.compactor.compact_all()
    await engine.metadata.checkpoint()


async def holds(cluster: Cluster, stream_id: int) -> dict[int, bytes]:
    async with cluster.node(2) as engine:
        return await read(await engine.streams.open_stream(stream_id))


async def keys(store: ObjectStore, prefix: str = "") -> set[str]:
    return {info.key for info in (await store.list(prefix)).objects}


@asynccontextmanager
async def clusters(kind: str, tmp_path: Path, s3: S3Tests | None) -> AsyncIterator[Cluster]:
    """A cluster over a store of that kind."""
    cluster = Cluster(config=CONFIG)
    if kind != "memory":
        url = f"local://{tmp_path}/objects" if s3 is None else s3.new_url()
        cluster.store = await open_object_store(
            url, CONFIG, cluster.clock, cluster.random, cluster.offload, CollectorRegistry()
        )
    try:
        yield cluster
    finally:
        await cluster.store.close()
        await cluster.offload.close()


async def _the_old_node_ends(cluster: Cluster, how: str) -> None:
    old_kv = cluster.kv
    async with cluster.node() as old:
        stream = await fill(old)
        content = await backed_up(cluster)
        cluster.lose_metadata()
        await (recovered(cluster) if how == "recover" else restored(cluster, content))
        before = await keys(cluster.store)
        async with cluster.node(2) as new:
            taken = await new.streams.open_stream(stream.stream_id)
            assert len(await read(taken)) == COUNT
            await append(taken, b"new")
            await compact(old)
            with pytest.raises(LineageFenced) as raised:
                await collect(old)
            assert (raised.value.store_lineage, raised.value.meta_lineage) == (1, 0)
            assert before <= await keys(cluster.store)
        with pytest.raises(LineageFenced):
            await checkpointer_of(old.metadata).sweep_files()
        assert before <= await keys(cluster.store)
    payloads = await holds(cluster, stream.stream_id)
    assert [payloads[n] for n in range(COUNT + 1)] == [
        *(b"record %d" % number for number in range(COUNT)),
        b"new",
    ]
    cluster.kv, newer = old_kv, cluster.kv
    before = await keys(cluster.store)
    with pytest.raises(LineageFenced, match="back it up and restore it"):
        async with cluster.node():
            raise AssertionError("a node started on metadata that was overtaken")
    with pytest.raises(LineageFenced):
        await cluster.fsck(repair=True, force=True)
    assert await keys(cluster.store) == before
    cluster.kv = newer
    # What the old node stored since is waste, and no more than that.
    report = await cluster.fsck()
    assert not report.by_severity[Severity.ERROR], report.findings


@pytest.mark.parametrize("how", ["recover", "restore"])
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_the_old_node_deletes_nothing_and_ends(how: str, kind: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with clusters(kind, tmp_path, None) as cluster:
            await _the_old_node_ends(cluster, how)

    run(scenario)


def test_the_old_node_deletes_nothing_on_s3_and_ends(s3: S3Tests, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with clusters("s3", tmp_path, s3) as cluster:
            await _the_old_node_ends(cluster, "recover")

    run(scenario)


def test_force_deletes_nothing_that_newer_metadata_needs() -> None:
    async def scenario() -> None:
        forced = replace(CONFIG.collector, force=True)
        cluster = Cluster(config=replace(CONFIG, collector=forced))
        async with cluster.node() as old:
            await fill(old)
            await compact(old)
            cluster.lose_metadata()
            await recovered(cluster)
            before = await keys(cluster.store)
            with pytest.raises(LineageFenced):
                await collect(old)
            assert await keys(cluster.store) == before

    run(scenario)


def test_a_lineage_that_is_raised_during_a_run_ends_it() -> None:
    """Between two requests of one run; the guard asked before the first."""

    class Slow(MemoryObjectStore):
        during: Callable[[], Awaitable[object]] | None = None

        async def delete(self, keys: Sequence[str]) -> None:
            await super().delete(keys)
            if self.during is not None:
                during, self.during = self.during, None
                await during()

    async def scenario() -> None:
        one_by_one = replace(CONFIG.collector, delete_batch_max=1)
        cluster = Cluster(config=replace(CONFIG, collector=one_by_one))
        cluster.store = store = Slow(cluster.clock)
        async with cluster.node() as old:
            stream = await fill(old)
            await compact(old)
            cluster.lose_metadata()
            store.during = lambda: recovered(cluster)
            before = await keys(store, "data/")
            with pytest.raises(LineageFenced):
                await collect(old)
            assert len(before - await keys(store)) == 1
        assert len(await holds(cluster, stream.stream_id)) == COUNT
        await cluster.is_clean()

    run(scenario)


@pytest.mark.parametrize("is_idle", [False, True])
def test_an_overtaken_node_stops_by_itself(is_idle: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The end is expected: an idle node logs one line for it, and no traceback."""

    async def scenario() -> None:
        cluster = Cluster(config=LOOKS)
        async with cluster.node() as old:
            stream = await fill(old)
            cluster.lose_metadata()
            await recovered(cluster)
            failure: StreamlogError | None = None
            if is_idle:
                failure = await old.wait_stopped()
            while failure is None:
                try:
                    await append(stream, b"more")
                except StreamlogError as error:
                    failure = error
            assert isinstance(failure, LineageFenced | OutcomeUnknown), failure
            stopped = await old.wait_stopped()
            assert isinstance(stopped, LineageFenced)
            assert "lineage 1" in str(stopped)
            assert "lineage 0" in str(stopped)
            with pytest.raises(LineageFenced):
                await append(stream, b"never")

    run(scenario)
    lines = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert not [one for one in lines if one.exc_info]
    if is_idle:
        [line] = lines
        assert "LineageFenced: " in line.getMessage()
        assert "Stop this node" in line.getMessage()


@pytest.mark.parametrize("content", [b"", b"[1]", b"[" * 4000, b'{"format_version": 1}', b"\xff"])
def test_a_damaged_cluster_json_ends_no_node_and_stops_deletion(content: bytes) -> None:
    async def scenario() -> None:
        cluster = Cluster(config=CONFIG)
        async with cluster.node() as engine:
            stream = await fill(engine)
            await compact(engine)
            whole = await cluster.store.get(CLUSTER_KEY)
            await cluster.store.put(CLUSTER_KEY, (content,))
            before = await keys(cluster.store)
            await engine.metadata.lineage.watch()
            await collect(engine)
            assert await keys(cluster.store) == before
            await append(stream, b"goes on")
            await cluster.store.put(CLUSTER_KEY, (whole,))
            await collect(engine)
            assert not before <= await keys(cluster.store)

    run(scenario)


def test_appends_that_an_old_node_acknowledged_are_not_lost_silently() -> None:
    """The old node goes on until it looks; the recovery waits, and reports its new objects."""

    async def scenario() -> None:
        raised = asyncio.Event()

        class Telling(MemoryObjectStore):
            async def put_if_match(
                self, key: str, parts: Sequence[Buffer], etag: str
            ) -> ObjectInfo:
                info = await super().put_if_match(key, parts, etag)
                raised.set()
                return info

        cluster = Cluster(config=LOOKS)
        cluster.store = Telling(cluster.clock)
        async with cluster.node() as old:
            stream = await fill(old)
            acknowledged = COUNT
            cluster.lose_metadata()

            async def go_on() -> None:
                nonlocal acknowledged
                await raised.wait()
                try:
                    while True:
                        await append(stream, b"after the lineage was raised")
                        acknowledged += 1
                except StreamlogError:
                    return

            going_on = asyncio.create_task(go_on())
            with pytest.raises(Conflict, match="begin again"):
                await recover(
                    cluster.kv,
                    cluster.store,
                    clock=cluster.clock,
                    random=cluster.random,
                    offload=cluster.offload,
                    options=RecoverOptions(grace_ms=300),
                )
            await going_on
            assert isinstance(await old.wait_stopped(), LineageFenced)
        assert acknowledged > COUNT
        await recovered(cluster)
        assert len(await holds(cluster, stream.stream_id)) >= acknowledged
        claimed = await read_cluster(cluster.store)
        assert claimed is not None
        assert claimed.lineage.number == 2

    run(scenario)


class _Killed(Exception):
    pass


class _Dying(MemoryObjectStore):
    """Ends the recovery before or after it replaces cluster.json."""

    when = ""

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> ObjectInfo:
        if self.when == "before":
            raise _Killed
        info = await super().put_if_match(key, parts, etag)
        if self.when == "after":
            raise _Killed
        return info


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("how", ["recover", "restore"])
def test_a_recovery_that_dies_at_the_lineage_is_done_again(how: str, when: str) -> None:
    async def scenario() -> None:
        cluster = Cluster(config=CONFIG)
        cluster.store = store = _Dying(cluster.clock)
        async with cluster.node() as old:
            stream = await fill(old)
            content = await backed_up(cluster)
            await compact(old)
            old_kv = cluster.kv
            cluster.lose_metadata()
            store.when = when
            with pytest.raises(_Killed):
                await (recovered(cluster) if how == "recover" else restored(cluster, content))
            store.when = ""
            if when == "before":
                # Nothing has happened: the old metadata is the right one, and deletes.
                before = await keys(store, "data/")
                await collect(old)
                assert len(before - await keys(store)) == COUNT
            else:
                with pytest.raises(LineageFenced):
                    await collect(old)
        if when == "after":
            cluster.kv, empty = old_kv, cluster.kv
            with pytest.raises(LineageFenced, match="cut short, run it again"):
                async with cluster.node():
                    raise AssertionError
            cluster.kv = empty
        await (recovered(cluster) if how == "recover" else restored(cluster, content))
        assert len(await holds(cluster, stream.stream_id)) == COUNT
        await cluster.is_clean()

    run(scenario)


def test_the_old_metadata_comes_back_by_a_backup_of_it() -> None:
    """After a recovery that was not wanted."""

    async def scenario() -> None:
        cluster = Cluster(config=CONFIG)
        async with cluster.node() as old:
            stream = await fill(old)
        old_kv = cluster.kv
        cluster.lose_metadata()
        await recovered(cluster)
        cluster.kv, unwanted = old_kv, cluster.kv
        await restored(cluster, await backed_up(cluster), overwrite=True)
        assert len(await holds(cluster, stream.stream_id)) == COUNT
        await cluster.is_clean()
        cluster.kv = unwanted
        with pytest.raises(LineageFenced) as raised:
            await holds(cluster, stream.stream_id)
        assert (raised.value.store_lineage, raised.value.meta_lineage) == (2, 1)

    run(scenario)


@pytest.mark.parametrize("is_one_kv", [False, True])
def test_one_of_two_concurrent_recoveries_succeeds(is_one_kv: bool) -> None:
    async def scenario() -> None:
        cluster = Cluster(config=CONFIG)
        async with cluster.node() as engine:
            stream = await fill(engine)
        first, second = MemoryKVStore(cluster.clock), MemoryKVStore(cluster.clock)
        if is_one_kv:
            second = first

        async def into(kv: MemoryKVStore) -> object:
            return await recover(
                kv,
                cluster.store,
                clock=cluster.clock,
                random=cluster.random,
                offload=cluster.offload,
            )

        outcomes = await asyncio.gather(into(first), into(second), return_exceptions=True)
        failed = [one for one in outcomes if isinstance(one, BaseException)]
        assert all(isinstance(one, Conflict) for one in failed), failed
        assert len(failed) == 1
        cluster.kv = second if isinstance(outcomes[0], BaseException) else first
        assert len(await holds(cluster, stream.stream_id)) == COUNT

    run(scenario)


@pytest.mark.parametrize("is_one_kv", [False, True])
def test_a_recovery_that_another_one_overtook_makes_no_usable_metadata(is_one_kv: bool) -> None:
    """The first one pauses behind its lineage; the second one is whole meanwhile."""

    async def scenario() -> None:
        cluster = Cluster(config=CONFIG)
        async with cluster.node() as engine:
            stream = await fill(engine)
        cluster.lose_metadata()
        first = cluster.kv
        second = first if is_one_kv else MemoryKVStore(cluster.clock)
        store, paused, goes_on = cluster.store, asyncio.Event(), asyncio.Event()

        class Pausing(SlowStore):
            async def put_if_match(
                self, key: str, parts: Sequence[Buffer], etag: str
            ) -> ObjectInfo:
                info = await super().put_if_match(key, parts, etag)
                paused.set()
                await goes_on.wait()
                return info

        cluster.store = Pausing(store)
        overtaken = asyncio.create_task(recovered(cluster))
        await paused.wait()
        cluster.store, cluster.kv = store, second
        await recovered(cluster)
        goes_on.set()
        with pytest.raises(Conflict):
            await overtaken
        assert len(await holds(cluster, stream.stream_id)) == COUNT
        await cluster.is_clean()

    run(scenario)


@pytest.mark.parametrize("answer", ["ignored", "refused", "lost"])
def test_a_store_without_if_match(answer: str) -> None:
    """One that ignores the header, one that refuses it, and an answer that was lost."""

    class Odd(MemoryObjectStore):
        async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> ObjectInfo:
            if answer == "refused":
                raise Invalid("the header If-Match is not implemented")
            info = await super().put(key, parts)
            if answer == "lost":
                raise OutcomeUnknown("no answer")
            return info

    async def scenario() -> None:
        cluster = Cluster(config=CONFIG)
        cluster.store = Odd(cluster.clock)
        async with cluster.node() as old:
            stream = await fill(old)
            await compact(old)
            cluster.lose_metadata()
            await recovered(cluster)
            with pytest.raises(LineageFenced):
                await collect(old)
        assert len(await holds(cluster, stream.stream_id)) == COUNT

    run(scenario)


def test_on_a_store_that_ignores_if_match_the_last_of_two_racers_wins_and_the_other_is_told() -> (
    None
):
    class Racing(MemoryObjectStore):
        is_raced = False

        async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> ObjectInfo:
            info = await super().put(key, parts)
            if not self.is_raced:
                self.is_raced = True
                stored = await read_cluster(self)
                assert stored is not None
                theirs = replace(stored, lineage=Lineage(stored.lineage.number, "ab" * 16))
                await super().put(key, (encode(theirs),))
            return info

    async def scenario() -> None:
        cluster = Cluster(config=CONFIG)
        cluster.store = Racing(cluster.clock)
        async with cluster.node() as engine:
            stream = await fill(engine)
        cluster.lose_metadata()
        with pytest.raises(Conflict, match="another recover or restore"):
            await recovered(cluster)
        await recovered(cluster)
        assert len(await holds(cluster, stream.stream_id)) == COUNT

    run(scenario)


@pytest.mark.parametrize("mend", ["start", "fsck", "fsck of a lost one"])
def test_an_old_copy_of_cluster_json_is_written_again(mend: str) -> None:
    """A node on old metadata would run as if that were the right one."""

    async def scenario() -> None:
        cluster = Cluster(config=CONFIG)
        async with cluster.node():
            pass
        old_copy, old_kv = bytes(await cluster.store.get(CLUSTER_KEY)), cluster.kv
        cluster.lose_metadata()
        await recovered(cluster)
        raised = await read_cluster(cluster.store)
        async with cluster.node(2) as new:
            await fill(new)
            await compact(new)
            await cluster.store.put(CLUSTER_KEY, (old_copy,))
            before = await keys(cluster.store)
            await collect(new)
            assert "old copy" in (await new.status()).alarms[0]
            assert await keys(cluster.store) == before
        if mend != "start":
            if mend == "fsck of a lost one":
                await cluster.store.delete([CLUSTER_KEY])
            assert not (await cluster.fsck()).is_clean
            await cluster.fsck(repair=True)
        else:
            async with cluster.node(2):
                pass
        written = await read_cluster(cluster.store)
        assert written == raised
        assert written is not None
        # No checkpoint was there to tell of them.
        assert not written.lineage.knows_deletions
        await cluster.is_clean()
        cluster.kv = old_kv
        with pytest.raises(LineageFenced):
            async with cluster.node():
                raise AssertionError

    run(scenario)


async def _with_the_newer_nodes_deletions(cluster: Cluster, old: OpenEngine) -> int:
    """Newer metadata's node compacts, deletes the inputs, writes and sweeps checkpoint files: what
    the old metadata names is gone. The stream's id."""
    stream = await fill(old)
    await compact(old)
    for number in range(COUNT):
        await append(stream, b"later %d" % number)
    await old.metadata.checkpoint()
    cluster.lose_metadata()
    await recovered(cluster)
    async with cluster.node() as new:
        await append(await new.streams.open_stream(stream.stream_id), b"new")
        await compact(new)
        await collect(new)
        await checkpointer_of(new.metadata).sweep_files()
        assert new.compactor is not None
    return stream.stream_id


@pytest.mark.parametrize("does", ["reads", "lists batches", "loads metadata", "checkpoints"])
def test_an_old_node_that_misses_files_names_the_lineage(does: str) -> None:
    """The newer metadata's node has deleted them, before the old one looked."""

    async def scenario() -> None:
        cluster = Cluster(config=CONFIG)
        async with cluster.node() as old:
            stream_id = await _with_the_newer_nodes_deletions(cluster, old)
            stream = await old.streams.open_stream(stream_id)
            await append(stream, b"more")
            doing: dict[str, Callable[[], Awaitable[object]]] = {
                "reads": lambda: read(stream),
                "lists batches": lambda: stream.attributes(0, COUNT),
                "loads metadata": follower_of(old.metadata)._reload,
                "checkpoints": old.metadata.checkpoint,
            }
            with pytest.raises(LineageFenced, match="lineage 1") as raised:
                await doing[does]()
            assert (raised.value.store_lineage, raised.value.meta_lineage) == (1, 0)

    run(scenario)
