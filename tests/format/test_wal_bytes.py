"""WAL frames, superblocks and identity files: golden bytes, damage, newer versions.

To write files for a new version: `python tests/format/test_wal_bytes.py` makes those missing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.codec.crc import crc32c
from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.format.entry import StreamEntry
from streamlog.format.rows import Tenure
from streamlog.format.wal.frame import (
    ALIGNMENT,
    HEADER_BYTES,
    FileLife,
    decode_entries,
    decode_frame_header,
    encode_frame,
    encode_group,
)
from streamlog.format.wal.superblock import (
    SUPERBLOCK_BYTES,
    FileState,
    Superblock,
    WalIdentity,
    decode_identity,
    decode_superblock,
    encode_identity,
    encode_superblock,
)
from tests.format.object_samples import GOLDEN_ENTRIES, as_tuple, entry

GOLDEN = Path(__file__).parent.parent / "golden"
LIFE = FileLife(17, 0xDEAD_BEEF_0123_4567)
SUPERBLOCK = Superblock(FileState.ACTIVE, LIFE, Tenure(3, 9), 41, 38, 32 << 20)
IDENTITY = WalIdentity("cluster-ä", frozenset({Tenure(3, 9), Tenure(3, 8)}), 38)


def frame(
    entries: list[StreamEntry],
    position: int = ALIGNMENT,
    life: FileLife = LIFE,
    under_way: int = 0,
) -> bytes:
    group = encode_group(entries)
    parts = encode_frame(
        group, life, position=position, sequence=41, released_through=38, under_way=under_way
    )
    data = b"".join(parts)
    assert len(data) == group.size_bytes
    assert len(data) % ALIGNMENT == 0
    return data


def decode(data: bytes, position: int = ALIGNMENT) -> list[StreamEntry] | None:
    header = decode_frame_header(data, LIFE, position, file_name="f")
    return None if header is None else decode_entries(header, data)


FILES: dict[str, Callable[[], bytes]] = {
    "wal_frame_v1.bin": lambda: frame(GOLDEN_ENTRIES),
    "wal_frame_v2.bin": lambda: frame(GOLDEN_ENTRIES, under_way=3),
    "wal_superblock_v1.bin": lambda: encode_superblock(SUPERBLOCK),
    "wal_identity_v1.bin": lambda: encode_identity(IDENTITY),
}


@pytest.mark.parametrize("name", FILES)
def test_golden_bytes_are_written(name: str) -> None:
    assert FILES[name]() == (GOLDEN / name).read_bytes()


def test_golden_bytes_are_read() -> None:
    for version, durable_through in ((1, 40), (2, 37)):
        data = (GOLDEN / f"wal_frame_v{version}.bin").read_bytes()
        assert decode(data) is not None
        header = decode_frame_header(data, LIFE, ALIGNMENT, file_name="f")
        assert header is not None
        assert header.durable_through == durable_through
    superblock = (GOLDEN / "wal_superblock_v1.bin").read_bytes()
    assert len(superblock) == SUPERBLOCK_BYTES
    assert decode_superblock(superblock, file_name="f") == SUPERBLOCK
    identity = (GOLDEN / "wal_identity_v1.bin").read_bytes()
    assert decode_identity(identity, file_name="f") == IDENTITY


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.builds(
            entry,
            st.integers(0, 2**63),
            st.integers(0, 2**62),
            st.lists(st.binary(max_size=3000), min_size=1, max_size=3).map(tuple),
            record_count=st.integers(1, 2**31),
            epoch=st.integers(0, 2**40),
            timestamp_ms=st.integers(-1, 2**45),
            attributes=st.binary(max_size=64),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_a_round_trip_keeps_every_field(entries: list[StreamEntry]) -> None:
    decoded = decode(frame(entries))
    assert decoded is not None
    assert [as_tuple(e) for e in decoded] == [as_tuple(e) for e in entries]
    assert [(e.stream_id, e.epoch, e.payload_crc32c) for e in decoded] == [
        (e.stream_id, e.epoch, e.payload_crc32c) for e in entries
    ]


def test_every_flipped_bit_and_truncation_of_a_frame_is_found() -> None:
    group = encode_group(GOLDEN_ENTRIES)
    data = bytearray(frame(GOLDEN_ENTRIES))
    for position in range(group.length):
        data[position] ^= 1 << position % 8
        assert decode(bytes(data)) is None
        data[position] ^= 1 << position % 8
        assert decode(bytes(data[:position])) is None
    assert decode(bytes(data)) is not None


def test_a_frame_belongs_to_one_life_and_place() -> None:
    data = frame(GOLDEN_ENTRIES)
    assert decode(data, position=2 * ALIGNMENT) is None
    for other in (FileLife(16, LIFE.salt), FileLife(17, 1)):
        assert decode(frame(GOLDEN_ENTRIES, life=other)) is None


@settings(max_examples=200, deadline=None)
@given(st.integers(0, HEADER_BYTES - 1), st.integers(0, 255))
def test_forged_headers_with_right_checksums_are_harmless(position: int, value: int) -> None:
    data = bytearray(frame(GOLDEN_ENTRIES[:2]))
    data[position] = value
    data[68:72] = crc32c(data[:68]).to_bytes(4, "little")
    try:
        decode(bytes(data))
    except UnsupportedVersion:
        assert position in (4, 5)


def test_damaged_superblocks_and_identities() -> None:
    for data, decoder, covered in (
        (encode_superblock(SUPERBLOCK), decode_superblock, 72),
        (encode_identity(IDENTITY), decode_identity, len(encode_identity(IDENTITY))),
    ):
        for position in range(covered):
            flipped = bytearray(data)
            flipped[position] ^= 1 << position % 8
            with pytest.raises(Corrupt):
                decoder(bytes(flipped), file_name="f")
            with pytest.raises(Corrupt):
                decoder(data[:position], file_name="f")


def test_newer_versions_are_told_from_damage() -> None:
    data = bytearray(frame(GOLDEN_ENTRIES))
    data[4] = 3
    data[68:72] = crc32c(data[:68]).to_bytes(4, "little")
    with pytest.raises(UnsupportedVersion):
        decode(bytes(data))
    superblock = bytearray(encode_superblock(SUPERBLOCK))
    superblock[8] = 2
    superblock[68:72] = crc32c(superblock[:68]).to_bytes(4, "little")
    with pytest.raises(UnsupportedVersion):
        decode_superblock(superblock, file_name="f")
    identity = bytearray(encode_identity(IDENTITY))
    identity[8] = 2
    identity[24:28] = crc32c(identity[28:], crc32c(identity[:24])).to_bytes(4, "little")
    with pytest.raises(UnsupportedVersion):
        decode_identity(identity, file_name="f")


if __name__ == "__main__":
    for name, build in FILES.items():
        if not (GOLDEN / name).exists():
            (GOLDEN / name).write_bytes(build())
