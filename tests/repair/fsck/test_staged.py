"""Staged objects under fsck, and in a recovery from the store alone."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from streamlog.engine.config import StagingConfig
from streamlog.errors import Corrupt, OutcomeUnknown
from streamlog.log.staged_logs import ManifestEntry
from streamlog.metadata.interface import Tenure
from streamlog.model.batch import RecordBatch
from streamlog.model.partition import TopicPartition
from streamlog.model.stream import Stream
from streamlog.objectstore.keys import data_key
from streamlog.repair.bucket import Bucket, list_bucket
from streamlog.repair.findings import FindingKind, Severity
from streamlog.repair.fsck import fsck
from streamlog.wiring import OpenEngine
from tests.engine.harness import until
from tests.log.staging import contents, encoded, staged_of
from tests.repair.cluster import Cluster, append, partition, produce, read, recovered, run
from tests.repair.disk_cluster import CONFIG, DiskCluster
from tests.repair.remnants import lose_checkpoints


def test_fsck_knows_staged_and_attached_objects() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            await engine.logs.create_topic("t", 2)
            batches = {TopicPartition("t", n): encoded([b"a", b"b"]) for n in range(2)}
            await produce(await partition(engine, "t"), b"first")
            one = await staged_of(engine).stage("w", "1", batches)
            two = await staged_of(engine).stage("w", "2", batches)
            entry = ManifestEntry(one.staged.object_id, list(batches))
            await staged_of(engine).commit("w", 0, [entry])
            await produce(await partition(engine, "t"), b"last")
        report = await cluster.fsck()
        assert not report.by_severity[Severity.ERROR] + report.by_severity[Severity.WARNING], [
            str(one) for one in report.findings
        ]
        assert report.counts["staged_objects"] == 1
        await cluster.store.delete([data_key(two.staged.object_id)])
        (finding,) = [
            one for one in (await cluster.fsck()).findings if one.severity >= Severity.WARNING
        ]
        assert (finding.kind, finding.object_id) == (
            FindingKind.OBJECT_MISSING,
            two.staged.object_id,
        )

    run(scenario)


def test_fsck_beside_a_writer_that_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            stream = await engine.streams.create_and_open_stream()

            async def listed(*given: Any) -> Bucket:
                bucket = await list_bucket(*given)
                batches = {stream.stream_id: [RecordBatch(1, 1000, (b"a",))]}
                await engine.staging.stage("w", "1", batches)
                return bucket

            monkeypatch.setattr(fsck, "list_bucket", listed)
            report = await cluster.fsck()
            assert report.is_clean, [str(one) for one in report.findings]

    run(scenario)


def test_commits_come_back_from_the_bucket_alone() -> None:
    """And all that was appended behind it, whatever no checkpoint has."""

    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            await engine.logs.create_topic("t", 2)
            logs = [await partition(engine, "t", n) for n in range(2)]
            batches = {TopicPartition("t", n): encoded([b"a", b"b"]) for n in range(2)}
            await produce(logs[0], b"first")
            objects = [await staged_of(engine).stage("w", str(n), batches) for n in range(2)]
            entry = ManifestEntry(objects[0].staged.object_id, list(batches))
            await staged_of(engine).commit("w", 4, [entry])
            await produce(logs[0], b"behind it")
            unknown = await staged_of(engine).stage("w", "late", batches)
            expected = [await contents(log) for log in logs]
            assert [value for _, value in expected[0]] == [b"first", b"a", b"b", b"behind it"]
        cluster.lose_metadata()
        report = await recovered(cluster)
        (finding,) = [one for one in report.findings if one.kind is FindingKind.STAGED]
        assert finding.object_id == unknown.staged.object_id
        async with cluster.node() as engine:
            logs = [await partition(engine, "t", n) for n in range(2)]
            assert [await contents(log) for log in logs] == expected
            again = await staged_of(engine).commit("w", 4, [])
            assert again.was_committed
            # What a checkpoint knew to be staged can be committed yet.
            entry = ManifestEntry(objects[1].staged.object_id, list(batches))
            await staged_of(engine).commit("w", 5, [entry])
            assert [value for _, value in await contents(logs[1])] == [b"a", b"b"] * 2
        assert not (await cluster.fsck()).by_severity[Severity.ERROR]

    run(scenario)


async def lose_newest_checkpoint(cluster: Cluster, older: Mapping[str, bytes]) -> None:
    """Damages the newest, and puts the files of an older one back, as if they lay there still."""
    for info in (await cluster.store.list("checkpoint/")).objects:
        content = bytearray(await cluster.store.get(info.key))
        content[-20] ^= 1
        await cluster.store.put(info.key, [content])
    for key, whole in older.items():
        await cluster.store.put(key, [whole])


@pytest.mark.parametrize("left", ["nothing", "one from before", "one from before the commit"])
def test_a_commit_in_a_lost_checkpoint_stops_a_recovery(left: str) -> None:
    """It was acknowledged, and the object alone does not tell which offsets it has."""

    async def scenario() -> None:
        cluster = Cluster()

        async def checkpoint() -> dict[str, bytes]:
            await engine.metadata.checkpoint()
            files = (await cluster.store.list("checkpoint/")).objects
            return {info.key: bytes(await cluster.store.get(info.key)) for info in files}

        async with cluster.node(crash=True) as engine:
            await engine.logs.create_topic("t", 1)
            await produce(await partition(engine, "t"), b"first")
            older = await checkpoint()
            batches = {TopicPartition("t", 0): encoded([b"a", b"b"])}
            staged = (await staged_of(engine).stage("w", "1", batches)).staged
            if left == "one from before the commit":
                older = await checkpoint()
            await staged_of(engine).commit("w", 4, [ManifestEntry(staged.object_id, list(batches))])
        await lose_newest_checkpoint(cluster, older)
        if left == "nothing":
            await lose_checkpoints(cluster)
        cluster.lose_metadata()
        with pytest.raises(Corrupt, match="--accept-data-loss"):
            await recovered(cluster)
        report = await recovered(cluster, dry_run=True)
        (error,) = [one for one in report.findings if one.severity is Severity.ERROR]
        assert (error.kind, error.object_id) == (FindingKind.STAGED, staged.object_id)
        assert "may have been acknowledged" in error.detail

    run(scenario)


def checkpoints_held_up(engine: OpenEngine, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Gets one element for each that is asked for; none comes to its end."""
    asked: list[None] = []

    async def never() -> None:
        asked.append(None)
        await asyncio.Event().wait()

    monkeypatch.setattr(engine.metadata, "checkpoint", never)
    return asked


