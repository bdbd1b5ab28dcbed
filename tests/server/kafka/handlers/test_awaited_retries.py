"""A batch that is refused for now has to come again before younger ones of its producer."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest
from aiokafka import errors as kafka_errors

from streamlog import errors
from streamlog.codec.batch import BatchProducer
from streamlog.codec.records import encode_values
from streamlog.errors import (
    InvalidRecord,
    OutOfOrderSequence,
    ProducerFenced,
    StoreUnavailable,
    StreamlogError,
    Unauthorized,
)
from streamlog.kafka.messages.produce_response import PartitionProduceResponse
from streamlog.kafka.protocol.errors import CODES, KafkaError, code_of
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import SystemClock
from streamlog.server.kafka.call import Reply
from streamlog.server.services.records.awaited_retries import (
    FORGOTTEN_AFTER_S,
    AwaitedRetries,
    is_sent_again,
)
from streamlog.testing.clocks import ManualClock
from tests.server.kafka.handlers.produce_world import (
    NEWEST_WITH_NAMES,
    ProduceWorld,
    batch,
    call,
    only,
    produce_request,
    produce_world,
    response_of,
    world_over,
)
from tests.support.server_fakes import FakeLogs, ListLog

SEQUENCE_MAX = 2**31 - 1
REFUSED = KafkaError.REQUEST_TIMED_OUT
PARTITION = TopicPartition("t", 0)
AWAY = StoreUnavailable("the store is away; retry with back-off")


class LogsThatOpenLater(FakeLogs):
    is_away = True

    async def log(self, partition: TopicPartition) -> ListLog:
        if self.is_away:
            raise StoreUnavailable("the store is away; retry with back-off")
        return await super().log(partition)


def from_producer(sequence: int, epoch: int = 0, producer_id: int = 7) -> bytes:
    producer = BatchProducer(producer_id, epoch, sequence)
    return bytes(encode_values([b"a"], timestamp_ms=1000, producer=producer).data)


async def send(
    world: ProduceWorld, records: bytes, *, partition: int = 0, received_at: float | None = None
) -> PartitionProduceResponse:
    received = call(NEWEST_WITH_NAMES)._replace(received_at=received_at)
    reply = await world.produce.produce(received, produce_request(records, partition=partition))
    assert isinstance(reply, Reply)
    return only(await response_of(reply))


async def refused(world: ProduceWorld, records: bytes) -> None:
    """The partition is not open yet, and the request has waited for it long enough."""
    long_ago = SystemClock().monotonic() - 31
    assert KafkaError((await send(world, records, received_at=long_ago)).error_code) is REFUSED


async def code(world: ProduceWorld, records: bytes, partition: int = 0) -> KafkaError:
    return KafkaError((await send(world, records, partition=partition)).error_code)


def test_a_new_producers_records_have_no_gap_when_its_first_batch_was_refused() -> None:
    async def main() -> None:
        async with produce_world() as world:
            await refused(world, from_producer(0))
            # The partition can be opened by now.
            assert await code(world, batch(b"somebody else's")) is KafkaError.NONE
            for sequence in (1, 2):
                assert await code(world, from_producer(sequence)) is REFUSED
            for sequence in (0, 1, 2):
                assert (await send(world, from_producer(sequence))).base_offset == 1 + sequence

    asyncio.run(main())


def test_requests_that_lie_ready_together_are_refused_together() -> None:
    async def main() -> None:
        async with produce_world() as world:
            long_ago = SystemClock().monotonic() - 31
            calls = [
                call(NEWEST_WITH_NAMES)._replace(received_at=at) for at in (long_ago, None, None)
            ]
            requests = [produce_request(from_producer(number)) for number in range(3)]
            replies = await world.produce.produce_many(list(zip(calls, requests, strict=True)))
            answers = [only(await response_of(reply)) for reply in replies]
            assert [KafkaError(answer.error_code) for answer in answers] == [REFUSED] * 3

    asyncio.run(main())


def test_others_are_taken_meanwhile() -> None:
    """Another producer, a new epoch, another partition, and who has no producer id."""

    async def main() -> None:
        async with produce_world() as world:
            await refused(world, from_producer(5))
            assert await code(world, from_producer(6)) is REFUSED
            assert await code(world, from_producer(6), partition=1) is KafkaError.NONE
            assert await code(world, from_producer(6, producer_id=8)) is KafkaError.NONE
            assert await code(world, batch(b"plain")) is KafkaError.NONE
            assert await code(world, from_producer(0, epoch=1)) is KafkaError.NONE
            assert await code(world, from_producer(1, epoch=1)) is KafkaError.NONE

    asyncio.run(main())


def test_the_older_of_two_refused_batches_is_awaited_also_where_sequences_wrap() -> None:
    async def main() -> None:
        async with produce_world() as world:
            await refused(world, from_producer(SEQUENCE_MAX))
            await refused(world, from_producer(0))
            assert await code(world, from_producer(0)) is REFUSED
            assert await code(world, from_producer(SEQUENCE_MAX)) is KafkaError.NONE
            assert await code(world, from_producer(0)) is KafkaError.NONE

    asyncio.run(main())


def test_a_producer_that_gave_the_batch_up_goes_on_after_a_while() -> None:
    async def main() -> None:
        logs, clock = LogsThatOpenLater(), ManualClock()
        await logs.create_topic("t", 2)
        world = world_over(logs, clock=clock)
        assert await code(world, from_producer(0)) is KafkaError.KAFKA_STORAGE_ERROR
        logs.is_away = False
        assert await code(world, from_producer(1)) is KafkaError.KAFKA_STORAGE_ERROR
        clock.advance(int(FORGOTTEN_AFTER_S * 1000))
        assert await code(world, from_producer(1)) is KafkaError.NONE

    asyncio.run(main())


def test_entries_whose_time_is_over_make_room_for_new_ones() -> None:
    clock = ManualClock()
    awaited = AwaitedRetries(clock)
    for producer_id in range(3):
        awaited.refused(PARTITION, from_producer(0, producer_id=producer_id), AWAY)
        clock.advance(int(FORGOTTEN_AFTER_S * 400))
    assert len(awaited) == 3
    awaited.refused(PARTITION, from_producer(0, producer_id=9), AWAY)
    assert len(awaited) == 3
    clock.advance(int(FORGOTTEN_AFTER_S * 1000))
    awaited.refused(PARTITION, from_producer(0, producer_id=9), AWAY)
    assert len(awaited) == 1


def test_a_refused_request_leaves_nothing_in_memory() -> None:
    """The error's traceback has frames, whose variables are the request."""

    class Records(bytearray):
        """It can be named by a weak reference."""

    def fail(records: Records) -> StoreUnavailable:
        try:
            raise StoreUnavailable("the store is away; retry with back-off", operation="get")
        except StoreUnavailable as error:
            return error

    awaited = AwaitedRetries(ManualClock())
    records = Records(from_producer(0))
    error = fail(records)
    awaited.refused(PARTITION, records, error)
    is_alive = weakref.ref(records)
    del records, error
    gc.collect()
    assert is_alive() is None
    refusal = awaited.refusal(PARTITION, from_producer(1))
    assert isinstance(refusal, StoreUnavailable)
    assert (refusal.message, refusal.operation) == ("the store is away; retry with back-off", "get")


