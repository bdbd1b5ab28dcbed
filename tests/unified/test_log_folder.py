"""A node's log folder: whose it is, which one it is, and what becomes of one partition's faults."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from streamlog.client.aio import Admin, Producer
from streamlog.errors import (
    Corrupt,
    DataInUse,
    DiskFull,
    ForeignCluster,
    StoreUnavailable,
    StreamlogError,
    Unavailable,
)
from streamlog.format.kafka_files.checkpoints import decode_offsets
from streamlog.format.kafka_files.names import LOG_STARTS, RECOVERY_POINTS
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.config import LogConfig
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.log_factory import TopicIdentity
from streamlog.log.api.metrics import LogMetrics
from streamlog.log.api.topic_config import parse
from streamlog.model.partition import TopicPartition
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.runtime.disk.tree import FolderTree
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.basic_kv import BasicKV
from streamlog.testing.clocks import ManualClock
from streamlog.testing.logs.log_conformance import append, encoded, read, refused
from streamlog.testing.torn_folder import TornTree
from streamlog.testing.torn_media import DiskFault
from streamlog.unified.disk.files import read_file
from streamlog.unified.folder_record import STAMP
from streamlog.unified.log_folder import FolderOwner, LogFolder
from streamlog.unified.unified_logs import UnifiedLogFactory
from tests.support.running_node import running_node
from tests.unified.harness import OWNER, HeldOffload, unified_log


class Folder:
    """A log folder with one topic of two partitions."""

    def __init__(self, tree: FolderTree, kv: BasicKV, owner: FolderOwner = OWNER) -> None:
        self.tree, self.kv, self.owner = tree, kv, owner
        self.offload = HeldOffload()
        self.failures: list[AbstractLog] = []
        self.random = SeededRandom(4)

    async def open(self, *, accepts_data_loss: bool = False) -> LogFolder:
        metrics = LogMetrics(CollectorRegistry())
        environment = LogEnvironment(ManualClock(), self.random, LogConfig(), metrics, self.offload)
        self.folder = await LogFolder.open(
            self.tree,
            self.owner,
            environment,
            self.offload,
            kv=self.kv,
            accepts_data_loss=accepts_data_loss,
        )
        self.factory = UnifiedLogFactory(self.folder)
        return self.folder

    async def create(self) -> list[int]:
        topic = TopicIdentity("t", self.random.uuid(), "attempt")
        self.handles = await self.factory.create(topic, [0, 1], parse({}))
        return self.handles

    async def log(self, number: int) -> AbstractLog:
        partition = TopicPartition("t", number)
        return await self.factory.open(
            partition, self.handles[number], parse({}), lambda log, _: self.failures.append(log)
        )


@asynccontextmanager
async def filled(tree: FolderTree, kv: BasicKV) -> AsyncIterator[Folder]:
    """Partition 0 has a record, and everything is closed."""
    made = Folder(tree, kv)
    await made.open()
    await made.create()
    log = await made.log(0)
    await append(log, encoded([b"kept"]))
    await log.close()
    await made.folder.close()
    yield made


def test_another_folder_and_an_older_copy_are_refused(tmp_path: Path) -> None:
    async def body() -> None:
        root, copy = tmp_path / "logs", tmp_path / "copy"
        async with filled(SystemTree(root), BasicKV()) as made:
            shutil.copytree(root, copy)
            await made.open()
            log = await made.log(0)
            await append(log, encoded([b"newer"]))
            await log.close()
            await made.folder.close()
            assert made.folder.alarm is None
            for place, says in ((copy, "older copy"), (tmp_path / "new", "is another one")):
                made.tree = SystemTree(place)
                folder = await made.open()
                assert folder.alarm is None, "nobody has asked for a partition"
                if place == copy:
                    error = await refused(StoreUnavailable, made.log(0))
                    assert says in str(error)
                    assert says in (folder.alarm or "")
                else:
                    assert says in (folder.doubt or "")
                await folder.close()
            # What is there is taken on request, and is the node's folder from then on.
            made.tree = SystemTree(copy)
            await made.open(accepts_data_loss=True)
            assert [one[3] for one in await read(await made.log(0))] == [b"kept"]
            await made.folder.kill()
            made.tree = SystemTree(root)
            await made.open()
            assert "older copy" in str(await refused(StoreUnavailable, made.log(0)))

    asyncio.run(body())


@pytest.mark.parametrize("data", [b"", b"two\n", b"9" * 40, b"\xff\xfe"])
def test_a_damaged_stamp_doubts_the_folder_and_ends_no_node(tmp_path: Path, data: bytes) -> None:
    """Topics of the other kind need nothing of this folder."""

    async def body() -> None:
        async with filled(SystemTree(tmp_path), BasicKV()) as made:
            (tmp_path / STAMP).write_bytes(data)
            folder = await made.open()
            assert "older copy" in str(await refused(StoreUnavailable, made.log(0)))
            await folder.kill()
            await made.open(accepts_data_loss=True)
            assert [one[3] for one in await read(await made.log(0))] == [b"kept"]

    asyncio.run(body())


def test_a_partition_that_is_missing_or_shorter_is_refused_and_the_other_is_there(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        root = tmp_path / "logs"
        async with filled(SystemTree(root), BasicKV()) as made:
            segment = root / "t-0" / "00000000000000000000.log"
            data = segment.read_bytes()
            segment.write_bytes(data[:-1])
            await made.open()
            error = await refused(Corrupt, made.log(0))
            assert "offsets 0 to 0 are lost" in str(error)
            assert segment.read_bytes() == data[:-1], "nothing was cut"
            assert (await made.log(1)).log_end_offset == 0
            await made.folder.kill()
            await made.open(accepts_data_loss=True)
            assert (await made.log(0)).log_end_offset == 0
            await made.folder.kill()
            shutil.rmtree(root / "t-1")
            await made.open()
            assert "has no folder" in str(await refused(StoreUnavailable, made.log(1)))
            assert await made.factory.is_there(made.handles[1]), "it may come back"

    asyncio.run(body())


def test_a_folder_of_another_cluster_or_node_is_refused(tmp_path: Path) -> None:
    async def body() -> None:
        async with filled(SystemTree(tmp_path), BasicKV()) as made:
            for owner in (FolderOwner("other", 1), FolderOwner("cluster", 2)):
                made.owner = owner
                error = await refused(ForeignCluster, made.open())
                assert "topic adopt" in str(error)

    asyncio.run(body())


@pytest.mark.parametrize("is_put_aside", [False, True])
def test_a_folder_without_partitions_becomes_the_nodes(tmp_path: Path, is_put_aside: bool) -> None:
    """A dead node's WAL is uploaded in its folder by one of another identity."""

    async def body() -> None:
        first = Folder(SystemTree(tmp_path), BasicKV())
        directory_id = (await first.open()).directory_id
        await first.folder.close()
        if is_put_aside:
            (tmp_path / "t-0.0123-stray").mkdir()
        second = Folder(SystemTree(tmp_path), BasicKV(), FolderOwner("other", 2))
        second.random = SeededRandom(5)
        if is_put_aside:
            await refused(ForeignCluster, second.open())
            return
        assert (await second.open()).directory_id != directory_id
        await second.create()
        await append(await second.log(0), encoded([b"ours"]))
        await second.folder.close()
        await refused(ForeignCluster, first.open())

    asyncio.run(body())


