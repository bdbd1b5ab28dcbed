"""What is encoded is decoded again, in every version that is served."""

from __future__ import annotations

import random

import pytest

from streamlog.kafka.messages.create_topics_response import (
    CreatableTopicResult,
    CreateTopicsResponse,
)
from streamlog.kafka.messages.fetch_response import (
    FetchableTopicResponse,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
)
from streamlog.kafka.messages.metadata_response import MetadataResponse, MetadataResponseTopic
from streamlog.kafka.messages.produce_request import ProduceRequest
from streamlog.kafka.protocol.apis import ApiKey, decode_request, request_codec, response_codec
from streamlog.kafka.protocol.primitives import Structure
from tests.kafka.shapes import Shape, every_shape, is_in, joined, random_message, shape_of

each_message = pytest.mark.parametrize("shape", every_shape(), ids=lambda shape: shape.name)
ROUNDS = 12


@each_message
def test_every_version_decodes_to_what_was_encoded(shape: Shape) -> None:
    rng = random.Random(shape.name)
    for version in shape.versions:
        for _ in range(ROUNDS):
            message = random_message(shape, version, rng)
            raw = joined(shape, message, version)
            decoded, end = shape.codec.decode(memoryview(b"ab" + raw + b"cd"), 2, version)
            assert end == 2 + len(raw)
            assert decoded == message
            assert joined(shape, decoded, version) == raw


@each_message
def test_defaults_can_be_encoded_in_every_version(shape: Shape) -> None:
    message = shape.structure_type(shape.name)()
    for version in shape.versions:
        if needs_a_value(shape, message, version):
            with pytest.raises(ValueError, match="null"):
                joined(shape, message, version)
            continue
        raw = joined(shape, message, version)
        decoded, _ = shape.codec.decode(memoryview(raw), 0, version)
        assert decoded == message


def needs_a_value(shape: Shape, message: Structure, version: int) -> bool:
    """Kafka's default is null, and the version has no null."""
    return any(
        getattr(message, field["name"]) is None
        and not is_in(field, "nullable", version)
        and not is_in(field, "tagged", version)
        for field in shape.fields(shape.name, version)
    )


@each_message
def test_a_version_that_is_not_served_has_no_code(shape: Shape) -> None:
    for version in (shape.first - 1, shape.last + 1, -1):
        with pytest.raises(KeyError):
            shape.codec.decode(memoryview(bytes(64)), 0, version)


def test_records_of_a_request_are_slices_of_the_frame() -> None:
    shape = shape_of("ProduceRequest")
    rng = random.Random(4)
    for version in shape.versions:
        message = random_message(shape, version, rng)
        frame = bytearray(joined(shape, message, version))
        decoded = decode_request(ApiKey.PRODUCE, version, memoryview(frame), 0)
        assert isinstance(decoded, ProduceRequest)
        for topic in decoded.topic_data:
            for partition in topic.partition_data:
                if partition.records is not None:
                    assert isinstance(partition.records, memoryview)
                    assert partition.records.obj is frame


def test_records_of_a_response_are_pieces_and_are_not_copied() -> None:
    first, second, third = bytearray(b"one"), memoryview(b"two"), b"three"
    partitions = [
        PartitionData(partition_index=0, records=[first, second]),
        PartitionData(partition_index=1, records=b""),
        PartitionData(partition_index=2, records=None),
        PartitionData(partition_index=3, records=third),
    ]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])
    for version in range(4, 19):
        pieces = response_codec(ApiKey.FETCH).encode(response, version)
        own = [piece for piece in pieces if any(piece is one for one in (first, second, third))]
        assert own == [first, second, third]
        # What stands between records is one piece; flexible versions have tags behind them.
        assert len(pieces) == (6 if version >= 12 else 5)
        decoded, _ = response_codec(ApiKey.FETCH).decode(memoryview(b"".join(pieces)), 0, version)
        assert isinstance(decoded, FetchResponse)
        found = [one.records for one in decoded.responses[0].partitions]
        assert found == [b"onetwo", b"", None, b"three"]


def test_tagged_structures_with_kafkas_defaults_are_not_sent() -> None:
    def encoded(leader: LeaderIdAndEpoch | None) -> bytes:
        partition = PartitionData(current_leader=leader)
        topic = FetchableTopicResponse(partitions=[partition])
        return b"".join(response_codec(ApiKey.FETCH).encode(FetchResponse(responses=[topic]), 16))

    assert encoded(LeaderIdAndEpoch()) == encoded(None)
    assert len(encoded(LeaderIdAndEpoch(leader_id=1))) > len(encoded(None))


def test_null_where_a_version_has_none_is_refused() -> None:
    response = MetadataResponse(topics=[MetadataResponseTopic(name=None, topic_id=b"i" * 16)])
    encode = response_codec(ApiKey.METADATA).encode
    encode(response, 12)
    with pytest.raises(ValueError, match="name is null, which the message's version cannot say"):
        encode(response, 11)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("x" * 4096, "x" * 4096),
        ("x" * 40_000, "x" * 4093 + "…"),
        ("ä" * 40_000, "ä" * 2046 + "…"),
        ("no file \udcff", "no file \\udcff"),
    ],
    ids=["fits", "long", "long-in-bytes", "not-utf-8"],
)
def test_texts_of_errors_are_cut_and_always_utf_8(said: str, told: str) -> None:
    """A client's own name of 32 KiB stands in some of them, and would not fit with a word more."""
    codec = response_codec(ApiKey.CREATE_TOPICS)
    for version in (2, 7):
        topic = CreatableTopicResult(name="t", error_code=17, error_message=said)
        raw = b"".join(codec.encode(CreateTopicsResponse(topics=[topic]), version))
        decoded, _ = codec.decode(memoryview(raw), 0, version)
        assert isinstance(decoded, CreateTopicsResponse)
        assert decoded.topics[0].error_message == told


def test_a_string_beyond_kafkas_bound_is_not_encoded() -> None:
    encode = request_codec(ApiKey.PRODUCE).encode
    for version in (8, 9):
        with pytest.raises(ValueError, match="32767"):
            encode(ProduceRequest(transactional_id="x" * 32_768), version)
