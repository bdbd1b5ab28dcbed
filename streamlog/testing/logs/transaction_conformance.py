"""What every AbstractLog that takes transactions does: inherit `TransactionConformance`.

Behaviours follow Kafka's UnifiedLogTest, ProducerStateManagerTest and TransactionIndexTest; `make`
is that of LogConformance.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager

from streamlog.codec.batch import (
    CONTROL,
    TRANSACTIONAL,
    BatchProducer,
    parse_header,
    resealed,
    scan,
)
from streamlog.codec.control import ControlType, EndMarker, decode_end_marker
from streamlog.codec.records import decode, encode_values
from streamlog.errors import (
    CoordinatorFenced,
    InvalidRecord,
    InvalidTxnState,
    OffsetNotAvailable,
    OutOfOrderSequence,
    ProducerFenced,
)
from streamlog.log.api.abstract_log import (
    LATEST,
    AbortedTransaction,
    AbstractLog,
    Isolation,
    LogAppendInfo,
    ProducerDescription,
    TransactionMarker,
)
from streamlog.testing.logs.log_conformance import (
    COMMITTED,
    CONFIG,
    UNCOMMITTED,
    LogUnderTest,
    append,
    append_together,
    encoded,
    refused,
)

AT_MS = 1_700_000_000_000
ABORT, COMMIT = False, True


def transactional(
    values: Sequence[bytes],
    producer_id: int = 1,
    epoch: int = 0,
    sequence: int = 0,
    *,
    at_ms: int = AT_MS,
) -> bytes:
    """One record batch of a transaction."""
    producer = BatchProducer(producer_id, epoch, sequence)
    data = bytearray(encode_values(values, timestamp_ms=at_ms, producer=producer).data)
    data[22] |= TRANSACTIONAL
    return bytes(resealed(data))


async def begin(log: AbstractLog, data: bytes) -> LogAppendInfo:
    """Appends a batch as a server does that has asked the coordinator first."""
    header = parse_header(data)
    if log.needs_verification(header.producer_id, header.producer_epoch):
        log.verified(header.producer_id, header.producer_epoch)
    return await append(log, data)


async def end(
    log: AbstractLog,
    is_commit: bool,
    producer_id: int = 1,
    epoch: int = 0,
    coordinator_epoch: int = 0,
) -> LogAppendInfo:
    """Writes the marker; durable on return."""
    marker = TransactionMarker(producer_id, epoch, coordinator_epoch, is_commit)
    return await (await log.append_marker(marker))


async def aborted_in(
    log: AbstractLog, offset: int, max_bytes: int = 1 << 20
) -> list[tuple[int, int]]:
    """(producer id, first offset) of what one read-committed fetch tells."""
    fetched = await log.fetch(offset, max_bytes, isolation=COMMITTED)
    return [(one.producer_id, one.first_offset) for one in fetched.aborted]


async def committed_values(
    log: AbstractLog, offset: int | None = None, max_bytes: int = 64 << 10
) -> list[bytes | None]:
    """What a read-committed consumer returns, in pieces of `max_bytes`, up to the stable end."""
    position = log.log_start_offset if offset is None else offset
    values: list[bytes | None] = []
    while position < log.last_stable_offset:
        fetched = await log.fetch(position, max_bytes, isolation=COMMITTED)
        assert fetched.next_offset > position
        values += _visible(b"".join(fetched.parts), fetched.aborted, position)
        position = fetched.next_offset
    return values


def _visible(data: bytes, aborted: Sequence[AbortedTransaction], offset: int) -> list[bytes | None]:
    """Kafka's consumer: a producer's batches are dropped from an aborted transaction's first offset
    to its ABORT marker."""
    todo = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
    dropped: set[int] = set()
    values: list[bytes | None] = []
    for header, view in scan(data):
        while todo and todo[-1].first_offset <= header.last_offset:
            dropped.add(todo.pop().producer_id)
        if header.is_control:
            marker = decode_end_marker(view) if header.record_count else None
            if marker is not None and marker.control_type is ControlType.ABORT:
                dropped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in dropped):
            values += [record[3] for record in decode(view) if record[0] >= offset]
    return values


async def described(log: AbstractLog, producer_id: int = 1) -> ProducerDescription:
    (found,) = [one for one in log.producers() if one.producer_id == producer_id]
    return found


class TransactionConformance(ABC):
    knows_append_times = True
    """As ProducerConformance.knows_append_times."""

    @abstractmethod
    def make(self, configs: CONFIG) -> AbstractAsyncContextManager[LogUnderTest]:
        """An empty log with these topic settings."""

    def run(self, test: Callable[[LogUnderTest], Awaitable[None]], **configs: str) -> None:
        """Underscores in setting names stand for dots."""

        async def body() -> None:
            named = {name.replace("_", "."): value for name, value in configs.items()}
            async with self.make(named) as under_test:
                await test(under_test)

        asyncio.run(body())

    # Markers

    def test_a_marker_is_one_control_batch(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            await begin(log, transactional([b"a", b"b"], 7, 3))
            info = await end(log, COMMIT, 7, 3, 5)
            assert (info.base_offset, info.last_offset, info.is_duplicate) == (2, 2, False)
            data = b"".join((await log.fetch(2, 1000)).parts)
            ((header, view),) = scan(data)
            assert header.attributes == TRANSACTIONAL | CONTROL
            assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
            assert (header.base_offset, header.leader_epoch) == (2, log.leader_epoch)
            assert decode_end_marker(view) == EndMarker(ControlType.COMMIT, 5)
            assert header.max_timestamp_ms == t.clock.now_ms()

        self.run(test)

    def test_a_client_cannot_write_a_control_batch(self) -> None:
        async def test(t: LogUnderTest) -> None:
            data = bytearray(transactional([b"a"]))
            data[22] |= CONTROL
            t.log.verified(1, 0)
            await refused(InvalidRecord, append(t.log, bytes(resealed(data))))
            anonymous = bytearray(transactional([b"a"], -1, -1, -1))
            await refused(InvalidRecord, append(t.log, bytes(anonymous)))
            assert t.log.log_end_offset == 0

        self.run(test)

    def test_a_marker_without_a_transaction_changes_no_view(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            await append(log, encoded([b"a"]))
            for is_commit in (ABORT, COMMIT, ABORT):
                await end(log, is_commit, 9, 2, 1)
            for _ in range(2):
                log = t.log
                assert (log.last_stable_offset, log.high_watermark) == (4, 4)
                assert await aborted_in(log, 0) == []
                found = await described(log, 9)
                assert found[:3] == (9, 2, -1)
                assert (found.coordinator_epoch, found.current_txn_start_offset) == (1, -1)
                await t.crashed()

        self.run(test)

    def test_a_marker_is_idempotent(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            await begin(log, transactional([b"a"]))
            for _ in range(3):
                await end(log, ABORT)
            assert log.last_stable_offset == 4
            assert await aborted_in(log, 0) == [(1, 0)]
            assert await aborted_in(log, 2) == []

        self.run(test)

    def test_a_marker_of_an_older_producer_epoch_is_fenced(self) -> None:
        async def test(t: LogUnderTest) -> None:
            for _ in range(2):
                await end(t.log, ABORT, epoch=5)
                error = await refused(ProducerFenced, end(t.log, ABORT, epoch=4))
                assert (error.fields["expected"], error.fields["actual"]) == (5, 4)
                await t.crashed()
            assert t.log.log_end_offset == 2

        self.run(test)

    def test_a_marker_of_an_older_coordinator_is_fenced(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await begin(t.log, transactional([b"a"]))
            await end(t.log, ABORT, coordinator_epoch=6)
            for _ in range(2):
                marker = end(t.log, ABORT, epoch=1, coordinator_epoch=5)
                error = await refused(CoordinatorFenced, marker)
                assert (error.fields["expected"], error.fields["actual"]) == (6, 5)
                await t.crashed()
            await end(t.log, COMMIT, epoch=1, coordinator_epoch=7)
            assert (await described(t.log)).coordinator_epoch == 7

        self.run(test)

    def test_a_marker_of_a_newer_epoch_ends_the_transaction_and_fences(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await begin(t.log, transactional([b"a"]))
            await end(t.log, ABORT, epoch=1)
            for _ in range(2):
                log = t.log
                assert log.last_stable_offset == log.high_watermark == 2
                assert await aborted_in(log, 0) == [(1, 0)]
                found = await described(log)
                assert (found.producer_epoch, found.last_sequence) == (1, -1)
                late = transactional([b"b"], sequence=1)
                assert not log.needs_verification(1, 0)
                await refused(ProducerFenced, append(log, late))
                await refused(ProducerFenced, append(log, encoded([b"b"], producer=(1, 0, 1))))
                await t.crashed()
            t.log.verified(1, 1)
            wrong = transactional([b"c"], epoch=1, sequence=1)
            await refused(OutOfOrderSequence, append(t.log, wrong))
            await append(t.log, transactional([b"c"], epoch=1))

        self.run(test)

    # What batches are let in

    def test_a_transactional_batch_needs_verification(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log, first = t.log, transactional([b"a"])
            assert log.needs_verification(1, 0)
            error = await refused(InvalidTxnState, append(log, first))
            assert "AddPartitionsToTxn" in str(error)
            log.verified(1, 1)
            await refused(InvalidTxnState, append(log, first))
            log.verified(1, 0)
            assert not log.needs_verification(1, 0)
            await append(log, first)
            assert not log.needs_verification(1, 0)
            await append(log, transactional([b"b"], sequence=1))
            assert log.needs_verification(2, 0)

        self.run(test)

    def test_an_open_transaction_needs_no_verification_after_a_crash(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await begin(t.log, transactional([b"a"]))
            await t.crashed()
            assert not t.log.needs_verification(1, 0)
            assert t.log.needs_verification(1, 1)
            await append(t.log, transactional([b"b"], sequence=1))
            await t.reopened()
            await append(t.log, transactional([b"c"], sequence=2))
            assert (await described(t.log)).current_txn_start_offset == 0

        self.run(test)

    def test_a_marker_takes_the_permission_back(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            log.verified(1, 0)
            await end(log, ABORT)
            await refused(InvalidTxnState, append(log, transactional([b"late"])))
            await begin(log, transactional([b"a"]))
            await end(log, COMMIT)
            assert log.needs_verification(1, 0)
            await refused(InvalidTxnState, append(log, transactional([b"late"], sequence=1)))

        self.run(test)

    def test_a_verification_that_a_marker_overtakes_lets_nothing_in(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            guard = log.verification_guard()
            await end(log, ABORT)
            assert log.needs_verification(1, 0)
            newer = log.verification_guard()
            log.verified(1, 0, guard)
            await refused(InvalidTxnState, append(log, transactional([b"late"])))
            assert log.last_stable_offset == 1
            log.verified(1, 0, newer)
            await append(log, transactional([b"a"]))

        self.run(test)

    def test_a_plain_batch_inside_a_transaction_is_refused(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await begin(t.log, transactional([b"a"]))
            for _ in range(2):
                plain = encoded([b"b"], producer=(1, 0, 1))
                await refused(InvalidTxnState, append(t.log, plain))
                await t.crashed()
            await end(t.log, COMMIT)
            await append(t.log, encoded([b"b"], producer=(1, 0, 1)))
            assert t.log.last_stable_offset == 3

        self.run(test)

    def test_transactional_batches_come_in_runs(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            log.verified(1, 0)
            log.verified(3, 0)
            sent = [
                transactional([b"a"]),
                transactional([b"b"], 2),
                encoded([b"c"], producer=(1, 0, 1)),
                transactional([b"d"], sequence=1),
                transactional([b"e"], 3),
                encoded([b"f"]),
            ]
            expected = [
                (0, 0, False),
                InvalidTxnState,
                InvalidTxnState,
                (1, 1, False),
                (2, 2, False),
                (3, 3, False),
            ]
            assert await append_together(log, sent) == expected
            assert (log.high_watermark, log.last_stable_offset) == (4, 0)
            await end(log, COMMIT, 1)
            assert log.last_stable_offset == 2

        self.run(test)

    def test_duplicates_are_known_in_and_after_a_transaction(self) -> None:
        async def test(t: LogUnderTest) -> None:
            sent = [transactional([b"a"]), transactional([b"b"], sequence=1)]
            for data in sent:
                await begin(t.log, data)
            expected = [(0, 0, True), (1, 1, True)]
            assert await append_together(t.log, sent) == expected
            await t.crashed()
            assert await append_together(t.log, sent) == expected
            await end(t.log, COMMIT)
            assert await append_together(t.log, sent) == expected
            await t.crashed()
            assert await append_together(t.log, sent) == expected
            assert t.log.last_stable_offset == 3

        self.run(test)

    def test_a_transaction_goes_on_over_a_sequence_wrap(self) -> None:
        async def test(t: LogUnderTest) -> None:
            last = (1 << 31) - 1
            await begin(t.log, transactional([b"a"], sequence=last))
            await append(t.log, transactional([b"b"], sequence=0))
            await end(t.log, COMMIT)
            await begin(t.log, transactional([b"c"], sequence=1))
            assert (await described(t.log)).current_txn_start_offset == 3

        self.run(test)

    # Last stable offset

    def test_the_first_open_transaction_holds_the_last_stable_offset(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            await append(log, encoded([b"a"]))
            await begin(log, transactional([b"b"], 1))
            await begin(log, transactional([b"c"], 2))
            await append(log, encoded([b"d"]))
            assert (log.last_stable_offset, log.high_watermark) == (1, 4)
            await end(log, COMMIT, 2)
            assert log.last_stable_offset == 1
            await end(log, ABORT, 1)
            assert log.last_stable_offset == log.high_watermark == 6

        self.run(test)

    def test_the_last_stable_offset_is_the_same_after_a_crash(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await append(t.log, encoded([b"a"]))
            for producer_id in (1, 2, 3):
                await begin(t.log, transactional([b"b"], producer_id))
            for producer_id, stable in ((2, 1), (1, 3), (3, 7)):
                await end(t.log, ABORT, producer_id)
                assert t.log.last_stable_offset == stable
                await t.crashed()
                assert t.log.last_stable_offset == stable
                await t.reopened()
                assert t.log.last_stable_offset == stable

        self.run(test)

    def test_a_marker_counts_when_it_is_durable(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            await begin(log, transactional([b"a"]))
            t.hold()
            wait = asyncio.ensure_future(await log.append_marker(TransactionMarker(1, 0, 0, True)))
            await asyncio.sleep(0)
            assert (log.last_stable_offset, log.high_watermark, log.log_end_offset) == (0, 1, 2)
            t.release()
            await wait
            assert log.last_stable_offset == 2

        self.run(test)

    def test_a_committed_reader_gets_nothing_from_the_last_stable_offset_on(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            await append(log, encoded([b"a"]))
            await begin(log, transactional([b"b"]))
            await append(log, encoded([b"c"]))
            fetched = await log.fetch(0, 1 << 20, isolation=COMMITTED)
            assert (fetched.next_offset, fetched.batches, fetched.last_stable_offset) == (1, 1, 1)
            for offset in (1, 2, 3):
                fetched = await log.fetch(offset, 1 << 20, isolation=COMMITTED)
                assert (fetched.batches, fetched.next_offset, fetched.high_watermark) == (
                    0,
                    offset,
                    3,
                )
            assert (await log.fetch(0, 1 << 20)).next_offset == 3
            t.hold()
            wait = asyncio.ensure_future(await log.append(encoded([b"d"])))
            await refused(OffsetNotAvailable, log.fetch(4, 10, isolation=COMMITTED))
            t.release()
            await wait

        self.run(test)

    def test_the_end_is_the_last_stable_offset_for_committed_readers(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            await append(log, encoded([b"a"], at_ms=AT_MS))
            await begin(log, transactional([b"b"], at_ms=AT_MS + 10))
            assert (await log.offset_for_timestamp(LATEST, COMMITTED)).offset == 1
            assert (await log.offset_for_timestamp(LATEST, UNCOMMITTED)).offset == 2
            assert (await log.offset_for_timestamp(AT_MS + 1, COMMITTED)).offset == -1
            assert (await log.offset_for_timestamp(AT_MS + 1, UNCOMMITTED)).offset == 1
            await end(log, COMMIT)
            assert (await log.offset_for_timestamp(LATEST, COMMITTED)).offset == 3
            assert (await log.offset_for_timestamp(AT_MS + 1, COMMITTED)).offset == 1

        self.run(test)

    def test_who_waits_for_committed_records_is_woken_by_the_marker(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            calls: list[int] = []
            await begin(log, transactional([b"a"]))
            waits = [asyncio.ensure_future(log.wait_for(n, COMMITTED)) for n in (0, 1, 2)]
            plain = asyncio.ensure_future(log.wait_for(1, UNCOMMITTED))
            await asyncio.sleep(0)
            log.subscribe(lambda: calls.append(1))
            await append(log, encoded([b"b"]))
            await plain
            assert calls == [1]
            assert not any(wait.done() for wait in waits)
            log.subscribe(lambda: calls.append(2))
            await end(log, COMMIT)
            await asyncio.gather(*waits)
            assert calls == [1, 2]
            rest = asyncio.ensure_future(log.wait_for(3, COMMITTED))
            await asyncio.sleep(0)
            await log.close()
            await rest

        self.run(test)

    # Aborted transactions

    def test_a_fetch_tells_the_aborted_transactions_that_overlap_it(self) -> None:
        """UnifiedLogTest.testFetchUpToLastStableOffset, testFirstUnstableOffset…"""

        async def test(t: LogUnderTest) -> None:
            log = t.log
            await begin(log, transactional([b"a", b"b"], 1))  # 0, 1
            await begin(log, transactional([b"c"], 2))  # 2
            await end(log, ABORT, 1)  # 3
            await begin(log, transactional([b"d"], 1, sequence=2))  # 4
            await end(log, ABORT, 2)  # 5
            await end(log, COMMIT, 1)  # 6
            await begin(log, transactional([b"e"], 3))  # 7
            await end(log, ABORT, 3)  # 8
            for _ in range(3):
                log = t.log
                assert await aborted_in(log, 0) == [(1, 0), (2, 2), (3, 7)]
                assert await aborted_in(log, 3) == [(1, 0), (2, 2), (3, 7)]
                assert await aborted_in(log, 4) == [(2, 2), (3, 7)]
                assert await aborted_in(log, 6) == [(3, 7)]
                assert await aborted_in(log, 8) == [(3, 7)]
                assert await aborted_in(log, 9) == []
                assert await aborted_in(log, 0, 1) == [(1, 0)]
                assert await aborted_in(log, 4, 1) == [(2, 2)]
                assert (await log.fetch(0, 1 << 20)).aborted == ()
                assert await committed_values(log) == [b"d"]
                assert await committed_values(log, max_bytes=1) == [b"d"]
                await t.crashed()

        self.run(test)

    def test_aborted_transactions_are_told_over_segments(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await begin(t.log, transactional([b"a"], 1))
            await t.log.roll()
            await begin(t.log, transactional([b"b"], 2))
            await append(t.log, encoded([b"c"]))
            await t.log.roll()
            await append(t.log, transactional([b"d"], 1, sequence=1))
            await end(t.log, ABORT, 2)  # 4
            await t.log.roll()
            await end(t.log, ABORT, 1)  # 5
            await t.log.roll()
            await append(t.log, encoded([b"e"]))
            for _ in range(3):
                log = t.log
                assert await aborted_in(log, 0) == [(1, 0), (2, 1)]
                assert await aborted_in(log, 5) == [(1, 0)]
                assert await aborted_in(log, 6) == []
                assert await aborted_in(log, 0, 1) == [(1, 0)]
                assert await committed_values(log) == [b"c", b"e"]
                assert await committed_values(log, max_bytes=1) == [b"c", b"e"]
                await t.crashed()

        self.run(test)

    def test_many_aborted_transactions_are_told_by_each_fetch_where_they_belong(self) -> None:
        async def test(t: LogUnderTest) -> None:
            expected: list[bytes] = []
            for number in range(120):
                producer_id = number % 7
                value = b"%d" % number
                await begin(t.log, transactional([value], producer_id, sequence=number // 7))
                await end(t.log, number % 3 == 0, producer_id)
                expected += [value] * (number % 3 == 0)
            for _ in range(2):
                log = t.log
                for number in range(120):
                    told = [(number % 7, 2 * number)] * (number % 3 != 0)
                    assert await aborted_in(log, 2 * number, 1) == told
                    assert await aborted_in(log, 2 * number + 1, 1) == told
                assert await committed_values(log, max_bytes=400) == expected
                assert len(await aborted_in(log, 0)) == 80
                await t.crashed()

        self.run(test, internal_segment_bytes="2500")

    def test_a_transaction_whose_first_records_are_deleted_is_still_told(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await begin(t.log, transactional([b"a"]))
            await t.log.roll()
            await append(t.log, transactional([b"b"], sequence=1))
            await append(t.log, encoded([b"c"]))
            await end(t.log, ABORT)
            await t.log.roll()
            await t.log.delete_records(1)
            await t.log.delete_oldest_segments(1, "test")
            for _ in range(2):
                assert t.log.log_start_offset == 1
                assert await aborted_in(t.log, 1) == [(1, 0)]
                assert await committed_values(t.log) == [b"c"]
                await t.crashed()

        self.run(test)

    # Deletion, retention, expiry

    def test_deleting_records_of_an_open_transaction_moves_the_last_stable_offset(self) -> None:
        """UnifiedLogTest.testLastStableOffsetWithMixedProducerData, …DoesNotExceedLogStartOffset"""

        async def test(t: LogUnderTest) -> None:
            await begin(t.log, transactional([b"a", b"b"]))
            await append(t.log, encoded([b"c"]))
            await append(t.log, transactional([b"d"], sequence=2))
            wait = asyncio.ensure_future(t.log.wait_for(1, COMMITTED))
            await asyncio.sleep(0)
            await t.log.delete_records(3)
            await wait
            for _ in range(2):
                assert (t.log.last_stable_offset, t.log.log_start_offset) == (3, 3)
                assert (await described(t.log)).current_txn_start_offset == 0
                assert not t.log.needs_verification(1, 0)
                await t.crashed()
            await end(t.log, ABORT)
            assert t.log.last_stable_offset == 5
            assert await aborted_in(t.log, 3) == [(1, 0)]

        self.run(test)

    def test_segments_of_an_open_transaction_may_go(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await begin(t.log, transactional([b"a"]))
            await append(t.log, encoded([b"b"]))
            assert await t.log.delete_oldest_segments(2, "test") == 1
            for _ in range(2):
                assert t.log.last_stable_offset == t.log.log_start_offset == 2
                assert (await described(t.log)).current_txn_start_offset == 0
                await t.crashed()
            await append(t.log, transactional([b"c"], sequence=1))
            assert t.log.last_stable_offset == 2
            await end(t.log, COMMIT)
            assert await committed_values(t.log) == [b"c"]

        self.run(test)

    def test_a_producer_in_a_transaction_does_not_expire(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await begin(t.log, transactional([b"a"]))
            await append(t.log, encoded([b"x"], producer=(2, 0, 0)))
            t.clock.advance(30 * 24 * 3_600_000)
            known = {1}
            for _ in range(2):
                assert {one.producer_id for one in t.log.producers()} == known
                assert not t.log.needs_verification(1, 0)
                wrong = transactional([b"b"], sequence=5)
                await refused(OutOfOrderSequence, append(t.log, wrong))
                await t.crashed()
                known = {1} if self.knows_append_times else {1, 2}
            await append(t.log, transactional([b"b"], sequence=1))
            assert (await append(t.log, transactional([b"a"]))).is_duplicate
            await end(t.log, ABORT)
            assert await aborted_in(t.log, 0) == [(1, 0)]
            assert {one.producer_id for one in t.log.producers()} == known
            t.clock.advance(30 * 24 * 3_600_000)
            assert t.log.producers() == []

        self.run(test)

    def test_producers_tell_their_transactions(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await append(t.log, encoded([b"x"]))
            await begin(t.log, transactional([b"a", b"b"], 1, 4))
            at_ms = t.clock.now_ms()
            await append(t.log, encoded([b"x"], producer=(2, 0, 0)))
            expected = ProducerDescription(1, 4, 1, at_ms, -1, 1)
            for _ in range(2):
                assert await described(t.log, 1) == expected
                assert await described(t.log, 2) == ProducerDescription(2, 0, 0, at_ms)
                await t.crashed()
            await end(t.log, COMMIT, 1, 4, 3)
            expected = expected._replace(coordinator_epoch=3, current_txn_start_offset=-1)
            for _ in range(2):
                assert await described(t.log, 1) == expected
                await t.reopened()

        self.run(test)

    def test_the_isolation_levels_agree_without_transactions(self) -> None:
        async def test(t: LogUnderTest) -> None:
            for number in range(10):
                await append(t.log, encoded([b"%d" % number], producer=(1, 0, number)))
                assert t.log.last_stable_offset == t.log.high_watermark == number + 1
            for isolation in Isolation:
                fetched = await t.log.fetch(0, 1 << 20, isolation=isolation)
                assert (fetched.batches, fetched.aborted) == (10, ())

        self.run(test)
