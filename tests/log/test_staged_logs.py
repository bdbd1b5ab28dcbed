"""Staged commits to partitions of a real engine: offsets, batches, epochs, segments, times."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import streamlog
from streamlog.codec.batch import LOG_APPEND_TIME, BatchProducer, scan
from streamlog.engine.staging.client import EngineStaging
from streamlog.errors import (
    Conflict,
    Fenced,
    Invalid,
    InvalidRecord,
    MessageTooLarge,
    OffsetOutOfRange,
    OutcomeUnknown,
    StagedNotFound,
    StoreUnavailable,
    Unavailable,
    UnknownTopicOrPartition,
)
from streamlog.log.api.abstract_log import AbstractLog, Isolation
from streamlog.log.staged_logs import CommittedRange, ManifestCommit, ManifestEntry, TakesStaged
from streamlog.model.batch import BatchAttributes
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import join
from streamlog.testing.logs.transaction_conformance import (
    ABORT,
    aborted_in,
    begin,
    committed_values,
    end,
    transactional,
)
from streamlog.wal.config import WalMode
from tests.compaction.compacting_engine import CONFIG
from tests.engine.harness import error_of, until
from tests.engine.streams.site import MODES, Site, answer_lost, run
from tests.log.staging import NOW_MS, contents, encoded, entry, epoch_of, stage, staged_of, topic
from tests.repair.cluster import Cluster
from tests.support.log_insides import tail_of


async def produce(log: AbstractLog, *values: bytes) -> int:
    return (await (await log.append(encoded(values)))).base_offset


def checked_commits(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows by one for each commit whose next step is to take the turns of its logs."""
    checked: list[None] = []
    streams_of = EngineStaging.streams_of

    async def before_the_turns(staging: EngineStaging, object_ids: Sequence[int]) -> set[int]:
        stream_ids = await streams_of(staging, object_ids)
        checked.append(None)
        return stream_ids

    monkeypatch.setattr(EngineStaging, "streams_of", before_the_turns)
    return checked


def numbered(*values: bytes) -> list[tuple[int, bytes]]:
    return list(enumerate(values))


@MODES
def test_a_commit_to_sixteen_partitions_is_visible_at_once_and_survives(
    tmp_path: Path, wal: WalMode
) -> None:
    async def scenario() -> None:
        site = Site(tmp_path, wal)
        async with site.open(crash=True) as engine:
            partitions = await topic(engine, 16)
            logs = [await engine.logs.log(partition) for partition in partitions]
            await produce(logs[3], b"before")
            polls = [asyncio.create_task(log.wait_for(1, Isolation.READ_COMMITTED)) for log in logs]
            batches = {
                partition: encoded([b"a", b"b"]) + encoded([b"c"]) for partition in partitions
            }
            staged = await stage(engine, "1", batches)
            assert [part.records for part in staged.parts] == [3] * 16
            commit = await staged_of(engine).commit("w", 0, [entry(staged)])
            assert not commit.was_committed
            assert commit.parts == tuple(
                CommittedRange(p, int(n == 3), 3 + int(n == 3)) for n, p in enumerate(partitions)
            )
            await asyncio.gather(*polls)
            assert await produce(logs[3], b"after") == 4
            expected = numbered(b"before", b"a", b"b", b"c", b"after")
            assert await contents(logs[3]) == expected
            assert await contents(logs[0]) == numbered(b"a", b"b", b"c")
            again = await staged_of(engine).commit("w", 0, [entry(staged)])
            assert again == ManifestCommit(0, commit.parts, True)
            epochs = [epoch_of(log, 1) for log in logs]
        async with site.open() as engine:
            logs = [await engine.logs.log(partition) for partition in partitions]
            assert await contents(logs[3]) == expected
            assert await contents(logs[15]) == numbered(b"a", b"b", b"c")
            # What a reader saw once stays as it was, its leader epoch too.
            assert [epoch_of(log, 1) for log in logs] == epochs
            assert await produce(logs[0], b"d") == 3
            assert epoch_of(logs[0], 3) > epochs[0]
            assert (await staged_of(engine).commit("w", 0, [])).was_committed

    run(scenario)


