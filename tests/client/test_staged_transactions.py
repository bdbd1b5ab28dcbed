"""Staged writes that a transaction commits: a real node, drivers that stop at any step, kills."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from streamlog.client import Admin, Consumer, Producer, StagedWriter, TransactionalStagedWriter
from streamlog.client.calls.staging import stage
from streamlog.client.channel import Call, Caller
from streamlog.client.staging import StagedCommit, StagedObject
from streamlog.codec.batch import BatchProducer, scan, with_producer
from streamlog.codec.records import BatchBuilder
from streamlog.errors import (
    Fenced,
    Invalid,
    InvalidRecord,
    InvalidTxnState,
    OutcomeUnknown,
    QuotaExceeded,
    StagedNotFound,
    StreamlogError,
    TransactionAbortable,
    Unauthorized,
    Unavailable,
)
from tests.support.calls_through import RunOnce, Through, calls_through
from tests.support.node import NodeProcess

WAIT_S = 60
PARTITIONS = 3
NUMBERS = count()


def encoded(*values: bytes) -> bytes:
    builder = BatchBuilder(1 << 24)
    builder.extend(values, timestamp_ms=1_700_000_000_000)
    return bytes(builder.build())


def contents(server: str, topic: str, level: str = "read_committed") -> dict[int, list[bytes]]:
    """Values by partition, up to the last stable offset or the log's end."""
    with Consumer(server, isolation_level=level, fetch_max_wait_ms=50) as consumer:
        partitions = [(topic, n) for n in range(PARTITIONS)]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        values: dict[int, list[bytes]] = {n: [] for n in range(PARTITIONS)}
        while any(consumer.position(*one) < end for one, end in ends.items()):
            for record in consumer.poll(0.2):
                values[record.partition].append(record.value or b"")
    return values


def staged(writer: StagedWriter, topic: str, attempt: str, value: bytes) -> list[StagedObject]:
    """Two objects, as of two tasks."""
    return [
        one
        for task in range(2)
        for one in writer.stage(
            f"{attempt}-{task}", {(topic, n): encoded(value) for n in range(PARTITIONS)}
        )
    ]


def everywhere(*values: bytes) -> dict[int, list[bytes]]:
    """Each value comes from two tasks."""
    return {n: [value for value in values for _ in range(2)] for n in range(PARTITIONS)}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with NodeProcess(tmp_path_factory.mktemp("node") / "data") as node:
        yield node.server


@pytest.fixture
def topic(server: str, request: pytest.FixtureRequest) -> str:
    name = f"{request.function.__name__[:40]}-{next(NUMBERS)}"
    with Admin(server) as admin:
        admin.create_topic(name, PARTITIONS)
    return name


class Dies(Exception):
    """The driver ends here."""


def dying_at(step: str, *, is_after: bool) -> Through:
    """The driver dies before or after its call of the step."""

    def through(run_once: RunOnce, call: Call) -> Any:
        if not call.rpc.endswith(f"/{step}"):
            return run_once(call)
        if is_after:
            run_once(call)
        raise Dies

    return through


def test_a_commit_shows_all_partitions_and_its_repetition_changes_nothing(
    server: str, topic: str
) -> None:
    with TransactionalStagedWriter(server, topic) as driver:
        producer = driver.initialise()
        with TransactionalStagedWriter(server, topic, producer) as task:
            objects = staged(task, topic, "0", b"a")
        assert contents(server, topic, "read_uncommitted") == everywhere()
        assert driver.last_epoch() is None
        committed = driver.commit(7, objects)
        assert not committed.was_committed
        assert [(p.partition, p.start_offset, p.end_offset) for p in committed.parts] == [
            (n, 0, 2) for n in range(PARTITIONS)
        ]
        assert contents(server, topic) == everywhere(b"a")
        assert driver.last_epoch() == 7
        for epoch in (7, 3):
            assert driver.commit(epoch, objects) == StagedCommit(epoch, (), True)
        # The same producer goes on with the next one, as the tasks of a stream do.
        driver.commit(8, staged(driver, topic, "1", b"b"))
        assert contents(server, topic) == everywhere(b"a", b"b")
        with Producer(server) as plain:
            plain.send(topic, b"c", partition=0).result(WAIT_S)
        assert contents(server, topic)[0] == [b"a", b"a", b"b", b"b", b"c"]


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["AddPartitions", "Attach", "EndTransaction"])
def test_a_driver_that_dies_at_any_step_is_followed_by_another(
    server: str, topic: str, step: str, is_after: bool
) -> None:
    with TransactionalStagedWriter(server, topic) as first:
        first.initialise()
        first.commit(0, staged(first, topic, "0", b"a"))
        objects = staged(first, topic, "1", b"b")
        with calls_through(first, dying_at(step, is_after=is_after)), pytest.raises(Dies):
            first.commit(1, objects)
    with TransactionalStagedWriter(server, topic) as second:
        second.initialise()
        is_committed = step == "EndTransaction" and is_after
        assert second.last_epoch() == int(is_committed)
        # Spark plans the same batch again, and its tasks stage it anew.
        again = second.commit(1, staged(second, topic, "2", b"b"))
        assert again.was_committed == is_committed
        assert contents(server, topic) == everywhere(b"a", b"b")
        second.commit(2, staged(second, topic, "3", b"c"))
        assert contents(server, topic) == everywhere(b"a", b"b", b"c")


