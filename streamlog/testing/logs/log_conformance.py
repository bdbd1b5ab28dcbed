"""What every AbstractLog does: inherit `LogConformance` and say how to make one.

`make` yields a `LogUnderTest`; `reopened` and `crashed` give its log as the next process finds it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import pytest

from streamlog.codec.batch import (
    CONTROL,
    LOG_APPEND_TIME,
    SEQUENCE_MAX,
    TRANSACTIONAL,
    BatchProducer,
    Compression,
    parse_header,
    resealed,
    scan,
    with_producer,
)
from streamlog.codec.records import Record, decode, encode_values
from streamlog.errors import (
    Closed,
    CorruptMessage,
    Invalid,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTxnState,
    MessageTooLarge,
    OffsetNotAvailable,
    OffsetOutOfRange,
    OutcomeUnknown,
    OutOfOrderSequence,
    ProducerFenced,
    RecordListTooLarge,
    StreamlogError,
)
from streamlog.log.api.abstract_log import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    AbstractLog,
    AppendOutcome,
    EpochEndOffset,
    Isolation,
    LogAppend,
    LogAppendInfo,
    ProducerDescription,
    TimestampAndOffset,
)
from streamlog.testing.clocks import ManualClock

UNCOMMITTED, COMMITTED = Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED
CONFIG = Mapping[str, str]


class LogUnderTest(Protocol):
    """`log` is the open one; the clock is the log's."""

    clock: ManualClock

    @property
    def log(self) -> AbstractLog: ...

    async def reopened(self) -> None:
        """Closes the log in order and opens it again."""
        ...

    async def crashed(self) -> None:
        """Opens the log in a new process; what was not durable is lost."""
        ...

    def hold(self) -> None:
        """Appends stay under way until `release`."""
        ...

    def release(self) -> None: ...


def encoded(
    values: Sequence[bytes | None],
    *,
    at_ms: int = 1_700_000_000_000,
    stamps: Sequence[int] | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    compression: Compression = Compression.NONE,
) -> bytes:
    """One record batch."""
    return bytes(
        encode_values(
            values,
            timestamp_ms=at_ms,
            timestamps_ms=stamps,
            producer=BatchProducer(*producer),
            compression=compression,
        ).data
    )


async def append(log: AbstractLog, batches: bytes) -> LogAppendInfo:
    """Durable on return."""
    return await (await log.append(batches))


async def read(log: AbstractLog, offset: int | None = None) -> list[Record]:
    """Every visible record from the offset, or from the log's start."""
    position = log.log_start_offset if offset is None else offset
    records: list[Record] = []
    while position < log.high_watermark:
        fetched = await log.fetch(position, 64 << 10)
        assert fetched.next_offset > position
        for batch in scan(b"".join(fetched.parts)):
            records += [one for one in decode(batch.view) if one[0] >= position]
        position = fetched.next_offset
    return records


async def acked(outcome: AppendOutcome) -> LogAppendInfo:
    """Durable on return. Errors: the append's."""
    if isinstance(outcome, StreamlogError):
        raise outcome
    return await outcome


async def append_together(
    log: AbstractLog, sent: Sequence[bytes]
) -> list[tuple[int, int, bool] | type[StreamlogError]]:
    """Base and last offset of each append, and whether it is a duplicate; or its error's type."""
    found: list[tuple[int, int, bool] | type[StreamlogError]] = []
    for outcome in await log.append_many([LogAppend(one) for one in sent]):
        try:
            info = await acked(outcome)
        except StreamlogError as error:
            found.append(type(error))
        else:
            found.append((info.base_offset, info.last_offset, info.is_duplicate))
    return found


async def refused(error: type[StreamlogError], work: Awaitable[object]) -> StreamlogError:
    with pytest.raises(error) as caught:
        await work
    return caught.value


