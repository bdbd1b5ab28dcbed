"""Records of compressed batches come piece by piece: the same ones, in bounded memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from itertools import islice

import cramjam
import pytest

from streamlog.codec import piecewise
from streamlog.codec.batch import HEADER_BYTES, Compression, pack_header, parse_header, resealed
from streamlog.codec.compression import compress
from streamlog.codec.records import decode, encode_values
from streamlog.errors import CorruptMessage, InvalidRecord

MIB = 1 << 20
COMPRESSED = [codec for codec in Compression if codec is not Compression.NONE]
IN_PIECES = [Compression.GZIP, Compression.SNAPPY, Compression.ZSTD]


def batch(values: list[bytes], codec: Compression) -> bytes:
    return bytes(encode_values(values, timestamp_ms=5, compression=codec).data)


def repacked(data: bytes, records: bytes, **fields: int) -> bytes:
    header = parse_header(data)._replace(length=HEADER_BYTES - 12 + len(records), **fields)
    return bytes(resealed(bytearray(pack_header(header) + records)))


def peak(records: Iterator[object]) -> int:
    """Bytes that reading takes at most."""
    tracemalloc.start()
    try:
        for _ in records:
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", list(Compression))
def test_the_records_are_those_that_come_at_once(codec: Compression) -> None:
    values = [b"%d " % number * (number % 50_000) for number in range(0, 400_000, 9_973)]
    data = batch(values, codec)
    assert list(piecewise.iterate(data)) == decode(data)


def test_raw_snappy_is_read() -> None:
    plain = batch([b"a", b"b"], Compression.NONE)
    raw = bytes(cramjam.snappy.compress_raw(plain[HEADER_BYTES:]))
    data = repacked(plain, raw, attributes=Compression.SNAPPY)
    assert list(piecewise.iterate(data)) == decode(data)


@pytest.mark.parametrize("codec", IN_PIECES)
def test_what_is_not_asked_for_is_not_decompressed(codec: Compression) -> None:
    data = batch([bytes(MIB // 4)] * 160, codec)
    assert peak(islice(piecewise.iterate(data), 3)) < 6 * MIB
    assert peak(piecewise.iterate(data)) < 8 * MIB


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_bomb_is_refused_before_it_is_there(codec: Compression) -> None:
    data = batch([b"first", bytes(40 * MIB)], codec)
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRecord) as caught:
            list(piecewise.iterate(data, 2 * MIB))
        assert tracemalloc.get_traced_memory()[1] < 6 * MIB
    finally:
        tracemalloc.stop()
    assert caught.value.fields["max_bytes"] == 2 * MIB


def snappy_java(records: bytes, *sizes: int) -> bytes:
    """Blocks of these sizes, then one of what is left."""
    out, position = bytes(compress(Compression.SNAPPY, b"")), 0
    for size in (*sizes, len(records) - sum(sizes)):
        block = bytes(cramjam.snappy.compress_raw(records[position : position + size]))
        out += len(block).to_bytes(4, "big") + block
        position += size
    return out


def test_a_large_record_in_blocks_of_a_byte_is_copied_a_few_times_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was copied with each of them: a minute of CPU for a batch of a MiB."""
    plain = batch([bytes(2 * MIB)], Compression.NONE)
    records = plain[HEADER_BYTES:]
    small = 400
    packed = snappy_java(records, len(records) - small, *[1] * (small - 1))
    looked_at = 0
    real = piecewise._whole_records

    def counted(rest: bytes, most: int) -> tuple[int, int, int]:
        nonlocal looked_at
        looked_at += len(rest)
        return real(rest, most)

    monkeypatch.setattr(piecewise, "_whole_records", counted)
    data = repacked(plain, packed, attributes=Compression.SNAPPY)
    assert list(piecewise.iterate(data)) == decode(data)
    assert looked_at < 8 * MIB


def test_records_before_damage_in_small_blocks_are_read() -> None:
    plain = batch([b"a" * 100, b"b" * 100], Compression.NONE)
    area = plain[HEADER_BYTES:]
    packed = bytearray(snappy_java(area, len(area) // 2 + 5))
    packed[-8:] = bytes(8)
    data = repacked(plain, bytes(packed), attributes=Compression.SNAPPY)
    records = piecewise.iterate(data)
    assert next(records)[3] == b"a" * 100
    with pytest.raises((CorruptMessage, InvalidRecord)):
        next(records)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_damage_is_found_at_its_record(codec: Compression) -> None:
    plain = batch([bytes(MIB // 2)] * 5, Compression.NONE)
    records = bytearray(plain[HEADER_BYTES:])
    at = 4 * (len(records) // 5)
    records[at + 4 : at + 8] = b"\xff" * 4
    data = repacked(plain, bytes(compress(codec, bytes(records))), attributes=codec)
    with pytest.raises(InvalidRecord) as caught:
        list(piecewise.iterate(data))
    with pytest.raises(InvalidRecord) as whole:
        decode(data)
    assert caught.value.fields == whole.value.fields


@pytest.mark.parametrize("codec", COMPRESSED)
def test_counts_that_are_not_so_are_refused(codec: Compression) -> None:
    data = batch([b"a"] * 3, codec)
    for count in (2, 4):
        bad = repacked(
            data, data[HEADER_BYTES:], record_count=count, last_offset_delta=max(count - 1, 2)
        )
        with pytest.raises(InvalidRecord):
            list(piecewise.iterate(bad))
    with pytest.raises((InvalidRecord, CorruptMessage)):
        list(piecewise.iterate(repacked(data, data[HEADER_BYTES:-5])))


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_time_is_looked_up_in_the_header_where_the_records_cannot_be_read(
    codec: Compression,
) -> None:
    data = batch([b"%d" % (number * number) for number in range(100)], codec)
    cut = repacked(data, data[HEADER_BYTES:-20], base_offset=7)
    assert piecewise.first_at_or_after(cut, 5, 12) == (12, 5)
    assert piecewise.first_at_or_after(cut, 5, 107) is None
    assert piecewise.largest_timestamp(cut, 12, MIB) == 5
    assert piecewise.largest_timestamp(cut, 107, MIB) == -1
    rotten = cut[:-1] + bytes([cut[-1] ^ 1])
    with pytest.raises(CorruptMessage, match="CRC"):
        piecewise.largest_timestamp(rotten, 0, MIB)
    large = batch([b"small", bytes(2 * MIB)], codec)
    assert piecewise.first_at_or_after(large, 5, 1, MIB) == (1, 5)
    assert piecewise.largest_timestamp(large, 1, MIB) == 5
