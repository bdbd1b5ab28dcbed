"""Object files: round trip, layout promises, damage."""

from __future__ import annotations

import copy
import random
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.codec.batch import scan
from streamlog.codec.crc import crc32c
from streamlog.codec.records import BatchBuilder
from streamlog.errors import Corrupt, Internal, UnsupportedVersion
from streamlog.format.entry import StreamEntry
from streamlog.format.object.block import decode_block
from streamlog.format.object.build import BuiltObject, build_object
from streamlog.format.object.footer import TRAILER_BYTES, decode_footer, decode_trailer
from streamlog.format.object.header import HEADER_BYTES, decode_header
from streamlog.format.object.index import (
    INDEX_HEADER_BYTES,
    INDEX_ROW_BYTES,
    BlockRow,
    attributes_by_block,
    decode_attributes,
    decode_index,
)
from streamlog.format.rows import ObjectRow, Placement, Placements, RangeRow
from tests.format.object_samples import DAMAGE, GOLDEN_ENTRIES, IDENTITY, as_tuple, entry

KEY = "objects/aa/1"


def file_of(built: BuiltObject) -> bytes:
    data = b"".join(built.parts)
    assert len(data) == built.size_bytes == built.row.size_bytes
    return data


def region_of(data: bytes, row: ObjectRow) -> bytes:
    return data[row.index_position : row.index_position + row.index_length]


def read_all(data: bytes) -> dict[int, list[tuple[int, int, int, bytes, bytes]]]:
    """Reads a file from its own end, as `recover` and `fsck` do."""
    decode_header(data[:HEADER_BYTES], object_key=KEY)
    footer = decode_footer(data, size_bytes=len(data), object_key=KEY)
    region = region_of(data, footer.row)
    index = decode_index(region, footer.row, object_key=KEY)
    streams: dict[int, list[tuple[int, int, int, bytes, bytes]]] = {}
    covered = HEADER_BYTES
    for block in index.blocks():
        assert block.position == covered
        covered += block.length
        batches = decode_block(
            data[block.position : block.position + block.length], block, object_key=KEY
        )
        attributes = decode_attributes(region, block.stream_id, block.start, block.end)
        assert [
            (a.base_offset, a.record_count, a.base_timestamp_ms, a.attributes) for a in attributes
        ] == [(b.base_offset, b.record_count, b.base_timestamp_ms, b.attributes) for b in batches]
        streams.setdefault(block.stream_id, []).extend(as_tuple(batch) for batch in batches)
    assert covered == footer.row.index_position
    return streams


def by_stream(entries: list[StreamEntry]) -> dict[int, list[tuple[int, int, int, bytes, bytes]]]:
    streams: dict[int, list[tuple[int, int, int, bytes, bytes]]] = {}
    for item in entries:
        streams.setdefault(item.stream_id, []).append(as_tuple(item))
    return streams


@st.composite
def entry_lists(draw: st.DrawFn) -> list[StreamEntry]:
    entries = []
    stream_ids = draw(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=5, unique=True))
    for stream_id in sorted(stream_ids):
        offset = draw(st.integers(0, 2**50))
        epoch = draw(st.integers(1, 2**40))
        for _ in range(draw(st.integers(1, 6))):
            offset += draw(st.sampled_from([0, 0, 0, 1, 1000]))
            epoch += draw(st.sampled_from([0, 0, 1]))
            count = draw(st.integers(1, 2**20))
            entries.append(
                entry(
                    stream_id,
                    offset,
                    tuple(draw(st.lists(st.binary(max_size=200), min_size=1, max_size=3))),
                    record_count=count,
                    epoch=epoch,
                    timestamp_ms=draw(st.integers(-1, 2**45)),
                    attributes=draw(st.binary(max_size=64)),
                )
            )
            offset += count
    return entries


@settings(max_examples=150, deadline=None)
@given(entry_lists(), st.sampled_from(["none", "zstd"]), st.integers(1, 500))
def test_a_round_trip_keeps_every_field(
    entries: list[StreamEntry], compression: str, target: int
) -> None:
    built = build_object(IDENTITY, entries, compression=compression, block_target_bytes=target)
    data = file_of(built)
    assert read_all(data) == by_stream(entries)
    footer = decode_footer(data[-4096:], size_bytes=len(data), object_key=KEY)
    assert footer.identity == IDENTITY
    assert footer.row == built.row
    assert footer.ranges == built.ranges