def test_a_commit_into_an_open_transaction_is_seen_when_that_ends(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path, "disk")
        async with site.open(crash=True) as engine:
            [partition] = await topic(engine)
            log = await engine.logs.log(partition)
            await begin(log, transactional([b"open"]))
            staged = await stage(engine, "1", {partition: encoded([b"a", b"b"])})
            await staged_of(engine).commit("w", 0, [entry(staged)])
            assert (log.high_watermark, log.last_stable_offset) == (3, 0)
            await begin(log, transactional([b"more"], sequence=1))
        async with site.open() as engine:
            log = await engine.logs.log(partition)
            assert (log.high_watermark, log.last_stable_offset) == (4, 0)
            wait = asyncio.create_task(log.wait_for(2, Isolation.READ_COMMITTED))
            await end(log, ABORT)
            await wait
            assert log.last_stable_offset == 5
            assert await committed_values(log) == [b"a", b"b"]
            assert await aborted_in(log, 1, 1) == [(1, 0)]

    run(scenario)


@MODES
def test_commits_between_produces_keep_every_record_once(tmp_path: Path, wal: WalMode) -> None:
    async def scenario() -> None:
        async with Site(tmp_path, wal).open() as engine:
            partitions = await topic(engine, 4)
            logs = [await engine.logs.log(partition) for partition in partitions]
            acked: list[dict[int, bytes]] = [{} for _ in logs]

            async def producer(number: int) -> None:
                for n in range(15):
                    value = b"p%d" % n
                    acked[number][await produce(logs[number], value)] = value

            async def writer(name: str) -> None:
                staging = staged_of(engine)
                for epoch in range(5):
                    value = f"{name}{epoch}".encode()
                    staged = await staging.stage(
                        name, str(epoch), {p: encoded([value]) for p in partitions}
                    )
                    commit = await staging.commit(name, epoch, [entry(staged)])
                    for part in commit.parts:
                        acked[part.partition.partition][part.start_offset] = value

            await asyncio.gather(*map(producer, range(4)), writer("u"), writer("v"))
            for log, expected in zip(logs, acked, strict=True):
                assert len(expected) == 25
                assert await contents(log) == sorted(expected.items())

    run(scenario)


def test_batches_that_compaction_replaced_meanwhile_are_read_from_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_of_them = EngineStaging.attributes

    def without_the_second(
        staging: EngineStaging, object_ids: Sequence[int]
    ) -> AsyncIterator[tuple[int, Sequence[BatchAttributes]]]:
        return all_of_them(staging, [*object_ids[:1], *object_ids[2:]])

    monkeypatch.setattr(EngineStaging, "attributes", without_the_second)

    async def scenario() -> None:
        async with Site(tmp_path, "disk").open() as engine:
            (partition,) = await topic(engine, 1)
            log = await engine.logs.log(partition)
            staged = [
                await stage(engine, str(n), {partition: encoded([b"%d" % n])}) for n in range(4)
            ]
            await staged_of(engine).commit("w", 0, [entry(batches) for batches in staged])
            assert await contents(log) == numbered(b"0", b"1", b"2", b"3")
            tail = tail_of(log)
            assert (tail.accounted_end, tail.batches_since_checkpoint) == (4, 4)
            assert await produce(log, b"last") == 4

    run(scenario)


def test_one_commit_attaches_many_partitions_and_objects(tmp_path: Path) -> None:
    """What came is noted object by object, and written down: the next opening reads no index."""

    async def scenario() -> None:
        site = Site(tmp_path, "disk")
        async with site.open(crash=True) as engine:
            partitions = await topic(engine, 130)
            logs = [await engine.logs.log(partition) for partition in partitions]
            await produce(logs[7], b"first")
            staged = []
            for n in range(40):
                staged_to = partitions if n % 4 == 0 else partitions[:8]
                batches = {
                    partition: encoded(
                        [b"%d.%d.%d" % (n, partition.partition, m) for m in range(2)]
                    )
                    for partition in staged_to
                }
                staged.append(await stage(engine, str(n), batches))
            # Each partition is named once.
            manifest = [entry(staged[0])]
            manifest += [ManifestEntry(batches.staged.object_id, ()) for batches in staged[1:]]
            commit = await staged_of(engine).commit("w", 0, manifest)
            assert len(commit.parts) == 130
            expected = {
                number: [
                    (b"%d.%d.%d" % (n, number, m))
                    for n in range(40)
                    if n % 4 == 0 or number < 8
                    for m in range(2)
                ]
                for number in (0, 7, 8, 129)
            }
            expected[7].insert(0, b"first")
            for number, values in expected.items():
                assert await contents(logs[number]) == numbered(*values)
            tail = tail_of(logs[0])
            assert (tail.accounted_end, tail.batches_since_checkpoint) == (80, 0)
            assert await produce(logs[129], b"last") == 20
            expected[129].append(b"last")
            await engine.drain()
        async with site.open() as engine:
            for number, values in expected.items():
                log = await engine.logs.log(partitions[number])
                assert await contents(log) == numbered(*values)
                assert log.size_bytes == logs[number].size_bytes

    run(scenario)


