"""Requests for which the node decodes records itself: plain records, look-ups by time."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from streamlog import errors
from streamlog.codec.batch import HEADER_BYTES, Compression, pack_header, parse_header, resealed
from streamlog.codec.records import encode_values
from streamlog.runtime.offload import Lane, ThreadOffload
from streamlog.v1 import admin_pb2, log_pb2
from streamlog.v1support.errors import from_proto
from tests.support.running_node import RunningNode, running_node

MIB = 1 << 20
SMALL = {"log.decoded_bytes_max": str(2 * MIB)}


async def create(node: RunningNode, **configs: str) -> None:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    new = admin_pb2.NewTopic(name="t", partitions=1, configs=named)
    [made] = (await node.admin.CreateTopics(admin_pb2.CreateTopicsRequest(topics=[new]))).topics
    assert not made.HasField("error"), made.error.message


async def produce(
    node: RunningNode, values: list[bytes], codec: Compression, stamps: list[int] | None = None
) -> None:
    made = encode_values(values, timestamp_ms=1000, timestamps_ms=stamps, compression=codec)
    part = log_pb2.ProducePartition(record_batches=bytes(made.data))
    topic = log_pb2.ProduceTopic(topic="t", partitions=[part])
    response = await node.log.Produce(log_pb2.ProduceRequest(topics=[topic]))
    assert not response.topics[0].partitions[0].HasField("error"), response


async def fetched(node: RunningNode, offset: int) -> Any:
    part = log_pb2.FetchPartition(partition=0, fetch_offset=offset)
    topic = log_pb2.FetchTopic(topic="t", partitions=[part])
    request = log_pb2.FetchRequest(topics=[topic], format=log_pb2.FETCH_FORMAT_RECORDS)
    return (await node.log.Fetch(request)).topics[0].partitions[0]


async def listed(node: RunningNode, timestamp_ms: int) -> Any:
    part = log_pb2.ListOffsetsPartition(partition=0, timestamp_ms=timestamp_ms)
    topic = log_pb2.ListOffsetsTopic(topic="t", partitions=[part])
    response = await node.log.ListOffsets(log_pb2.ListOffsetsRequest(topics=[topic]))
    return response.topics[0].partitions[0]


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.ZSTD])
def test_records_that_expand_without_bound_are_refused_alone(codec: Compression) -> None:
    async def main() -> None:
        async with running_node(**SMALL) as node:
            await create(node)
            await produce(node, [b"before", bytes(64 * MIB)], codec, [1, 2])
            await produce(node, [b"after"], codec, [3])
            first = await fetched(node, 0)
            assert [record.value for record in first.records] == [b"before"]
            assert first.next_offset == 1
            error = from_proto((await fetched(node, 1)).error)
            assert isinstance(error, errors.InvalidRecord)
            assert error.fields["max_bytes"] == 2 * MIB
            [after] = (await fetched(node, 2)).records
            assert after.value == b"after"
            assert (await listed(node, 1)).offset == 0
            # Of a batch that is not decoded the header answers: from there nothing is missed.
            assert (await listed(node, 2)).offset == 0

    asyncio.run(main())


@pytest.mark.parametrize("codec", list(Compression))
def test_a_batch_far_larger_than_an_answer_is_read_in_answers(codec: Compression) -> None:
    values = [b"%d" % number * 40_000 for number in range(60)]

    async def main() -> None:
        async with running_node(**SMALL) as node:
            await create(node, max_message_bytes=str(16 * MIB))
            chunks = [values] if codec in (0, 1, 4) else [values[:20], values[20:40], values[40:]]
            for chunk in chunks:
                await produce(node, chunk, codec)
            read: list[bytes] = []
            while len(read) < len(values):
                answer = await fetched(node, len(read))
                assert not answer.HasField("error"), answer.error.message
                assert answer.records[0].offset == len(read)
                assert answer.next_offset == len(read) + len(answer.records)
                assert sum(len(record.value) for record in answer.records) <= MIB
                read += [record.value for record in answer.records]
            assert read == values

    asyncio.run(main())


def test_compressed_batches_are_not_decoded_on_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offloaded: list[str] = []
    run = ThreadOffload.run

    async def noted(self: ThreadOffload, lane: Lane, work: Any, *arguments: Any) -> Any:
        offloaded.append(getattr(getattr(work, "func", work), "__name__", ""))
        return await run(self, lane, work, *arguments)

    async def main() -> None:
        async with running_node(**SMALL) as node:
            await create(node)
            await produce(node, [bytes(MIB)], Compression.ZSTD)
            monkeypatch.setattr(ThreadOffload, "run", noted)
            assert (await listed(node, 1)).offset == 0
            assert (await fetched(node, 0)).next_offset == 1
            assert offloaded[0] == "first_at_or_after"
            assert "decode_plain_records" in offloaded
            assert "encode_fetch_response" in offloaded

    asyncio.run(main())


def test_a_batch_of_very_many_records_is_decoded_once_for_a_look_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once it was decoded for each 4,096 of its offsets if its header had a later time than its
    records: minutes of CPU for one batch."""
    decoded: list[str] = []
    run = ThreadOffload.run

    async def noted(self: ThreadOffload, lane: Lane, work: Any, *arguments: Any) -> Any:
        decoded.append(getattr(getattr(work, "func", work), "__name__", ""))
        return await run(self, lane, work, *arguments)

    async def main() -> None:
        async with running_node() as node:
            await create(node)
            made = encode_values([b"v"] * 20_000, timestamp_ms=1000, compression=Compression.ZSTD)
            header = parse_header(made.data)._replace(max_timestamp_ms=5000)
            lying = bytes(resealed(bytearray(pack_header(header) + made.data[HEADER_BYTES:])))
            part = log_pb2.ProducePartition(record_batches=lying)
            topic = log_pb2.ProduceTopic(topic="t", partitions=[part])
            answer = await node.log.Produce(log_pb2.ProduceRequest(topics=[topic]))
            assert not answer.topics[0].partitions[0].HasField("error")
            await produce(node, [b"late"], Compression.NONE, [4000])
            monkeypatch.setattr(ThreadOffload, "run", noted)
            assert (await listed(node, 3000)).offset == 20_000
            assert decoded.count("first_at_or_after") == 1
            deleted = log_pb2.DeleteRecordsPartition(partition=0, offset=1)
            gone = log_pb2.DeleteRecordsTopic(topic="t", partitions=[deleted])
            await node.log.DeleteRecords(log_pb2.DeleteRecordsRequest(topics=[gone]))
            assert (await listed(node, -3)).offset == 20_000
            assert decoded.count("largest_timestamp") == 1

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(3))
def test_the_largest_timestamp_is_that_of_a_record_that_is_left(seed: int) -> None:
    """Compared with all records that are left, at each log start offset in turn."""
    rnd = random.Random(seed)

    async def main() -> None:
        async with running_node() as node:
            await create(node, internal_segment_bytes="2000", index_interval_bytes="200")
            stamps: list[int] = []
            while len(stamps) < 60:
                new = [rnd.randint(0, 1000 - 10 * len(stamps)) for _ in range(rnd.randint(1, 7))]
                codec = rnd.choice(list(Compression))
                await produce(node, [b"v" * rnd.choice((1, 100))] * len(new), codec, new)
                stamps += new
            for start in range(len(stamps) + 1):
                deleted = log_pb2.DeleteRecordsPartition(partition=0, offset=start)
                topic = log_pb2.DeleteRecordsTopic(topic="t", partitions=[deleted])
                await node.log.DeleteRecords(log_pb2.DeleteRecordsRequest(topics=[topic]))
                answer = await listed(node, -3)
                assert not answer.HasField("error"), answer.error.message
                left = stamps[start:]
                if not left:
                    assert not answer.HasField("offset")
                    continue
                expected = start + left.index(max(left)), max(left)
                assert (answer.offset, answer.timestamp_ms) == expected, start

    asyncio.run(main())
