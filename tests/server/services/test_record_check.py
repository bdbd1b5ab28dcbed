"""Batches that no reader could decode are refused, not acknowledged (gRPC, real engine)."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Callable

import pytest

from streamlog import errors
from streamlog.codec.batch import HEADER_BYTES, Compression, pack_header, parse_header, resealed
from streamlog.codec.records import encode_values
from streamlog.v1 import admin_pb2, log_pb2
from streamlog.v1support.errors import from_proto
from tests.support.running_node import RunningNode, running_node


def batch(count: int = 1, codec: Compression = Compression.NONE) -> bytes:
    headers: list[list[tuple[str, bytes | None]]] = [[("name", b"v")]] * count
    made = encode_values([b"v" * 9] * count, timestamp_ms=1000, headers=headers, compression=codec)
    return bytes(made.data)


def patched(data: bytes, records: bytes | None = None, **fields: int) -> bytes:
    """The batch with other header fields, and other records, under a right CRC."""
    body = data[HEADER_BYTES:] if records is None else records
    header = parse_header(data)._replace(length=HEADER_BYTES - 12 + len(body), **fields)
    return bytes(resealed(bytearray(pack_header(header) + body)))


def counted(count: int, of: int) -> bytes:
    return patched(batch(of), record_count=count, last_offset_delta=count - 1)


CASES: dict[str, Callable[[], bytes]] = {
    "more records said than are there": lambda: counted(2, of=1),
    "fewer records said than are there": lambda: counted(1, of=2),
    "bytes behind the last record": lambda: patched(batch(), batch()[HEADER_BYTES:] + b"JUNK"),
    "a record cut short": lambda: patched(batch(3), batch(3)[HEADER_BYTES:-1]),
    "a name that is not UTF-8": lambda: patched(
        batch(), batch()[HEADER_BYTES:].replace(b"name", b"n\xffme")
    ),
    "no gzip": lambda: patched(batch(codec=Compression.GZIP), b"not gzip at all"),
    "no zstd": lambda: patched(batch(codec=Compression.ZSTD), b""),
    "no lz4": lambda: patched(batch(codec=Compression.GZIP), attributes=Compression.LZ4),
    "empty snappy": lambda: patched(batch(codec=Compression.SNAPPY), b""),
}


async def produced(node: RunningNode, data: bytes) -> log_pb2.ProducePartitionResult:
    part = log_pb2.ProducePartition(record_batches=data)
    topic = log_pb2.ProduceTopic(topic="t", partitions=[part])
    response = await node.log.Produce(log_pb2.ProduceRequest(topics=[topic]))
    result = response.topics[0].partitions[0]
    assert isinstance(result, log_pb2.ProducePartitionResult)
    return result


async def create(node: RunningNode) -> None:
    new = admin_pb2.NewTopic(name="t", partitions=1)
    await node.admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[new]))


def test_batches_that_no_reader_could_decode_are_refused() -> None:
    async def main() -> None:
        async with running_node(**{"log.record_check": "always"}) as node:
            await create(node)
            for name, made in CASES.items():
                error = from_proto((await produced(node, made())).error)
                assert isinstance(error, errors.InvalidRecord), name
            late = patched(batch(), base_timestamp_ms=2000)
            error = from_proto((await produced(node, late)).error)
            assert isinstance(error, errors.InvalidTimestamp)
            for number, codec in enumerate(Compression):
                assert (await produced(node, batch(codec=codec))).base_offset == number

    asyncio.run(main())


def test_a_timestamp_out_of_range_is_refused_without_decompression() -> None:
    """The search for the record at fault runs on the event loop, so it is bounded."""
    now_ms = int(time.time() * 1000)
    far = now_ms + 10**9

    def stamped(values: list[bytes], stamps: list[int], codec: Compression) -> bytes:
        made = encode_values(values, timestamp_ms=0, timestamps_ms=stamps, compression=codec)
        return bytes(made.data)

    near = stamped([b"a", b"b"], [now_ms, far], Compression.ZSTD)
    bomb = stamped([bytes(100 << 20), b"b"], [now_ms, far], Compression.ZSTD)
    lie = patched(stamped([b"a"], [now_ms], Compression.NONE), max_timestamp_ms=far)

    async def main() -> None:
        async with running_node() as node:
            await create(node)
            for data, index, says in (
                (near, 1, "record 1 of the batch"),
                (lie, -1, "the header of the batch"),
            ):
                error = from_proto((await produced(node, data)).error)
                assert isinstance(error, errors.InvalidTimestamp)
                assert error.fields["record_index"] == index
                assert says in error.message
            tracemalloc.start()
            try:
                error = from_proto((await produced(node, bomb)).error)
                assert tracemalloc.get_traced_memory()[1] < 16 << 20
            finally:
                tracemalloc.stop()
            assert isinstance(error, errors.InvalidTimestamp)
            assert error.fields["record_index"] == -1

    asyncio.run(main())


@pytest.mark.parametrize("name", ["more records said than are there", "a name that is not UTF-8"])
def test_the_check_of_records_can_be_switched_off(name: str) -> None:
    async def main() -> None:
        async with running_node(**{"log.record_check": "never"}) as node:
            await create(node)
            assert (await produced(node, CASES[name]())).base_offset == 0

    asyncio.run(main())
