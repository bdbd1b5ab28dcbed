"""Records ↔ batches: round trips over every codec, limits, and hostile bytes."""

from __future__ import annotations

import gzip
import struct

import cramjam
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.codec import compression
from streamlog.codec.batch import BatchProducer, Compression, parse_header, resealed
from streamlog.codec.piecewise import first_at_or_after
from streamlog.codec.plain_decoder import decode_plain
from streamlog.codec.records import (
    BatchBuilder,
    decode,
    encode_values,
    iterate,
    record_bytes_max,
)
from streamlog.errors import CorruptMessage, InvalidRecord, InvalidTimestamp

CODECS = list(Compression)
NOW = 1_700_000_000_000

nullable = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=8), nullable), max_size=3)
record = st.tuples(st.integers(0, 1 << 42), nullable, nullable, headers)


@settings(deadline=None)
@given(st.lists(record, min_size=1, max_size=30), st.sampled_from(CODECS))
def test_round_trip_agrees_with_the_plain_decoder(records, codec):
    stamps, keys, values, head = (list(column) for column in zip(*records, strict=True))
    encoded = encode_values(
        values,
        timestamp_ms=0,
        keys=keys,
        timestamps_ms=stamps,
        headers=head,
        compression=codec,
        producer=BatchProducer(5, 1, 0),
    )
    expected = [(i, *record) for i, record in enumerate(records)]
    assert encoded.record_count == len(records)
    assert decode(encoded.data) == expected
    assert list(iterate(encoded.data)) == expected
    assert decode_plain(encoded.data) == expected
    assert parse_header(encoded.data).max_timestamp_ms == max(stamps)


@pytest.mark.parametrize("codec", CODECS)
def test_compression_is_in_the_header_where_it_pays(codec):
    big = encode_values([b"a" * 500] * 20, timestamp_ms=NOW, compression=codec)
    assert parse_header(big.data).codec == codec
    small = encode_values([b"q"], timestamp_ms=NOW, compression=codec)
    assert parse_header(small.data).codec == Compression.NONE
    assert len(decode(big.data)) == 20


def test_a_full_builder_says_so_and_keeps_what_it_has():
    builder = BatchBuilder(200)
    taken = 0
    while builder.append(NOW, None, b"v" * 30):
        taken += 1
    assert not builder.append(NOW, None, b"v" * 30)
    assert 0 < taken == builder.record_count
    assert builder.size_bytes <= 200
    assert len(decode(builder.build())) == taken
    alone = BatchBuilder(100)
    assert alone.append(NOW, b"k", b"v" * 1000), "a first record always goes in"
    assert not alone.append(NOW, None, b"")


def test_bulk_stops_at_the_first_record_that_does_not_fit():
    values = [b"x" * 50, b"y" * 200, b"z"]
    first = encode_values(values, timestamp_ms=NOW, size_limit_bytes=200)
    assert first.record_count == 1
    second = encode_values(values, timestamp_ms=NOW, start=1, size_limit_bytes=400)
    assert [r[3] for r in decode(second.data)] == values[1:]


def test_transactional_flag_and_size_bound():
    builder = BatchBuilder(1000)
    head: list[tuple[str, bytes | None]] = [("h", b"1")]
    builder.append(NOW, b"k", b"v", head)
    assert builder.size_bytes <= record_bytes_max(b"k", b"v", head)
    assert parse_header(builder.build(is_transactional=True)).is_transactional


def test_raw_snappy_as_librdkafka_writes_it():
    plain = encode_values([b"a" * 100] * 5, timestamp_ms=NOW).data
    packed = bytes(cramjam.snappy.compress_raw(bytes(plain[61:])))
    batch = bytearray(plain[:61]) + packed
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[22] |= Compression.SNAPPY
    assert len(decode(resealed(batch))) == 5


BOMB = bytes(3 << 20)


