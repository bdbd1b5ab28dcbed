"""Record batches decoded in plain Python, straight from the format's text.

It shares only the header and the decompressors with `records`, so that tests can compare both.
"""

from __future__ import annotations

from streamlog.codec.batch import HEADER_BYTES, scan
from streamlog.codec.compression import decompress
from streamlog.errors import CorruptMessage, InvalidRecord
from streamlog.runtime.buffers import Buffer

Header = tuple[str, bytes | None]


class _Reader:
    """Bytes with a position; every read is checked against the end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, count: int) -> bytes:
        end = self.position + count
        if count < 0 or end > len(self.data):
            raise InvalidRecord(f"{count} bytes wanted at byte {self.position}, fewer are there")
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def varint(self) -> int:
        """Zigzag, little-endian groups of seven bits, at most ten bytes."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                value &= (1 << 64) - 1
                return (value >> 1) ^ -(value & 1)
        raise InvalidRecord(f"a variable-length integer before byte {self.position} does not end")

    def nullable(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)


def decode_plain(
    batch: Buffer,
) -> list[tuple[int, int, bytes | None, bytes | None, list[Header]]]:
    """The records of exactly one batch. Errors: CorruptMessage, InvalidRecord."""
    batches = scan(batch)
    if len(batches) != 1:
        raise CorruptMessage(f"one record batch was expected, but {len(batches)} are there")
    header, view = batches[0]
    reader = _Reader(bytes(decompress(header.codec, view[HEADER_BYTES:])))
    records = []
    for _ in range(header.record_count):
        size = reader.varint()
        start = reader.position
        reader.varint()  # attributes of a record: one byte in the format, a varint to some parsers
        stamp = header.base_timestamp_ms + reader.varint()
        if header.is_log_append_time:
            stamp = header.max_timestamp_ms
        offset = header.base_offset + reader.varint()
        key, value = reader.nullable(), reader.nullable()
        count = reader.varint()
        if count < 0:
            raise InvalidRecord(f"{count} headers")
        headers = [_header(reader) for _ in range(count)]
        if reader.position - start != size:
            raise InvalidRecord(f"a record of {size} bytes has {reader.position - start}")
        records.append((offset, stamp, key, value, headers))
    if reader.position != len(reader.data):
        raise InvalidRecord(f"{len(reader.data) - reader.position} bytes behind the last record")
    return records


def _header(reader: _Reader) -> Header:
    size = reader.varint()
    try:
        name = reader.take(size).decode()
    except UnicodeDecodeError as error:
        raise InvalidRecord(f"a header's name is not UTF-8: {error}") from error
    return name, reader.nullable()