def test_the_driver_before_and_its_tasks_are_fenced(server: str, topic: str) -> None:
    with (
        TransactionalStagedWriter(server, topic) as old,
        TransactionalStagedWriter(server, topic) as new,
    ):
        old.initialise()
        objects = staged(old, topic, "0", b"old")
        new.initialise()
        with pytest.raises(Fenced):
            old.commit(0, objects)
        # What was staged for another producer is not this one's to commit.
        with pytest.raises(StagedNotFound):
            new.commit(0, objects)
        new.commit(0, staged(new, topic, "1", b"new"))
        assert old.abort(objects) == len(objects)
        assert contents(server, topic) == everywhere(b"new")


def test_an_abort_hides_what_was_attached_and_drops_what_was_not(server: str, topic: str) -> None:
    with TransactionalStagedWriter(server, topic) as driver:
        driver.initialise()
        objects = staged(driver, topic, "0", b"a")
        with calls_through(driver, dying_at("EndTransaction", is_after=False)), pytest.raises(Dies):
            driver.commit(0, objects)
        assert contents(server, topic, "read_uncommitted") == everywhere(b"a")
        assert contents(server, topic) == everywhere()
        assert driver.abort([*objects, *staged(driver, topic, "1", b"b")]) == 2
        assert contents(server, topic) == everywhere()
        driver.commit(0, staged(driver, topic, "2", b"c"))
        assert contents(server, topic) == everywhere(b"c")


def test_an_unknown_outcome_is_found_out_by_the_same_commit(server: str, topic: str) -> None:
    with TransactionalStagedWriter(server, topic) as driver:
        driver.initialise()
        lost: set[str] = set()

        def lossy(run_once: RunOnce, call: Call) -> Any:
            result = run_once(call)
            if call.writes and call.rpc not in lost:
                lost.add(call.rpc)
                raise OutcomeUnknown("the answer was lost")
            return result

        with calls_through(driver, lossy):
            assert not driver.commit(0, staged(driver, topic, "0", b"a")).was_committed
        assert {rpc.rpartition("/")[2] for rpc in lost} == {
            "AddPartitions",
            "Attach",
            "EndTransaction",
        }
        assert contents(server, topic) == everywhere(b"a")


def refusing_the_end(error: StreamlogError) -> Through:
    def through(run_once: RunOnce, call: Call) -> Any:
        if call.rpc.endswith("/EndTransaction"):
            raise error
        return run_once(call)

    return through


AWAY = Unavailable("it is away")
REFUSALS = (AWAY, Unauthorized("an ACL was changed"), QuotaExceeded("later", retry_after_ms=1))


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_a_commit_whose_end_is_refused_is_shown_by_its_repetition_and_by_no_other_epoch(
    server: str, topic: str, error: StreamlogError
) -> None:
    with TransactionalStagedWriter(server, topic) as driver:
        producer = driver.initialise()
        objects = staged(driver, topic, "0", b"a")
        others = staged(driver, topic, "1", b"b")
    with TransactionalStagedWriter(server, topic, producer, timeout_ms=2_000) as driver:
        with (
            calls_through(driver, refusing_the_end(error)),
            pytest.raises(OutcomeUnknown, match="Commit the same"),
        ):
            driver.commit(0, objects)
        with pytest.raises(InvalidTxnState, match="objects of epoch 0"):
            driver.commit(1, others)
        with (
            TransactionalStagedWriter(server, topic, producer) as other,
            pytest.raises(InvalidTxnState, match="another driver began"),
        ):
            other.commit(1, others)
        assert contents(server, topic) == everywhere()
        driver.commit(0, objects)
        driver.commit(1, others)
        assert contents(server, topic) == everywhere(b"a", b"b")