@settings(max_examples=100, deadline=None)
@given(entry_lists(), st.integers(1, 300), st.data())
def test_look_up_by_offset(entries: list[StreamEntry], target: int, data: st.DataObject) -> None:
    built = build_object(IDENTITY, entries, block_target_bytes=target)
    raw = file_of(built)
    region = region_of(raw, built.row)
    index = decode_index(region, built.row)
    chosen = data.draw(st.sampled_from(entries))
    start = data.draw(st.integers(max(chosen.base_offset - 5, 0), chosen.end_offset + 5))
    end = data.draw(st.integers(start, start + 2**21))
    expected = [
        e
        for e in entries
        if e.stream_id == chosen.stream_id and e.base_offset < end and e.end_offset > start
    ]
    blocks = index.blocks_for(chosen.stream_id, start, end)
    batches = [
        batch
        for block in blocks
        for batch in decode_block(
            raw[block.position : block.position + block.length], block, object_key=KEY
        )
        if batch.base_offset < end and batch.end_offset > start
    ]
    if blocks:
        number = index.numbers_for(chosen.stream_id, start, end).start
        near = data.draw(st.integers(-1, len(index)))
        assert index.number_at(chosen.stream_id, start, near) == number
        assert index.number_at(chosen.stream_id, start) == number
    if start < end:
        assert [as_tuple(b) for b in batches] == [as_tuple(e) for e in expected]
        attributes = decode_attributes(region, chosen.stream_id, start, end)
        assert [(a.base_offset, a.attributes) for a in attributes] == [
            (e.base_offset, e.attributes) for e in expected
        ]
    assert index.blocks_for(2**63 + 5, 0, 2**62) == []


def test_plain_payloads_are_not_copied() -> None:
    payloads = [bytes([n]) * 1000 for n in range(10)]
    built = build_object(IDENTITY, [entry(1, n, p) for n, p in enumerate(payloads)])
    assert [p for p in built.parts if any(p is mine for mine in payloads)] == payloads
    batches = decode_block(
        file_of(built)[HEADER_BYTES : built.row.index_position],
        decode_index(region_of(file_of(built), built.row), built.row).block(0),
        object_key=KEY,
    )
    assert len({id(batch.parts[0].obj) for batch in batches}) == 1  # type: ignore[union-attr]


def test_ranges_follow_epochs_and_gaps() -> None:
    built = build_object(IDENTITY, GOLDEN_ENTRIES)
    assert built.ranges == [
        RangeRow(1, 1, 0, 10),
        RangeRow(1, 2, 10, 11),
        RangeRow(5, 4, 1 << 40, (1 << 40) + 1000),
        RangeRow(5, 1, (1 << 40) + 1000, (1 << 40) + 1001),
        RangeRow((1 << 63) - 1, 1 << 33, 3, 4),
    ]


def test_blocks_are_cut_at_the_target_and_a_large_batch_stands_alone() -> None:
    sizes = [400, 400, 400, 5000, 100, 100]
    built = build_object(
        IDENTITY,
        [entry(1, n, bytes(size)) for n, size in enumerate(sizes)],
        block_target_bytes=1000,
    )
    index = decode_index(region_of(file_of(built), built.row), built.row)
    assert [(b.start, b.end) for b in index.blocks()] == [(0, 2), (2, 3), (3, 4), (4, 6)]


def test_zstd_only_where_it_pays() -> None:
    noise = random.Random(1).randbytes(300_000)
    text = b"a line of a log that repeats itself\n" * 8000
    for payload, expected in ((noise, 0), (text, 1), (b"short", 0)):
        built = build_object(IDENTITY, [entry(1, 0, payload)], compression="zstd")
        block = decode_index(region_of(file_of(built), built.row), built.row).block(0)
        assert block.compression == expected
    assert built.size_bytes < 1000


