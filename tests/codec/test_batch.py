"""Headers of record batches: parsing, scanning, placing; hostile bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.codec.batch import (
    HEADER_BYTES,
    SEQUENCE_MAX,
    BatchProducer,
    parse_header,
    placed,
    placed_at_append_time,
    placed_crc32c,
    resealed,
    scan,
    sequence_after,
    with_producer,
)
from streamlog.codec.crc import crc32c
from streamlog.codec.records import decode, encode_values
from streamlog.errors import CorruptMessage, InvalidRecord

VALUES = [b"alpha", b"", None, b"delta" * 50]


def batch(values=VALUES, **kwargs):
    return encode_values(values, timestamp_ms=1_700_000_000_000, **kwargs).data


def test_header_of_a_built_batch():
    data = batch(producer=BatchProducer(7, 3, 41))
    header = parse_header(data)
    assert header.size_bytes == len(data)
    assert (header.magic, header.record_count, header.last_offset_delta) == (2, 4, 3)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, 41)
    assert header.last_sequence == 44
    assert header.max_timestamp_ms == 1_700_000_000_000
    assert crc32c(memoryview(data)[21:]) == header.crc


def test_scan_returns_views_of_the_same_memory():
    data = batch() + batch([b"x"])
    batches = scan(data)
    assert [batch.header.record_count for batch in batches] == [4, 1]
    assert all(batch.view.obj is data for batch in batches)
    assert scan(b"") == []


def test_placing_copies_the_header_only():
    data = memoryview(batch())
    header, rest = placed(data, 1 << 40, 9)
    assert isinstance(rest, memoryview)
    assert rest.obj is data.obj
    assert len(header) == HEADER_BYTES
    whole = b"".join((header, rest))
    (only,) = scan(whole)
    assert (only.header.base_offset, only.header.leader_epoch) == (1 << 40, 9)
    assert [record[0] for record in decode(whole)] == [(1 << 40) + i for i in range(4)]


def test_append_time_replaces_timestamps_and_keeps_a_valid_crc():
    header, rest = placed_at_append_time(memoryview(batch()), 5, 1, 1_800_000_000_123)
    whole = b"".join((header, rest))
    (only,) = scan(whole)
    assert only.header.is_log_append_time
    assert {record[1] for record in decode(whole)} == {1_800_000_000_123}


def test_the_crc_of_a_placed_batch_is_that_of_all_its_bytes():
    data = memoryview(batch())
    for parts in (placed(data, 77, 3), placed_at_append_time(data, 77, 3, 1_800_000_000_123)):
        assert placed_crc32c(parts) == crc32c(b"".join(parts))


def test_with_producer_keeps_records_and_a_valid_crc():
    changed = with_producer(batch(), BatchProducer(1, 2, 3))
    assert parse_header(changed)[9:12] == (1, 2, 3)
    assert [record[3] for record in decode(changed)] == VALUES


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda b: b[:20], CorruptMessage),
        (lambda b: b[:60], CorruptMessage),
        (lambda b: b[:-1], CorruptMessage),
        (lambda b: b + b"\0", CorruptMessage),
        (lambda b: b[:8] + b"\xff\xff\xff\xff" + b[12:], CorruptMessage),
        (lambda b: b[:8] + b"\0\0\0\x30" + b[12:], CorruptMessage),
        (lambda b: b[:16] + b"\1" + b[17:], InvalidRecord),
        (lambda b: b[:-1] + bytes([b[-1] ^ 1]), CorruptMessage),
        (lambda b: b[:30] + b"\x55" + b[31:], CorruptMessage),
    ],
)
def test_damage_is_found(damage, error):
    with pytest.raises(error):
        scan(damage(bytes(batch())))


@given(st.binary(max_size=200))
def test_scan_of_noise_raises_typed_errors_only(noise):
    with pytest.raises((CorruptMessage, InvalidRecord)):
        scan(b"\0" + noise)


@given(st.data())
def test_any_bit_flip_behind_the_placed_fields_is_found(data):
    good = bytes(batch())
    bit = data.draw(st.integers(16 * 8, len(good) * 8 - 1))
    bad = bytearray(good)
    bad[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises((CorruptMessage, InvalidRecord)):
        scan(bad)


def test_sequences_wrap():
    assert sequence_after(SEQUENCE_MAX, 1) == 0
    assert sequence_after(SEQUENCE_MAX - 1, 5) == 3
    wrapped = with_producer(batch(), BatchProducer(1, 0, SEQUENCE_MAX))
    assert parse_header(wrapped).last_sequence == 2


def test_resealed_makes_a_changed_batch_pass():
    changed = bytearray(batch())
    changed[30] ^= 0xFF
    assert scan(resealed(changed))
