"""Staged writes through the client: a real node, killed in between, and answers that get lost."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from streamlog.client import Admin, Consumer, Producer
from streamlog.client.channel import Call
from streamlog.client.staging import (
    CommittedPart,
    StagedCommit,
    StagedObject,
    StagedPart,
    StagedWriter,
    _calls,
)
from streamlog.codec.records import BatchBuilder
from streamlog.errors import (
    Conflict,
    InvalidRecord,
    OutcomeUnknown,
    StagedNotFound,
    StreamFenced,
    StreamlogError,
    Unavailable,
    UnknownTopicOrPartition,
)
from tests.support.calls_through import RunOnce, Through, calls_through
from tests.support.node import NodeProcess

WAIT_S = 60


def encoded(*values: bytes) -> bytes:
    builder = BatchBuilder(1 << 24)
    builder.extend(values, timestamp_ms=1_700_000_000_000)
    return bytes(builder.build())


def contents(server: str, topic: str, partitions: int) -> dict[int, list[bytes | None]]:
    """Values by partition; offsets have no gap, CRCs hold (the consumer checks both)."""
    by_partition: dict[int, list[bytes | None]] = {n: [] for n in range(partitions)}
    with Consumer(server, isolation_level="read_committed") as consumer:
        consumer.assign([(topic, n) for n in range(partitions)])
        ends = consumer.end_offsets([(topic, n) for n in range(partitions)])
        wanted = sum(ends.values())
        while sum(map(len, by_partition.values())) < wanted:
            for record in consumer.poll(WAIT_S):
                assert record.offset == len(by_partition[record.partition])
                by_partition[record.partition].append(record.value)
    return by_partition


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with NodeProcess(tmp_path_factory.mktemp("node") / "data") as node:
        yield node.server


def test_stage_commit_status_and_abort(server: str) -> None:
    with Admin(server) as admin, StagedWriter(server, "job-1") as writer:
        admin.create_topic("one", 2)
        assert writer.status().last_epoch is None
        objects = writer.stage("0-0", {("one", 0): encoded(b"a", b"b"), ("one", 1): encoded(b"c")})
        (staged,) = objects
        assert staged.parts[0][:3] == ("one", 0, 2)
        assert writer.stage("0-0", {("one", 0): encoded(b"a", b"b")}) == [
            StagedObject("job-1", "0-0#0", staged.object_id, staged.expires_ms, staged.parts[:1])
        ]
        loser = writer.stage("0-1", {("one", 0): encoded(b"a", b"b")})
        assert contents(server, "one", 2) == {0: [], 1: []}
        expected = (CommittedPart("one", 0, 0, 2), CommittedPart("one", 1, 0, 1))
        assert writer.commit(0, objects) == StagedCommit(0, expected, False)
        assert writer.commit(0, loser) == StagedCommit(0, expected, True)
        status = writer.status()
        assert (status.last_epoch, status.parts, status.staged_objects) == (0, expected, 1)
        assert writer.abort([*objects, *loser]) == 1
        assert writer.abort(loser) == 0
        with pytest.raises(StagedNotFound, match="Stage everything again"):
            writer.commit(1, loser)
        with Producer(server) as producer:
            producer.send("one", b"d", partition=0).result(WAIT_S)
        assert contents(server, "one", 2) == {0: [b"a", b"b", b"d"], 1: [b"c"]}
        with pytest.raises(UnknownTopicOrPartition):
            writer.stage("1-0", {("one", 7): encoded(b"a")})
        with pytest.raises(InvalidRecord):
            writer.stage("1-0", {("one", 0): b""})


def test_staged_objects_travel_as_text_and_pickles() -> None:
    staged = StagedObject("w", "a", 1 << 62, 5, (StagedPart("t", 0, 3, 9),))
    assert StagedObject.from_json(staged.to_json()) == staged
    assert pickle.loads(pickle.dumps(staged)) == staged  # noqa: S301 - Spark sends them so


def test_a_commit_whose_answer_is_lost_is_found_again(server: str) -> None:
    with Admin(server) as admin, StagedWriter(server, "lossy") as writer:
        admin.create_topic("lossy", 1)
        calls = 0

        def lossy(run_once: RunOnce, call: Call) -> Any:
            nonlocal calls
            calls += 1
            result = run_once(call)
            if calls < 3:
                raise OutcomeUnknown("the answer was lost")
            return result

        objects = writer.stage("0", {("lossy", 0): encoded(b"a")})
        with calls_through(writer, lossy):
            commit = writer.commit(0, objects)
        assert (calls, commit.was_committed) == (3, True)
        assert commit.parts == (CommittedPart("lossy", 0, 0, 1),)
        assert contents(server, "lossy", 1) == {0: [b"a"]}

    def lost(_: RunOnce, __: Call) -> Any:
        raise OutcomeUnknown("the answer was lost")

    with (
        StagedWriter(server, "lossy", timeout_ms=1) as writer,
        calls_through(writer, lost),
        pytest.raises(OutcomeUnknown),
    ):
        writer.commit(1, objects)


def first_lost_then(error: StreamlogError) -> Through:
    """The first try's answer is lost, and each later one ends with the error."""
    errors = chain([OutcomeUnknown("the answer was lost")], repeat(error))

    def through(_: RunOnce, __: Call) -> Any:
        raise next(errors)

    return through