def test_an_empty_object_can_be_read() -> None:
    built = build_object(IDENTITY, [])
    assert read_all(file_of(built)) == {}
    assert built.ranges == []


def test_index_overhead_of_many_small_streams() -> None:
    payload = bytes(16 * 1024)
    entries = [entry(n, 0, payload, attributes=bytes(64)) for n in range(512)]
    built = build_object(IDENTITY, entries)
    assert built.size_bytes / (512 * len(payload)) < 1.05
    index = decode_index(region_of(file_of(built), built.row), built.row)
    assert index.memory_bytes < 512 * 60


@pytest.mark.parametrize(
    "entries",
    [
        [entry(2, 0, b"a"), entry(1, 0, b"b")],
        [entry(1, 5, b"a"), entry(1, 5, b"b")],
        [entry(1, 5, b"a"), entry(1, 4, b"b")],
        [entry(1, 0, b"a", record_count=0)],
        [entry(1, 0, b"a", attributes=bytes(65))],
    ],
)
def test_entries_out_of_order_are_a_bug(entries: list[StreamEntry]) -> None:
    with pytest.raises(Internal):
        build_object(IDENTITY, entries)


def test_a_wrong_payload_crc_is_found_when_read() -> None:
    good = entry(1, 0, b"payload")
    wrong = StreamEntry(1, 1, 0, 1, 0, (b"pAyload",), b"", good.payload_crc32c)
    with pytest.raises(Corrupt) as caught:
        read_all(file_of(build_object(IDENTITY, [wrong])))
    assert caught.value.object_key == KEY
    assert caught.value.start == HEADER_BYTES


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_every_flipped_bit_is_found(compression: str) -> None:
    entries = [entry(1, 0, b"ab" * 60, attributes=b"x"), entry(2, 7, b"", record_count=2)]
    data = bytearray(file_of(build_object(IDENTITY, entries, compression=compression)))
    for position in range(len(data)):
        for bit in range(8):
            data[position] ^= 1 << bit
            with pytest.raises(DAMAGE) as caught:
                read_all(bytes(data))
            if isinstance(caught.value, Corrupt):
                assert caught.value.object_key == KEY
                assert int(caught.value.start) <= position < int(caught.value.end)
            data[position] ^= 1 << bit
    assert read_all(bytes(data)) == by_stream(entries)


def test_every_truncation_is_found() -> None:
    data = file_of(build_object(IDENTITY, GOLDEN_ENTRIES))
    for size in range(len(data)):
        with pytest.raises(Corrupt):
            read_all(data[:size])
        with pytest.raises(Corrupt):
            decode_footer(data[-size:] if size else b"", size_bytes=len(data), object_key=KEY)
        if size == TRAILER_BYTES:
            trailer = decode_trailer(data[-size:], size_bytes=len(data), object_key=KEY)
            footer = decode_footer(
                data[-trailer.tail_bytes :], size_bytes=len(data), object_key=KEY
            )
            assert footer.identity == IDENTITY
            break


def test_every_truncated_or_flipped_section_is_found_alone() -> None:
    built = build_object(IDENTITY, GOLDEN_ENTRIES)
    data = file_of(built)
    region = region_of(data, built.row)
    block = decode_index(region, built.row).block(0)
    raw = data[block.position : block.position + block.length]
    for size in range(len(raw)):
        with pytest.raises(Corrupt):
            decode_block(raw[:size], block, object_key=KEY)
    for size in range(len(region)):
        with pytest.raises(Corrupt):
            decode_index(region[:size], built.row, object_key=KEY)
        with pytest.raises(Corrupt):
            decode_attributes(region[:size], 1, 0, 10, object_key=KEY)
        flipped = bytearray(region)
        flipped[size] ^= 0x10
        with pytest.raises(DAMAGE):
            decode_attributes(bytes(flipped), 1, 0, 10, object_key=KEY)


def _resealed_region(region: bytearray) -> tuple[bytes, int]:
    region[16:20] = crc32c(region[20:], crc32c(region[:16])).to_bytes(4, "little")
    return bytes(region), crc32c(region)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 255), st.sampled_from(["none", "zstd"]))
