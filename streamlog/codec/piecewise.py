"""The records of one batch, decompressed piece by piece as they are asked for.

A batch of some KiB may expand to 100 MiB. Whoever wants its first records, or is to bound its
memory, must not have all of it first:

1. The codec gives pieces of `PIECE_BYTES`; records that end in a piece are read from it, and the
   beginning of the next record waits for the next piece. Memory: one piece, and one record, which
   is bounded by `record_bytes_max`. Smaller pieces (snappy-java's blocks may expand to a byte each)
   are joined first, because the beginning of a record is copied with each piece.
2. gzip, zstd and snappy-java's blocks come in pieces. A raw snappy block and an LZ4 frame come as
   one, of `record_bytes_max` at most.
3. What is not compressed is there already and comes as one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import zstandard

from streamlog.codec import compression
from streamlog.codec.batch import HEADER_BYTES, Compression, parse_header, scan
from streamlog.codec.pure.records import Record, varint
from streamlog.codec.records import RecordReader
from streamlog.errors import CorruptMessage, InvalidRecord, StreamlogError
from streamlog.runtime.buffers import Buffer

PIECE_BYTES = 1 << 20
DEFAULT_RECORD_BYTES_MAX = 32 << 20


def iterate(batch: Buffer, record_bytes_max: int = DEFAULT_RECORD_BYTES_MAX) -> Iterator[Record]:
    """The records of exactly one batch, in order; the CRC is not checked.

    Errors: CorruptMessage, InvalidRecord (`max_bytes`: a record, or a block that cannot be read in
    pieces, is larger than `record_bytes_max`, or the whole batch than DECOMPRESSED_BYTES_MAX).
    """
    before = read = 0
    try:
        for reader in _readers(batch, record_bytes_max):
            before += read
            read = 0
            for read, record in enumerate(reader, 1):  # noqa: B007 - looked at after a fault
                yield record
    except InvalidRecord as error:
        index = error.fields.get("record_index")
        if not before or not isinstance(index, int) or "max_bytes" in error.fields:
            raise
        # A reader counts from the first record of its piece.
        raise InvalidRecord(
            f"record {before + index} of the batch cannot be parsed ({error})",
            record_index=before + index,
        ) from error


def _readers(batch: Buffer, record_bytes_max: int) -> Iterator[RecordReader]:
    batches = scan(batch, verify_crc=False)
    if len(batches) != 1:
        raise CorruptMessage(f"one record batch was expected, but {len(batches)} are there")
    header, view = batches[0]
    records = view[HEADER_BYTES:]
    if header.codec == Compression.NONE:
        yield RecordReader(header, records, header.base_offset)
        return
    left, rest = header.record_count, b""
    for piece in decompressed(header.codec, records, record_bytes_max):
        rest += piece
        count, end, next_bytes = _whole_records(rest, left)
        if count:
            counted = header._replace(record_count=count)
            yield RecordReader(counted, memoryview(rest)[:end], header.base_offset)
            left -= count
            rest = rest[end:]
        # A record begins with its length: a too large one is refused before it is decompressed.
        if left and max(next_bytes, len(rest)) > record_bytes_max:
            raise too_large(header.record_count - left, record_bytes_max)
    if left or rest:
        raise InvalidRecord(
            f"the record batch says {header.record_count} records: {left} of them are not there, "
            f"and {len(rest)} bytes are left"
        )


def _whole_records(data: bytes, most: int) -> tuple[int, int, int]:
    """Number of whole records in `data`, at most `most`; their end; size of the next record.

    The size is 0 where `data` does not have it.
    """
    count = position = next_bytes = 0
    size = len(data)
    try:
        while count < most:
            length, start = varint(data, position)
            # The reader gets the rest, and refuses an impossible length.
            if length < 0:
                return count + 1, size, 0
            if start + length > size:
                next_bytes = length
                break
            position = start + length
            count += 1
    except IndexError:
        pass
    except ValueError:
        return count + 1, size, 0
    return count, position, next_bytes


def too_large(index: int, record_bytes_max: int) -> InvalidRecord:
    return InvalidRecord(
        f"record {index} of the batch takes more than {record_bytes_max} bytes when it is "
        "decompressed, which the node does not decode; fetch record batches instead",
        record_index=index,
        max_bytes=record_bytes_max,
    )


def decompressed(codec: int, data: Buffer, whole_bytes_max: int) -> Iterator[bytes]:
    """`data` decompressed, in pieces; at most DECOMPRESSED_BYTES_MAX in all.

    `whole_bytes_max` bounds a block that the codec decompresses at once. Errors: those of
    compression.decompress.
    """
    room = compression.DECOMPRESSED_BYTES_MAX
    small = bytearray()
    fault: StreamlogError | None = None
    try:
        for piece in _pieces(codec, data, min(whole_bytes_max, room)):
            room -= len(piece)
            if room < 0:
                raise compression.too_large(compression.DECOMPRESSED_BYTES_MAX)
            if not small and len(piece) >= PIECE_BYTES:
                yield piece
                continue
            small += piece
            if len(small) >= PIECE_BYTES:
                yield bytes(small)
                small = bytearray()
    except StreamlogError as error:
        fault = error
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        fault = compression.not_of(codec, error)
        fault.__cause__ = error
    # What comes before a fault is handed out first: its records can be read.
    if small:
        yield bytes(small)
    if fault is not None:
        raise fault


def _pieces(codec: int, data: Buffer, whole_bytes_max: int) -> Iterator[bytes]:
    if codec == Compression.GZIP:
        return _gzip(data)
    if codec == Compression.ZSTD:
        return _zstd(data)
    if codec == Compression.SNAPPY:
        return compression.snappy_blocks(data, whole_bytes_max)
    return iter((bytes(compression.decompress(codec, data, whole_bytes_max)),))


def _gzip(data: Buffer) -> Iterator[bytes]:
    rest: Buffer = data
    for _ in range(compression.GZIP_MEMBERS_MAX):
        if not len(rest):
            return
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            piece = member.decompress(rest, PIECE_BYTES)
            rest = member.unconsumed_tail
            if not piece and not len(rest) and not member.eof:
                raise EOFError("the block was cut short")
            yield piece
        rest = member.unused_data
    if len(rest):
        raise EOFError(f"it has more than {compression.GZIP_MEMBERS_MAX} members")


def _zstd(data: Buffer) -> Iterator[bytes]:
    reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
    while piece := reader.read(PIECE_BYTES):
        yield piece


def first_at_or_after(
    batch: Buffer,
    timestamp_ms: int,
    start_offset: int = 0,
    record_bytes_max: int = DEFAULT_RECORD_BYTES_MAX,
) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record from start_offset on with that timestamp or a later.

    A batch that its producer damaged, or that has a record above the bound, is answered for by its
    header, as one with log-append time is: whoever reads from there meets the damage itself, and
    misses no record that can be read. Errors: CorruptMessage (the checksum is wrong).
    """
    header = parse_header(batch)
    if not header.is_log_append_time:
        try:
            for offset, stamp, _key, _value, _headers in iterate(batch, record_bytes_max):
                if stamp >= timestamp_ms and offset >= start_offset:
                    return offset, stamp
            return None
        except (CorruptMessage, InvalidRecord):
            # Compressed records are stored unseen; where the checksum holds, they came as they are.
            scan(batch)
    stamp, offset = header.max_timestamp_ms, max(header.base_offset, start_offset)
    is_in = stamp >= timestamp_ms and offset <= header.last_offset
    return (offset, stamp) if is_in else None


def largest_timestamp(batch: Buffer, start_offset: int, record_bytes_max: int) -> int:
    """The largest timestamp from start_offset on; -1: none.

    By the header, and with errors, as `first_at_or_after`.
    """
    header = parse_header(batch)
    if not header.is_log_append_time:
        try:
            return max(
                (
                    stamp
                    for offset, stamp, _key, _value, _headers in iterate(batch, record_bytes_max)
                    if offset >= start_offset
                ),
                default=-1,
            )
        except (CorruptMessage, InvalidRecord):
            # Compressed records are stored unseen; where the checksum holds, they came as they are.
            scan(batch)
    return header.max_timestamp_ms if start_offset <= header.last_offset else -1
