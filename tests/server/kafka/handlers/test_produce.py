"""Produce: what a partition's answer says, request by request."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from typing import Any
from uuid import UUID

import pytest

from streamlog.codec.batch import LENGTH_END, BatchProducer, Compression, resealed
from streamlog.codec.records import BatchBuilder, encode_values
from streamlog.errors import NotLeader, Unauthorized
from streamlog.kafka.messages.produce_request import PartitionProduceData, TopicProduceData
from streamlog.kafka.messages.produce_response import LeaderIdAndEpoch
from streamlog.kafka.protocol.apis import ApiKey, decode_request, request_codec, response_codec
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import SystemClock
from streamlog.server.context import Operation, RequestContext, Resource
from streamlog.server.kafka.call import CloseConnection
from streamlog.settings.limits import LimitsConfig
from tests.server.kafka.handlers.produce_world import (
    NEWEST,
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
from tests.support.log_insides import leadership_of
from tests.support.server_fakes import FakeLogs, ListLog

MIB = 1 << 20


def test_a_stored_batch_is_answered_with_its_offsets() -> None:
    async def main() -> None:
        async with produce_world() as world:
            first = await world.send_one(batch(b"a", b"b"))
            assert (first.error_code, first.base_offset, first.log_start_offset) == (0, 0, 0)
            assert (first.log_append_time_ms, first.error_message) == (-1, None)
            assert (await world.send_one(batch(b"c"), acks=1)).base_offset == 2

    asyncio.run(main())


@pytest.mark.parametrize("version", range(3, NEWEST + 1))
def test_every_version_is_answered_in_its_own_bytes(version: int) -> None:
    async def main() -> None:
        async with produce_world() as world:
            topic_id = UUID(world.logs.topic("t").topic_id).bytes
            request = produce_request(batch(b"a"), topic_id=topic_id)
            sent = b"".join(request_codec(ApiKey.PRODUCE).encode(request, version))
            read: Any = decode_request(ApiKey.PRODUCE, version, memoryview(sent), 0)
            response = await world.send(read, version)
            data = b"".join(response_codec(ApiKey.PRODUCE).encode(response, version))
            decoded: Any = response_codec(ApiKey.PRODUCE).decode(memoryview(data), 0, version)[0]
            [topic] = decoded.responses
            [part] = topic.partition_responses
            assert (part.error_code, part.base_offset) == (0, 0)
            named = (topic.name, topic.topic_id)
            assert named == (("", topic_id) if version == NEWEST else ("t", bytes(16)))

    asyncio.run(main())


def old_format(magic: int) -> bytes:
    records = bytearray(batch(b"a"))
    records[16] = magic
    return bytes(records)


def with_attributes(attributes: int) -> bytes:
    records = bytearray(batch(b"a"))
    records[21:23] = attributes.to_bytes(2, "big")
    return bytes(resealed(records))


def with_length(change: int) -> bytes:
    records = bytearray(batch(b"a"))
    length = len(records) - LENGTH_END + change
    records[8:12] = length.to_bytes(4, "big", signed=True)
    return bytes(records)


def zstd() -> bytes:
    builder = BatchBuilder(MIB, compression=Compression.ZSTD)
    builder.append(1000, None, b"v" * 1000, [])
    return bytes(builder.build())


def damaged() -> bytes:
    records = bytearray(batch(b"a"))
    records[-1] ^= 1
    return bytes(records)


@pytest.mark.parametrize(
    ("records", "version", "error"),
    [
        (None, 9, KafkaError.INVALID_RECORD),
        (b"", 9, KafkaError.INVALID_RECORD),
        (batch(b"a")[:20], 9, KafkaError.INVALID_RECORD),
        (batch(b"a")[:-1], 9, KafkaError.INVALID_RECORD),
        (batch(b"a") + batch(b"b"), 9, KafkaError.INVALID_RECORD),
        (batch(b"a") + b"\0", 9, KafkaError.INVALID_RECORD),
        (old_format(0), 9, KafkaError.INVALID_RECORD),
        (old_format(1), 9, KafkaError.INVALID_RECORD),
        (with_length(1 << 20), 9, KafkaError.INVALID_RECORD),
        (with_length(-60), 9, KafkaError.CORRUPT_MESSAGE),
        (with_length(-(1 << 30)), 9, KafkaError.CORRUPT_MESSAGE),
        (damaged(), 9, KafkaError.CORRUPT_MESSAGE),
        (with_attributes(0x20), 9, KafkaError.INVALID_RECORD),
        (with_attributes(5), 9, KafkaError.UNSUPPORTED_COMPRESSION_TYPE),
        (with_attributes(7), 9, KafkaError.UNSUPPORTED_COMPRESSION_TYPE),
        (zstd(), 6, KafkaError.UNSUPPORTED_COMPRESSION_TYPE),
        (with_attributes(0x10), 9, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (zstd(), 7, KafkaError.NONE),
    ],
    ids=lambda value: value.name if isinstance(value, KafkaError) else "",
)
def test_records_that_a_request_must_not_have(
    records: bytes | None, version: int, error: KafkaError
) -> None:
    async def main() -> None:
        async with produce_world() as world:
            part = await world.send_one(records, version)
            assert KafkaError(part.error_code) is error
            assert bool(part.error_message) == (error is not KafkaError.NONE)
            after = await world.send_one(batch(b"after"))
            assert after.base_offset == (1 if error is KafkaError.NONE else 0)

    asyncio.run(main())


def compressed(codec: Compression) -> bytearray:
    values = [b"%d" % (number * number) for number in range(100)]
    return bytearray(encode_values(values, timestamp_ms=1000, keys=values, compression=codec).data)


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_damaged_compressed_records_are_found_only_where_keys_are_read(codec: Compression) -> None:
    data = compressed(codec)
    data[-60:-20] = bytes(40)
    records = bytes(resealed(data))

    async def main() -> None:
        async with produce_world() as world:
            await world.logs.create_topic("compacted", 1, {"cleanup.policy": "compact"})
            assert (await world.send_one(records)).error_code == KafkaError.NONE
            refused = await world.send_one(records, topic="compacted")
            assert refused.error_code in (KafkaError.CORRUPT_MESSAGE, KafkaError.INVALID_RECORD)

    asyncio.run(main())


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_compressed_records_that_are_cut_short_are_refused(codec: Compression) -> None:
    """But for gzip, which does not say how long it is."""
    cut = compressed(codec)[:-20]
    cut[8:12] = (len(cut) - LENGTH_END).to_bytes(4, "big")
    records = bytes(resealed(cut))

    async def main() -> None:
        async with produce_world() as world:
            part = await world.send_one(records)
            is_stored = codec is Compression.GZIP
            expected = KafkaError.NONE if is_stored else KafkaError.INVALID_RECORD
            assert KafkaError(part.error_code) is expected
            assert ("cut short" in (part.error_message or "")) != is_stored
            assert (await world.send_one(batch(b"after"))).base_offset == 100 * is_stored

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"topic": "none", "partition": 1}, KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": 2}, KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
        ({"partition": -1}, KafkaError.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic": "a/b"}, KafkaError.INVALID_TOPIC_EXCEPTION),
        ({"topic": "__consumer_offsets"}, KafkaError.INVALID_TOPIC_EXCEPTION),
        ({"topic": "__transaction_state"}, KafkaError.INVALID_TOPIC_EXCEPTION),
        ({"acks": 2}, KafkaError.INVALID_REQUIRED_ACKS),
        ({"acks": -2}, KafkaError.INVALID_REQUIRED_ACKS),
    ],
    ids=str,
)
def test_requests_that_are_refused(fields: dict[str, Any], error: KafkaError) -> None:
    async def main() -> None:
        async with produce_world() as world:
            part = await world.send_one(batch(b"a"), **fields)
            assert KafkaError(part.error_code) is error
            assert part.base_offset == -1
            assert part.error_message
            assert world.logs.topic("none") is None

    asyncio.run(main())


def test_an_id_that_no_topic_has() -> None:
    async def main() -> None:
        async with produce_world() as world:
            for topic_id in (bytes(16), bytes(range(16))):
                request = produce_request(batch(b"a"), topic="", topic_id=topic_id)
                part = only(await world.send(request, NEWEST))
                assert KafkaError(part.error_code) is KafkaError.UNKNOWN_TOPIC_ID

    asyncio.run(main())


def test_a_topic_created_again_is_not_reached_by_its_old_id() -> None:
    async def main() -> None:
        async with produce_world() as world:
            old = UUID(world.logs.topic("t").topic_id).bytes
            await world.logs.delete_topic("t")
            await world.logs.create_topic("t", 1)
            request = produce_request(batch(b"a"), topic="", topic_id=old)
            part = only(await world.send(request, NEWEST))
            assert KafkaError(part.error_code) is KafkaError.UNKNOWN_TOPIC_ID
            new = UUID(world.logs.topic("t").topic_id).bytes
            request = produce_request(batch(b"a"), topic="", topic_id=new)
            assert only(await world.send(request, NEWEST)).error_code == 0

    asyncio.run(main())


def test_a_batch_above_the_topics_bound_is_answered_and_others_are_stored() -> None:
    async def main() -> None:
        async with produce_world() as world:
            request = produce_request(batch(b"v" * 2 * MIB))
            small = PartitionProduceData(index=1, records=memoryview(batch(b"a")))
            request.topic_data[0].partition_data = [
                *request.topic_data[0].partition_data,
                small,
            ]
            [large, stored] = (await world.send(request)).responses[0].partition_responses
            assert KafkaError(large.error_code) is KafkaError.MESSAGE_TOO_LARGE
            assert "max.message.bytes" in str(large.error_message)
            assert (stored.index, stored.error_code, stored.base_offset) == (1, 0, 0)

    asyncio.run(main())


def test_answers_stand_in_the_order_of_the_request() -> None:
    async def main() -> None:
        async with produce_world() as world:
            await world.logs.create_topic("u", 3)
            request = produce_request(batch(b"a"), topic="u", partition=2)
            more = [
                PartitionProduceData(index=1, records=None),
                PartitionProduceData(index=0, records=memoryview(batch(b"b"))),
            ]
            [first] = request.topic_data
            first.partition_data = [*first.partition_data, *more]
            refused = TopicProduceData(name="t", partition_data=[more[0]])
            request.topic_data = [first, refused, *produce_request(batch(b"c")).topic_data]
            answers = [
                (topic.name, part.index, part.error_code)
                for topic in (await world.send(request)).responses
                for part in topic.partition_responses
            ]
            bad = KafkaError.INVALID_RECORD
            assert answers == [("u", 2, 0), ("u", 1, bad), ("u", 0, 0), ("t", 1, bad), ("t", 0, 0)]

    asyncio.run(main())


def test_a_request_without_partitions_has_an_empty_answer() -> None:
    async def main() -> None:
        async with produce_world() as world:
            request = produce_request(batch(b"a"))
            request.topic_data = []
            assert list((await world.send(request)).responses) == []

    asyncio.run(main())


def test_a_request_that_fails_as_a_whole_spares_those_beside_it() -> None:
    async def main() -> None:
        async with produce_world(limits=LimitsConfig(partitions_per_request_max=1)) as world:
            large = produce_request(batch(b"a"))
            [topic] = large.topic_data
            topic.partition_data = [*topic.partition_data, *topic.partition_data]
            requests = [large, produce_request(batch(b"b"))]
            version = call(NEWEST_WITH_NAMES)
            replies = await world.produce.produce_many([(version, one) for one in requests])
            assert replies[0].is_ready()
            refused, stored = [await response_of(reply) for reply in replies]
            assert refused is not None
            [answered] = refused.responses
            codes = [part.error_code for part in answered.partition_responses]
            assert codes == [KafkaError.INVALID_REQUEST] * 2
            assert only(stored).base_offset == 0

    asyncio.run(main())


def test_the_record_at_fault_is_named() -> None:
    async def main() -> None:
        async with produce_world() as world:
            await world.logs.alter_topic_configs(
                "t", set={"message.timestamp.before.max.ms": "1000"}
            )
            part = await world.send_one(batch(b"a"))
            assert KafkaError(part.error_code) is KafkaError.INVALID_TIMESTAMP
            [at_fault] = part.record_errors
            assert at_fault.batch_index == 0
            assert at_fault.batch_index_error_message == part.error_message

    asyncio.run(main())


def test_log_append_time_is_in_the_answer() -> None:
    async def main() -> None:
        async with produce_world() as world:
            await world.logs.alter_topic_configs(
                "t", set={"message.timestamp.type": "LogAppendTime"}
            )
            assert (await world.send_one(batch(b"a"))).log_append_time_ms > 1_600_000_000_000

    asyncio.run(main())


def from_producer(sequence: int, producer_id: int = 7, epoch: int = 0) -> bytes:
    producer = BatchProducer(producer_id, epoch, sequence)
    return bytes(encode_values([b"a", b"b"], timestamp_ms=1000, producer=producer).data)


def test_a_retry_is_answered_with_the_offsets_of_the_original() -> None:
    async def main() -> None:
        async with produce_world() as world:
            for sequence in (0, 2):
                await world.send_one(from_producer(sequence))
            again = await world.send_one(from_producer(0))
            assert (again.error_code, again.base_offset) == (0, 0)
            gap = await world.send_one(from_producer(6))
            assert KafkaError(gap.error_code) is KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
            newer = await world.send_one(from_producer(0, epoch=1))
            assert newer.base_offset == 4
            older = await world.send_one(from_producer(4, epoch=0))
            assert KafkaError(older.error_code) is KafkaError.INVALID_PRODUCER_EPOCH

    asyncio.run(main())


def test_without_acks_there_is_no_answer_and_an_error_ends_the_connection() -> None:
    async def main() -> None:
        async with produce_world() as world:
            reply = await world.reply(produce_request(batch(b"a"), acks=0))
            assert reply.is_ready()
            assert await response_of(reply) is None
            for bad in (
                produce_request(damaged(), acks=0),
                produce_request(None, acks=0),
                produce_request(batch(b"a"), topic="none", acks=0),
            ):
                reply = await world.reply(bad)
                with pytest.raises(CloseConnection, match="without acks"):
                    await response_of(reply)
            assert (await world.send_one(batch(b"b"))).base_offset == 1

    asyncio.run(main())


def test_a_partition_that_another_node_leads_names_its_leader() -> None:
    async def main() -> None:
        async with produce_world() as world:
            for leader in (9, None):
                await leadership_of(world.logs).assign(TopicPartition("t", 0), leader)
                response = await world.send(produce_request(batch(b"a")))
                part = only(response)
                assert KafkaError(part.error_code) is KafkaError.NOT_LEADER_OR_FOLLOWER
                assert part.current_leader is not None
                assert part.current_leader.leader_id == (-1 if leader is None else leader)
                # It is not a live node: a client has no use for an address that it has to guess.
                assert not response.node_endpoints

    asyncio.run(main())


def test_the_leaders_address_is_in_the_answer() -> None:
    """The node's own address, for a leader that this node was until now."""

    class LedElsewhere(FakeLogs):
        def open_log(self, partition: TopicPartition) -> None:
            raise NotLeader(f"{partition} is led by node 1", leader_node=1, leader_epoch=5)

    async def main() -> None:
        response = await world_over(LedElsewhere()).send(produce_request(batch(b"a")))
        leader = only(response).current_leader
        assert leader == LeaderIdAndEpoch(leader_id=1, leader_epoch=5)
        [node] = response.node_endpoints
        assert (node.node_id, node.host, node.port) == (1, "127.0.0.1", 9092)

    asyncio.run(main())