def test_forged_bytes_with_right_checksums_give_typed_errors(
    position: int, value: int, compression: str
) -> None:
    """Hostile lengths behind valid CRCs neither crash nor allocate without bound."""
    entries = [entry(1, 0, b"ab" * 200, attributes=b"x"), entry(1, 1, b"c"), entry(9, 1, b"d")]
    built = build_object(IDENTITY, entries, compression=compression)
    data = file_of(built)
    region = bytearray(region_of(data, built.row))
    region[position % len(region)] = value
    forged, forged_crc = _resealed_region(region)
    row = ObjectRow(1, built.size_bytes, built.row.index_position, len(forged), forged_crc)
    with suppress(*DAMAGE):
        index = decode_index(forged, row, object_key=KEY)
        for block in index.blocks():
            decode_block(
                data[block.position : block.position + block.length], block, object_key=KEY
            )
        index.blocks_for(1, 0, 2**62)
        decode_attributes(forged, 1, 0, 2**62)
    block = decode_index(region_of(data, built.row), built.row).block(0)
    raw = bytearray(data[block.position : block.position + block.length])
    raw[position % len(raw)] = value
    with suppress(Corrupt):
        decode_block(bytes(raw), block._replace(crc32c=crc32c(raw)), object_key=KEY)


def test_a_newer_version_is_told_from_damage() -> None:
    built = build_object(IDENTITY, GOLDEN_ENTRIES)
    data = bytearray(file_of(built))
    header = bytearray(data[:HEADER_BYTES])
    header[8] = 3
    header[12:16] = crc32c(header[:12]).to_bytes(4, "little")
    with pytest.raises(UnsupportedVersion) as caught:
        decode_header(header, object_key=KEY)
    assert (caught.value.found, caught.value.supported) == (3, 2)

    region = bytearray(region_of(bytes(data), built.row))
    region[4] = 3
    newer, newer_crc = _resealed_region(region)
    row = ObjectRow(1, built.size_bytes, built.row.index_position, len(newer), newer_crc)
    with pytest.raises(UnsupportedVersion):
        decode_index(newer, row, object_key=KEY)

    trailer = bytes(8) + data[-TRAILER_BYTES:]  # a longer one, as a newer version may have
    newer_trailer = bytearray(trailer)
    newer_trailer[-16] = 3
    newer_trailer[-14:-12] = len(trailer).to_bytes(2, "little")
    newer_trailer[-12:-8] = crc32c(newer_trailer[:-12]).to_bytes(4, "little")
    with pytest.raises(UnsupportedVersion):
        decode_footer(newer_trailer, size_bytes=len(data), object_key=KEY)


def test_a_block_of_another_place_is_refused() -> None:
    built = build_object(IDENTITY, [entry(1, 0, b"a"), entry(2, 0, b"a")])
    data = file_of(built)
    first, second = decode_index(region_of(data, built.row), built.row).blocks()
    raw = data[first.position : first.position + first.length]
    with pytest.raises(Corrupt):
        decode_block(raw, second, object_key=KEY)
    with pytest.raises(Corrupt):
        decode_block(raw, BlockRow(2, *first[1:]), object_key=KEY)


def _staged(payload: bytes) -> BuiltObject:
    attributes = b"facts"
    entries = [
        entry(3, 0, payload, record_count=2, attributes=attributes),
        entry(3, 2, payload, record_count=2, attributes=attributes),
        entry(7, 0, payload, record_count=2, attributes=attributes),
    ]
    return build_object(IDENTITY, entries, compression="zstd", is_staged=True)


