"""The seed's remote index: golden bytes, damage, look-ups, files that end in time."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import Corrupt, Invalid, UnsupportedVersion
from streamlog.format.remote_index import (
    RemoteIndex,
    RemoteIndexEntry,
    RemoteIndexFiles,
    decode_entry,
    decode_files,
    encode_entry,
    encode_files,
)

GOLDEN = Path(__file__).parents[1] / "golden"
ENTRIES = (
    RemoteIndexEntry(100, 199, 1_000, 1_700_000_000_000, 4_096, b"s3://bucket/a@0"),
    RemoteIndexEntry(200, 200, -1, 1_600_000_000_000, 0, b""),
    RemoteIndexEntry(260, 399, 1_001, 1_700_000_000_001, (1 << 31) - 1, bytes(range(40))),
)
PARTS = ("log_index", "offset_index", "time_index")
PARTS_WITH_FLIPS = [(part, bit) for part in PARTS for bit in range(8)]


def only(entries: tuple[RemoteIndexEntry, ...] = ENTRIES) -> RemoteIndexFiles:
    (files,) = encode_files(entries)
    return files


def with_part(files: RemoteIndexFiles, part: str, data: bytes) -> RemoteIndexFiles:
    """The files with another one in place of one of them."""
    return RemoteIndexFiles(**{**files._asdict(), part: data})


def test_golden_files() -> None:
    files = only()
    assert files.log_index == (GOLDEN / "remote_log_index_v0.bin").read_bytes()
    assert files.offset_index == (GOLDEN / "remote_offset_index_v0.bin").read_bytes()
    assert files.time_index == (GOLDEN / "remote_time_index_v0.bin").read_bytes()
    assert files.stem == "00000000000000000100"
    assert list(decode_files(files).entries) == list(ENTRIES)


def test_the_layout_is_the_seeds() -> None:
    data = encode_entry(ENTRIES[0])
    assert data[:2] == b"\0\0", "magic 0"
    assert int.from_bytes(data[2:4], "big") == len(data) == 46 + 15
    assert [int.from_bytes(data[at : at + 8], "big") for at in (8, 16, 24, 32)] == [
        *(100, 199, 1_000),
        1_700_000_000_000,
    ]
    assert int.from_bytes(data[40:44], "big") == 4_096
    assert data[44:46] == b"\0\x0f"
    assert data[46:] == b"s3://bucket/a@0"


@pytest.mark.parametrize("part", PARTS)
def test_a_file_that_is_cut_is_corrupt(part: str) -> None:
    files = only()
    whole = getattr(files, part)
    for length in range(len(whole)):
        with pytest.raises(Corrupt):
            decode_files(with_part(files, part, whole[:length]))


@pytest.mark.parametrize(("part", "bit"), PARTS_WITH_FLIPS)
def test_a_flipped_bit_is_found(part: str, bit: int) -> None:
    files = only()
    whole = getattr(files, part)
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << bit
        with pytest.raises((Corrupt, UnsupportedVersion)):
            decode_files(with_part(files, part, bytes(flipped)))


def test_a_newer_magic_is_told_from_damage() -> None:
    data = bytearray(encode_entry(ENTRIES[0]))
    data[1] = 1
    with pytest.raises(UnsupportedVersion, match="magic 1"):
        decode_entry(data)


def test_files_of_another_base_offset_are_refused() -> None:
    with pytest.raises(Corrupt, match="base offset"):
        decode_files(only()._replace(base_offset=99))


@pytest.mark.parametrize(
    "entry",
    [
        ENTRIES[0]._replace(first_offset=-1),
        ENTRIES[0]._replace(last_offset=99),
        ENTRIES[0]._replace(data_length=1 << 31),
        ENTRIES[0]._replace(rdi=b"x" * (1 << 15)),
    ],
)
def test_what_no_field_holds_is_refused(entry: RemoteIndexEntry) -> None:
    with pytest.raises(Invalid):
        encode_entry(entry)
    with pytest.raises(Invalid):
        list(encode_files([entry]))


def test_entries_that_overlap_are_refused() -> None:
    with pytest.raises(Invalid, match="overlaps"):
        list(encode_files([ENTRIES[0], ENTRIES[0]._replace(first_offset=150)]))


@pytest.mark.parametrize("first", [0, 1 << 40])
def test_an_entry_that_is_too_far_for_its_file_is_corrupt(first: int) -> None:
    """Its checksum may be right: another program wrote it."""
    near = RemoteIndexEntry(0, 10, 1, 2, 3, b"r")
    far = RemoteIndexEntry(first, 1 << 41, 1, 2, 3, b"r")
    entries = [near, far] if first else [far]
    log = b"".join(encode_entry(entry) for entry in entries)
    with pytest.raises(Corrupt, match="too far for its file"):
        decode_files(RemoteIndexFiles(0, log, b"", b""))


def test_a_file_ends_where_offsets_have_no_room() -> None:
    far = RemoteIndexEntry(100 + (1 << 31), 200 + (1 << 31), 0, 0, 0, b"")
    files = list(encode_files([ENTRIES[0], far]))
    assert [one.base_offset for one in files] == [100, far.first_offset]
    for one in files:
        decode_files(one)


@st.composite
def runs(draw: st.DrawFn) -> list[RemoteIndexEntry]:
    entries: list[RemoteIndexEntry] = []
    offset = draw(st.integers(0, 5))
    for gap, span, time in draw(
        st.lists(
            st.tuples(st.integers(0, 3), st.integers(1, 6), st.integers(-1, 12)),
            min_size=1,
            max_size=12,
        )
    ):
        offset += gap
        rdi = bytes(draw(st.integers(0, 30)))
        entries.append(RemoteIndexEntry(offset, offset + span - 1, 0, time, 1, rdi))
        offset += span
    return entries


def at(indexes: list[RemoteIndex], offset: int) -> RemoteIndexEntry | None:
    """As a reader finds it: the last file that begins at or before the offset."""
    found = bisect_left(indexes, offset + 1, key=lambda index: index.base_offset)
    return indexes[found - 1].at(offset) if found else None


@given(runs(), st.integers(1, 400))
def test_look_ups_are_those_of_a_scan(entries: list[RemoteIndexEntry], file_bytes: int) -> None:
    files = list(encode_files(entries, file_bytes))
    indexes = [decode_files(one) for one in files]
    assert [entry for index in indexes for entry in index.entries] == entries
    assert all(len(one.log_index) <= file_bytes or len(one.offset_index) == 8 for one in files), (
        "one entry at least"
    )
    for offset in range(entries[-1].last_offset + 3):
        wanted = [one for one in entries if one.first_offset <= offset <= one.last_offset]
        assert at(indexes, offset) == (wanted[0] if wanted else None)
    for time in range(-1, 14):
        found = [one for index in indexes if (one := index.first_at_or_after(time)) is not None]
        later = [one for one in entries if one.last_timestamp_ms >= time]
        assert found[:1] == later[:1]
