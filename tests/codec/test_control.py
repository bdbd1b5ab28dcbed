"""Control batches: Kafka's bytes, round trips, damage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.codec.batch import CONTROL, HEADER_BYTES, TRANSACTIONAL, parse_header, resealed, scan
from streamlog.codec.control import (
    ControlType,
    EndMarker,
    decode_end_marker,
    encode_end_marker,
)
from streamlog.codec.records import decode, encode_values
from streamlog.errors import CorruptMessage, InvalidRecord

KAFKA = {
    ControlType.ABORT: "000000000000000000000042ffffffff023da0944d003000000000"
    "0000018bcfe5687b0000018bcfe5687b000003a3529440010007ffffffff0000000120000000080000"
    "00000c00000000000c00",
    ControlType.COMMIT: "000000000000000000000042ffffffff02c99e4205003000000000"
    "0000018bcfe5687b0000018bcfe5687b000003a3529440010007ffffffff0000000120000000080000"
    "00010c00000000000c00",
}
"""MemoryRecords.withEndTransactionMarker of Kafka 4.1.1, for producer 4000000000001 with epoch 7
and coordinator epoch 12, at 1700000000123."""


@pytest.mark.parametrize("control_type", ControlType)
def test_markers_have_the_bytes_of_kafka(control_type: ControlType) -> None:
    marker = EndMarker(control_type, 12)
    data = encode_end_marker(4_000_000_000_001, 7, marker, 1_700_000_000_123)
    assert data.hex() == KAFKA[control_type]
    assert decode_end_marker(data) == marker


@given(
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**15 - 1),
    st.sampled_from(ControlType),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**62),
)
def test_markers_come_back(
    producer_id: int, epoch: int, control_type: ControlType, coordinator_epoch: int, at_ms: int
) -> None:
    marker = EndMarker(control_type, coordinator_epoch)
    data = encode_end_marker(producer_id, epoch, marker, at_ms)
    ((header, view),) = scan(data)
    assert header.attributes == TRANSACTIONAL | CONTROL
    assert (header.producer_id, header.producer_epoch) == (producer_id, epoch)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (at_ms, at_ms)
    assert (header.record_count, header.last_offset_delta, header.base_sequence) == (1, 0, -1)
    assert decode_end_marker(view) == marker
    assert len(decode(data)) == 1


def control(key: bytes | None, value: bytes | None, count: int = 1) -> bytes:
    data = encode_values([value] * count, keys=[key] * count, timestamp_ms=5).data
    data[22] |= CONTROL | TRANSACTIONAL
    return bytes(resealed(data))


def test_later_versions_are_read_and_other_types_end_nothing() -> None:
    longer = control(b"\x00\x05\x00\x01more", b"\x00\x05\x00\x00\x00\x09and more")
    assert decode_end_marker(longer) == EndMarker(ControlType.COMMIT, 9)
    assert decode_end_marker(control(b"\x00\x00\x00\x02", b"")) is None


@pytest.mark.parametrize(
    "data",
    [
        bytes(encode_values([b"x"], timestamp_ms=5).data),
        control(None, b"\x00" * 6),
        control(b"\x00\x00\x00", b"\x00" * 6),
        control(b"\x00\x00\x00\x01", b"\x00" * 5),
        control(b"\x00\x00\x00\x01", None),
        control(b"\x00\x00\x00\x01", b"\x00" * 6, count=2),
    ],
)
def test_what_is_no_marker_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecord):
        decode_end_marker(data)


@given(st.integers(0, 77), st.integers(1, 255))
def test_damage_gives_typed_errors_only(position: int, change: int) -> None:
    data = bytearray(encode_end_marker(1, 0, EndMarker(ControlType.ABORT, 3), 5))
    data[position] ^= change
    try:
        decode_end_marker(data)
    except (InvalidRecord, CorruptMessage):
        return
    header = parse_header(data)
    assert header.is_control
    assert header.size_bytes == HEADER_BYTES + 17
