"""What every AbstractLog remembers of idempotent producers: inherit `ProducerConformance`.

Behaviours follow Kafka's ProducerStateManagerTest and UnifiedLogTest; `make` is that of
LogConformance. A kind of log says how many batches of a producer it remembers.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from streamlog.codec.batch import SEQUENCE_MAX
from streamlog.errors import OutOfOrderSequence, ProducerFenced
from streamlog.testing.logs.log_conformance import (
    CONFIG,
    LogUnderTest,
    append,
    encoded,
    refused,
)

PRODUCER = 7


def sent(sequence: int, count: int = 1, *, producer_id: int = PRODUCER, epoch: int = 0) -> bytes:
    """A batch of so many records from the sequence on."""
    return encoded([b"v"] * count, producer=(producer_id, epoch, sequence))


class ProducerConformance(ABC):
    batches_remembered: int
    """Of each producer, for duplicates: Kafka's 5, or more."""
    expiration_ms = 86_400_000
    """After so long without an append a producer is unknown (`producer.id.expiration.ms`)."""
    knows_append_times = True
    """Whether a crash leaves known when a batch came; else it counts as come later."""

    @abstractmethod
    def make(self, configs: CONFIG) -> AbstractAsyncContextManager[LogUnderTest]:
        """As LogConformance.make."""

    def run(self, test: Callable[[LogUnderTest], Awaitable[None]]) -> None:
        async def body() -> None:
            async with self.make({}) as under_test:
                await test(under_test)

        asyncio.run(body())

    def test_a_refused_batch_changes_nothing(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await append(t.log, sent(0, 3, epoch=1))
            for _ in range(2):
                await refused(OutOfOrderSequence, append(t.log, sent(9, epoch=1)))
                await refused(OutOfOrderSequence, append(t.log, sent(5, epoch=2)))
                await refused(ProducerFenced, append(t.log, sent(3)))
            (found,) = t.log.producers()
            assert (found.producer_epoch, found.last_sequence) == (1, 2)
            assert (await append(t.log, sent(3, epoch=1))).base_offset == 3

        self.run(test)

    def test_a_sequence_wraps_to_zero_and_to_nothing_else(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await append(t.log, sent(SEQUENCE_MAX))
            await refused(OutOfOrderSequence, append(t.log, sent(1)))
            await append(t.log, sent(0))
            assert (await append(t.log, sent(SEQUENCE_MAX))).is_duplicate
            assert t.log.log_end_offset == 2

        self.run(test)

    def test_a_batch_may_hold_the_wrap(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await append(t.log, sent(SEQUENCE_MAX - 9, 20))
            for _ in range(2):
                (found,) = t.log.producers()
                assert found.last_sequence == 9
                await t.crashed()
            await refused(OutOfOrderSequence, append(t.log, sent(11)))
            assert (await append(t.log, sent(10))).base_offset == 20

        self.run(test)

    def test_a_producer_of_which_nothing_is_known_begins_anywhere(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await append(t.log, sent(17, 2, epoch=3))
            await refused(OutOfOrderSequence, append(t.log, sent(20, epoch=3)))
            await t.crashed()
            await refused(OutOfOrderSequence, append(t.log, sent(20, epoch=3)))
            await append(t.log, sent(19, epoch=3))

        self.run(test)

    def test_a_newer_epoch_begins_at_zero_and_forgets_the_batches_before(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await append(t.log, sent(0))
            await refused(OutOfOrderSequence, append(t.log, sent(1, epoch=1)))
            # The same sequence as the older epoch's, and no duplicate of it.
            assert (await append(t.log, sent(0, epoch=1))).base_offset == 1
            assert (await append(t.log, sent(0, epoch=1))).is_duplicate
            await refused(ProducerFenced, append(t.log, sent(1)))

        self.run(test)

    def test_so_many_batches_are_known_as_duplicates(self) -> None:
        count = self.batches_remembered

        async def test(t: LogUnderTest) -> None:
            for sequence in range(count + 1):
                await append(t.log, sent(sequence))
            for _ in range(2):
                await refused(OutOfOrderSequence, append(t.log, sent(0)))
                for sequence in range(1, count + 1):
                    again = await append(t.log, sent(sequence))
                    assert (again.base_offset, again.is_duplicate) == (sequence, True)
                await t.crashed()
            # A part of a batch, or two of them, are none that was sent.
            await refused(OutOfOrderSequence, append(t.log, sent(count - 1, 2)))
            assert t.log.log_end_offset == count + 1

        self.run(test)

    def test_batches_before_a_roll_or_an_end_are_known_as_duplicates(self) -> None:
        """All that a client has under way may have been stored before, wherever a segment ended."""
        count = self.batches_remembered

        async def test(t: LogUnderTest) -> None:
            places = {}
            for sequence in range(3 * count):
                places[sequence] = (await append(t.log, sent(sequence))).base_offset
                await append(t.log, encoded([b"plain" * 400]))
                await append(t.log, sent(sequence, producer_id=8))
                if sequence % 2:
                    await t.log.roll()
                for sudden in (True, False):
                    await (t.crashed() if sudden else t.reopened())
                    for known in range(max(0, sequence + 1 - count), sequence + 1):
                        again = await append(t.log, sent(known))
                        assert (again.base_offset, again.is_duplicate) == (places[known], True)
                if sequence >= count:
                    await refused(OutOfOrderSequence, append(t.log, sent(sequence - count)))

        self.run(test)

    def test_a_producer_is_unknown_when_its_time_is_over(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await append(t.log, sent(0))
            t.clock.advance(self.expiration_ms - 1)
            await refused(OutOfOrderSequence, append(t.log, sent(7)))
            await append(t.log, sent(0, producer_id=8))
            t.clock.advance(1)
            assert not (await append(t.log, sent(7))).is_duplicate
            assert (await append(t.log, sent(0, producer_id=8))).is_duplicate
            await refused(OutOfOrderSequence, append(t.log, sent(0)))

        self.run(test)

    def test_an_expired_producer_is_not_known_again_after_a_crash(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await append(t.log, sent(0))
            t.clock.advance(self.expiration_ms)
            await t.crashed()
            if not self.knows_append_times:
                await refused(OutOfOrderSequence, append(t.log, sent(5)))
                t.clock.advance(self.expiration_ms)
            assert not (await append(t.log, sent(5))).is_duplicate

        self.run(test)

    def test_old_records_that_came_just_now_are_known_as_duplicates(self) -> None:
        async def test(t: LogUnderTest) -> None:
            at_ms = t.clock.now_ms() - 2 * self.expiration_ms
            batches = [
                encoded([b"v"], at_ms=at_ms, producer=(PRODUCER, 0, sequence))
                for sequence in range(3)
            ]
            for data in batches:
                await append(t.log, data)
            for sudden in (True, False, True):
                await (t.crashed() if sudden else t.reopened())
                assert [(await append(t.log, data)).base_offset for data in batches] == [0, 1, 2]

        self.run(test)

    def test_producers_do_not_know_each_other(self) -> None:
        async def test(t: LogUnderTest) -> None:
            for sequence in range(3):
                for producer_id in (1, 2, 3):
                    await append(t.log, sent(sequence, producer_id=producer_id))
            for producer_id in (3, 2, 1):
                for sequence in range(3):
                    again = await append(t.log, sent(sequence, producer_id=producer_id))
                    assert (again.base_offset, again.is_duplicate) == (
                        3 * sequence + producer_id - 1,
                        True,
                    )
            assert [one.producer_id for one in t.log.producers()] == [1, 2, 3]

        self.run(test)

    def test_producers_outlive_their_records(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await append(t.log, sent(0, 3))
            await append(t.log, encoded([b"plain"] * 2))
            await t.log.roll()
            assert await t.log.delete_records(5) == 5
            for _ in range(2):
                assert (await append(t.log, sent(0, 3))).is_duplicate
                await t.crashed()
            assert (await append(t.log, sent(3))).base_offset == 5

        self.run(test)

    def test_plain_records_leave_producers_as_they_are(self) -> None:
        async def test(t: LogUnderTest) -> None:
            await append(t.log, sent(0))
            for _ in range(3):
                await append(t.log, encoded([b"plain"] * 40))
                await t.reopened()
            (found,) = t.log.producers()
            assert (found.last_sequence, t.log.log_end_offset) == (0, 121)
            assert (await append(t.log, sent(1))).base_offset == 121

        self.run(test)