@pytest.mark.parametrize(
    ("codec", "packed"),
    [
        pytest.param(Compression.GZIP, gzip.compress(BOMB), id="gzip"),
        pytest.param(Compression.GZIP, gzip.compress(BOMB[: 1 << 19]) * 6, id="gzip-members"),
        pytest.param(
            Compression.SNAPPY, bytes(compression.compress(Compression.SNAPPY, BOMB)), id="snappy"
        ),
        pytest.param(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(BOMB)), id="snappy-raw"),
        pytest.param(
            Compression.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"123", id="snappy-claims-4-gib"
        ),
        pytest.param(Compression.LZ4, bytes(compression.compress(Compression.LZ4, BOMB)), id="lz4"),
        pytest.param(Compression.ZSTD, zstandard.ZstdCompressor().compress(BOMB), id="zstd"),
        pytest.param(
            Compression.ZSTD,
            zstandard.ZstdCompressor(write_content_size=False).compress(BOMB),
            id="zstd-without-size",
        ),
    ],
)
def test_bombs_are_bounded(codec, packed):
    with pytest.raises(InvalidRecord, match="expand"):
        compression.decompress(codec, packed, 1 << 20)


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("data", [b"", b"garbage", b"\0" * 40, b"\x82SNAPPY\0" + b"\0" * 30])
def test_garbage_is_corrupt_or_invalid(codec, data):
    try:
        compression.decompress(codec, data, 1 << 20)
    except (CorruptMessage, InvalidRecord):
        return
    assert codec in (Compression.GZIP, Compression.SNAPPY, Compression.ZSTD)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_cut_blocks_are_found(codec):
    whole = bytes(encode_values([b"abc" * 40] * 40, timestamp_ms=NOW, compression=codec).data)
    for cut in range(61, len(whole) - 1, 7):
        batch = bytearray(whole[:cut])
        batch[8:12] = (cut - 12).to_bytes(4, "big")
        with pytest.raises((CorruptMessage, InvalidRecord)):
            decode(resealed(batch))


def outcome(function, data):
    try:
        return function(data)
    except (CorruptMessage, InvalidRecord):
        return "refused"


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_hostile_records_with_a_valid_crc(data):
    """Both decoders refuse, or both read the same; ours checks the offsets as well."""
    values = data.draw(st.lists(nullable, min_size=1, max_size=4))
    batch = bytearray(
        encode_values(values, timestamp_ms=NOW, headers=[[("h", b"v")]] * len(values)).data
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(57, len(batch) - 1))
        batch[at] = data.draw(st.integers(0, 255))
    ours, plain = outcome(decode, resealed(batch)), outcome(decode_plain, batch)
    if plain == "refused":
        assert ours == "refused"
    elif ours != "refused":
        assert ours == [
            (o, (t + (1 << 63)) % (1 << 64) - (1 << 63), k, v, h) for o, t, k, v, h in plain
        ]


@settings(deadline=None)
@given(st.binary(min_size=0, max_size=60), st.integers(-3, 1 << 31 - 1), st.sampled_from(range(8)))
def test_noise_behind_a_valid_header(noise, count, codec):
    header = struct.pack(
        ">qiibIhiqqqhii", 0, 49 + len(noise), 0, 2, 0, codec, count - 1, 0, 0, -1, -1, -1, count
    )
    outcome(decode, resealed(bytearray(header + noise)))


def test_offsets_must_fit_the_span():
    batch = bytearray(encode_values([b"a", b"b"], timestamp_ms=NOW).data)
    batch[26] = 5
    assert [r[0] for r in decode(resealed(batch))] == [0, 1], "a cleaned batch has holes"
    batch[26] = 0
    with pytest.raises(InvalidRecord):
        decode(resealed(batch))


def test_negative_timestamps_and_wrong_types_are_refused():
    builder = BatchBuilder(1000)
    with pytest.raises(InvalidTimestamp):
        builder.append(-1, None, b"")
    with pytest.raises(InvalidTimestamp):
        builder.extend([b"", b""], timestamp_ms=0, timestamps_ms=[1, -1])
    with pytest.raises(TypeError):
        builder.append(0, None, "text")  # type: ignore[arg-type]
    assert builder.record_count == 0


def test_first_record_at_a_timestamp():
    batch = encode_values([b"a", b"b", b"c"], timestamp_ms=0, timestamps_ms=[10, 30, 20]).data
    assert first_at_or_after(batch, 5) == (0, 10)
    assert first_at_or_after(batch, 15) == (1, 30)
    assert first_at_or_after(batch, 31) is None