def test_a_commit_with_arguments_of_a_wrong_type_is_refused_and_the_node_goes_on() -> None:
    async def scenario() -> None:
        async with streamlog.open("memory://", meta="memory://") as engine:
            (partition,) = await topic(engine)
            calls: list[tuple[Any, Any, Any]] = [
                (5, 0, []),
                ([], 0, []),
                ("w", "0", []),
                ("w", 0, [ManifestEntry("x", [partition])]),  # type: ignore[arg-type]
                ("w", 0, [(1, [partition])]),
            ]
            for arguments in calls:
                error = await error_of(staged_of(engine).commit(*arguments))
                assert isinstance(error, Invalid | TypeError | AttributeError), repr(error)
            await produce(await engine.logs.log(partition), b"after")
            assert engine.logs.failure is None

    run(scenario)


def test_a_manifest_that_leaves_a_partition_out_commits_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Site(tmp_path, "disk").open() as engine:
            partitions = await topic(engine, 2)
            staged = await stage(engine, "1", dict.fromkeys(partitions, encoded([b"v"])))
            manifest = [ManifestEntry(staged.staged.object_id, partitions[:1])]
            error = await error_of(staged_of(engine).commit("w", 0, manifest))
            assert isinstance(error, Conflict), repr(error)
            assert (await staged_of(engine).status("w")).last_epoch == -1

    run(scenario)


def test_segments_roll_between_attached_batches(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path, "object")
        one_batch = encoded([b"v" * 100])
        size = len(one_batch)
        configs = {"internal.segment.bytes": str(2 * size + 10), "index.interval.bytes": "0"}

        def state(log: AbstractLog) -> list[tuple[int, int, int, int]]:
            return [
                (s.base_offset, s.end_offset, s.size_bytes, s.largest_timestamp_ms)
                for s in log.segments
            ]

        async with site.open() as engine:
            (partition,) = await topic(engine, 1, configs)
            log = await engine.logs.log(partition)
            await (await log.append(one_batch))
            batches = b"".join(encoded([b"v" * 100], at_ms=NOW_MS + n) for n in range(6))
            staged = await stage(engine, "1", {partition: batches})
            await staged_of(engine).commit("w", 0, [entry(staged)])
            assert [(s.base_offset, s.end_offset) for s in log.segments] == [
                (0, 2),
                (2, 4),
                (4, 6),
                (6, 7),
            ]
            before = state(log)
            isolation = Isolation.READ_COMMITTED
            hit = await log.offset_for_timestamp(NOW_MS + 3, isolation)
            assert hit.offset == 4
        async with site.open() as engine:
            log = await engine.logs.log(partition)
            assert state(log) == before
            assert (await log.offset_for_timestamp(NOW_MS + 3, isolation)).offset == 4
            assert await log.delete_oldest_segments(4, "size") == 2
            assert log.log_start_offset == 4
            with pytest.raises(OffsetOutOfRange):
                await log.fetch(3, 100)
            assert len(await contents(log)) == 3

    run(scenario)


