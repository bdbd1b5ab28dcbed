"""Bytes that are wrong: `Malformed` and nothing else, with memory in proportion to the bytes."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from streamlog.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from streamlog.kafka.protocol.apis import ApiKey, decode_request, decode_response, request_codec
from streamlog.kafka.protocol.primitives import (
    ELEMENTS_MAX,
    Malformed,
    Structure,
    skip_tags,
    uvarint,
)
from tests.kafka.shapes import Shape, every_shape, joined, random_message, shape_of

each_message = pytest.mark.parametrize("shape", every_shape(), ids=lambda shape: shape.name)
CUT_BYTES_MAX = 600
MUTATIONS = 40
NUMBERS = (0, 1, 2, 126, 127, 128, 255, 1 << 14, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
MEMORY_BYTES_MAX = 1 << 16


def small_message(shape: Shape, version: int, rng: random.Random) -> bytes:
    """A random message that is not empty, and small enough to be cut at every byte."""
    while True:
        raw = joined(shape, random_message(shape, version, rng), version)
        if len(raw) <= CUT_BYTES_MAX:
            return raw


def decode(shape: Shape, version: int, raw: bytes) -> Structure | None:
    """None: malformed."""
    decoder = decode_request if shape.is_request else decode_response
    try:
        return decoder(shape.key, version, memoryview(raw), 0)
    except Malformed:
        return None


@each_message
def test_a_message_cut_at_any_byte_is_malformed(shape: Shape) -> None:
    rng = random.Random(shape.name)
    for version in shape.versions:
        raw = small_message(shape, version, rng)
        assert decode(shape, version, raw) is not None
        for end in range(len(raw)):
            assert decode(shape, version, raw[:end]) is None


@each_message
def test_bytes_behind_a_message_are_malformed(shape: Shape) -> None:
    rng = random.Random(shape.name)
    for version in shape.versions:
        assert decode(shape, version, small_message(shape, version, rng) + b"\0") is None


@each_message
def test_damage_is_malformed_or_another_message(shape: Shape) -> None:
    rng = random.Random(shape.name)
    for version in shape.versions:
        raw = small_message(shape, version, rng)
        for _ in range(MUTATIONS):
            decode(shape, version, damaged(raw, rng))
        for _ in range(MUTATIONS // 4):
            decode(shape, version, rng.randbytes(rng.randrange(80)))


def damaged(raw: bytes, rng: random.Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(changed) + 1)
        number = rng.choice(NUMBERS)
        kind = rng.randrange(5)
        if kind == 0:
            changed[at : at + 1] = bytes((rng.randrange(256),))
        elif kind == 1:
            changed[at : at + 4] = struct.pack(">I", number)
        elif kind == 2:
            changed[at : at + 1] = uvarint(number)
        elif kind == 3:
            del changed[at : at + rng.randrange(1, 8)]
        else:
            changed[at:at] = rng.randbytes(rng.randrange(1, 8))
    return bytes(changed)


def refused_within(memory_bytes: int, call: Callable[[], object], match: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Malformed, match=match):
            call()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= memory_bytes


@pytest.mark.parametrize("count", [1 << 16, (1 << 31) - 1])
def test_an_array_that_claims_more_than_follows_allocates_nothing(count: int) -> None:
    metadata = request_codec(ApiKey.METADATA)
    metadata.decode(memoryview(b"\0\0\0\0"), 0, 0)
    plain = memoryview(struct.pack(">i", count) + bytes(1000))
    compact = memoryview(uvarint(count + 1) + bytes(1000))
    for version, data in ((1, plain), (12, compact)):
        refused_within(MEMORY_BYTES_MAX, partial(metadata.decode, data, 0, version), "claims")


def test_a_string_and_bytes_that_claim_more_than_follows_allocate_nothing() -> None:
    produce = request_codec(ApiKey.PRODUCE)
    head = b"\0\xff\xff\0\0\0\0"
    records = head + b"\x02\x02t\x02" + bytes(4)
    cases = (
        (9, uvarint(1 << 30) + bytes(1000)),
        (8, b"\x7f\xff" + bytes(1000)),
        (9, records + uvarint(1 << 31) + bytes(1000)),
    )
    for version, raw in cases:
        data = memoryview(raw)
        refused_within(
            MEMORY_BYTES_MAX,
            partial(produce.decode, data, 0, version),
            "not fit",
        )


def test_a_request_has_a_bounded_number_of_elements() -> None:
    """Two bytes for each topic would become objects of a hundred."""

    def request(topics: int) -> memoryview:
        return memoryview(uvarint(topics + 1) + b"\x01\0" * topics + b"\0\0\0\0")

    decoded = decode_request(ApiKey.METADATA, 9, request(ELEMENTS_MAX), 0)
    assert isinstance(decoded, MetadataRequest)
    assert decoded.topics is not None
    assert len(decoded.topics) == ELEMENTS_MAX
    del decoded
    more = request(ELEMENTS_MAX + 1)
    refused_within(
        MEMORY_BYTES_MAX, partial(decode_request, ApiKey.METADATA, 9, more, 0), "too many elements"
    )


def test_unknown_tags_are_skipped_and_bounded() -> None:
    """On the message and within its structures, with and without known tags beside them."""
    topic = b"\x02t" + b"\x02" + b"\x05\x03abc" + b"\x80\x80\x01\x00"
    raw = b"\x02" + topic + b"\x01\x01\x01" + b"\x01\x63\x80\x01" + bytes(128)
    decoded = decode_request(ApiKey.METADATA, 9, memoryview(raw), 0)
    assert decoded == MetadataRequest(
        topics=[MetadataRequestTopic(name="t")],
        allow_auto_topic_creation=True,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    many = b"\x01" + b"\0\0\0" + uvarint(ELEMENTS_MAX + 1) + b"\x07\0" * (ELEMENTS_MAX + 1)
    refused_within(
        MEMORY_BYTES_MAX,
        lambda: decode_request(ApiKey.METADATA, 9, memoryview(many), 0),
        "too many elements",
    )


def test_unknown_tags_stand_beside_known_ones() -> None:
    shape = shape_of("FetchRequest")
    rng = random.Random(2)
    message: Any = random_message(shape, 12, rng)
    message.cluster_id = "c"
    raw = joined(shape, message, 12)
    known = b"\x01\x00\x02\x02c"
    assert raw.endswith(known)
    more = raw[: -len(known)] + b"\x03" + known[1:] + b"\x09\x01z" + b"\x7f\x00"
    assert decode(shape, 12, more) == message


@pytest.mark.parametrize(
    ("tags", "match"),
    [
        (b"\x01\x00\x03\x02c\x00", "another size"),
        (b"\x01\x00\x01\x02c", "another size"),
        (b"\x01\x00\x02\x03c", "does not fit"),
        (b"\x01\x09\x05abc", "does not fit"),
        (b"\x81\x80\x80\x80\x80\x00", "longer than 5"),
        (b"\x05\x09\x00", "claims 5"),
    ],
)
def test_a_tagged_field_with_a_wrong_size_is_malformed(tags: bytes, match: str) -> None:
    shape = shape_of("FetchRequest")
    raw = joined(shape, shape.structure_type("FetchRequest")(), 12)
    assert raw.endswith(b"\0")
    with pytest.raises(Malformed, match=match):
        decode_request(shape.key, 12, memoryview(raw[:-1] + tags), 0)


def test_a_varint_has_five_bytes_at_most() -> None:
    assert skip_tags(memoryview(b"\x80\x80\x80\x00"), 0, 0x80, 10) == (4, 10)
    with pytest.raises(Malformed, match="longer than 5 bytes"):
        decode_request(ApiKey.METADATA, 9, memoryview(b"\x80" * 8 + b"\0" * 8), 0)


def test_null_where_none_may_be_and_text_that_is_none_are_malformed() -> None:
    list_offsets = b"\xff\xff\xff\xff\0\0\0\0\x01"
    cases = (
        (ApiKey.LIST_OFFSETS, 2, b"\0\0\0\0\0\xff\xff\xff\xff", "an array is null"),
        (ApiKey.LIST_OFFSETS, 2, list_offsets + b"\xff\xff\0\0\0\0", "a string is null"),
        (ApiKey.LIST_OFFSETS, 6, b"\0\0\0\0\0\0\0", "an array is null"),
        (ApiKey.LIST_OFFSETS, 6, b"\0\0\0\0\0\x02\0\x01\0\0", "a string is null"),
        (ApiKey.LIST_OFFSETS, 6, b"\0\0\0\0\0\x02\x03\xc3\x28\x01\0\0", "not UTF-8"),
        (ApiKey.METADATA, 1, b"\xff\xff\xff\xfe", "an array is null"),
    )
    for key, version, raw, match in cases:
        with pytest.raises(Malformed, match=match):
            decode_request(key, version, memoryview(raw), 0)
