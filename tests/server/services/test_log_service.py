"""Produce and fetch over a real socket."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from streamlog import errors
from streamlog.codec.batch import place_into, resealed
from streamlog.codec.control import ControlType, EndMarker, encode_end_marker
from streamlog.codec.records import decode
from streamlog.log.api.abstract_log import AbortedTransaction, Isolation, LogFetch
from streamlog.model.partition import TopicPartition
from streamlog.testing.logs.transaction_conformance import transactional
from streamlog.v1 import admin_pb2, admin_pb2_grpc, log_pb2
from streamlog.v1support.errors import from_proto, from_rpc_error
from tests.support.grpc_aio import END_OF_CALL, close, raw_method
from tests.support.replacing import replace_method
from tests.support.server_harness import Answers, Running, batch, new_channel, running, with_limits


def produce_request(data: bytes, topic: str = "t", partition: int = 0) -> log_pb2.ProduceRequest:
    part = log_pb2.ProducePartition(partition=partition, record_batches=data)
    return log_pb2.ProduceRequest(topics=[log_pb2.ProduceTopic(topic=topic, partitions=[part])])


def fetch_request(offset: int, **fields: Any) -> log_pb2.FetchRequest:
    part = log_pb2.FetchPartition(partition=0, fetch_offset=offset)
    return log_pb2.FetchRequest(topics=[log_pb2.FetchTopic(topic="t", partitions=[part])], **fields)


def only(response: Any) -> Any:
    return response.topics[0].partitions[0]


async def eventually(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


def test_records_that_cannot_be_decoded_are_their_own_partitions_error() -> None:
    async def main() -> None:
        async with running() as node:
            damaged = bytearray(batch(b"value"))
            damaged[61:] = bytes([0xFF]) * (len(damaged) - 61)
            poison = bytes(resealed(damaged))
            assert only(await node.log_stub.Produce(produce_request(poison))).base_offset == 0
            sound = produce_request(batch(b"sound"), partition=1)
            assert only(await node.log_stub.Produce(sound)).base_offset == 0
            request = fetch_request(0, format=log_pb2.FETCH_FORMAT_RECORDS)
            request.topics[0].partitions.append(log_pb2.FetchPartition(partition=1))
            answer = await node.log_stub.Fetch(request)
            bad, good = answer.topics[0].partitions
            assert isinstance(from_proto(bad.error), errors.InvalidRecord)
            assert not bad.records
            assert [record.value for record in good.records] == [b"sound"]

    asyncio.run(main())


def test_batches_come_out_as_they_went_in() -> None:
    async def main() -> None:
        async with running() as node:
            answer = only(await node.log_stub.Produce(produce_request(batch(b"a", b"b"))))
            assert (answer.base_offset, answer.HasField("error")) == (0, False)
            answer = only(await node.log_stub.Produce(produce_request(batch(b"c"))))
            assert answer.base_offset == 2
            partition = only(await node.log_stub.Fetch(fetch_request(0)))
            assert (partition.high_watermark, partition.next_offset) == (3, 3)
            first = decode(partition.record_batches[: len(batch(b"a", b"b"))])
            assert [record[3] for record in first] == [b"a", b"b"]
            assert node.metric("streamlog_topic_records_in_total", topic="t") == 3

    asyncio.run(main())


def test_a_topic_created_again_is_another_topic() -> None:
    async def main() -> None:
        async with running() as node:
            admin = admin_pb2_grpc.AdminServiceStub(node.channel)
            await node.log_stub.Produce(produce_request(batch(b"a")))
            request = fetch_request(0)
            request.topics[0].topic_id = await _topic_id(admin)
            assert only(await node.log_stub.Fetch(request)).next_offset == 1
            await admin.DeleteTopics(admin_pb2.DeleteTopicsRequest(names=["t"]))
            gone = only(await node.log_stub.Fetch(request))
            assert isinstance(from_proto(gone.error), errors.UnknownTopicOrPartition)
            made = admin_pb2.NewTopic(name="t", partitions=1)
            await admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[made]))
            node.logs.topics["t"].topic_id = "another"
            gone = only(await node.log_stub.Fetch(request))
            assert "is another" in gone.error.message
            assert not gone.record_batches
            request.topics[0].topic_id = "another"
            assert only(await node.log_stub.Fetch(request)).next_offset == 1

    asyncio.run(main())


async def _topic_id(admin: Any) -> str:
    described = await admin.DescribeTopics(admin_pb2.DescribeTopicsRequest(names=["t"]))
    topic_id: str = described.topics[0].topic_id
    assert topic_id
    return topic_id


def test_plain_records_need_no_codec() -> None:
    async def main() -> None:
        async with running() as node:
            records = log_pb2.RecordList(
                records=[
                    log_pb2.Record(value=b"v", headers=[log_pb2.Header(key="h")]),
                    log_pb2.Record(key=b"k", timestamp_ms=5),
                ]
            )
            request = log_pb2.ProduceRequest(
                topics=[
                    log_pb2.ProduceTopic(
                        topic="t",
                        partitions=[log_pb2.ProducePartition(records=records)],
                    )
                ]
            )
            assert only(await node.log_stub.Produce(request)).base_offset == 0
            answer = only(
                await node.log_stub.Fetch(fetch_request(1, format=log_pb2.FETCH_FORMAT_RECORDS))
            )
            assert answer.next_offset == 2
            [record] = answer.records
            assert (record.offset, record.key, record.timestamp_ms) == (1, b"k", 5)
            assert not record.HasField("value")
            whole = only(
                await node.log_stub.Fetch(fetch_request(0, format=log_pb2.FETCH_FORMAT_RECORDS))
            )
            assert [r.offset for r in whole.records] == [0, 1]
            assert whole.records[0].headers[0].key == "h"
            assert not whole.records[0].headers[0].HasField("value")

    asyncio.run(main())


def test_pipelined_answers_come_in_order_with_their_ids() -> None:
    async def main() -> None:
        async with running() as node:
            log = await node.logs.log(TopicPartition("t", 0))
            log.hold()
            call = node.log_stub.ProduceStream()
            for number in range(5):
                await call.write(
                    log_pb2.ProduceStreamRequest(
                        correlation_id=number + 10, request=produce_request(batch(b"x"))
                    )
                )
            await eventually(lambda: log.log_end_offset == 5)
            log.let_go()
            answers = Answers(call)
            for number in range(5):
                answer = await answers.read()
                assert answer.correlation_id == number + 10
                assert only(answer.response).base_offset == number
            await call.done_writing()
            assert await call.read() is END_OF_CALL
            assert await call.code() is grpc.StatusCode.OK

    asyncio.run(main())


def test_a_bad_request_in_a_stream_is_answered_and_the_stream_goes_on() -> None:
    async def main() -> None:
        async with running() as node:
            raw = raw_method(
                node.channel, "stream_stream", "/streamlog.v1.LogService/ProduceStream"
            )
            call = raw()
            good = log_pb2.ProduceStreamRequest(
                correlation_id=9, request=produce_request(batch(b"x"))
            )
            await call.write(good.SerializeToString()[:-3])
            await call.write(
                log_pb2.ProduceStreamRequest(
                    correlation_id=8, request=log_pb2.ProduceRequest(transactional_id="tx")
                ).SerializeToString()
            )
            await call.write(good.SerializeToString())
            answers = Answers(call)
            cut = await answers.read()
            assert "cut short" in from_proto(cut.error).message
            refused = await answers.read()
            assert refused.correlation_id == 8
            assert type(from_proto(refused.error)) is errors.Invalid
            fine = await answers.read()
            assert (fine.correlation_id, only(fine.response).base_offset) == (9, 0)
            await call.done_writing()

    asyncio.run(main())


def flip(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (produce_request(batch(b"x"), topic="none"), errors.UnknownTopicOrPartition),
        (produce_request(batch(b"x"), partition=7), errors.UnknownTopicOrPartition),
        (produce_request(batch(b"x"), partition=-1), errors.UnknownTopicOrPartition),
        (produce_request(b"not a batch"), errors.CorruptMessage),
        (produce_request(batch(b"x")[:-1]), errors.CorruptMessage),
        (produce_request(flip(batch(b"x"), 65)), errors.CorruptMessage),
        (produce_request(batch(b"x"), topic="n" * 10_000), errors.UnknownTopicOrPartition),
        (produce_request(batch(b"x"), topic="../a\x00"), errors.UnknownTopicOrPartition),
    ],
    ids=["topic", "partition", "negative", "garbage", "cut", "flipped", "10KB", "path"],
)
def test_a_bad_batch_is_an_error_of_its_partition_alone(
    request_: log_pb2.ProduceRequest, error: type[errors.StreamlogError]
) -> None:
    async def main() -> None:
        async with running() as node:
            answer = only(await node.log_stub.Produce(request_))
            assert isinstance(from_proto(answer.error), error)
            assert only(await node.log_stub.Produce(produce_request(batch(b"y")))).base_offset == 0

    asyncio.run(main())


async def refusal(call: Any) -> errors.StreamlogError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value, may_have_happened=False)


def test_fields_without_effect_are_refused() -> None:
    async def main() -> None:
        async with running() as node:
            for request in (
                fetch_request(0, replica_id=1),
                fetch_request(0, session_id=5),
                fetch_request(0, session_epoch=2),
                fetch_request(0, rack_id="r"),
                fetch_request(0, forgotten_topics=[log_pb2.ForgottenTopic(topic="t")]),
            ):
                error = await refusal(node.log_stub.Fetch(request))
                assert type(error) is errors.Invalid
                assert "comes with" in error.message

    asyncio.run(main())


def test_offset_out_of_range_names_the_valid_range() -> None:
    async def main() -> None:
        async with running() as node:
            await node.log_stub.Produce(produce_request(batch(b"a")))
            answer = only(await node.log_stub.Fetch(fetch_request(5, max_wait_ms=60_000)))
            error = from_proto(answer.error)
            assert isinstance(error, errors.OffsetOutOfRange)
            assert error.fields == {"offset": 5, "start_offset": 0, "end_offset": 1}
            assert (answer.log_start_offset, answer.high_watermark) == (0, 1)

    asyncio.run(main())


def test_a_wrong_leader_epoch_is_refused() -> None:
    async def main() -> None:
        async with running() as node:
            for epoch, error in ((2, errors.EpochFenced), (4, errors.UnknownLeaderEpoch)):
                request = fetch_request(0)
                request.topics[0].partitions[0].current_leader_epoch = epoch
                answer = only(await node.log_stub.Fetch(request))
                assert type(from_proto(answer.error)) is error

    asyncio.run(main())


def test_a_long_poll_wakes_when_records_come_and_honours_min_bytes() -> None:
    async def main() -> None:
        async with running() as node:
            log = await node.logs.log(TopicPartition("t", 0))
            data = batch(b"x" * 100)
            wanted = fetch_request(0, max_wait_ms=60_000, min_bytes=len(data) + 1)
            poll = asyncio.ensure_future(_fetch(node, wanted))
            await eventually(lambda: log.subscribers == 1)
            await node.log_stub.Produce(produce_request(data))
            await eventually(lambda: log.subscribers == 1)
            assert not poll.done()
            await node.log_stub.Produce(produce_request(data))
            partition = only(await poll)
            assert partition.next_offset == 2
            assert len(partition.record_batches) == 2 * len(data)
            await eventually(lambda: log.subscribers == 0)

    asyncio.run(main())


async def _fetch(node: Running, request: log_pb2.FetchRequest) -> log_pb2.FetchResponse:
    response: log_pb2.FetchResponse = await node.log_stub.Fetch(request)
    return response


def test_an_empty_answer_comes_at_max_wait() -> None:
    async def main() -> None:
        async with running() as node:
            partition = only(await node.log_stub.Fetch(fetch_request(0, max_wait_ms=30)))
            assert not partition.HasField("error")
            assert (partition.record_batches, partition.next_offset) == (b"", 0)

    asyncio.run(main())


def test_size_limits_and_the_first_batch() -> None:
    async def main() -> None:
        async with running() as node:
            data = batch(b"x" * 1000)
            for partition in (0, 0, 1):
                await node.log_stub.Produce(produce_request(data, partition=partition))
            request = fetch_request(0, max_bytes=10, max_wait_ms=60_000, min_bytes=9)
            request.topics[0].partitions.add(partition=1)
            first, second = (await node.log_stub.Fetch(request)).topics[0].partitions
            assert first.next_offset == 1
            assert second.record_batches == b""
            request.max_bytes = 1 << 20
            request.topics[0].partitions[0].partition_max_bytes = 10
            first, second = (await node.log_stub.Fetch(request)).topics[0].partitions
            assert (first.next_offset, second.next_offset) == (1, 1)

    asyncio.run(main())


def test_vanished_clients_leave_nothing_behind() -> None:
    async def main() -> None:
        async with running() as node:
            log = await node.logs.log(TopicPartition("t", 0))
            channel = new_channel(node.service)
            node_stub = Running(node.service, node.logs, channel, node.registry).log_stub
            polls = [node_stub.Fetch(fetch_request(0, max_wait_ms=200_000)) for _ in range(500)]
            await eventually(lambda: log.subscribers == 500)
            await close(channel)
            await eventually(lambda: log.subscribers == 0)
            await eventually(lambda: node.metric("streamlog_requests_active") == 0)
            await asyncio.gather(*(_ended(poll) for poll in polls))

    asyncio.run(main())


async def _ended(call: Any) -> None:
    with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
        await call


def test_long_polls_are_answered_when_the_node_drains() -> None:
    async def main() -> None:
        async with running() as node:
            log = await node.logs.log(TopicPartition("t", 0))
            polls = [
                asyncio.ensure_future(_fetch(node, fetch_request(0, max_wait_ms=200_000)))
                for _ in range(1000)
            ]
            await eventually(lambda: log.subscribers == 1000)
            held = node.log_stub.ProduceStream()
            log.hold()
            await held.write(
                log_pb2.ProduceStreamRequest(correlation_id=1, request=produce_request(batch(b"x")))
            )
            await eventually(lambda: log.log_end_offset == 1)
            stop = asyncio.ensure_future(node.service.stop(10))
            answers = await asyncio.gather(*polls)
            assert all(not only(answer).HasField("error") for answer in answers)
            log.let_go()
            answer = await Answers(held).read()
            assert only(answer.response).base_offset == 0
            assert isinstance(await refusal(held.read()), errors.Closed)
            await stop

    asyncio.run(main())


def test_a_connection_over_its_bytes_is_not_read_from() -> None:
    async def main() -> None:
        data = batch(b"x" * 60_000)
        async with running(with_limits(in_flight_bytes_per_connection_max=200_000)) as node:
            log = await node.logs.log(TopicPartition("t", 0))
            log.hold()
            call = node.log_stub.ProduceStream()

            async def send() -> None:
                for number in range(60):
                    await call.write(
                        log_pb2.ProduceStreamRequest(
                            correlation_id=number, request=produce_request(data)
                        )
                    )
                await call.done_writing()

            sending = asyncio.ensure_future(send())
            await eventually(lambda: node.metric("streamlog_in_flight_waits_total") == 1)
            assert log.log_end_offset == 3
            assert node.metric("streamlog_in_flight_bytes") <= 200_000
            log.let_go()
            answers = Answers(call)
            for number in range(60):
                assert (await answers.read()).correlation_id == number
            await sending
            await eventually(lambda: node.metric("streamlog_in_flight_bytes") == 0)

    asyncio.run(main())


def test_connections_over_the_limit_are_refused_and_counted() -> None:
    async def main() -> None:
        async with running(with_limits(connections_max=2)) as node:
            second = new_channel(node.service)
            third = new_channel(node.service)
            try:
                await node.log_stub.Fetch(fetch_request(0))
                other = Running(node.service, node.logs, second, node.registry).log_stub
                await other.Fetch(fetch_request(0))
                refused = Running(node.service, node.logs, third, node.registry).log_stub
                error = await refusal(refused.Fetch(fetch_request(0)))
                assert isinstance(error, errors.Unavailable)
                assert node.service._listeners.connections() == 2
            finally:
                await close(second)
                await close(third)

    asyncio.run(main())


def test_a_call_that_is_refused_before_it_begins_gets_a_typed_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """gRPC once logged a traceback for each, and sent its last line in place of the reason."""

    async def main() -> None:
        async with running(with_limits(requests_max=10)) as node:
            unnamed = node.log_stub.Fetch(
                fetch_request(0), metadata=(("streamlog-client-id", "c" * 256),)
            )
            error = await refusal(unnamed)
            assert isinstance(error, errors.Invalid)
            assert "client id and trace id have at most" in error.message
            polls = [node.log_stub.Fetch(fetch_request(0, max_wait_ms=60_000)) for _ in range(10)]
            await eventually(lambda: node.metric("streamlog_long_polls") == 10)
            for call in (node.log_stub.Fetch(fetch_request(0)), node.log_stub.ProduceStream()):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await (call if isinstance(call, grpc.aio.UnaryUnaryCall) else call.read())
                assert caught.value.details() == "10 requests are under way; retry with back-off"
                refused = from_rpc_error(caught.value, may_have_happened=False)
                assert isinstance(refused, errors.Overloaded)
            assert node.metric("streamlog_requests_active") == 10
            for poll in polls:
                poll.cancel()
            await eventually(lambda: not node.metric("streamlog_requests_active"))

    asyncio.run(main())
    assert not [record for record in caplog.records if "servicer method" in record.getMessage()]


def test_a_message_over_the_limit_is_refused() -> None:
    async def main() -> None:
        async with running(with_limits(message_bytes_max=100_000)) as node:
            error = await refusal(node.log_stub.Produce(produce_request(b"x" * 200_000)))
            assert isinstance(error, errors.MessageTooLarge)
            await node.log_stub.Produce(produce_request(batch(b"x")))

    asyncio.run(main())


def test_an_append_that_fails_is_counted_by_its_error() -> None:
    """The request, or the stream of requests, that carries it ends as OK."""

    async def main() -> None:
        async with running() as node:
            log = await node.logs.log(TopicPartition("t", 0))

            async def refuse(*_: object) -> Any:
                raise errors.DiskFull("there is no room for the write-ahead log")

            replace_method(log, "append", refuse)
            answer = only(await node.log_stub.Produce(produce_request(batch(b"a"))))
            assert isinstance(from_proto(answer.error), errors.DiskFull)
            assert node.metric("streamlog_appends_failed_total", error="DiskFull") == 1
            failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            failed.set_exception(errors.OutcomeUnknown("the write may have happened"))

            async def fail(*_: object) -> Any:
                return failed

            replace_method(log, "append", fail)
            call = node.log_stub.ProduceStream()
            await call.write(log_pb2.ProduceStreamRequest(request=produce_request(batch(b"a"))))
            await call.done_writing()
            assert only((await Answers(call).read()).response).error.name == "OutcomeUnknown"
            assert node.metric("streamlog_appends_failed_total", error="OutcomeUnknown") == 1
            assert await call.code() is grpc.StatusCode.OK

    asyncio.run(main())


def test_committed_readers_are_told_what_was_aborted_and_get_no_record_of_it() -> None:
    async def main() -> None:
        async with running() as node:
            pieces = [
                transactional([b"a"]),
                transactional([b"b"], 2),
                encode_end_marker(1, 0, EndMarker(ControlType.ABORT, 0), 5),
                batch(b"c"),
                encode_end_marker(2, 0, EndMarker(ControlType.COMMIT, 0), 5),
            ]
            data = b""
            for offset, piece in enumerate(map(bytearray, pieces)):
                place_into(piece, 0, len(piece), offset, 0)
                data += piece
            fetched = LogFetch((data,), len(data), 5, 5, 9, 5, 0, (AbortedTransaction(1, 0),))
            asked: list[Isolation] = []

            async def fetch(*_: object, isolation: Isolation, **__: object) -> LogFetch:
                asked.append(isolation)
                return fetched

            replace_method(await node.logs.log(TopicPartition("t", 0)), "fetch", fetch)
            level = log_pb2.ISOLATION_LEVEL_READ_COMMITTED
            part = only(await node.log_stub.Fetch(fetch_request(0, isolation_level=level)))
            assert part.record_batches == data
            assert (part.last_stable_offset, part.high_watermark) == (5, 9)
            told = [(one.producer_id, one.first_offset) for one in part.aborted_transactions]
            assert told == [(1, 0)]
            request = fetch_request(
                0, isolation_level=level, format=log_pb2.FETCH_FORMAT_RECORDS, max_bytes=1 << 20
            )
            part = only(await node.log_stub.Fetch(request))
            assert [(one.offset, one.value) for one in part.records] == [(1, b"b"), (3, b"c")]
            assert (part.next_offset, part.record_batches) == (5, b"")
            assert not part.aborted_transactions
            assert asked == [Isolation.READ_COMMITTED] * 2

    asyncio.run(main())
