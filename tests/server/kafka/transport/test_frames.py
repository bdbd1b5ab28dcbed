"""Frames: whatever stands on the wire, requests come out whole, or the connection ends."""

from __future__ import annotations

import asyncio
import struct

import pytest

from streamlog.kafka.messages.list_offsets_request import ListOffsetsRequest
from streamlog.kafka.messages.list_offsets_response import ListOffsetsResponse
from streamlog.kafka.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from streamlog.kafka.messages.produce_response import ProduceResponse
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.server.kafka.call import KafkaCall, Route
from streamlog.server.kafka.transport.receive import SCRATCH_BYTES, UNFILLED_BYTES_MAX
from streamlog.settings.limits import MIB, LimitsConfig
from tests.engine.harness import until
from tests.support.kafka_wire import VERSIONS_REQUEST, request_bytes, sized, wire


class Recorder:
    """Takes produce requests and keeps their records."""

    def __init__(self) -> None:
        self.taken: list[bytes] = []
        self.frame_bytes: list[int] = []

    async def produce(self, call: KafkaCall, request: ProduceRequest) -> ProduceResponse:
        records = request.topic_data[0].partition_data[0].records
        assert isinstance(records, memoryview)
        self.taken.append(bytes(records))
        self.frame_bytes.append(call.frame_bytes)
        return ProduceResponse()

    def routes(self) -> dict[ApiKey, Route]:
        return {ApiKey.PRODUCE: Route(self.produce)}


def produce(records: bytes, correlation_id: int = 1) -> bytes:
    part = PartitionProduceData(index=0, records=records)
    topic = TopicProduceData(name="t", partition_data=[part])
    message = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
    return request_bytes(ApiKey.PRODUCE, 9, correlation_id, message)