@pytest.mark.parametrize("is_after", [False, True], ids=["open", "committed"])
def test_a_driver_that_another_one_with_its_producer_overtook_shows_nothing(
    server: str, topic: str, is_after: bool
) -> None:
    with (
        TransactionalStagedWriter(server, topic) as first,
        TransactionalStagedWriter(server, topic) as second,
    ):
        second.producer = first.initialise()
        objects, later = staged(first, topic, "1", b"a"), staged(second, topic, "2", b"b")
        has_overtaken = False

        def overtaken(run_once: RunOnce, call: Call) -> Any:
            nonlocal has_overtaken
            if call.rpc.endswith("/AddPartitions") and not has_overtaken:
                has_overtaken = True
                dying = dying_at("EndTransaction", is_after=is_after)
                with calls_through(second, dying), pytest.raises(Dies):
                    second.commit(2, later)
            return run_once(call)

        with (
            calls_through(first, overtaken),
            pytest.raises(InvalidTxnState, match="attached epoch 2"),
        ):
            first.commit(1, objects)
        assert first.last_epoch() == (2 if is_after else None)
        assert contents(server, topic) == (everywhere(b"b") if is_after else everywhere())
        first.commit(3, staged(first, topic, "3", b"c"))
        assert contents(server, topic)[0][-2:] == [b"c", b"c"]


def test_an_abort_that_is_not_answered_fails_and_can_be_repeated(server: str, topic: str) -> None:
    def loses_the_answer(run_once: RunOnce, call: Call) -> Any:
        result = run_once(call)
        if call.rpc.endswith("/EndTransaction"):
            raise OutcomeUnknown("the answer was lost")
        return result

    with TransactionalStagedWriter(server, topic) as driver:
        producer = driver.initialise()
        objects = staged(driver, topic, "0", b"a")
    with TransactionalStagedWriter(server, topic, producer, timeout_ms=2_000) as driver:
        with calls_through(driver, refusing_the_end(AWAY)):
            with pytest.raises(OutcomeUnknown):
                driver.commit(0, objects)
            with pytest.raises(Unavailable):
                driver.abort(objects)
        with pytest.raises(InvalidTxnState, match="objects of epoch 0"):
            driver.commit(1, staged(driver, topic, "1", b"b"))
        with calls_through(driver, loses_the_answer), pytest.raises(OutcomeUnknown):
            driver.abort(objects)
        driver.abort(objects)
        driver.commit(1, staged(driver, topic, "2", b"c"))
        assert contents(server, topic) == everywhere(b"c")


def test_an_abort_behind_a_commit_that_an_abort_was_tried_before_voids_nothing(
    server: str, topic: str
) -> None:
    with TransactionalStagedWriter(server, topic) as driver:
        producer = driver.initialise()
        objects = staged(driver, topic, "0", b"a")
        others = staged(driver, topic, "1", b"b")
    with TransactionalStagedWriter(server, topic, producer, timeout_ms=2_000) as driver:
        with calls_through(driver, refusing_the_end(AWAY)):
            with pytest.raises(OutcomeUnknown):
                driver.commit(0, objects)
            with pytest.raises(Unavailable):
                driver.abort([])
        driver.commit(0, objects)
        assert driver.abort(objects) == 0
        driver.commit(1, others)
        assert contents(server, topic) == everywhere(b"a", b"b")


def test_a_commit_that_is_decided_does_not_fail_for_its_markers(server: str, topic: str) -> None:
    has_ended = False

    def away_then(run_once: RunOnce, call: Call) -> Any:
        nonlocal has_ended
        if has_ended:
            raise Unavailable("it is away")
        has_ended = call.rpc.endswith("/EndTransaction")
        return run_once(call)

    with TransactionalStagedWriter(server, topic) as driver:
        producer = driver.initialise()
        objects = staged(driver, topic, "0", b"a")
    with (
        TransactionalStagedWriter(server, topic, producer, timeout_ms=2000) as driver,
        calls_through(driver, away_then),
    ):
        assert not driver.commit(0, objects).was_committed


def test_objects_that_are_gone_abort_the_transaction(server: str, topic: str) -> None:
    with TransactionalStagedWriter(server, topic) as driver:
        first = driver.initialise()
        objects = staged(driver, topic, "0", b"a")
        driver.drop(objects[:1])
        with pytest.raises(StagedNotFound):
            driver.commit(0, objects)
        assert driver.producer != first
        assert driver.abort(objects) == 1
        assert contents(server, topic) == everywhere()
        with Producer(server) as plain:  # No transaction holds the last stable offset back.
            plain.send(topic, b"b", partition=1).result(WAIT_S)
        assert contents(server, topic)[1] == [b"b"]


