"""One metadata partition over a log that refuses, forgets, hangs, and has what it should not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from streamlog.codec.records import encode_values
from streamlog.errors import (
    Corrupt,
    Fenced,
    Invalid,
    MessageTooLarge,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    StoreUnavailable,
    StreamlogError,
    Unavailable,
    UnsupportedVersion,
)
from streamlog.log.api.abstract_log import LogAppendInfo
from streamlog.log.api.topic_config import parse
from streamlog.model.partition import TopicPartition
from streamlog.testing.clocks import ManualClock
from streamlog.testing.simulation.world.loop import run as run_virtually
from streamlog.testing.tiers.metadata_conformance import FIRST, SECOND, change, segment
from streamlog.tiered.api import RemoteLogSegmentState
from streamlog.tiered.metadata.metadata_partition import MetadataPartition
from streamlog.tiered.metadata.records import encode
from tests.log.list_log import ListLog

STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
COPIED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
LEAVING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
ONE = segment(1, (0, 9))


class TroubledLog(ListLog):
    """`refusals` are raised by the next appends, `lost` and `stored` by acks of appends that were
    lost or stored, `unread` by fetches. `is_hanging`: acks come with `let_go`."""

    def __init__(self) -> None:
        super().__init__(TopicPartition("__remote_log_metadata", 3), parse({}))
        self.refusals: list[StreamlogError] = []
        self.lost: list[StreamlogError] = []
        self.stored: list[StreamlogError] = []
        self.unread: list[StreamlogError] = []
        self.is_hanging = False
        self.hanging: list[tuple[asyncio.Future[LogAppendInfo], LogAppendInfo]] = []
        self.fetches = 0

    async def append(self, batches: Any, *_: Any) -> Awaitable[LogAppendInfo]:
        await asyncio.sleep(0)
        if self.refusals:
            raise self.refusals.pop()
        future: asyncio.Future[LogAppendInfo] = asyncio.get_running_loop().create_future()
        if self.lost:
            future.set_exception(self.lost.pop())
            return future
        info = await (await super().append(batches))  # type: ignore[no-untyped-call]
        if self.stored:
            future.set_exception(self.stored.pop())
        elif self.is_hanging:
            self.hanging.append((future, info))
        else:
            future.set_result(info)
        return future

    def let_go(self) -> None:
        self.is_hanging = False
        for future, info in self.hanging:
            future.set_result(info)

    async def fetch(self, offset: int, max_bytes: int, **options: Any) -> Any:
        self.fetches += 1
        await asyncio.sleep(0)
        if self.unread:
            raise self.unread.pop()
        return await super().fetch(offset, max_bytes, **options)  # type: ignore[no-untyped-call]

    async def put(self, *values: bytes | None) -> None:
        """Records that came past the partition."""
        batch = encode_values(values, timestamp_ms=1).data
        await (await super().append(batch))  # type: ignore[no-untyped-call]


def run(body: Callable[[TroubledLog, MetadataPartition], Awaitable[None]]) -> None:
    """On a virtual loop: a call that nobody answers ends the test."""

    async def main() -> None:
        log = TroubledLog()
        await body(log, MetadataPartition(log, ManualClock()))

    run_virtually(main)


async def listed(partition: MetadataPartition) -> list[RemoteLogSegmentState]:
    return [one.state for one in (await partition.state()).cache(FIRST).list()]


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (Overloaded("full"), Overloaded),
        (MessageTooLarge("large"), MessageTooLarge),
        (Fenced("another node"), Unavailable),
        (Invalid("a bug elsewhere"), Unavailable),
    ],
)
def test_a_refused_append_changes_nothing_and_the_next_one_succeeds(
    error: StreamlogError, seen: type[StreamlogError]
) -> None:
    async def body(log: TroubledLog, partition: MetadataPartition) -> None:
        log.refusals = [error]
        with pytest.raises(seen) as caught:
            await partition.write(ONE)
        assert caught.value.has_no_side_effects
        assert await listed(partition) == []
        await partition.write(ONE)
        await partition.write(change(ONE, COPIED))
        assert await listed(partition) == [COPIED]

    run(body)


@pytest.mark.parametrize("error", [OutcomeUnknown("gone"), Fenced("other"), Unavailable("away")])
@pytest.mark.parametrize("is_stored", [False, True])
def test_an_append_of_unknown_outcome_is_unavailable_and_may_be_repeated(
    error: StreamlogError, is_stored: bool
) -> None:
    async def body(log: TroubledLog, partition: MetadataPartition) -> None:
        for record in (ONE, change(ONE, COPIED), change(ONE, LEAVING)):
            before = log.log_end_offset
            (log.stored if is_stored else log.lost).append(error)
            with pytest.raises(Unavailable) as caught:
                await partition.write(record)
            assert not caught.value.has_no_side_effects
            assert log.log_end_offset == before + is_stored
            await partition.write(record)
        assert await listed(partition) == [LEAVING]

    run(body)


def test_a_record_that_the_state_refuses_by_then_is_refused_to_its_writer_alone() -> None:
    async def body(log: TroubledLog, partition: MetadataPartition) -> None:
        other = MetadataPartition(log, ManualClock())
        await partition.write(ONE)
        await other.state()

        async def read() -> None:
            for _ in range(30):
                await other.state()
                await asyncio.sleep(0)

        first, second, _ = await asyncio.gather(
            partition.write(change(ONE, LEAVING)),
            other.write(change(ONE, COPIED)),
            read(),
            return_exceptions=True,
        )
        assert log.log_end_offset == 3
        assert first is None
        assert isinstance(second, Invalid)
        for one in (partition, other, MetadataPartition(log, ManualClock())):
            assert await listed(one) == [LEAVING]

    run(body)


def test_what_is_refused_at_once_is_not_appended() -> None:
    async def body(log: TroubledLog, partition: MetadataPartition) -> None:
        with pytest.raises(NotFound):
            await partition.write(change(ONE, COPIED))
        await partition.write(ONE)
        for record in (change(segment(2, (0, 9)), LEAVING), ONE.updated(change(ONE, COPIED))):
            with pytest.raises(Invalid):
                await partition.write(record)
        assert log.log_end_offset == 1

    run(body)


def test_records_of_others_that_the_state_refuses_change_nothing() -> None:
    async def body(log: TroubledLog, partition: MetadataPartition) -> None:
        copied, early = change(ONE, COPIED), change(segment(9, (0, 9)), COPIED)
        records = (early, ONE, copied, change(ONE, LEAVING), copied, ONE)
        await log.put(*(encode(one) for one in records))
        assert await listed(partition) == [LEAVING]

    run(body)


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (None, Corrupt),
        (b"", Corrupt),
        (encode(ONE)[:-1], Corrupt),
        (b"\1\7" + encode(ONE)[2:], UnsupportedVersion),
        (b"\1\0\1" + encode(ONE)[3:], UnsupportedVersion),
    ],
)
def test_a_record_that_nobody_can_read_is_named_and_never_passed_over(
    value: bytes | None, error: type[StreamlogError]
) -> None:
    async def body(log: TroubledLog, partition: MetadataPartition) -> None:
        await log.put(encode(ONE), value, encode(change(ONE, COPIED)))
        for _ in range(2):
            with pytest.raises(error, match="__remote_log_metadata-3, offset 1: ") as caught:
                await partition.state()
            assert type(caught.value) is error
        with pytest.raises(error):
            await partition.write(change(ONE, COPIED))
        assert (partition.next_offset, log.log_end_offset) == (1, 3)

    run(body)


def test_a_batch_that_is_damaged_is_corrupt() -> None:
    async def body(log: TroubledLog, partition: MetadataPartition) -> None:
        await log.put(encode(ONE))
        (start, end, data) = log.segments[0].batches[0]
        log.segments[0].batches[0] = (start, end, data[:-1] + bytes([data[-1] ^ 1]))
        with pytest.raises(Corrupt, match="__remote_log_metadata-3"):
            await partition.state()

    run(body)


def test_a_read_that_fails_goes_on_where_it_was() -> None:
    async def body(log: TroubledLog, partition: MetadataPartition) -> None:
        await log.put(encode(ONE))
        for error, seen in (
            (StoreUnavailable("away"), StoreUnavailable),
            (Corrupt("damaged"), Corrupt),
            (Fenced("other"), Unavailable),
        ):
            log.unread = [error]
            with pytest.raises(seen):
                await partition.state()
        assert await listed(partition) == [RemoteLogSegmentState.COPY_SEGMENT_STARTED]
        before = log.fetches
        assert await listed(partition) == [RemoteLogSegmentState.COPY_SEGMENT_STARTED]
        assert log.fetches == before

    run(body)


def test_a_write_whose_read_fails_is_unavailable_and_there() -> None:
    async def body(log: TroubledLog, partition: MetadataPartition) -> None:
        await partition.write(ONE)
        log.unread = [StoreUnavailable("away")]
        with pytest.raises(StoreUnavailable):
            await partition.write(change(ONE, COPIED))
        assert await listed(partition) == [COPIED]

    run(body)


def test_a_log_that_ends_is_unavailable() -> None:
    async def body(log: TroubledLog, partition: MetadataPartition) -> None:
        await partition.write(ONE)
        await log.put(encode(change(ONE, COPIED)))
        await log.close()  # type: ignore[no-untyped-call]
        with pytest.raises(Unavailable):
            await partition.write(change(ONE, LEAVING))

    run(body)


def test_a_write_that_hangs_holds_up_its_own_partition_alone() -> None:
    async def body(log: TroubledLog, partition: MetadataPartition) -> None:
        log.is_hanging = True
        hanging = asyncio.ensure_future(partition.write(ONE))
        await asyncio.sleep(1)
        assert not hanging.done()
        log.is_hanging = False
        await partition.write(segment(2, (0, 9), None, SECOND))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await partition.write(change(ONE, COPIED))
        hanging.cancel()
        await asyncio.wait({hanging})
        log.let_go()
        await partition.write(change(ONE, COPIED))
        assert await listed(partition) == [COPIED]

    run(body)


def test_what_a_writer_gave_up_is_there_for_who_looks_what_is_left() -> None:
    """It would come behind the look: the copy that it announces would be nobody's."""

    class Undurable(TroubledLog):
        @property
        def high_watermark(self) -> int:
            return 0 if self.is_hanging else super().high_watermark

    async def main() -> None:
        log = Undurable()
        partition = MetadataPartition(log, ManualClock())
        log.is_hanging = True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await partition.write(ONE)
        looking = asyncio.ensure_future(partition.settled(FIRST))
        await asyncio.sleep(1)
        assert not looking.done()
        assert await listed(partition) == [], "a reader does not wait for it"
        assert (await partition.settled(SECOND)).cache(SECOND).list() == []
        log.let_go()
        assert [one.state for one in (await looking).cache(FIRST).list()] == [STARTED]

    run_virtually(main)


