"""The clients and their examples against a real node."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamlog.client import KV, Admin, Append, Consumer, Producer, Streams, aio
from streamlog.errors import (
    MessageTooLarge,
    OffsetConflict,
    OffsetOutOfRange,
    StreamlogError,
    StreamNotFound,
    TokenMismatch,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
    ValueConflict,
)
from tests.support.node import NodeProcess

WAIT_S = 30
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with NodeProcess(tmp_path_factory.mktemp("node") / "data") as node:
        yield node.server


def test_topics(server: str) -> None:
    with Admin(server) as admin:
        admin.create_topic("topics", 3, {"max.message.bytes": "10000"})
        with pytest.raises(TopicAlreadyExists):
            admin.create_topic("topics")
        assert len(admin.describe_topic("topics").partitions) == 3
        admin.create_partitions("topics", 4)
        assert ("topics", 4) in [(topic.name, topic.partitions) for topic in admin.list_topics()]
        admin.alter_configs(topic="topics", configs={"retention.ms": "1000000"})
        values = {entry.name: entry.value for entry in admin.describe_configs(topic="topics")}
        assert (values["max.message.bytes"], values["retention.ms"]) == ("10000", "1000000")
        with Producer(server) as producer, pytest.raises(MessageTooLarge):
            producer.send("topics", bytes(20_000))
        assert admin.status().node_id == 1
        keys = [entry.key for entry in admin.list_objects()]
        assert len(set(keys)) == len(keys)
        admin.delete_topic("topics")
        with pytest.raises(UnknownTopicOrPartition):
            admin.describe_topic("topics")


def test_produce_and_consume(server: str) -> None:
    values = [b"%06d" % number for number in range(20_000)]
    with Admin(server) as admin:
        admin.create_topic("records", 2)
    with Producer(server, batch_size_bytes=4096, compression="zstd") as producer:
        sent = producer.send_many("records", values, [value[-2:] for value in values])
        assert sum(run.record_count for run in sent.result(WAIT_S)) == len(values)
        places = list(sent)
    with Consumer(server) as consumer:
        consumer.subscribe(["records"])
        read: dict[tuple[int, int], bytes | None] = {}
        while len(read) < len(values):
            for record in consumer.poll(WAIT_S, max_records=5000):
                read[record.partition, record.offset] = record.value
        for value, place in zip(values, places, strict=True):
            assert read[place.partition, place.offset] == value
    with Admin(server) as admin:
        assert admin.delete_records("records", 0, 100) == 100
    with Consumer(server, auto_offset_reset="none") as consumer:
        consumer.assign([("records", 0)])
        consumer.seek("records", 0, 5)
        with pytest.raises(OffsetOutOfRange) as caught:
            consumer.poll(WAIT_S)
        assert caught.value.start_offset == 100


def test_a_refused_batch_does_not_stop_the_sequence(server: str) -> None:
    with Admin(server) as admin:
        admin.create_topic("limits", 1)
    with Producer(server, linger_ms=0) as producer, Admin(server) as admin:
        producer.send("limits", b"first").result(WAIT_S)
        admin.alter_configs(topic="limits", configs={"max.message.bytes": "500"})
        with pytest.raises(MessageTooLarge):
            producer.send("limits", bytes(600)).result(WAIT_S)
        after = [producer.send("limits", b"%d" % number) for number in range(200)]
        assert [delivery.result(WAIT_S).offset for delivery in after] == list(range(1, 201))
        assert producer.metrics()["producer_epoch"] == 1


def test_streams(server: str) -> None:
    with Streams(server) as streams:
        stream = streams.create(tags={"a": "b"})
        first = streams.append(stream.stream_id, b"one", 3, base_timestamp_ms=7, attributes=b"x")
        assert (first.base_offset, first.end_offset) == (0, 3)
        with pytest.raises(OffsetConflict) as caught:
            streams.append(stream.stream_id, b"late", expected_next_offset=0)
        assert caught.value.actual == 3
        results = list(streams.append_many(stream.stream_id, [Append(b"two"), b"three"] * 100))
        assert [result.base_offset for result in results] == list(range(3, 203))
        fetched = streams.fetch(stream.stream_id, 0)
        assert fetched.batches[0] == (0, 3, 7, b"one", b"x")
        batches = list(streams.read(stream.stream_id, 0, end_offset=203))
        assert [batch.payload for batch in batches] == [b"one", *[b"two", b"three"] * 100]
        assert streams.trim(stream.stream_id, 10) == 10
        assert streams.describe(stream.stream_id).start_offset == 10
        assert stream.stream_id in [info.stream_id for info in streams.list()]
        streams.delete(stream.stream_id)
        with pytest.raises(StreamNotFound):
            streams.describe(stream.stream_id)


def test_a_fencing_token(server: str) -> None:
    with Streams(server) as streams, Streams(server) as late:
        stream_id = streams.create().stream_id
        streams.set_fencing_token(stream_id, b"first", expected_token=b"")
        late.append(stream_id, b"first", fencing_token=b"first")
        streams.set_fencing_token(stream_id, b"second", expected_next_offset=1)
        with pytest.raises(TokenMismatch):
            late.append(stream_id, b"late", fencing_token=b"first")
        with pytest.raises(TokenMismatch):
            late.set_fencing_token(stream_id, b"third", expected_token=b"first")
        with pytest.raises(TokenMismatch):
            list(late.append_many(stream_id, [Append(b"late", fencing_token=b"first")]))
        assert streams.describe(stream_id).fencing_token == b"second"
        assert streams.append(stream_id, b"x", fencing_token=b"second").base_offset == 1

    async def main() -> None:
        async with aio.Streams(server) as streams:
            with pytest.raises(TokenMismatch):
                await streams.set_fencing_token(stream_id, b"third", expected_token=b"first")
            await streams.set_fencing_token(stream_id, b"", expected_token=b"second")
            assert (await streams.append(stream_id, b"y", fencing_token=b"")).base_offset == 2
            assert (await streams.describe(stream_id)).fencing_token == b""

    asyncio.run(asyncio.wait_for(main(), 60))


def test_kv(server: str) -> None:
    with KV(server) as kv:
        changes = kv.watch(prefix=b"k")
        stored = kv.put(b"k1", b"v1")
        assert kv.put_if_absent(b"k1", b"other") == stored == kv.get(b"k1")
        again = kv.compare_and_set(b"k1", b"v2", stored.revision)
        with pytest.raises(ValueConflict):
            kv.compare_and_set(b"k1", b"v3", stored.revision)
        assert [entry.key.name for entry in kv.list(prefix=b"k")] == [b"k1"]
        assert kv.delete(b"k1") == again
        assert kv.delete(b"k1") is None
        assert kv.get(b"k1") is None
        first_changes = [next(changes) for _ in range(3)]
        assert [change.value and change.value.data for change in first_changes] == [
            b"v1",
            b"v2",
            None,
        ]
        with pytest.raises(StreamlogError):
            kv.put(b"k", b"v", namespace="_engine")


def test_asyncio(server: str) -> None:
    async def main() -> None:
        async with aio.Admin(server) as admin:
            await admin.create_topic("aio", 2)
            assert "aio" in [topic.name for topic in await admin.list_topics()]
            keys = [entry.key async for entry in admin.list_objects()]
            assert len(set(keys)) == len(keys)
        async with aio.Producer(server) as producer:
            sent = await producer.send_many("aio", [b"%d" % number for number in range(1000)])
            await sent
        async with aio.Consumer(server) as consumer:
            await consumer.subscribe(["aio"])
            read = 0
            async for _ in consumer:
                read += 1
                if read == 1000:
                    break
        async with aio.Streams(server) as streams:
            stream = await streams.create()
            await asyncio.gather(*(streams.append(stream.stream_id, b"x") for _ in range(50)))
            results = [
                result async for result in streams.append_many(stream.stream_id, [b"y"] * 100)
            ]
            assert results[-1].end_offset == 150
            with pytest.raises(OffsetConflict):
                await streams.append(stream.stream_id, b"z", expected_next_offset=1)
            batches = [batch async for batch in streams.read(stream.stream_id, 0, end_offset=150)]
            assert [batch.payload for batch in batches] == [b"x"] * 50 + [b"y"] * 100
            assert stream.stream_id in [info.stream_id async for info in streams.list()]
            await streams.delete(stream.stream_id)
        async with aio.KV(server) as kv:
            changes = await kv.watch(prefix=b"aio")
            await kv.put(b"aio", b"v")
            assert (await anext(changes)).key.name == b"aio"
            assert [entry.key.name async for entry in kv.list(prefix=b"aio")] == [b"aio"]
            assert await kv.delete(b"aio") is not None

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("name", ["produce_consume", "asyncio_client", "streams_and_kv"])
def test_examples(server: str, name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), server],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