def test_wrong_calls_are_refused(server: str, topic: str) -> None:
    batch = encoded(b"a")
    with (
        TransactionalStagedWriter(server, topic) as driver,
        StagedWriter(server, f"{topic}-node") as plain,
        StagedWriter(server, "transaction:1.0") as disguised,
    ):
        for call in (
            lambda: driver.stage("0", {(topic, 0): batch}),
            lambda: driver.commit(0, []),
            lambda: driver.abort([]),
        ):
            with pytest.raises(InvalidTxnState, match="initialise"):
                call()
        producer = driver.initialise()
        own = driver.stage("0", {(topic, 0): batch})
        with pytest.raises(StagedNotFound):
            plain.commit(0, own)
        with pytest.raises(Invalid, match="choose another"):
            disguised.stage("0", {(topic, 0): batch})
        with pytest.raises(InvalidRecord, match="stage it for a transaction"):
            plain.stage("0", {(topic, 0): bytes(with_producer(batch, BatchProducer(*producer, 0)))})
        with pytest.raises(Invalid, match="names no partition"):
            driver.commit(0, [])
        with pytest.raises(Invalid, match="must be 0"):
            driver.commit(-1, own)


def test_batches_of_another_producer_are_not_staged(server: str, topic: str) -> None:
    with TransactionalStagedWriter(server, topic) as driver, closing(Caller(server)) as caller:
        producer = driver.initialise()
        sequenced = with_producer(encoded(b"a"), BatchProducer(*producer, 0))
        (batch,) = scan(sequenced)
        assert not batch.header.is_transactional
        for data in (bytes(sequenced), encoded(b"a")):
            with pytest.raises(InvalidRecord, match="transactional flag"):
                caller.run(stage(topic, "0", [(topic, 0, data)], 0, producer))


def test_a_partition_that_was_not_added_is_refused(server: str, topic: str) -> None:
    with TransactionalStagedWriter(server, topic) as driver:
        driver.initialise()
        objects = staged(driver, topic, "0", b"a")

        def adds_one(run_once: RunOnce, call: Call) -> Any:
            if call.rpc.endswith("/AddPartitions"):
                del call.request.partitions[1:]
            return run_once(call)

        with calls_through(driver, adds_one), pytest.raises(TransactionAbortable):
            driver.commit(0, objects)
        assert contents(server, topic, "read_uncommitted") == everywhere()


def test_an_open_transaction_is_aborted_in_time(tmp_path: Path) -> None:
    with (
        NodeProcess(tmp_path / "data") as node,
        TransactionalStagedWriter(node.server, "q", transaction_timeout_ms=300) as driver,
    ):
        with Admin(node.server) as admin:
            admin.create_topic("t", PARTITIONS)
        driver.initialise()
        objects = staged(driver, "t", "0", b"a")
        with calls_through(driver, dying_at("EndTransaction", is_after=False)), pytest.raises(Dies):
            driver.commit(0, objects)
        with Producer(node.server) as plain:
            for n in range(PARTITIONS):
                plain.send("t", b"b", partition=n).result(WAIT_S)
        with Consumer(node.server, isolation_level="read_committed") as consumer:
            consumer.assign([("t", 0)])
            # It waits for the abort, which lets the last stable offset go on.
            assert [record.value for record in consumer.poll(WAIT_S)] == [b"b"]
        assert contents(node.server, "t") == {n: [b"b"] for n in range(PARTITIONS)}


def commit_noting(
    writer: StagedWriter, epoch: int, objects: list[StagedObject], errors: list[StreamlogError]
) -> None:
    try:
        writer.commit(epoch, objects)
    except StreamlogError as error:
        errors.append(error)


@pytest.mark.parametrize("wal", ["disk", "object"])
def test_kills_of_the_node_leave_each_commit_whole_or_undone(tmp_path: Path, wal: str) -> None:
    """The node dies at some moment of each commit; the driver's repetition finds out."""
    epochs, chance = 5, random.Random(7)
    with NodeProcess(tmp_path / "data", wal) as node:
        with Admin(node.server) as admin:
            admin.create_topic("t", PARTITIONS)
        with TransactionalStagedWriter(node.server, "job") as writer:
            writer.initialise()
            for epoch in range(epochs):
                objects = staged(writer, "t", str(epoch), b"e%d" % epoch)
                errors: list[StreamlogError] = []

                committing = threading.Thread(
                    target=commit_noting, args=(writer, epoch, objects, errors)
                )
                committing.start()
                committing.join(chance.uniform(0, 0.02))
                node.kill()
                node.start()
                committing.join(WAIT_S * 2)
                assert not committing.is_alive()
                if writer.last_epoch() != epoch:
                    # As Spark does: a new driver plans the same batch again.
                    assert errors
                    writer.initialise()
                    writer.commit(epoch, staged(writer, "t", f"{epoch}.1", b"e%d" % epoch))
        assert contents(node.server, "t") == everywhere(*(b"e%d" % n for n in range(epochs)))
