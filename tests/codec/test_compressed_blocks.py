"""Compressed records that are cut short are found by their blocks' sizes, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import cramjam
import pytest
import zstandard

from streamlog.codec.batch import HEADER_BYTES, Compression, scan
from streamlog.codec.compressed_blocks import BLOCKS_MAX, is_cut
from streamlog.codec.compression import compress, decompress
from streamlog.errors import StreamlogError

GOLDEN = Path(__file__).parents[1] / "golden/kafka"
FRAMED = (Compression.LZ4, Compression.ZSTD)
"""Those whose last block says that it is the last."""


def _data(size: int) -> bytes:
    """Some of it can be compressed, some cannot, and some is one byte again and again."""
    rng = random.Random(size)
    return (rng.randbytes(size // 3) + b"words " * (size // 18) + bytes(size))[:size]


def _whole(codec: Compression) -> Iterator[bytes]:
    for size in (0, 1, 100, 5_000, 70_000, 700_000):
        yield bytes(compress(codec, _data(size)))
    if codec is Compression.LZ4:
        for linked in (True, False):
            for checksum in (True, False):
                frame = cramjam.lz4.Compressor(content_checksum=checksum, block_linked=linked)
                frame.compress(_data(200_000))
                yield bytes(frame.finish())
    if codec is Compression.ZSTD:
        yield from _zstd_frames()


def _zstd_frames() -> Iterator[bytes]:
    for has_size in (True, False):
        for has_checksum in (True, False):
            one = zstandard.ZstdCompressor(
                level=1, write_content_size=has_size, write_checksum=has_checksum
            )
            yield one.compress(_data(400_000))
            yield one.compress(bytes(400_000))
            stream = one.compressobj()
            pieces = [stream.compress(_data(1000)), stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]
            yield b"".join((*pieces, stream.compress(b"x" * 5000), stream.flush()))


def _several_zstd_frames() -> list[bytes]:
    skippable = (0x184D2A53).to_bytes(4, "little") + (5).to_bytes(4, "little") + b"notes"
    frame = bytes(compress(Compression.ZSTD, _data(90)))
    return [frame + frame, skippable + frame + skippable]


@pytest.mark.parametrize("codec", list(Compression))
def test_what_is_whole_is_never_taken_for_cut(codec: Compression) -> None:
    found = list(_whole(codec))
    assert len(found) >= 6
    if codec is Compression.ZSTD:
        found += _several_zstd_frames()
    for data in found:
        decompress(codec, data)
        assert not is_cut(codec, memoryview(data))


@pytest.mark.parametrize("codec", FRAMED)
def test_each_cut_of_a_frame_is_found(codec: Compression) -> None:
    for data in _whole(codec):
        for size in {*range(1, min(len(data), 300)), *range(max(1, len(data) - 300), len(data))}:
            assert is_cut(codec, memoryview(data)[:size]), (size, len(data))


def test_a_cut_behind_a_whole_zstd_frame_is_found() -> None:
    for data in _several_zstd_frames():
        for size in (len(data) - 1, len(data) - 6, len(data) - 12):
            assert is_cut(Compression.ZSTD, memoryview(data)[:size])


def test_snappy_is_cut_where_a_block_is() -> None:
    data = bytes(compress(Compression.SNAPPY, _data(100_000)))
    for size in range(17, len(data)):
        is_found = is_cut(Compression.SNAPPY, memoryview(data)[:size])
        try:
            decompress(Compression.SNAPPY, data[:size])
        except StreamlogError:
            assert is_found
        else:
            assert not is_found


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.log")), ids=lambda path: path.stem)
def test_what_kafkas_clients_wrote_is_whole(path: Path) -> None:
    batches = scan(path.read_bytes())
    assert batches
    for header, view in batches:
        records = view[HEADER_BYTES:]
        assert not is_cut(header.codec, records)
        if header.codec in FRAMED:
            assert is_cut(header.codec, records[:-1])


@pytest.mark.parametrize("codec", list(Compression)[1:])
def test_bytes_of_any_kind_are_judged(codec: Compression) -> None:
    """And what is taken for cut cannot be decompressed to its end."""
    rng = random.Random(5)
    whole = bytes(compress(codec, _data(3_000)))
    for _ in range(3_000):
        data = bytearray(whole[: rng.randrange(4, len(whole) + 1)])
        for _ in range(rng.randrange(3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if is_cut(codec, memoryview(data)):
            assert not _ends_well(codec, bytes(data))


def _ends_well(codec: Compression, data: bytes) -> bool:
    try:
        if codec is not Compression.ZSTD:
            decompress(codec, data)
            return True
        frame = zstandard.ZstdDecompressor().decompressobj()
        frame.decompress(data)
        return frame.eof and not frame.unused_data
    except (StreamlogError, zstandard.ZstdError):
        return False


def test_behind_many_blocks_the_rest_is_taken_on_trust() -> None:
    """So that a frame of a million tiny blocks costs no more than one of some hundred."""
    lz4 = bytes(compress(Compression.LZ4, b""))[:7] + b"\x01\0\0\x80xcrc0" * BLOCKS_MAX
    zstd = b"\x28\xb5\x2f\xfd\x00\x58" + b"\x08\0\0x" * BLOCKS_MAX
    snappy = bytes(compress(Compression.SNAPPY, b"")) + b"\0\0\0\1x" * BLOCKS_MAX + b"\0\0\0\x09"
    for codec, data, block in (
        (Compression.LZ4, lz4, 9),
        (Compression.ZSTD, zstd, 4),
        (Compression.SNAPPY, snappy, 9),
    ):
        assert not is_cut(codec, memoryview(data))
        if codec is not Compression.SNAPPY:
            assert is_cut(codec, memoryview(data)[:-block])
    assert is_cut(Compression.SNAPPY, memoryview(snappy[:16] + snappy[-4:]))
    assert not is_cut(Compression.SNAPPY, memoryview(snappy[:26] + snappy[:26]))