@pytest.mark.parametrize("size", [-1, -(2**31), 0, 1, 9, 2**31 - 1, 100 * MIB + 1])
def test_a_size_that_is_none_ends_the_connection_before_anything_is_allocated(size: int) -> None:
    async def main() -> None:
        async with wire() as served:
            client = await served.client()
            client.send(struct.pack(">i", size) + VERSIONS_REQUEST[4:8])
            assert await client.rest() == b""
            assert served.ended("not_kafka") == 1
            assert served.connections.memory.unfilled_bytes == 0
            other = await served.client()
            assert await other.is_served()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("first", "name"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "gRPC"),
        (b"SSH-2.0-OpenSSH\r\n", "no protocol"),
    ],
)
def test_another_protocol_is_closed_and_named_in_the_log(
    first: bytes, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with wire() as served:
            client = await served.client()
            client.send(first)
            assert await client.rest() == b""

    asyncio.run(main())
    (line,) = caplog.records
    assert name in line.__dict__["reason"]


def test_closed_connections_are_logged_once_a_second_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stopped:
        seconds = 100.0

        def now_ms(self) -> int:
            return 0

        def monotonic(self) -> float:
            return self.seconds

    async def main() -> None:
        clock = Stopped()
        async with wire(clock=clock) as served:
            for _ in range(3):
                client = await served.client()
                client.send(b"GET / HTTP/1.1\r\n\r\n")
                await client.rest()
            assert len(caplog.records) == 1
            clock.seconds += 1
            client = await served.client()
            client.send(b"GET / HTTP/1.1\r\n\r\n")
            await client.rest()
            assert served.ended("not_kafka") == 4

    asyncio.run(main())
    assert caplog.records[-1].__dict__["unlogged"] == "2"
    assert len(caplog.records) == 2


def test_a_request_may_come_byte_by_byte() -> None:
    async def main() -> None:
        async with wire() as served:
            client = await served.client()
            client.writer.get_extra_info("socket").setsockopt(6, 1, 1)  # TCP_NODELAY
            for at in range(len(VERSIONS_REQUEST)):
                client.send(VERSIONS_REQUEST[at : at + 1])
                await asyncio.sleep(0)
            correlation_id, response = await client.answer(ApiKey.API_VERSIONS, 3)
            assert correlation_id == 5
            assert response.error_code == 0

    asyncio.run(main())


@pytest.mark.parametrize("cut", range(1, len(VERSIONS_REQUEST)))
def test_a_request_that_is_cut_leaves_nothing_behind(cut: int) -> None:
    async def main() -> None:
        async with wire() as served:
            client = await served.client()
            client.send(VERSIONS_REQUEST[:cut])
            await until(lambda: served.connections.count == 1)
            await client.close()
            await until(lambda: served.connections.count == 0)

    asyncio.run(main())


def test_requests_of_every_size_come_out_as_they_were_sent() -> None:
    """In one piece, over several reads, larger than the scratch, and mapped."""
    sizes = [1, 100, 4095, 70_000, 3, SCRATCH_BYTES - 60, SCRATCH_BYTES, MIB, 10, 5 * MIB, MIB, 7]
    sent = [bytes([at % 251]) * size for at, size in enumerate(sizes)]

    async def main() -> None:
        recorder = Recorder()
        async with wire(recorder.routes()) as served:
            client = await served.client()
            for at, records in enumerate(sent):
                client.send(produce(records, at))
            for at in range(len(sent)):
                correlation_id, _ = await client.answer(ApiKey.PRODUCE, 9)
                assert correlation_id == at
        assert recorder.taken == sent
        assert all(frame > size for frame, size in zip(recorder.frame_bytes, sizes, strict=True))

    asyncio.run(main())


def test_memory_that_waits_for_bytes_is_bounded_and_large_requests_come_through_all_the_same() -> (
    None
):
    size = 2 * MIB
    count = UNFILLED_BYTES_MAX // size + 3

    async def main() -> None:
        recorder = Recorder()
        async with wire(recorder.routes()) as served:
            whole = produce(b"x" * size)
            clients = [await served.client() for _ in range(count)]
            memory = served.connections.memory
            for client in clients:
                client.send(whole[:100])
            await until(lambda: memory.unfilled_bytes > UNFILLED_BYTES_MAX - size)
            for client in clients:
                client.send(whole[100:200])
            assert memory.unfilled_bytes <= UNFILLED_BYTES_MAX
            for client in clients[-3:]:
                client.send(whole[200:])
                await client.answer(ApiKey.PRODUCE, 9)
            assert recorder.taken == [b"x" * size] * 3
            for client in clients:
                await client.close()

    asyncio.run(main())


def test_a_large_request_of_an_unknown_api_ends_before_its_memory_is_allocated() -> None:
    async def main() -> None:
        async with wire() as served:
            client = await served.client()
            client.send(struct.pack(">ih", MIB, ApiKey.PRODUCE))  # No handler here.
            assert await client.rest() == b""
            assert served.ended("not_kafka") == 1
            assert served.connections.memory.unfilled_bytes == 0

    asyncio.run(main())


def header(api: int, version: int, tags: bytes = b"") -> bytes:
    return struct.pack(">hhih", api, version, 9, -1) + tags


@pytest.mark.parametrize(
    "frame",
    [
        header(18, -1),
        header(3, 0) + b"\0\0\0\0",  # Metadata has no handler here.
        header(2, 99) + b"\0" * 30,  # ListOffsets in a version to come
        header(999, 0),
        header(-1, 0),
        header(2, 1) + struct.pack(">ii", -1, 2**31 - 1),  # 2^31 topics
        header(2, 6, b"\0") + b"\xff" * 20,
        struct.pack(">hhih", 18, 3, 9, 3000),  # A client id that does not follow.
        struct.pack(">hhih", 18, 3, 9, 2) + b"\xff\xfe\0\x01\x01\0",  # A client id in no UTF-8.
    ],
)
def test_what_is_no_request_of_a_served_api_ends_its_connection_alone(frame: bytes) -> None:
    async def list_offsets(call: KafkaCall, request: ListOffsetsRequest) -> ListOffsetsResponse:
        return ListOffsetsResponse()

    async def main() -> None:
        async with wire({ApiKey.LIST_OFFSETS: Route(list_offsets)}) as served:
            other = await served.client()
            assert await other.is_served()
            client = await served.client()
            client.send(sized(frame))
            assert await client.rest() == b""
            assert served.ended("refused") == 1
            assert await other.is_served()

    asyncio.run(main())


def test_garbage_behind_a_good_request_ends_the_connection() -> None:
    async def main() -> None:
        async with wire() as served:
            client = await served.client()
            assert await client.is_served()
            client.send(VERSIONS_REQUEST + b"\xff" * 100)
            await client.rest()
            assert served.ended("not_kafka") == 1

    asyncio.run(main())


def test_unknown_tags_are_passed_over() -> None:
    tags = b"\x01\x63\x03abc"  # tag 99, three bytes

    async def main() -> None:
        async with wire() as served:
            client = await served.client()
            client.send(sized(header(18, 3, tags) + b"\x02a\x021" + tags))
            correlation_id, response = await client.answer(ApiKey.API_VERSIONS, 3)
            assert (correlation_id, response.error_code) == (9, 0)

    asyncio.run(main())


def test_a_request_above_the_bound_of_the_settings_ends_its_connection() -> None:
    async def main() -> None:
        recorder = Recorder()
        limits = LimitsConfig(kafka_request_bytes_max=64 * 1024)
        async with wire(recorder.routes(), limits=limits) as served:
            client = await served.client()
            client.send(produce(b"x" * 60_000))
            await client.answer(ApiKey.PRODUCE, 9)
            client.send(produce(b"x" * 64 * 1024))
            assert await client.rest() == b""
            assert served.ended("not_kafka") == 1

    asyncio.run(main())