def test_who_may_not_write_is_told_so() -> None:
    def refuse(context: RequestContext, operation: Operation, resource: Resource) -> None:
        assert (operation, resource.name) == (Operation.WRITE, "t")
        raise Unauthorized("not yours", principal=context.principal)

    async def main() -> None:
        async with produce_world(refuse) as world:
            part = await world.send_one(batch(b"a"))
            assert KafkaError(part.error_code) is KafkaError.TOPIC_AUTHORIZATION_FAILED

    asyncio.run(main())


async def held_world() -> tuple[ProduceWorld, FakeLogs]:
    logs = FakeLogs()
    await logs.create_topic("t", 2)
    (await logs.log(TopicPartition("t", 0))).hold()
    return world_over(logs), logs


def test_requests_that_lie_ready_together_are_sequenced_in_order_and_answered_later() -> None:
    async def main() -> None:
        world, logs = await held_world()
        requests = [produce_request(batch(b"a")), produce_request(None), produce_request(batch())]
        version = call(NEWEST_WITH_NAMES)
        replies = await world.produce.produce_many([(version, one) for one in requests])
        log = await logs.log(TopicPartition("t", 0))
        assert log.log_end_offset == 2
        assert [reply.is_ready() for reply in replies] == [False, True, False]
        log.let_go()
        assert [reply.is_ready() for reply in replies] == [True, True, True]
        parts = [only(await response_of(reply)) for reply in replies]
        assert [part.base_offset for part in parts] == [0, -1, 1]

    asyncio.run(main())