@pytest.mark.parametrize("fault", [DiskFault.IO_ERROR, DiskFault.FULL])
def test_a_fault_of_one_partition_ends_that_one_alone(fault: DiskFault) -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(2))
        async with filled(tree, BasicKV()) as made:
            await made.open()
            first, second = await made.log(0), await made.log(1)
            tree.open("t-0").plan_faults = lambda *_: fault
            error = await refused(Unavailable, append(first, encoded([b"a"])))
            assert isinstance(error, DiskFull) == (fault is DiskFault.FULL)
            assert made.failures == [first]
            await refused(StreamlogError, first.append(encoded([b"b"])))
            await append(second, encoded([b"c"]))
            tree.open("t-0").plan_faults = None
            await first.close()
            again = await made.log(0)
            assert [one[3] for one in await read(again)] == [b"kept"]
            await append(again, encoded([b"d"]))
            assert [one[3] for one in await read(second)] == [b"c"]

    asyncio.run(body())


def test_a_log_start_that_cannot_be_written_keeps_no_other_partition_closed() -> None:
    """The disk is full: what is there can be read."""

    async def body() -> None:
        tree = TornTree(SeededRandom(2))
        async with filled(tree, BasicKV()) as made:
            await made.open()
            first, second = await made.log(0), await made.log(1)
            await append(first, encoded([b"a"]))
            await append(second, encoded([b"c"]))
            await second.close()
            tree.plan_faults(
                lambda _, name: DiskFault.FULL if name.startswith(LOG_STARTS) else None
            )
            await refused(DiskFull, first.delete_records(1))
            second = await made.log(1)
            assert [one[3] for one in await read(second)] == [b"c"]
            await first.close()
            first = await made.log(0)
            assert [one[3] for one in await read(first)] == [b"kept", b"a"]
            tree.plan_faults(None)
            assert await first.delete_records(1) == 1

    asyncio.run(body())


