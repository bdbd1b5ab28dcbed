"""Builds an object file out of sorted entries, passing their payloads through untouched.

1. Entries of one stream that meet are cut into blocks of about `block_target_bytes`.
2. Each block's CRC is combined from the payload CRCs that the entries already carry.
3. Index region, footer and trailer follow; layout in header.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from streamlog.codec.crc import crc32c
from streamlog.errors import Internal
from streamlog.format.entry import StreamEntry
from streamlog.format.object.block import BlockCompression, encode_block
from streamlog.format.object.footer import ObjectIdentity, encode_footer
from streamlog.format.object.header import (
    HEADER_BYTES,
    STAGED_VERSION,
    VERSION,
    encode_header,
)
from streamlog.format.object.index import encode_attributes, encode_region, encode_row
from streamlog.format.rows import ObjectRow, RangeRow
from streamlog.model.batch import ATTRIBUTES_BYTES_MAX
from streamlog.runtime.buffers import Buffer, parts_size


@dataclass(frozen=True, slots=True)
class BuiltObject:
    """`parts` joined are the object's `size_bytes` bytes; `ranges` by (stream id, start)."""

    parts: list[Buffer]
    size_bytes: int
    row: ObjectRow
    ranges: list[RangeRow]


def build_object(
    identity: ObjectIdentity,
    entries: Sequence[StreamEntry],
    *,
    compression: str = "none",
    block_target_bytes: int = 512 * 1024,
    is_staged: bool = False,
) -> BuiltObject:
    """The object that holds `entries`, which are sorted by (stream id, base offset).

    `is_staged`: each stream's offsets begin at 0.

    `compression` "zstd" compresses the blocks where it pays. Burns CPU then; otherwise the cost is
    per entry. Errors: Internal for entries out of order or without records, MessageTooLarge.
    """
    wanted = BlockCompression.ZSTD if compression == "zstd" else BlockCompression.NONE
    version = STAGED_VERSION if is_staged else VERSION
    parts: list[Buffer] = [encode_header(version)]
    rows: list[bytes] = []
    runs: list[bytes] = []
    position, runs_bytes = HEADER_BYTES, 0
    sizes = [parts_size(entry.parts) for entry in entries]
    for first, last in _blocks(entries, sizes, block_target_bytes):
        members = entries[first:last]
        block = encode_block(members, sizes[first:last], wanted)
        run = encode_attributes(members)
        rows.append(
            encode_row(
                members[0].stream_id,
                members[0].base_offset,
                members[-1].end_offset,
                position,
                block.size_bytes,
                block.crc32c,
                len(members),
                runs_bytes,
                block.compression,
            )
        )
        parts += block.parts
        runs.append(run)
        position += block.size_bytes
        runs_bytes += len(run)
    region = encode_region(rows, runs, version)
    region_crc = crc32c(region)
    ranges = _ranges(entries)
    tail = encode_footer(
        identity,
        ranges,
        index_position=position,
        index_length=len(region),
        index_crc32c=region_crc,
        version=version,
    )
    parts += (region, tail)
    size_bytes = position + len(region) + len(tail)
    row = ObjectRow(identity.object_id, size_bytes, position, len(region), region_crc)
    return BuiltObject(parts, size_bytes, row, ranges)


def _blocks(
    entries: Sequence[StreamEntry], sizes: Sequence[int], target_bytes: int
) -> list[tuple[int, int]]:
    """Runs [first, last) of entries that share a block: one stream, no gap, size in bounds."""
    blocks: list[tuple[int, int]] = []
    first, filled = 0, 0
    stream_id, end = -1, 0
    for number, (entry, size) in enumerate(zip(entries, sizes, strict=True)):
        if entry.record_count < 1 or len(entry.attributes) > ATTRIBUTES_BYTES_MAX:
            raise Internal(f"impossible entry for an object: {_place(entry)}")
        if entry.stream_id < stream_id or (
            entry.stream_id == stream_id and entry.base_offset < end
        ):
            raise Internal(f"entries for an object are not in order at {_place(entry)}")
        if number > first and (
            entry.stream_id != stream_id or entry.base_offset != end or filled + size > target_bytes
        ):
            blocks.append((first, number))
            first, filled = number, 0
        filled += size
        stream_id, end = entry.stream_id, entry.base_offset + entry.record_count
    if entries:
        blocks.append((first, len(entries)))
    return blocks


def _ranges(entries: Sequence[StreamEntry]) -> list[RangeRow]:
    """Entries that meet under one epoch, merged."""
    ranges: list[RangeRow] = []
    stream_id = epoch = start = end = -1
    for entry in entries:
        if entry.stream_id != stream_id or entry.base_offset != end or entry.epoch != epoch:
            if start >= 0:
                ranges.append(RangeRow(stream_id, epoch, start, end))
            stream_id, epoch, start = entry.stream_id, entry.epoch, entry.base_offset
        end = entry.base_offset + entry.record_count
    if start >= 0:
        ranges.append(RangeRow(stream_id, epoch, start, end))
    return ranges


def _place(entry: StreamEntry) -> str:
    return (
        f"stream {entry.stream_id}, offset {entry.base_offset}, {entry.record_count} records, "
        f"{len(entry.attributes)} bytes of attributes"
    )