class Opening(FakeLogs):
    """Its partitions are still being opened."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = asyncio.Event()

    def open_log(self, partition: TopicPartition) -> None:
        return None

    async def log(self, partition: TopicPartition) -> ListLog:
        await self.is_open.wait()
        return await super().log(partition)


def test_a_request_whose_time_was_over_behind_another_one_gets_no_place_after_it() -> None:
    """The one before it waited in vain for the partition, and its producer sends it again: what is
    stored meanwhile would put that retry out of sequence."""

    async def main() -> None:
        logs = Opening()
        await logs.create_topic("t", 2)
        long_ago = SystemClock().monotonic() - 31
        behind = call(NEWEST_WITH_NAMES)._replace(received_at=long_ago)
        asyncio.get_running_loop().call_later(0.05, logs.is_open.set)
        request = produce_request(batch(b"b"), timeout_ms=30_000)
        part = only(await response_of(await world_over(logs).produce.produce(behind, request)))
        assert KafkaError(part.error_code) is KafkaError.REQUEST_TIMED_OUT
        assert not logs.open

    asyncio.run(main())


def test_a_request_that_waited_behind_another_one_has_its_whole_time_to_become_durable() -> None:
    async def main() -> None:
        async with produce_world() as world:
            long_ago = SystemClock().monotonic() - 31
            behind = call(NEWEST_WITH_NAMES)._replace(received_at=long_ago)
            assert (await world.send_one(batch(b"a"))).base_offset == 0  # The log is open now.
            reply = await world.produce.produce(behind, produce_request(batch(b"b")))
            assert only(await response_of(reply)).base_offset == 1

    asyncio.run(main())


class SlowClock(SystemClock):
    """Every look at it takes a millisecond."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.001
        return self.now