async def cut_off_before_its_checkpoint(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> int:
    """A commit to a stream, which is returned, by a node that crashes."""
    async with cluster.node(crash=True) as engine:
        stream = await engine.streams.create_and_open_stream()
        await append(stream, b"first")
        batches = {stream.stream_id: [RecordBatch(1, 1000, (b"staged",))]}
        one = await engine.staging.stage("w", "1", batches)
        asked = checkpoints_held_up(engine, monkeypatch)
        commit = asyncio.create_task(engine.staging.attach("w", 4, [one.object_id]))
        await until(lambda: bool(asked) or commit.done())
        assert not commit.done()
    with pytest.raises(OutcomeUnknown):
        await commit
    return stream.stream_id


async def goes_on_behind_it(stream: Stream) -> dict[int, bytes]:
    """The records that the partition has then, all of them acknowledged."""
    await append(stream, b"behind")
    expected = await read(stream)
    assert list(expected.values()) == [b"first", b"staged", b"behind"]
    return expected


async def comes_back(cluster: Cluster, stream_id: int, expected: dict[int, bytes]) -> None:
    """The records come back from the bucket alone."""
    cluster.lose_metadata()
    await recovered(cluster)
    async with cluster.node() as engine:
        assert await read(await engine.streams.open_stream(stream_id)) == expected


def test_a_start_after_a_cut_off_commit_writes_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        stream_id = await cut_off_before_its_checkpoint(cluster, monkeypatch)
        async with cluster.node(crash=True) as engine:
            stream = await engine.streams.open_stream(stream_id)
            expected = await goes_on_behind_it(stream)
        await comes_back(cluster, stream_id, expected)

    run(scenario)


def test_a_node_that_takes_over_after_a_cut_off_commit_writes_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(2, crash=True) as other:
            stream_id = await cut_off_before_its_checkpoint(cluster, monkeypatch)
            await other.metadata.seal(Tenure(1, 1), even_if_alive=True)
            stream = await other.streams.open_stream(stream_id)
            expected = await goes_on_behind_it(stream)
        await comes_back(cluster, stream_id, expected)

    run(scenario)


def test_a_repeated_commit_is_answered_when_a_checkpoint_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(crash=True) as engine:
            await engine.logs.create_topic("t", 1)
            batches = {TopicPartition("t", 0): encoded([b"a", b"b"])}
            one = await staged_of(engine).stage("w", "1", batches)
            entry = ManifestEntry(one.staged.object_id, list(batches))
            asked = checkpoints_held_up(engine, monkeypatch)
            commits = [asyncio.create_task(staged_of(engine).commit("w", 4, [entry]))]
            await until(lambda: bool(asked))
            commits.append(asyncio.create_task(staged_of(engine).commit("w", 4, [entry])))
            await until(lambda: len(asked) == 2 or commits[1].done())
            assert not commits[1].done()
        commits[1].cancel()
        await asyncio.gather(*commits, return_exceptions=True)

    run(scenario)


@pytest.mark.parametrize("crash", [False, True])
def test_with_a_wal_on_disk_the_bucket_alone_has_a_commit_soon(tmp_path: Path, crash: bool) -> None:
    """Though the WAL is lost, too: what was uploaded behind the commit is there with it."""

    async def scenario() -> None:
        cluster = DiskCluster(tmp_path)
        staging = StagingConfig(save_interval_ms=10 if crash else 10**9)
        cluster.config = dataclasses.replace(CONFIG, staging=staging)
        async with cluster.disk_node(crash=crash) as engine:
            stream = await engine.streams.create_and_open_stream()
            await append(stream, b"first")
            await attach_one(engine, stream)
            await append(stream, b"behind")
            await engine.drain()
            if crash:
                await until(lambda: not engine.metadata.has_unsaved_attach)
            # An orderly end waits for it, whatever the interval.
        await cluster.rebuild_metadata()
        async with cluster.node() as engine:
            payloads = await read(await engine.streams.open_stream(stream.stream_id))
            assert list(payloads.values()) == [b"first", b"staged", b"behind"]
            assert engine.staging.writer("w").last_epoch == 4

    run(scenario)


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_with_a_wal_on_disk_a_commit_that_no_checkpoint_has_is_lost_with_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_checkpoint: bool
) -> None:
    """The stream ends before it, and the report says what that may mean. With the WAL there, what
    was acknowledged behind it is not given up unseen."""

    async def scenario() -> None:
        cluster = DiskCluster(tmp_path)
        async with cluster.disk_node(crash=True) as engine:
            stream = await engine.streams.create_and_open_stream()
            await append(stream, b"first")
            await engine.drain()
            if has_checkpoint:
                await engine.metadata.checkpoint()
            checkpoints_held_up(engine, monkeypatch)
            await attach_one(engine, stream)
            await append(stream, b"uploaded")
            await engine.drain()
            await append(stream, b"in the WAL")
        cluster.lose_metadata()
        if not has_checkpoint:
            # What is missing may have been trimmed as well, and the commit acknowledged.
            with pytest.raises(Corrupt, match="2 findings say that data is lost"):
                await recovered(cluster)
        report = await recovered(cluster, accept_data_loss=not has_checkpoint)
        (tail,) = [one for one in report.findings if one.kind is FindingKind.UNACKNOWLEDGED_TAIL]
        assert tail.severity is (Severity.WARNING if has_checkpoint else Severity.ERROR)
        assert "with wal=disk" in str(tail)
        with pytest.raises(Corrupt, match="An acknowledged append is missing"):
            async with cluster.disk_node():
                pass
        async with cluster.disk_node(accept_data_loss=True) as engine:
            payloads = await read(await engine.streams.open_stream(stream.stream_id))
            assert list(payloads.values()) == [b"first"]

    run(scenario)


async def attach_one(engine: OpenEngine, stream: Stream) -> None:
    batches = {stream.stream_id: [RecordBatch(1, 1000, (b"staged",))]}
    one = await engine.staging.stage("w", "1", batches)
    await engine.staging.attach("w", 4, [one.object_id])