@pytest.mark.parametrize("error", [Unavailable("it is away"), StreamFenced("it is not the leader")])
def test_a_commit_that_may_be_stored_ends_with_no_error_that_says_it_is_not(
    error: StreamlogError,
) -> None:
    staged = StagedObject("job", "0", 7, 0, (StagedPart("t", 0, 1, 1),))
    with (
        StagedWriter("127.0.0.1:1", "job", timeout_ms=500) as writer,
        calls_through(writer, first_lost_then(error)),
        pytest.raises(OutcomeUnknown, match=r"lost; then: .*it is"),
    ):
        writer.commit(0, [staged])


def test_a_commit_whose_only_answer_is_lost_names_no_earlier_try() -> None:
    """The node was reached: the text does not say that it was not."""

    def lost(_: RunOnce, __: Call) -> Any:
        raise OutcomeUnknown("the answer was lost")

    staged = StagedObject("job", "0", 7, 0, (StagedPart("t", 0, 1, 1),))
    with (
        StagedWriter("127.0.0.1:1", "job", timeout_ms=1) as writer,
        calls_through(writer, lost),
        pytest.raises(OutcomeUnknown, match="the answer was lost; its time is over") as raised,
    ):
        writer.commit(0, [staged])
    assert "earlier" not in raised.value.message
    assert "not reached" not in raised.value.message


@pytest.mark.parametrize("error", [StagedNotFound("it expired"), Conflict("the topic is gone")])
def test_objects_that_cannot_be_committed_any_more_were_not_by_an_earlier_try(
    error: StreamlogError,
) -> None:
    """The server looks for the epoch first."""
    staged = StagedObject("job", "0", 7, 0, (StagedPart("t", 0, 1, 1),))
    with (
        StagedWriter("127.0.0.1:1", "job") as writer,
        calls_through(writer, first_lost_then(error)),
        pytest.raises(type(error)),
    ):
        writer.commit(0, [staged])


def test_large_writes_are_cut_between_batches() -> None:
    small, large = encoded(b"x" * 100), encoded(b"x" * (6 << 20))
    calls = list(_calls({("t", 1): large * 5 + small, ("t", 0): small}))
    assert [len(parts) for parts in calls] == [2, 1, 1]
    assert b"".join(data for parts in calls for _, p, data in parts if p == 1) == large * 5 + small
    assert calls == list(_calls({("t", 0): small, ("t", 1): large * 5 + small}))


def test_many_writers_and_producers_at_a_time(server: str) -> None:
    with Admin(server) as admin:
        admin.create_topic("many", 4)
    expected: list[dict[int, bytes]] = [{} for _ in range(4)]

    def write(name: str) -> None:
        with StagedWriter(server, name) as writer:
            for epoch in range(5):
                value = f"{name}-{epoch}".encode()
                staged = writer.stage(str(epoch), {("many", n): encoded(value) for n in range(4)})
                for part in writer.commit(epoch, staged).parts:
                    expected[part.partition][part.start_offset] = value

    def produce() -> None:
        with Producer(server) as producer:
            for n in range(40):
                value = b"p%d" % n
                sent = producer.send("many", value, partition=n % 4).result(WAIT_S)
                expected[n % 4][sent.offset] = value

    threads = [threading.Thread(target=write, args=(name,)) for name in ("u", "v")]
    threads.append(threading.Thread(target=produce))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = contents(server, "many", 4)
    for partition, values in enumerate(expected):
        assert stored[partition] == [values[offset] for offset in sorted(values)]
        assert len(values) == 20


@pytest.mark.slow
@pytest.mark.parametrize("wal", ["disk", "object"])
def test_kill_between_stage_and_commit_and_after_it(tmp_path: Path, wal: str) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, wal) as node, StagedWriter(node.server, "job") as writer:
        with Admin(node.server) as admin:
            admin.create_topic("t", 3)
        objects = writer.stage("0", {("t", n): encoded(b"a%d" % n) for n in range(3)})
        lost = writer.stage("1", {("t", n): encoded(b"lost") for n in range(3)})
        with Producer(node.server) as producer:
            producer.send("t", b"first", partition=1).result(WAIT_S)
        node.kill()
        node.start()
        committed = writer.commit(0, objects)
        assert [part.start_offset for part in committed.parts] == [0, 1, 0]
        node.kill()
        node.start()
        again = writer.commit(0, objects)
        assert again == StagedCommit(0, committed.parts, True)
        assert contents(node.server, "t", 3) == {0: [b"a0"], 1: [b"first", b"a1"], 2: [b"a2"]}
        assert writer.status().staged_objects == len(lost)
        assert writer.abort(lost) == len(lost)


@pytest.mark.slow
def test_kills_in_mid_commit_leave_it_whole_or_undone(tmp_path: Path) -> None:
    """The node dies at some moment of each commit; the client's repetition finds out."""
    epochs, partitions = 4, 4
    with NodeProcess(tmp_path / "data", "disk") as node:
        with Admin(node.server) as admin:
            admin.create_topic("t", partitions)
        for epoch in range(epochs):
            with StagedWriter(node.server, "job") as writer:
                value = b"e%d" % epoch
                objects = [
                    staged
                    for task in range(3)
                    for staged in writer.stage(
                        f"{epoch}-{task}", {("t", n): encoded(value) for n in range(partitions)}
                    )
                ]
                committing = threading.Thread(target=writer.commit, args=(epoch, objects))
                committing.start()
                committing.join(0.004 * epoch)
                node.kill()
                node.start()
                committing.join()
                assert writer.status().last_epoch == epoch
        expected = [b"e%d" % epoch for epoch in range(epochs) for _ in range(3)]
        assert contents(node.server, "t", partitions) == dict.fromkeys(range(partitions), expected)