def test_many_requests_at_once_do_not_hold_up_everything_else() -> None:
    async def main() -> None:
        logs = FakeLogs()
        await logs.create_topic("t", 2)
        log = await logs.log(TopicPartition("t", 0))
        world = world_over(logs, clock=SlowClock())
        version, ends = call(NEWEST_WITH_NAMES), list[int]()

        async def look_on() -> None:
            while True:
                ends.append(log.log_end_offset)
                await asyncio.sleep(0)

        onlooker = asyncio.create_task(look_on())
        requests = [(version, produce_request(batch(b"%d" % number))) for number in range(20)]
        replies = await world.produce.produce_many(requests)
        onlooker.cancel()
        assert len(ends) > 5
        assert ends == sorted(ends)
        offsets = [only(await response_of(reply)).base_offset for reply in replies]
        assert offsets == list(range(20))

    asyncio.run(main())


def test_a_client_that_has_left_leaves_its_appends_under_way() -> None:
    async def main() -> None:
        world, logs = await held_world()
        reply = await world.reply(produce_request(batch(b"a")))
        reply.abandon()
        log = await logs.log(TopicPartition("t", 0))
        log.let_go()
        assert log.high_watermark == 1

    asyncio.run(main())


def test_what_is_stored_is_counted_whoever_waits_for_it() -> None:
    async def main() -> None:
        world, logs = await held_world()

        def counted(what: str) -> float:
            labels = {"topic": "t"}
            return world.registry.get_sample_value(f"streamlog_topic_{what}_total", labels) or 0

        log = await logs.log(TopicPartition("t", 0))
        without_acks = await world.reply(produce_request(batch(b"a"), acks=0))
        assert await response_of(without_acks) is None
        (await world.reply(produce_request(batch(b"b")))).abandon()
        late = await world.send_one(batch(b"c"), timeout_ms=1)
        assert KafkaError(late.error_code) is KafkaError.REQUEST_TIMED_OUT
        awaited = await world.reply(produce_request(batch(b"d", b"e")))
        assert counted("records_in") == 0
        log.let_go()
        await response_of(awaited)
        await asyncio.sleep(0)
        assert counted("records_in") == log.high_watermark == 5
        assert counted("bytes_in") == log.appended_bytes

    asyncio.run(main())


def test_a_batch_that_is_not_durable_in_time_may_have_been_written() -> None:
    async def main() -> None:
        world, _ = await held_world()
        part = await world.send_one(batch(b"a"), timeout_ms=1)
        assert KafkaError(part.error_code) is KafkaError.REQUEST_TIMED_OUT

    asyncio.run(main())


def test_a_small_batch_does_not_keep_its_frame() -> None:
    """64 frames of 1 MiB, each with one small batch that is stored and a large one that is not."""

    async def main() -> None:
        async with produce_world() as world:
            small = batch(b"v" * 100)
            tracemalloc.start()
            try:
                for _ in range(64):
                    frame = memoryview(bytearray(MIB))
                    frame[: len(small)] = small
                    request = produce_request(frame[: len(small)])
                    version = call(NEWEST_WITH_NAMES, len(frame))
                    reply = await world.produce.produce(version, request)
                    assert only(await response_of(reply)).error_code == 0
                    del frame, request, reply
                gc.collect()
                assert tracemalloc.get_traced_memory()[0] < 8 * MIB
            finally:
                tracemalloc.stop()

    asyncio.run(main())