class LogConformance(ABC):
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

    # Append and fetch

    def test_an_empty_log(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            assert log.log_start_offset == log.high_watermark == log.log_end_offset == 0
            assert log.last_stable_offset == 0
            assert log.size_bytes == 0
            assert [one.is_active for one in log.segments] == [True]
            fetched = await log.fetch(0, 1000)
            assert (fetched.parts, fetched.batches, fetched.next_offset) == ((), 0, 0)
            assert log.end_offset_for_epoch(0) == EpochEndOffset(-1, -1)

        self.run(test)

    def test_records_get_their_offsets_and_come_back(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            first = await append(log, encoded([b"a", b"b", None]))
            assert first == LogAppendInfo(0, 2, -1, 0)
            second = await append(log, encoded([b"d"], compression=Compression.ZSTD))
            assert (second.base_offset, second.last_offset) == (3, 3)
            assert (log.high_watermark, log.log_end_offset, log.last_stable_offset) == (4, 4, 4)
            assert [(r[0], r[3]) for r in await read(log)] == [
                (0, b"a"),
                (1, b"b"),
                (2, None),
                (3, b"d"),
            ]
            fetched = await log.fetch(0, 1 << 20)
            assert fetched.batches == 2
            assert fetched.size_bytes == sum(len(part) for part in fetched.parts) == log.size_bytes
            found = scan(b"".join(fetched.parts))
            assert {one.header.leader_epoch for one in found} == {log.leader_epoch}

        self.run(test)

    def test_appends_are_sequenced_in_the_order_of_calls(self) -> None:
        async def test(t: LogUnderTest) -> None:
            waits = [await t.log.append(encoded([b"%d" % i])) for i in range(50)]
            infos = await asyncio.gather(*waits)
            assert [one.base_offset for one in infos] == list(range(50))
            calls = [append(t.log, encoded([b"%d" % i])) for i in range(50, 100)]
            infos = await asyncio.gather(*calls)
            assert [one.base_offset for one in infos] == list(range(50, 100))
            assert [r[3] for r in await read(t.log)] == [b"%d" % i for i in range(100)]

        self.run(test)

    def test_several_batches_in_one_append_lie_in_a_row(self) -> None:
        async def test(t: LogUnderTest) -> None:
            three = encoded([b"a", b"b"]) + encoded([b"c"]) + encoded([b"d", b"e"])
            other = t.log.append(encoded([b"x"]))
            infos = await asyncio.gather(append(t.log, three), append(t.log, encoded([b"f"])))
            await (await other)
            assert (infos[0].base_offset, infos[0].last_offset) == (0, 4)
            assert infos[1].base_offset == 5
            two = encoded([b"a"], producer=(1, 0, 0)) + encoded([b"b"], producer=(1, 0, 1))
            await refused(InvalidRecord, append(t.log, two))

        self.run(test)

    # Runs

    def test_a_run_is_its_appends_one_after_another(self) -> None:
        async def test(t: LogUnderTest) -> None:
            first, third = encoded([b"a", b"b"], producer=(1, 3, 0)), (1, 3, 3)
            sent = [
                first,
                encoded([b"c"], producer=(1, 3, 2)),
                first,
                encoded([b"skips"], producer=(1, 3, 9)),
                encoded([b"fenced"], producer=(1, 2, 0)),
                encoded([b"d"]),
                encoded([b"e"], producer=third),
            ]
            expected = [
                (0, 1, False),
                (2, 2, False),
                (0, 1, True),
                OutOfOrderSequence,
                ProducerFenced,
                (3, 3, False),
                (4, 4, False),
            ]
            assert await append_together(t.log, sent) == expected
            assert [r[3] for r in await read(t.log)] == [b"a", b"b", b"c", b"d", b"e"]
            await t.crashed()
            again = await append_together(t.log, [sent[6], sent[0], sent[1]])
            assert again == [(4, 4, True), (0, 1, True), (2, 2, True)]
            assert [r[3] for r in await read(t.log)] == [b"a", b"b", b"c", b"d", b"e"]

        self.run(test)

    def test_a_run_ends_at_a_batch_that_its_producer_sends_again(self) -> None:
        """What is younger would be stored before it."""

        async def test(t: LogUnderTest) -> None:
            sent = [encoded([b"%d" % n], producer=(1, 3, n)) for n in range(4)]
            damaged = bytearray(sent[1])
            damaged[-1] ^= 1
            found = await append_together(t.log, [sent[0], bytes(damaged), *sent[2:]])
            assert found == [(0, 0, False), *[CorruptMessage] * 3]
            again = await append_together(t.log, sent[1:])
            assert again == [(n, n, False) for n in (1, 2, 3)]
            assert [r[3] for r in await read(t.log)] == [b"0", b"1", b"2", b"3"]

        self.run(test)

    def test_a_run_rolls_segments_and_is_found_by_its_timestamps(self) -> None:
        async def test(t: LogUnderTest) -> None:
            sent = [encoded([bytes(200)], at_ms=1_700_000_000_000 + n) for n in range(30)]
            found = await append_together(t.log, sent)
            assert found == [(n, n, False) for n in range(30)]
            for _ in range(2):
                assert len(t.log.segments) > 3
                sizes = sum(one.size_bytes for one in t.log.segments)
                assert sizes == t.log.size_bytes == sum(map(len, sent))
                for n in (0, 7, 29):
                    at_ms = 1_700_000_000_000 + n
                    stamped = await t.log.offset_for_timestamp(at_ms, UNCOMMITTED)
                    assert (stamped.offset, stamped.timestamp_ms) == (n, at_ms)
                await t.reopened()

        self.run(test, internal_segment_bytes="1500", index_interval_bytes="300")

    def test_a_run_has_log_append_time(self) -> None:
        async def test(t: LogUnderTest) -> None:
            outcomes = await t.log.append_many([LogAppend(encoded([b"a"])) for _ in range(3)])
            for outcome in outcomes:
                assert not isinstance(outcome, StreamlogError)
                assert (await outcome).log_append_time_ms == t.clock.now_ms()
            assert {r[1] for r in await read(t.log)} == {t.clock.now_ms()}

        self.run(test, message_timestamp_type="LogAppendTime")

    def test_a_duplicate_is_answered_with_the_append_time_of_its_original(self) -> None:
        async def test(t: LogUnderTest) -> None:
            sent = [encoded([b"%d" % n], producer=(1, 0, n)) for n in range(4)]
            times: list[int] = []
            for data in sent:
                times.append((await append(t.log, data)).log_append_time_ms)
                t.clock.advance(1000)
            assert len(set(times)) == 4
            for _ in range(2):
                again = [await append(t.log, data) for data in sent]
                assert [one.log_append_time_ms for one in again] == times
                assert all(one.is_duplicate for one in again)
                await t.crashed()
            t.hold()
            late = encoded([b"late"], producer=(1, 0, 4))
            first = asyncio.ensure_future(await t.log.append(late))
            at_ms = t.clock.now_ms()
            t.clock.advance(1000)
            second = asyncio.ensure_future(await t.log.append(late))
            t.release()
            assert [(await one).log_append_time_ms for one in (first, second)] == [at_ms] * 2
            await t.log.delete_records(LATEST)
            assert (await append(t.log, late)).is_duplicate

        self.run(test, message_timestamp_type="LogAppendTime")

    def test_a_run_may_hold_appends_of_several_batches(self) -> None:
        async def test(t: LogUnderTest) -> None:
            two = encoded([b"b", b"c"]) + encoded([b"d"])
            found = await append_together(t.log, [encoded([b"a"]), two, encoded([b"e"])])
            assert found == [(0, 0, False), (1, 3, False), (4, 4, False)]
            assert [r[3] for r in await read(t.log)] == [b"a", b"b", b"c", b"d", b"e"]

        self.run(test)

    def test_a_run_under_way_is_not_visible_and_answers_nobody(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            await append(log, encoded([b"before"]))
            t.hold()
            first = encoded([b"a"], producer=(1, 0, 0))
            sent = [first, encoded([b"b"]), first, encoded([b"c"])]
            outcomes = await log.append_many([LogAppend(one) for one in sent])
            waits = [asyncio.ensure_future(acked(one)) for one in outcomes]
            late = await log.append(first)
            await asyncio.sleep(0.01)
            assert not any(wait.done() for wait in waits)
            assert (log.high_watermark, log.log_end_offset) == (1, 4)
            waits[1].cancel()
            t.release()
            infos = [await wait for number, wait in enumerate(waits) if number != 1]
            assert [one.base_offset for one in infos] == [1, 1, 3]
            assert [one.is_duplicate for one in infos] == [False, True, False]
            assert (await late).base_offset == 1
            assert [r[3] for r in await read(log)] == [b"before", b"a", b"b", b"c"]

        self.run(test)

    def test_a_subscriber_that_raises_leaves_no_append_of_a_run_without_an_answer(self) -> None:
        async def test(t: LogUnderTest) -> None:
            def broken() -> None:
                raise RuntimeError("a subscriber raises nothing, and this one does")

            t.log.subscribe(broken)
            outcomes = await t.log.append_many([LogAppend(encoded([b"a"])) for _ in range(3)])
            waits = [asyncio.ensure_future(acked(one)) for one in outcomes]
            await asyncio.wait(waits, timeout=0.2, return_when=asyncio.FIRST_COMPLETED)
            # The log's owner does this, which hears of the failure.
            await t.log.kill()
            async with asyncio.timeout(5):
                for wait in waits:
                    await refused(OutcomeUnknown, wait)

        self.run(test)

    def test_a_run_to_a_closed_log_has_an_error_for_each_append(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            await log.close()
            assert await append_together(log, [encoded([b"a"])] * 3) == [Closed] * 3
            await t.reopened()
            assert t.log.log_end_offset == 0

        self.run(test)

    def test_the_producers_that_a_log_remembers(self) -> None:
        async def test(t: LogUnderTest) -> None:
            assert list(t.log.producers()) == []
            sent = [
                encoded([b"a", b"b"], producer=(7, 2, 0)),
                encoded([b"c"], producer=(8, 0, 5)),
                encoded([b"d"], producer=(7, 2, 2)),
                encoded([b"without an id"]),
            ]
            await append_together(t.log, sent)
            for _ in range(2):
                now_ms = t.clock.now_ms()
                assert sorted(t.log.producers()) == [
                    ProducerDescription(7, 2, 2, now_ms),
                    ProducerDescription(8, 0, 5, now_ms),
                ]
                await t.crashed()
            await t.log.close()
            with pytest.raises(Closed):
                t.log.producers()

        self.run(test)

    def test_a_fetch_keeps_its_limits(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            for i in range(4):
                await append(log, encoded([b"%d" % i * 100] * 2))
            size = log.size_bytes // 4
            one = await log.fetch(1, 1)
            assert (one.batches, one.next_offset, one.size_bytes) == (1, 2, size)
            none = await log.fetch(1, size - 1, min_one_batch=False)
            assert (none.batches, none.next_offset, none.parts) == (0, 1, ())
            exact = await log.fetch(2, 2 * size, min_one_batch=False)
            assert (exact.batches, exact.next_offset) == (2, 6)
            rest = await log.fetch(3, 1 << 20, isolation=COMMITTED)
            assert (rest.batches, rest.next_offset) == (3, 8)

        self.run(test)

    def test_appends_under_way_are_not_visible(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            await append(log, encoded([b"a"]))
            t.hold()
            wait = asyncio.ensure_future(await log.append(encoded([b"b", b"c"])))
            await asyncio.sleep(0)
            assert (log.high_watermark, log.log_end_offset) == (1, 3)
            assert len(await read(log)) == 1
            assert (await log.fetch(1, 100)).batches == 0
            for offset in (2, 3):
                await refused(OffsetNotAvailable, log.fetch(offset, 100))
            await refused(OffsetOutOfRange, log.fetch(4, 100))
            assert not wait.done()
            t.release()
            assert (await wait).last_offset == 2
            assert len(await read(log)) == 3

        self.run(test)

    def test_a_cancelled_wait_leaves_the_append_under_way(self) -> None:
        async def test(t: LogUnderTest) -> None:
            t.hold()
            wait = asyncio.ensure_future(await t.log.append(encoded([b"a"])))
            await asyncio.sleep(0)
            wait.cancel()
            later = await t.log.append(encoded([b"b"]))
            t.release()
            assert (await later).base_offset == 1
            assert len(await read(t.log)) == 2

        self.run(test)

    def test_long_polls_wake_when_the_end_moves(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            await append(log, encoded([b"a"]))
            await log.wait_for(0, UNCOMMITTED)
            polls = [asyncio.ensure_future(log.wait_for(1, UNCOMMITTED)) for _ in range(200)]
            polls += [asyncio.ensure_future(log.wait_for(1, COMMITTED)) for _ in range(200)]
            far = asyncio.ensure_future(log.wait_for(2, UNCOMMITTED))
            await asyncio.sleep(0)
            for poll in polls[:100]:
                poll.cancel()
            await append(log, encoded([b"b"]))
            await asyncio.gather(*polls[100:])
            assert not far.done()
            await log.close()
            await far

        self.run(test)

    def test_a_subscriber_hears_once_of_the_next_change(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log, calls = t.log, Counter[str]()

            def subscribe(name: str) -> Callable[[], None]:
                def changed() -> None:
                    calls[name] += 1

                log.subscribe(changed)
                return changed

            once = subscribe("once")
            log.subscribe(once)
            log.unsubscribe(subscribe("left"))
            await append(log, encoded([b"a", b"b"]))
            await append(log, encoded([b"c"]))
            assert calls == {"once": 1}
            log.subscribe(once)
            await log.delete_records(1)
            assert calls == {"once": 2}
            log.subscribe(once)
            log.unsubscribe(once)
            log.unsubscribe(once)
            await append(log, encoded([b"d"]))
            assert calls == {"once": 2}
            subscribe("closed")
            await log.close()
            assert calls == {"once": 2, "closed": 1}
            subscribe("late")
            assert calls == {"once": 2, "closed": 1, "late": 1}

        self.run(test)

    # What is refused

    def test_bad_batches_are_refused_and_leave_nothing(self) -> None:
        good = encoded([b"a", b"b"], producer=(9, 0, 0))

        def changed(at: int, value: bytes) -> bytes:
            copy = bytearray(good)
            copy[at : at + len(value)] = value
            return bytes(resealed(copy))

        def flagged(flags: int) -> bytes:
            return changed(21, flags.to_bytes(2, "big"))

        cases: list[tuple[type[StreamlogError], bytes]] = [
            (InvalidRecord, b""),
            (CorruptMessage, good[:30]),
            (CorruptMessage, good[:-1]),
            (CorruptMessage, good + b"\0"),
            (CorruptMessage, good[:-1] + b"\xff"),
            (InvalidRecord, good[:16] + b"\x01" + good[17:]),
            (InvalidRecord, changed(57, (3).to_bytes(4, "big"))),
            (InvalidRecord, changed(57, (0).to_bytes(4, "big"))),
            (InvalidRecord, changed(23, b"\xff\xff\xff\xff\xff\xff\xff\xff")),
            (InvalidRecord, flagged(CONTROL)),
            (InvalidRecord, flagged(6)),
            (InvalidTxnState, flagged(TRANSACTIONAL)),
            (InvalidTimestamp, flagged(LOG_APPEND_TIME)),
            (InvalidRecord, bytes(with_producer(good, BatchProducer(9, 0, -1)))),
            (InvalidRecord, bytes(with_producer(good, BatchProducer(9, -1, 0)))),
            (MessageTooLarge, encoded([b"x" * 5000])),
            (RecordListTooLarge, encoded([b"x" * 3000])),
        ]

        async def test(t: LogUnderTest) -> None:
            for error, data in cases:
                await refused(error, t.log.append(data))
            assert t.log.log_end_offset == 0
            assert (await append(t.log, good)).base_offset == 0

        self.run(test, max_message_bytes="4000", internal_segment_bytes="2000")

    def test_timestamps_outside_the_limits_name_the_record(self) -> None:
        async def test(t: LogUnderTest) -> None:
            now = t.clock.now_ms()
            late = await refused(
                InvalidTimestamp,
                t.log.append(encoded([b"a", b"b"], stamps=[now, now + 1001])),
            )
            assert late.record_index == 1
            early = await refused(
                InvalidTimestamp,
                t.log.append(encoded([b"a", b"b"], stamps=[now - 2001, now])),
            )
            assert early.record_index == 0
            await append(t.log, encoded([b"a", b"b"], stamps=[now - 2000, now + 1000]))

        self.run(
            test,
            message_timestamp_before_max_ms="2000",
            message_timestamp_after_max_ms="1000",
        )

    def test_log_append_time(self) -> None:
        async def test(t: LogUnderTest) -> None:
            now = t.clock.now_ms()
            info = await append(t.log, encoded([b"a", b"b"], at_ms=5))
            assert info.log_append_time_ms == now
            assert [r[1] for r in await read(t.log)] == [now, now]
            found = await t.log.offset_for_timestamp(now, UNCOMMITTED)
            assert (found.timestamp_ms, found.offset) == (now, 0)
            await t.crashed()
            assert [r[1] for r in await read(t.log)] == [now, now]

        self.run(test, message_timestamp_type="LogAppendTime")

    # Idempotent producers

    def test_duplicates_get_the_original_offsets(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            batches = [encoded([b"%d" % i] * 2, producer=(7, 0, 2 * i)) for i in range(5)]
            originals = [await append(log, one) for one in batches]
            for original, one in zip(originals, batches, strict=True):
                again = await append(log, one)
                assert again.is_duplicate
                assert (again.base_offset, again.last_offset) == (
                    original.base_offset,
                    original.last_offset,
                )
            assert log.log_end_offset == 10
            t.hold()
            fresh = encoded([b"x"], producer=(7, 0, 10))
            first = asyncio.ensure_future(await log.append(fresh))
            again_ = asyncio.ensure_future(await log.append(fresh))
            await asyncio.sleep(0)
            assert not again_.done(), "a duplicate is answered when the original is durable"
            t.release()
            assert (await first).base_offset == (await again_).base_offset == 10
            assert log.log_end_offset == 11

        self.run(test)

    def test_sequence_rules(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log

            async def send(epoch: int, sequence: int, count: int = 1) -> LogAppendInfo:
                return await append(log, encoded([b"v"] * count, producer=(7, epoch, sequence)))

            await send(3, 17)  # an unknown producer: any sequence
            await refused(OutOfOrderSequence, send(3, 19))
            await refused(OutOfOrderSequence, send(3, 16))
            await refused(OutOfOrderSequence, send(3, 17, 2))
            await send(3, 18, 2)
            await refused(ProducerFenced, send(2, 20))
            await refused(OutOfOrderSequence, send(4, 20))
            await send(4, 0)
            await refused(ProducerFenced, send(3, 20))
            await append(log, encoded([b"v"] * 2, producer=(8, 0, SEQUENCE_MAX)))
            await append(log, encoded([b"v"], producer=(8, 0, 1)))
            assert (
                await append(log, encoded([b"v"] * 2, producer=(8, 0, SEQUENCE_MAX)))
            ).is_duplicate
            assert log.log_end_offset == 7

        self.run(test)

    def test_the_crash_rule(self) -> None:
        async def test(t: LogUnderTest) -> None:
            kept = [encoded([b"%d" % i], producer=(7, 0, i)) for i in range(40)]
            for one in kept:
                await append(t.log, one)
            t.hold()
            lost = encoded([b"lost"], producer=(7, 0, 40))
            wait = asyncio.ensure_future(await t.log.append(lost))
            await asyncio.sleep(0)
            await t.crashed()
            t.release()
            with pytest.raises(StreamlogError):
                await wait
            assert t.log.log_end_offset == 40
            assert (await append(t.log, kept[39])).base_offset == 39
            assert (await append(t.log, kept[36])).is_duplicate
            assert (await append(t.log, lost)).base_offset == 40
            assert [r[3] for r in await read(t.log)][-1] == b"lost"
            await t.reopened()
            assert (await append(t.log, lost)).is_duplicate
            assert t.log.log_end_offset == 41

        self.run(test)

    # Timestamps

    def test_offsets_by_timestamp(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            nothing = await log.offset_for_timestamp(0, UNCOMMITTED)
            assert nothing == TimestampAndOffset(-1, -1, -1)
            stamps = [10, 30, 20, 40, 40, 35, 60, 5]
            for i in range(0, 8, 2):
                await append(log, encoded([b"", b""], stamps=stamps[i : i + 2]))
            for target in range(70):
                expected = next((i for i in range(8) if stamps[i] >= target), -1)
                found = await log.offset_for_timestamp(target, UNCOMMITTED)
                assert found.offset == expected, target
                assert found.timestamp_ms == (stamps[expected] if expected >= 0 else -1)
            assert (await log.offset_for_timestamp(EARLIEST, UNCOMMITTED)).offset == 0
            assert (await log.offset_for_timestamp(LATEST, COMMITTED)).offset == 8
            assert (await log.offset_for_timestamp(MAX_TIMESTAMP, UNCOMMITTED)).offset == 6
            await refused(Invalid, log.offset_for_timestamp(-9, UNCOMMITTED))

        self.run(test)

    @pytest.mark.parametrize("codec", list(Compression)[1:])
    def test_a_batch_that_its_producer_damaged_does_not_stop_look_ups_by_time(
        self, codec: Compression
    ) -> None:
        async def test(t: LogUnderTest) -> None:
            values = [b"%d" % (number * number) for number in range(100)]
            stamps = [10] * 50 + [20] * 50
            damaged = bytearray(encoded(values, stamps=stamps, compression=codec))
            damaged[-60:-20] = bytes(40)
            await append(t.log, encoded([b""], stamps=[5]))
            await append(t.log, bytes(resealed(damaged)))
            await append(t.log, encoded([b"", b""], stamps=[15, 30]))
            for target, expected in ((5, 0), (6, 1), (25, 102), (30, 102), (31, -1)):
                found = await t.log.offset_for_timestamp(target, UNCOMMITTED)
                assert found.offset == expected, target
            # Whether the record is before the damage or behind it.
            assert 1 <= (await t.log.offset_for_timestamp(20, UNCOMMITTED)).offset <= 51
            assert (await t.log.offset_for_timestamp(MAX_TIMESTAMP, UNCOMMITTED)).offset == 102
            await t.log.delete_records(60)
            found = await t.log.offset_for_timestamp(MAX_TIMESTAMP, UNCOMMITTED)
            assert (found.offset, found.timestamp_ms) == (102, 30)
            assert (await t.log.offset_for_timestamp(20, UNCOMMITTED)).offset == 60

        self.run(test)

    def test_timestamps_over_many_segments_and_reopens(self) -> None:
        async def test(t: LogUnderTest) -> None:
            stamps = [1000 + (i * 37) % 50 + i for i in range(300)]
            start = 0

            async def check() -> None:
                for target in range(995, 1400):
                    expected = next(
                        (i for i in range(start, len(stamps)) if stamps[i] >= target), -1
                    )
                    found = await t.log.offset_for_timestamp(target, UNCOMMITTED)
                    assert found.offset == expected, target

            start, done, all_stamps = 0, 0, stamps
            stamps = []
            for count in [1, 3, 2, 1, 1, 4] * 25:
                stamps += all_stamps[done : done + count]
                await append(t.log, encoded([b"v" * 20] * count, stamps=stamps[done:]))
                done += count
                if done in (104, 202):
                    await t.crashed()
                if done in (151, 295):
                    await t.reopened()
                    await check()
            assert len(t.log.segments) > 3
            await check()
            await t.crashed()
            await check()
            latest = await t.log.offset_for_timestamp(MAX_TIMESTAMP, UNCOMMITTED)
            assert latest.timestamp_ms == max(stamps)
            start = await t.log.delete_records(101)
            await check()

        self.run(test, internal_segment_bytes="2000", index_interval_bytes="150")

    # Segments, retention, deletion

    def test_segments_roll_by_size_and_by_time(self) -> None:
        async def test(t: LogUnderTest) -> None:
            log = t.log
            one = encoded([b"v" * 100], at_ms=1_000_000)
            for _ in range(5):
                await append(log, one)
            assert [s.end_offset - s.base_offset for s in log.segments] == [2, 2, 1]
            await append(log, encoded([b"v"], at_ms=1_000_000 + 60_000))
            assert len(log.segments) == 3
            await append(log, encoded([b"v"], at_ms=1_000_000 + 60_001))
            assert len(log.segments) == 4
            await log.roll()
            await log.roll()
            assert len(log.segments) == 5
            for left, right in zip(log.segments, log.segments[1:], strict=False):
                assert left.end_offset == right.base_offset
                assert not left.is_active
            before = facts(log)
            await t.reopened()
            assert facts(t.log) == before
            await t.crashed()
            assert facts(t.log) == before

        def facts(log: AbstractLog) -> list[tuple[int, ...]]:
            return [
                (s.base_offset, s.end_offset, s.size_bytes, s.largest_timestamp_ms)
                for s in log.segments
            ]

        size = len(encoded([b"v" * 100]))
        self.run(test, internal_segment_bytes=str(2 * size + 10), segment_ms="60000")

    def test_records_are_deleted_from_the_start(self) -> None:
        async def test(t: LogUnderTest) -> None:
            for i in range(10):
                await append(t.log, encoded([b"%d" % i] * 2, producer=(5, 0, 2 * i)))
            assert await t.log.delete_records(7) == 7
            assert await t.log.delete_records(3) == 7
            for wrong in (-2, 21):
                await refused(OffsetOutOfRange, t.log.delete_records(wrong))
            error = await refused(OffsetOutOfRange, t.log.fetch(6, 100))
            assert (error.start_offset, error.end_offset) == (7, 20)
            assert [r[0] for r in await read(t.log)] == list(range(7, 20))
            assert parse_header(b"".join((await t.log.fetch(7, 1)).parts)).base_offset == 6
            await t.crashed()
            assert [r[0] for r in await read(t.log)] == list(range(7, 20))
            assert await t.log.delete_records(LATEST) == 20
            await t.crashed()
            assert (t.log.log_start_offset, t.log.log_end_offset) == (20, 20)
            again = await append(t.log, encoded([b"9"] * 2, producer=(5, 0, 18)))
            assert again.is_duplicate, "producer state outlives the records"
            assert (await append(t.log, encoded([b"x"], producer=(5, 0, 20)))).base_offset == 20

        self.run(test)

    def test_the_oldest_segments_go(self) -> None:
        async def test(t: LogUnderTest) -> None:
            for i in range(8):
                await append(t.log, encoded([b"%d" % i], producer=(5, 0, i)))
                await t.log.roll()
            assert len(t.log.segments) == 9
            assert await t.log.delete_oldest_segments(3, "test") == 3
            assert (t.log.log_start_offset, t.log.segments[0].base_offset) == (3, 3)
            assert await t.log.delete_oldest_segments(3, "test") == 0
            assert [r[3] for r in await read(t.log)] == [b"%d" % i for i in range(3, 8)]
            await t.crashed()
            assert (t.log.log_start_offset, len(t.log.segments)) == (3, 6)
            await append(t.log, encoded([b"8"], producer=(5, 0, 8)))
            assert await t.log.delete_oldest_segments(9, "test") == 6
            assert [one.is_active for one in t.log.segments] == [True]
            assert t.log.log_start_offset == t.log.log_end_offset == 9
            await t.reopened()
            assert t.log.log_start_offset == t.log.log_end_offset == 9
            assert (await append(t.log, encoded([b"8"], producer=(5, 0, 8)))).is_duplicate

        self.run(test)

    # Leader epochs and the end

    def test_leader_epochs(self) -> None:
        async def test(t: LogUnderTest) -> None:
            epochs, starts = [], []
            for count in (2, 3, 1):
                starts.append(t.log.log_end_offset)
                epochs.append(t.log.leader_epoch)
                await append(t.log, encoded([b"v"] * count))
                await t.reopened()
                await t.crashed()
            assert epochs == sorted(set(epochs))
            assert t.log.end_offset_for_epoch(epochs[0]) == EpochEndOffset(epochs[0], 2)
            assert t.log.end_offset_for_epoch(epochs[1]) == EpochEndOffset(epochs[1], 5)
            assert t.log.end_offset_for_epoch(epochs[2]) == EpochEndOffset(epochs[2], 6)
            assert t.log.end_offset_for_epoch(epochs[2] + 100) == EpochEndOffset(-1, -1)
            assert t.log.end_offset_for_epoch(0) == EpochEndOffset(0, 0)
            found = await t.log.offset_for_timestamp(LATEST, UNCOMMITTED)
            assert found.leader_epoch == epochs[2]
            found = await t.log.offset_for_timestamp(EARLIEST, UNCOMMITTED)
            assert found.leader_epoch == epochs[0]

        self.run(test)

    def test_a_closed_log_refuses_and_an_opened_one_goes_on(self) -> None:
        async def test(t: LogUnderTest) -> None:
            wait = await t.log.append(encoded([b"a"]))
            old = t.log
            await t.reopened()
            assert (await wait).base_offset == 0
            await refused(Closed, old.append(encoded([b"b"])))
            await refused(Closed, old.fetch(0, 10))
            await old.wait_for(5, UNCOMMITTED)
            await old.close()
            assert (await append(t.log, encoded([b"b"]))).base_offset == 1
            assert t.log.leader_epoch > old.leader_epoch

        self.run(test)