def test_log_append_time_is_that_of_staging(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Site(tmp_path, "object").open() as engine:
            configs = {"message.timestamp.type": "LogAppendTime"}
            (partition,) = await topic(engine, 1, configs)
            before_ms = engine.clock.now_ms()
            staged = await stage(engine, "1", {partition: encoded([b"v"], at_ms=5)})
            await staged_of(engine).commit("w", 0, [entry(staged)])
            log = await engine.logs.log(partition)
            (batch,) = scan(join((await log.fetch(0, 1000)).parts))
            assert batch.header.attributes & LOG_APPEND_TIME
            assert before_ms <= batch.header.max_timestamp_ms <= engine.clock.now_ms()

    run(scenario)


def test_batches_that_an_append_refuses_cannot_be_staged(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Site(tmp_path, "object").open() as engine:
            (partition,) = await topic(engine, 1, {"max.message.bytes": "1000"})
            good = encoded([b"v"])
            bad = bytearray(good)
            bad[-1] ^= 1
            for data, error in (
                (encoded([b"v" * 2000]), MessageTooLarge),
                (encoded([b"v"], producer=BatchProducer(5, 0, 0)), InvalidRecord),
                (b"", InvalidRecord),
            ):
                assert isinstance(await error_of(stage(engine, "1", {partition: data})), error)
            assert await error_of(stage(engine, "1", {partition: bytes(bad)})) is not None
            missing = stage(engine, "1", {TopicPartition("nope", 0): good})
            assert isinstance(await error_of(missing), UnknownTopicOrPartition)
            assert (await staged_of(engine).status("w")).staged_objects == 0

    run(scenario)


def test_a_recreated_topic_gets_no_batches_staged_for_the_old_one(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Site(tmp_path, "object").open() as engine:
            (partition,) = await topic(engine)
            staged = await stage(engine, "1", {partition: encoded([b"v"])})
            await engine.logs.delete_topic("t")
            commit = staged_of(engine).commit("w", 0, [entry(staged)])
            assert isinstance(await error_of(commit), UnknownTopicOrPartition)
            await topic(engine)
            commit = staged_of(engine).commit("w", 0, [entry(staged)])
            assert isinstance(await error_of(commit), Conflict)
            assert await staged_of(engine).abort("w", [staged.staged.object_id]) == 1
            commit = staged_of(engine).commit("w", 0, [entry(staged)])
            assert isinstance(await error_of(commit), StagedNotFound)
            log = await engine.logs.log(partition)
            assert await produce(log, b"x") == 0
            assert await contents(log) == numbered(b"x")

    run(scenario)


def test_a_log_that_cannot_account_for_attached_batches_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit stands; the log is given up and knows it at its next opening."""

    async def scenario() -> None:
        async with Site(tmp_path, "object").open() as engine:
            (partition,) = await topic(engine)
            log = await engine.logs.log(partition)
            staged = await stage(engine, "1", {partition: encoded([b"a", b"b"])})

            async def away(*_: object, **__: object) -> None:
                raise StoreUnavailable("away", operation="get")

            with monkeypatch.context() as patched:
                patched.setattr(engine.engine.blocks, "index", away)
                commit = await staged_of(engine).commit("w", 0, [entry(staged)])
            assert commit.parts == (CommittedRange(partition, 0, 2),)
            await until(lambda: engine.logs.open_log(partition) is not log)
            reopened = await engine.logs.log(partition)
            assert await contents(reopened) == numbered(b"a", b"b")
            assert await produce(reopened, b"c") == 2

    run(scenario)


def test_a_commit_to_a_topic_deleted_meanwhile_gives_up_the_turns_of_other_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit waited for records of the deleted log for ever, and the others took no append."""
    checked = checked_commits(monkeypatch)

    async def scenario() -> None:
        async with Site(tmp_path, "disk").open() as engine:
            await engine.logs.create_topic("deleted", 1)
            (partition,) = await topic(engine)
            batches = dict.fromkeys([TopicPartition("deleted", 0), partition], encoded([b"v"]))
            staged = await stage(engine, "1", batches)
            log = await engine.logs.log(partition)
            assert isinstance(log, TakesStaged)
            async with log.attaching():
                commit = asyncio.create_task(staged_of(engine).commit("w", 0, [entry(staged)]))
                await until(lambda: len(checked) == 1)
                await engine.logs.delete_topic("deleted")
            error = await error_of(asyncio.wait_for(commit, 20))
            assert isinstance(error, OutcomeUnknown), repr(error)
            assert await produce(log, b"after") == 0
            assert await contents(log) == numbered(b"after")

    run(scenario)


def test_two_commits_of_an_epoch_tell_the_same_whatever_their_manifests_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job's old driver and its new one meet: the second is told what the first has committed."""
    checked = checked_commits(monkeypatch)

    async def scenario() -> None:
        async with Site(tmp_path, "disk").open() as engine:
            first, second = await topic(engine, 2)
            both = await stage(engine, "1", dict.fromkeys([first, second], encoded([b"both"])))
            one = await stage(engine, "2", {second: encoded([b"one"])})
            log = await engine.logs.log(second)
            assert isinstance(log, TakesStaged)
            commits: list[asyncio.Task[ManifestCommit]] = []
            async with log.attaching():
                for staged in (both, one):
                    work = staged_of(engine).commit("w", 0, [entry(staged)])
                    commits.append(asyncio.create_task(work))
                    await until(lambda: len(checked) == len(commits))
            parts = (CommittedRange(first, 0, 1), CommittedRange(second, 0, 1))
            assert await asyncio.gather(*commits) == [
                ManifestCommit(0, parts, False),
                ManifestCommit(0, parts, True),
            ]
            assert await contents(log) == numbered(b"both")

    run(scenario)


def test_a_commit_goes_on_when_its_caller_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Site(tmp_path, "disk").open() as engine:
            (partition,) = await topic(engine)
            log = await engine.logs.log(partition)
            staged = await stage(engine, "1", {partition: encoded([b"a"])})
            call = asyncio.create_task(staged_of(engine).commit("w", 0, [entry(staged)]))
            await asyncio.sleep(0)
            call.cancel()
            await until(lambda: log.high_watermark == 1)
            assert (await staged_of(engine).commit("w", 0, [entry(staged)])).was_committed
            assert await contents(log) == numbered(b"a")

    run(scenario)


def test_a_commit_cut_off_by_a_crash_is_finished_by_the_same_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        site = Site(tmp_path, "object")
        async with site.open() as engine:
            (partition,) = await topic(engine)
            staged = await stage(engine, "1", {partition: encoded([b"a"])})
            recorded = answer_lost(engine, monkeypatch)
            call = asyncio.create_task(staged_of(engine).commit("w", 0, [entry(staged)]))
            await recorded.wait()
            await engine.kill()
            error = await error_of(call)
            assert isinstance(error, OutcomeUnknown), repr(error)
            assert not error.has_no_side_effects
        async with site.open() as engine:
            assert (await staged_of(engine).commit("w", 0, [entry(staged)])).was_committed
            assert await contents(await engine.logs.log(partition)) == numbered(b"a")

    run(scenario)


def test_compaction_writes_attached_batches_out_placed(tmp_path: Path) -> None:
    async def scenario() -> None:
        site = Site(tmp_path, "object", CONFIG)
        async with site.open() as engine:
            partitions = await topic(engine, 2)
            logs = [await engine.logs.log(partition) for partition in partitions]
            expected: list[bytes] = []
            for n in range(30):
                value = b"%d-" % n * 50
                await produce(logs[0], value)
                staged = await stage(
                    engine, str(n), dict.fromkeys(partitions, encoded([value] * 3))
                )
                await staged_of(engine).commit("w", n, [entry(staged)])
                expected += [value] * 4
            await until(lambda: len(engine.metadata.staging.attached) < 8)
            assert await contents(logs[0]) == numbered(*expected)
            assert len(await contents(logs[1])) == 90
        # The bytes themselves have their places now, whatever the metadata says of the rest.
        async with site.open() as engine:
            log = await engine.logs.log(partitions[0])
            assert await contents(log) == numbered(*expected)

    run(scenario)


def test_a_zombie_commits_nothing_and_its_successor_does() -> None:
    async def scenario() -> None:
        cluster = Cluster()
        async with cluster.node(1, crash=True) as zombie, cluster.node(2) as other:
            partitions = await topic(zombie, 3)
            logs = [await zombie.logs.log(partition) for partition in partitions]
            await produce(logs[0], b"first")
            staged = await stage(
                zombie, "1", {partition: encoded([b"v"]) for partition in partitions}
            )
            await other.metadata.seal(zombie.metadata.tenure, even_if_alive=True)
            await other.metadata.take_over(zombie.metadata.tenure)
            error = await error_of(staged_of(zombie).commit("w", 0, [entry(staged)]))
            assert isinstance(error, Fenced | Unavailable), repr(error)
            committed = await staged_of(other).commit("w", 0, [entry(staged)])
            assert [part.start_offset for part in committed.parts] == [1, 0, 0]
            assert await contents(await other.logs.log(partitions[0])) == numbered(b"first", b"v")
            assert (await staged_of(other).status("w")).last_epoch == 0

    run(scenario)
