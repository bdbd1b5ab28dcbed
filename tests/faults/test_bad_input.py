"""Bad input to a real node: a typed error that says what to do, nothing lost, and it serves on.

After every case the same node takes a record, and in the end everything stored stands where it was
acknowledged and nothing else does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from streamlog import errors
from streamlog.client import KV, Admin, Consumer, Producer, Streams
from streamlog.codec.crc import crc32c
from streamlog.codec.records import encode_values
from streamlog.v1 import log_pb2
from streamlog.v1.log_pb2_grpc import LogServiceStub
from streamlog.v1support.errors import from_proto, from_rpc_error
from tests.support.command import run
from tests.support.grpc_aio import raw_method
from tests.support.node import NodeProcess

TOPIC = "kept"
MAX_BYTES = 10_000
BAD_NAMES = ["a/b", "..", ".", "", "a\x00b", "a\nb", "a\x1b[31mb", "é", "n" * 10_240]


@dataclass
class Kept:
    """A topic on a real node, and what stands in it."""

    server: str
    channel: grpc.Channel
    values: list[bytes] = field(default_factory=list)

    def produce(self, data: bytes, topic: str = TOPIC, partition: int = 0) -> Any:
        """The answer for the partition to one Produce call with these bytes as record batches."""
        part = log_pb2.ProducePartition(partition=partition, record_batches=data)
        request = log_pb2.ProduceRequest(
            topics=[log_pb2.ProduceTopic(topic=topic, partitions=[part])]
        )
        answer = LogServiceStub(self.channel).Produce(request, timeout=30)
        return answer.topics[0].partitions[0]

    def fetch(self, offset: int, topic: str = TOPIC, partition: int = 0) -> Any:
        part = log_pb2.FetchPartition(partition=partition, fetch_offset=offset)
        request = log_pb2.FetchRequest(
            topics=[log_pb2.FetchTopic(topic=topic, partitions=[part])],
            max_wait_ms=60_000,
            min_bytes=1,
        )
        return LogServiceStub(self.channel).Fetch(request, timeout=30).topics[0].partitions[0]

    def goes_on(self) -> None:
        """The node takes a record, behind everything that it took before."""
        value = b"record %d" % len(self.values)
        answer = self.produce(batch(value))
        assert not answer.HasField("error"), answer.error
        assert answer.base_offset == len(self.values)
        self.values.append(value)


def batch(*values: bytes) -> bytes:
    return bytes(encode_values(values, timestamp_ms=1_700_000_000_000).data)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    data = tmp_path_factory.mktemp("bad-input") / "data"
    with NodeProcess(data) as node, grpc.insecure_channel(node.server) as channel:
        with Admin(node.server) as admin:
            admin.create_topic(TOPIC, 1, {"max.message.bytes": str(MAX_BYTES)})
        kept = Kept(node.server, channel)
        yield kept
        pid = node.pid
        kept.goes_on()
        with Admin(node.server) as admin:
            assert [one.name for one in admin.list_topics()] == [TOPIC]
        with Consumer(node.server) as consumer:
            consumer.assign([(TOPIC, 0)])
            found: list[tuple[int, bytes | None]] = []
            while len(found) < len(kept.values):
                found += [(record.offset, record.value) for record in consumer.poll(5.0)]
        assert found == list(enumerate(kept.values))
        assert node.pid == pid
        assert node.process is not None
        assert node.process.poll() is None
        assert node.stop() == 0
        assert "Traceback" not in node.log_path.read_text()


def resealed(data: bytes) -> bytes:
    """With a CRC that is right for the changed bytes."""
    return data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:]


def changed(data: bytes, position: int, new: bytes) -> bytes:
    return data[:position] + new + data[position + len(new) :]


GOOD = batch(b"one", b"two")

BAD_BATCHES: dict[str, tuple[bytes, type[errors.StreamlogError], str]] = {
    "nothing": (b"", errors.StreamlogError, ""),
    "garbage": (b"not a record batch at all, not even nearly" * 3, errors.Invalid, ""),
    "cut short": (GOOD[:-1], errors.CorruptMessage, ""),
    "half a header": (GOOD[:30], errors.CorruptMessage, ""),
    "bytes behind it": (GOOD + b"\0\0\0", errors.CorruptMessage, ""),
    "a flipped bit": (changed(GOOD, 70, bytes([GOOD[70] ^ 4])), errors.CorruptMessage, "CRC"),
    "a wrong CRC": (changed(GOOD, 17, b"\1\2\3\4"), errors.CorruptMessage, "CRC"),
    "magic 1": (resealed(changed(GOOD, 16, b"\1")), errors.StreamlogError, "magic"),
    "magic 9": (resealed(changed(GOOD, 16, b"\x09")), errors.StreamlogError, "magic"),
    "a length below zero": (changed(GOOD, 8, b"\xff\xff\xff\xf0"), errors.CorruptMessage, ""),
    "a length beyond the end": (changed(GOOD, 8, b"\x7f\0\0\0"), errors.CorruptMessage, ""),
    "a count of zero": (resealed(changed(GOOD, 57, b"\0\0\0\0")), errors.Invalid, ""),
    "a count that its offsets deny": (
        resealed(changed(GOOD, 57, b"\0\0\0\x07")),
        errors.Invalid,
        "",
    ),
    "an unknown compression": (resealed(changed(GOOD, 22, b"\x07")), errors.Invalid, ""),
    "over the limit": (batch(b"x" * MAX_BYTES), errors.MessageTooLarge, str(MAX_BYTES)),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_a_bad_batch_is_refused(kept: Kept, name: str) -> None:
    data, kind, says = BAD_BATCHES[name]
    error = from_proto(kept.produce(data).error)
    assert isinstance(error, kind), repr(error)
    assert error.code != errors.ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)
    assert says in error.message
    assert error.message
    kept.goes_on()


def test_a_batch_over_the_limit_says_both_sizes(kept: Kept) -> None:
    data = batch(b"x" * MAX_BYTES)
    error = from_proto(kept.produce(data).error)
    assert error.fields == {"size_bytes": len(data), "max_bytes": MAX_BYTES}
    with Producer(kept.server) as producer, pytest.raises(errors.MessageTooLarge):
        producer.send(TOPIC, b"x" * MAX_BYTES).result(30)
    kept.goes_on()


@pytest.mark.parametrize("method", ["Produce", "Fetch", "ListOffsets", "InitProducerId"])
def test_a_truncated_message_is_refused(kept: Kept, method: str) -> None:
    part = log_pb2.ProducePartition(partition=0, record_batches=GOOD)
    whole = log_pb2.ProduceRequest(
        topics=[log_pb2.ProduceTopic(topic=TOPIC, partitions=[part])]
    ).SerializeToString()
    call = raw_method(kept.channel, "unary_unary", f"/streamlog.v1.LogService/{method}")
    with pytest.raises(grpc.RpcError) as caught:
        call(whole[:-3], timeout=30)
    error = from_rpc_error(caught.value, may_have_happened=False)
    assert type(error) is errors.Invalid
    assert "cut short" in error.message
    kept.goes_on()


def test_a_truncated_message_in_a_stream_is_answered_and_the_stream_goes_on(kept: Kept) -> None:
    part = log_pb2.ProducePartition(partition=0, record_batches=GOOD)
    request = log_pb2.ProduceRequest(topics=[log_pb2.ProduceTopic(topic=TOPIC, partitions=[part])])
    whole = log_pb2.ProduceStreamRequest(correlation_id=7, request=request).SerializeToString()
    call = raw_method(kept.channel, "stream_stream", "/streamlog.v1.LogService/ProduceStream")
    first, second = (
        answer
        for message in call(iter([whole[:-3], whole]), timeout=30)
        for answer in log_pb2.ProduceStreamResponse.FromString(message).answers
    )
    assert type(from_proto(first.error)) is errors.Invalid
    assert second.response.topics[0].partitions[0].base_offset == len(kept.values)
    kept.values += [b"one", b"two"]
    kept.goes_on()


@pytest.mark.parametrize(("topic", "partition"), [("nowhere", 0), (TOPIC, 1), (TOPIC, -1)])
def test_an_unknown_partition_is_named(kept: Kept, topic: str, partition: int) -> None:
    error = from_proto(kept.fetch(0, topic, partition).error)
    assert type(error) is errors.UnknownTopicOrPartition
    assert error.fields["topic"] == topic
    assert topic in error.message
    if topic == TOPIC:
        error = from_proto(kept.produce(GOOD, topic, partition).error)
        assert type(error) is errors.UnknownTopicOrPartition
    kept.goes_on()


@pytest.mark.parametrize("offset", [-1, 1 << 40, (1 << 63) - 1])
def test_an_offset_out_of_range_says_the_range(kept: Kept, offset: int) -> None:
    error = from_proto(kept.fetch(offset).error)
    assert isinstance(error, errors.OffsetOutOfRange)
    end = len(kept.values)
    assert error.fields == {"offset": offset, "start_offset": 0, "end_offset": end}
    assert f"0 to {end}" in error.message
    with Consumer(kept.server, auto_offset_reset="none") as consumer:
        consumer.assign([(TOPIC, 0)])
        consumer.seek(TOPIC, 0, 1 << 40)
        with pytest.raises(errors.OffsetOutOfRange) as caught:
            consumer.poll(30)
        assert caught.value.fields["end_offset"] == end
    kept.goes_on()


Attempt = Callable[[Kept, str], object]


def _create(kept: Kept, name: str) -> None:
    with Admin(kept.server) as admin:
        admin.create_topic(name, 1)


def _delete(kept: Kept, name: str) -> None:
    with Admin(kept.server) as admin:
        admin.delete_topic(name)


def _describe(kept: Kept, name: str) -> None:
    with Admin(kept.server) as admin:
        admin.describe_topic(name)


def _send(kept: Kept, name: str) -> None:
    with Producer(kept.server) as producer:
        producer.send(name, b"x").result(30)


def _raw_produce(kept: Kept, name: str) -> None:
    raise from_proto(kept.produce(GOOD, name).error)


def _raw_fetch(kept: Kept, name: str) -> None:
    raise from_proto(kept.fetch(0, name).error)


def _consume(kept: Kept, name: str) -> None:
    with Consumer(kept.server, default_api_timeout_ms=500) as consumer:
        consumer.assign([(name, 0)])
        consumer.poll(30)


def _namespace(kept: Kept, name: str) -> None:
    with KV(kept.server) as kv:
        kv.put(b"key", b"value", namespace=name)


def _object(kept: Kept, name: str) -> None:
    with Admin(kept.server) as admin:
        admin.describe_object(name)


ATTEMPTS: list[Attempt] = [
    *(_create, _delete, _describe, _send, _raw_produce, _raw_fetch, _consume),
    *(_namespace, _object),
]


@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_bad_names_are_refused_everywhere(kept: Kept, attempt: Attempt) -> None:
    for name in BAD_NAMES:
        if attempt is _namespace and name == "":
            continue  # An empty namespace is the default one.
        with pytest.raises(errors.Invalid) as caught:
            attempt(kept, name)
        assert isinstance(caught.value, errors.InvalidName | errors.NotFound), (name, caught.value)
        assert len(caught.value.message) < 2000
        assert not any(ord(char) < 32 for char in caught.value.message), caught.value.message
        kept.goes_on()


def test_a_long_key_is_refused(kept: Kept) -> None:
    with KV(kept.server) as kv:
        for key in (b"", b"k" * 10_240):
            with pytest.raises(errors.InvalidName):
                kv.put(key, b"value")
        odd = b"../\x00\xff/.."
        kv.put(odd, b"value")
        found = kv.get(odd)
        assert found is not None
        assert found.data == b"value"
    kept.goes_on()


@pytest.mark.parametrize("name", ["a/b", "..", "a\x1b[31mb", "n" * 10_240])
def test_the_command_line_says_it_in_one_line(kept: Kept, name: str) -> None:
    for command in (("topic", "create"), ("produce",), ("consume", "--until-end")):
        ended = run(*command, name, server=kept.server, stdin=b"line\n")
        said = ended.stderr.decode()
        assert (ended.returncode, ended.stdout) == (1, b""), said
        assert said.count("\n") == 1
        assert said.startswith(("streamlog: InvalidName: ", "streamlog: UnknownTopicOrPartition: "))
        assert "\x1b" not in said
    kept.goes_on()


def test_unknown_settings_suggest_a_similar_name(kept: Kept) -> None:
    with Admin(kept.server) as admin, pytest.raises(errors.InvalidConfig) as caught:
        admin.create_topic("t", 1, {"retention.msec": "1"})
    assert "retention.ms" in caught.value.message
    with pytest.raises(errors.InvalidConfig):
        Producer(kept.server, linger_ms=-1)
    kept.goes_on()


def test_bad_appends_to_a_stream_are_refused(kept: Kept) -> None:
    with Streams(kept.server) as streams:
        made = streams.create()
        with pytest.raises(errors.Invalid):
            streams.append(made.stream_id, b"x", attributes=b"a" * 65)
        with pytest.raises(errors.StreamNotFound):
            streams.append(1 << 40, b"x")
        with pytest.raises(errors.OffsetOutOfRange) as caught:
            streams.fetch(made.stream_id, 5)
        assert (caught.value.fields["start_offset"], caught.value.fields["end_offset"]) == (0, 0)
        assert streams.append(made.stream_id, b"x").base_offset == 0
    kept.goes_on()


def test_a_message_over_the_size_limit_is_refused(kept: Kept) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        kept.produce(b"x" * (80 << 20))
    error = from_rpc_error(caught.value, may_have_happened=False)
    assert isinstance(error, errors.MessageTooLarge)
    kept.goes_on()