def test_a_bug_in_an_append_that_was_given_up_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        log = TroubledLog()
        partition = MetadataPartition(log, ManualClock())
        log.is_hanging = True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await partition.write(ONE)
        ((future, _),) = log.hanging
        future.set_exception(ZeroDivisionError("a bug"))
        await partition.settled(FIRST)

    run_virtually(main)
    (told,) = caplog.records
    assert told.exc_info is not None
    assert isinstance(told.exc_info[1], ZeroDivisionError)


@pytest.mark.parametrize("steps", range(12))
def test_a_cancelled_write_leaves_its_append_alone(steps: int) -> None:
    async def body(log: TroubledLog, partition: MetadataPartition) -> None:
        writing = asyncio.ensure_future(partition.write(ONE))
        for _ in range(steps):
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait({writing})
        assert len(await listed(partition)) == log.log_end_offset
        await partition.write(ONE)
        await partition.write(change(ONE, COPIED))
        assert await listed(partition) == [COPIED]

    run(body)


def test_a_raised_start_is_where_a_load_begins() -> None:
    async def body(log: TroubledLog, partition: MetadataPartition) -> None:
        await log.put(encode(segment(2, (0, 9))))
        await log.put(encode(ONE), encode(change(ONE, COPIED)))
        await log.raise_start(1)
        for one in (partition, MetadataPartition(log, ManualClock())):
            assert await listed(one) == [COPIED]

    run(body)


def test_long_loads_let_others_run() -> None:
    async def body(log: TroubledLog, partition: MetadataPartition) -> None:
        for number in range(300):
            await log.put(*(encode(segment(10 * number + one, (0, 9))) for one in range(10)))
        loading = asyncio.ensure_future(partition.state())
        seen = set()
        while not loading.done():
            await asyncio.sleep(0)
            seen.add(partition.next_offset)
        assert len(seen) > 10
        assert len(await listed(partition)) == 3000

    run(body)