def test_a_write_that_does_not_end_is_told_and_its_callers_are_let_go() -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(2))
        async with unified_log(lambda: tree) as t:
            assert t.folder.progress(10.0) is None
            t.hold()
            waits = [await t.log.append(encoded([b"%d" % n])) for n in range(3)]
            await asyncio.sleep(0)
            due = t.folder.progress(10.0)
            assert due is not None
            assert "t-0" in due.waits_for
            assert t.folder.progress(10.0) == due, "it has not moved"
            killing = asyncio.ensure_future(t.log.kill())
            done = await asyncio.gather(*waits, return_exceptions=True)
            assert all(isinstance(one, StreamlogError) for one in done)
            t.release()
            await killing
            await t.open()

    asyncio.run(body())


def test_two_nodes_do_not_share_a_folder(tmp_path: Path) -> None:
    async def body() -> None:
        logs = str(tmp_path / "logs")
        async with running_node(data=str(tmp_path / "a"), log_dir=logs) as node:
            with pytest.raises(DataInUse):
                async with running_node(data=str(tmp_path / "b"), log_dir=logs):
                    pass
            async with Admin(node.banner.grpc) as admin:
                await admin.create_topic("t", 1, {"log.type": "unified"})
                async with Producer(node.banner.grpc) as producer:
                    assert (await (await producer.send("t", b"v"))).offset == 0
        with pytest.raises(StreamlogError, match="several"):
            async with running_node(data=str(tmp_path / "a"), log_dir="/a,/b"):
                pass

    asyncio.run(body())


def test_partitions_that_roll_together_have_their_recovery_points_written_down() -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(1))
        async with unified_log(lambda: tree) as t:
            points = {TopicPartition("one", 0): 10, TopicPartition("two", 0): 20}
            for partition, offset in points.items():
                t.folder.recovery_points.note(partition, offset)
                t.folder.save_soon()
                await asyncio.sleep(0)  # The first one's is being written.
            for _ in range(20):
                await asyncio.sleep(0)
            assert decode_offsets("", read_file(tree.top, RECOVERY_POINTS)) == points

    asyncio.run(body())


def test_orphans_of_a_name_are_looked_for_while_a_topic_of_it_is_created() -> None:
    """The folder that is found is the orphan's, and the one that is there later the new topic's."""

    async def body() -> None:
        made = Folder(TornTree(SeededRandom(7)), BasicKV())
        await made.open()
        await made.create()
        await made.folder.close()
        await made.open()  # Another process, which knows nothing of that creation.

        async def registered() -> set[int]:
            return set(await made.create())

        await made.factory.delete_orphans(set, registered)
        log = await made.log(0)
        await append(log, encoded([b"kept"]))
        assert [one[3] for one in await read(log)] == [b"kept"]
        await log.close()

    asyncio.run(body())


def test_a_creation_that_was_cut_off_leaves_no_folder_behind_the_next() -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(7))
        made = Folder(tree, BasicKV())
        await made.open()
        await made.create()
        await made.create()
        assert tree.folders() == ["t-0", "t-1"]
        log = await made.log(0)
        await append(log, encoded([b"kept"]))
        await log.close()
        await made.create()
        assert [name for name in tree.folders() if name.endswith("-stray")], "it had a record"

    asyncio.run(body())


class _UnwillingTree(TornTree):
    """Its next rename fails."""

    is_unwilling = False

    def rename(self, old: str, new: str) -> None:
        if self.is_unwilling:
            self.is_unwilling = False
            raise OSError(errno.EIO, "injected disk fault", old)
        super().rename(old, new)


def test_a_deletion_that_failed_is_made_by_the_next_call() -> None:
    async def body() -> None:
        tree = _UnwillingTree(SeededRandom(7))
        made = Folder(tree, BasicKV())
        await made.open()
        handles = await made.create()
        log = await made.log(0)
        await append(log, encoded([b"v"]))
        await log.close()
        tree.is_unwilling = True
        await refused(StoreUnavailable, made.factory.remove(handles[0]))
        assert tree.folders() == ["t-0", "t-1"]
        for _ in range(2):
            await made.factory.remove(handles[0])
            assert tree.folders() == ["t-1"]

    asyncio.run(body())


def test_a_deletion_of_a_folder_that_is_gone_has_ended() -> None:
    async def body() -> None:
        tree = TornTree(SeededRandom(7))
        made = Folder(tree, BasicKV())
        await made.open()
        handles = await made.create()
        tree.remove("t-0")
        await made.factory.remove(handles[0])
        assert made.folder.topic_id_of(TopicPartition("t", 0)) is None

    asyncio.run(body())
