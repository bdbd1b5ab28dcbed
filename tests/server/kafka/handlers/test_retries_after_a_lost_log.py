"""A log that is lost under appends, and opened anew on the same node: what was to be stored again
comes first, and what is younger behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar, TypeVarTuple

import pytest

from streamlog.codec.batch import BatchProducer
from streamlog.codec.records import encode_values
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.log.api.abstract_log import Isolation
from streamlog.model.batch import OpenStreamOptions
from streamlog.model.partition import TopicPartition
from streamlog.runtime.offload import Lane, Offload, ThreadOffload
from streamlog.server.context import RequestContext
from streamlog.server.kafka.call import Reply
from streamlog.server.services.records.awaited_retries import is_sent_again
from streamlog.server.services.records.requests import (
    PlainRecord,
    ProduceCall,
    ProducePartition,
    ProduceTopic,
)
from tests.log.cluster import cluster
from tests.server.kafka.handlers.produce_world import (
    ProduceWorld,
    batch,
    only,
    produce_request,
    response_of,
    world_over,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
PARTITION = TopicPartition("t", 0)


def from_producer(sequence: int, producer_id: int = 7) -> bytes:
    producer = BatchProducer(producer_id, 0, sequence)
    return bytes(encode_values([b"a"], timestamp_ms=1000, producer=producer).data)


class Scene:
    """A node's produce handler over logs whose stream another holder can take."""

    def __init__(self, world: ProduceWorld, client: Any) -> None:
        self.world = world
        self._client = client

    async def begin(self, records: bytes, **fields: Any) -> Reply:
        return await self.world.reply(produce_request(records, **fields))

    async def code(self, records: bytes) -> KafkaError:
        return await answered(await self.begin(records))

    async def lose_log(self) -> None:
        """The appends under way fail, and the log with them."""
        log = self.world.logs.open_log(PARTITION)
        data = self.world.logs.describe_partition(PARTITION).storage_ids["data"]
        await self._client.open_stream(data, OpenStreamOptions())
        self.release()
        await log.wait_for(1 << 40, Isolation.READ_UNCOMMITTED)
        assert self.world.logs.open_log(PARTITION) is not log

    def hold(self) -> None:
        """Appends are not durable before `release`."""
        self._client.hold()

    def release(self) -> None:
        self._client.release()


class Encoding(ThreadOffload):
    """Plain records are encoded when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        self.has_begun.set()
        await self.may_go_on.wait()
        return await super().run(lane, fn, *args)


async def answered(reply: Reply) -> KafkaError:
    return KafkaError(only(await response_of(reply)).error_code)


@asynccontextmanager
async def scene(offload: Offload | None = None) -> AsyncIterator[Scene]:
    async with cluster() as made:
        logs = await made.node()
        await logs.create_topic("t", 2)
        yield Scene(world_over(logs, clock=made.clock, offload=offload), made.running[0][1])


def test_a_younger_batch_waits_for_the_retry_of_one_that_was_answered_with_an_error() -> None:
    async def main() -> None:
        async with scene() as t:
            t.hold()
            first = await t.begin(from_producer(0))
            await t.lose_log()
            assert await answered(first) is not KafkaError.NONE
            # It lay behind the first on the connection.
            assert await t.code(from_producer(1)) is not KafkaError.NONE
            for sequence in (0, 1):
                assert await t.code(from_producer(sequence)) is KafkaError.NONE

    asyncio.run(main())


def test_a_younger_batch_waits_for_one_whose_error_has_not_been_told_yet() -> None:
    async def main() -> None:
        async with scene() as t:
            t.hold()
            first = await t.begin(from_producer(0))
            await t.lose_log()
            assert await t.code(batch(b"somebody else opens the log")) is KafkaError.NONE
            assert await t.code(from_producer(1)) is not KafkaError.NONE
            assert await answered(first) is not KafkaError.NONE
            assert await t.code(from_producer(1)) is not KafkaError.NONE
            for sequence in (0, 1):
                assert await t.code(from_producer(sequence)) is KafkaError.NONE

    asyncio.run(main())


def test_a_younger_batch_waits_for_one_that_was_not_durable_in_time() -> None:
    """Its client was told to send it again. Its log is lost before it does."""

    async def main() -> None:
        async with scene() as t:
            assert await t.code(batch(b"opens the log")) is KafkaError.NONE
            t.hold()
            first = await t.begin(from_producer(0), timeout_ms=1)
            assert await answered(first) is KafkaError.REQUEST_TIMED_OUT
            await t.lose_log()
            assert await t.code(from_producer(1)) is not KafkaError.NONE
            for sequence in (0, 1):
                assert await t.code(from_producer(sequence)) is KafkaError.NONE

    asyncio.run(main())


def test_records_that_are_encoded_while_their_log_is_opened_anew_leave_the_new_one_alone() -> None:
    """What is under way in it by then is not taken for lost."""

    async def main() -> None:
        encoding = Encoding()
        async with scene(encoding) as t:
            assert await t.code(batch(b"opens the log")) is KafkaError.NONE
            records = [PlainRecord(b"key", b"value")]
            plain = ProduceCall([ProduceTopic("t", [ProducePartition(0, None, records)])])
            service = t.world.service
            producing = asyncio.ensure_future(service.sequence(RequestContext(), plain))
            await encoding.has_begun.wait()
            t.hold()
            await t.begin(batch(b"by which the log hears of its loss"))
            await t.lose_log()
            assert await t.code(batch(b"opens it anew")) is KafkaError.NONE
            t.hold()
            first = await t.begin(from_producer(0))
            encoding.may_go_on.set()
            sequenced = await producing
            t.release()
            assert await answered(first) is KafkaError.NONE
            assert await t.code(from_producer(1)) is KafkaError.NONE
            await sequenced.settle()
            [result] = sequenced.partition_results()
            assert result.error is not None
            assert is_sent_again(result.error)

    asyncio.run(main())


def test_batches_that_were_durable_before_the_log_was_lost_do_not_come_again() -> None:
    async def main() -> None:
        async with scene() as t:
            assert await t.code(from_producer(0)) is KafkaError.NONE
            answered_late = await t.begin(from_producer(1))
            assert await t.code(from_producer(2)) is KafkaError.NONE
            t.hold()
            await t.begin(batch(b"somebody else's"))
            await t.lose_log()
            assert await t.code(from_producer(3)) is KafkaError.NONE
            assert await answered(answered_late) is KafkaError.NONE

    asyncio.run(main())


def test_nobody_waits_for_batches_whose_client_gets_no_answer() -> None:
    """Without acks, nothing is sent again."""

    async def main() -> None:
        async with scene() as t:
            t.hold()
            await t.begin(from_producer(0), acks=0)
            await t.lose_log()
            assert await t.code(from_producer(1)) is KafkaError.NONE

    asyncio.run(main())


@pytest.mark.parametrize("end", ["answered", "abandoned", "cancelled"])
def test_nothing_is_kept_of_requests_that_have_ended(end: str) -> None:
    async def main() -> None:
        async with scene() as t:
            t.hold()
            unanswered = t.world.service.unanswered
            reply = await t.begin(from_producer(0))
            assert len(unanswered) == 1
            results = asyncio.create_task(response_of(reply))
            await asyncio.sleep(0)
            if end == "answered":
                t.release()
                await results
            elif end == "abandoned":
                reply.abandon()
            else:
                results.cancel()
                await asyncio.wait({results})
            assert len(unanswered) == 0
            t.release()
            await asyncio.wait({results})

    asyncio.run(main())