@pytest.mark.parametrize("at", [43, 51, 53, 60])
def test_a_damaged_header_makes_no_entry_and_ends_none(at: int) -> None:
    damaged = bytearray(from_producer(0))
    damaged[at] ^= 1
    awaited = AwaitedRetries(ManualClock())
    awaited.refused(PARTITION, damaged, AWAY)
    assert len(awaited) == 0
    awaited.refused(PARTITION, from_producer(5), AWAY)
    awaited.refusal(PARTITION, damaged)
    assert awaited.refusal(PARTITION, from_producer(6)) is not None
    assert awaited.refusal(PARTITION, from_producer(5)) is None
    assert awaited.refusal(PARTITION, from_producer(6)) is None


def test_batches_of_an_older_epoch_change_nothing() -> None:
    """An instance that a newer one has taken over from goes on for a while."""
    awaited = AwaitedRetries(ManualClock())
    awaited.refused(PARTITION, from_producer(0, epoch=1), AWAY)
    awaited.refused(PARTITION, from_producer(8, epoch=0), AWAY)
    assert awaited.refusal(PARTITION, from_producer(9, epoch=0)) is None
    assert awaited.refusal(PARTITION, from_producer(1, epoch=1)) is not None
    assert awaited.refusal(PARTITION, from_producer(0, epoch=1)) is None
    assert awaited.refusal(PARTITION, from_producer(1, epoch=1)) is None


NOT_FROM_A_LOG = {
    errors.UnknownLeaderEpoch,  # Of a fetch.
    errors.EpochFenced,
}


@pytest.mark.parametrize("cls", CODES, ids=lambda cls: cls.__name__)
def test_a_batch_is_awaited_after_every_error_after_which_kafkas_clients_send_it_again(
    cls: type[StreamlogError],
) -> None:
    code = code_of(cls("any"))
    is_retried = kafka_errors.for_code(int(code)).retriable
    if cls not in NOT_FROM_A_LOG and is_retried:
        assert is_sent_again(cls("any")), code


def test_nobody_waits_for_a_batch_that_was_refused_for_good() -> None:
    for cls in (InvalidRecord, ProducerFenced, OutOfOrderSequence, Unauthorized):
        awaited = AwaitedRetries(ManualClock())
        awaited.refused(PARTITION, from_producer(0), cls("refused"))
        assert len(awaited) == 0