def test_an_attached_object_is_read_at_its_place() -> None:
    builder = BatchBuilder(1000)
    builder.extend([b"x" * 200] * 2, timestamp_ms=5)
    payload = bytes(builder.build())
    built = _staged(payload)
    data = file_of(built)
    assert decode_footer(data, size_bytes=len(data), object_key=KEY).is_staged
    places = (Placement(3, 100, 4, 9), Placement(7, 1 << 40, 4))
    row = replace(built.row, placements=places)
    region = region_of(data, row)
    index = decode_index(region, row)
    assert [(b.stream_id, b.start, b.end) for b in index.blocks()] == [
        (3, 100, 104),
        (7, 1 << 40, (1 << 40) + 2),
    ]
    assert list(index.numbers_for(3, 103, 104)) == [0]
    for near in (-1, 0, 1, 2):
        assert index.number_at(3, 103, near) == 0
        assert index.number_at(7, 1 << 40, near) == 1
    assert not index.numbers_for(3, 0, 100)
    blocks = [data[b.position :][: b.length] for b in index.blocks()]
    placed = decode_block(blocks[0], index.block(0), object_key=KEY)
    for batch, base in zip(placed, (100, 102), strict=True):
        (scanned,) = scan(batch.parts[0])
        assert (scanned.header.base_offset, scanned.header.leader_epoch) == (base, 9)
        assert batch.base_offset == base
        assert bytes(scanned.view)[17:] == payload[17:]
    # Without a leader epoch the payloads are not read.
    (opaque,) = decode_block(blocks[1], index.block(1), object_key=KEY)
    assert bytes(opaque.parts[0]) == payload
    last = decode_attributes(region, 3, 102, 1 << 50, placements=places)
    assert [(batch.base_offset, batch.record_count) for batch in last] == [(102, 2)]
    assert [
        (stream_id, [(b.base_offset, b.record_count, b.attributes) for b in batches])
        for stream_id, batches in attributes_by_block(index, region)
    ] == [(3, [(100, 2, b"facts"), (102, 2, b"facts")]), (7, [(1 << 40, 2, b"facts")])]


def test_attributes_runs_that_overlap_are_corrupt() -> None:
    entries = [entry(stream, 0, b"x", attributes=b"facts") for stream in (1, 2)]
    built = build_object(IDENTITY, entries)
    region = bytearray(region_of(file_of(built), built.row))
    second = INDEX_HEADER_BYTES + INDEX_ROW_BYTES + 44
    region[second : second + 4] = bytes(4)
    row = replace(built.row, index_crc32c=_resealed(region))
    index = decode_index(region, row)
    with pytest.raises(Corrupt, match="attributes run is impossible"):
        list(attributes_by_block(index, region))


def _resealed(region: bytearray) -> int:
    """The index region with its own CRC; the CRC of all of it."""
    own = crc32c(region[INDEX_HEADER_BYTES:], crc32c(region[: INDEX_HEADER_BYTES - 4]))
    region[INDEX_HEADER_BYTES - 4 : INDEX_HEADER_BYTES] = own.to_bytes(4, "little")
    return crc32c(region)


def test_placements_equal_the_tuples_they_were_made_of() -> None:
    rows = (Placement(3, 100, 4, 9), Placement(7, 1 << 40, 4), Placement(1 << 60, 0, 1, 0))
    placements = Placements.of(reversed(rows))
    assert Placements.of(placements) is placements
    assert placements == rows
    assert rows == tuple(placements)
    assert placements == copy.deepcopy(placements)
    assert hash(placements) == hash(rows)
    assert (placements[1], placements[-1], placements[1:]) == (rows[1], rows[2], rows[1:])  # type: ignore[comparison-overlap]
    assert placements != rows[:2]
    assert [placements.of_stream(n) for n in (2, 3, 1 << 60, (1 << 60) + 1)] == [
        None,
        rows[0],
        rows[2],
        None,
    ]
    assert not Placements.of(())


def test_a_staged_batch_too_short_for_its_offset_is_corrupt() -> None:
    built = _staged(b"short")
    data = file_of(built)
    row = replace(built.row, placements=(Placement(3, 0, 1, 1),))
    block = decode_index(region_of(data, row), row).block(0)
    with pytest.raises(Corrupt, match="cut short"):
        decode_block(data[block.position :][: block.length], block, object_key=KEY)


def test_only_a_staged_object_can_be_attached() -> None:
    built = build_object(IDENTITY, [entry(3, 0, b"a")])
    row = replace(built.row, placements=(Placement(3, 0, 1, 1),))
    with pytest.raises(Corrupt, match="not staged"):
        decode_index(region_of(file_of(built), row), row)
