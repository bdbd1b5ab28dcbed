"""RocksDB's log files, to tell a torn end from other damage. Pure.

A file is a row of 32 KiB blocks; a write batch is one record, cut into fragments so that none
crosses a block. A fragment (little endian):

    0   CRC-32C, masked   u32    of type and content
    4   length            u16    of the content
    6   type              u8     1 whole, 2 first, 3 middle, 4 last
    7   content

A block's last bytes are zeros if no header fits. After a power cut during the sync of the last
record, some of its pages may be missing: they read as zeros, or the file ends before them. RocksDB
accepts a file that is cut short, and refuses most other damage.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple, cast

from awscrt import checksums

BLOCK_BYTES = 32768
SECTOR_BYTES = 512
_HEADER = Struct("<IHB")
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_MASK_DELTA = 0xA282EAD8
_FULL_32 = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class RocksLogEnd:
    """The file has `records` whole records, up to byte `end`.

    `why_kept`: why the bytes behind `end` may be more than one record that was never synced; empty:
    they are such a record. Without such bytes the file ends at `end`.
    """

    records: int
    end: int
    why_kept: str = ""


class _Fragment(NamedTuple):
    kind: int
    end: int


def read_end(data: bytes) -> RocksLogEnd:
    """Finds the first byte that belongs to no whole record, and judges what follows."""
    records, start = _whole_records(data)
    tail = memoryview(data)[start:]
    if not any(tail):
        # Bytes that were allocated and never written: RocksDB takes them for the end.
        return RocksLogEnd(records, len(data))
    return RocksLogEnd(records, start, _why_kept(data, start))


def _whole_records(data: bytes) -> tuple[int, int]:
    """The number of whole records from the start on, and where the last of them ends."""
    records = position = end = 0
    is_inside = False
    while position + _HEADER.size <= len(data):
        if _block_left(position) < _HEADER.size:
            position += _block_left(position)
            continue
        fragment = _fragment(data, position)
        if fragment is None or (fragment.kind in (_MIDDLE, _LAST)) != is_inside:
            break
        position = fragment.end
        is_inside = fragment.kind in (_FIRST, _MIDDLE)
        if not is_inside:
            records, end = records + 1, position
    if 0 < _block_left(end) < _HEADER.size:
        end = min(end + _block_left(end), len(data))
    return records, end


def _why_kept(data: bytes, start: int) -> str:
    """Why the bytes from `start` on may be more than one record that was never synced.

    A record is written only after the one before it was synced. So a fragment of any later record
    shows that the damaged one was: the fragments of one record begin at its start and at the blocks
    that follow, and none comes behind its last one.
    """
    for position in range(start, len(data) - _HEADER.size + 1):
        if _block_left(position) < _HEADER.size or not _WHOLE <= data[position + 6] <= _LAST:
            continue
        is_place = position == start or position % BLOCK_BYTES == 0
        fragment = _fragment(data, position)
        if fragment is not None:
            is_beginning = fragment.kind in (_WHOLE, _FIRST)
            if not is_place or (is_beginning and position != start):
                return f"a later record is at byte {position}"
        if is_place:
            # A header alone tells where its record ends, too.
            _, length, kind = _HEADER.unpack_from(data, position)
            end = position + _HEADER.size + length
            if kind in (_WHOLE, _LAST) and any(memoryview(data)[end:]):
                return f"there is more behind its end at byte {end}"
    if not _is_cut_short(data, start) and not _has_missing_page(data, start):
        return "its bytes are changed, none are missing, as a power cut would leave them"
    return ""


def _is_cut_short(data: bytes, start: int) -> bool:
    """Whether the file ends within a fragment of the record."""
    position = start
    while position + _HEADER.size <= len(data):
        fragment = _fragment(data, position)
        if fragment is None:
            length: int
            kind: int
            _, length, kind = _HEADER.unpack_from(data, position)
            end = position + _HEADER.size + length
            fits = end <= (position // BLOCK_BYTES + 1) * BLOCK_BYTES
            return _WHOLE <= kind <= _LAST and fits and end > len(data)
        position = fragment.end
    return True


def _has_missing_page(data: bytes, start: int) -> bool:
    """Whether a sector of the record is all zeros, because it was never written."""
    position = start
    while position < len(data):
        end = min((position // SECTOR_BYTES + 1) * SECTOR_BYTES, len(data))
        if not any(memoryview(data)[position:end]):
            return True
        position = end
    return False


def _fragment(data: bytes, position: int) -> _Fragment | None:
    """The fragment at `position`; None if its CRC is wrong."""
    crc, length, kind = _HEADER.unpack_from(data, position)
    end = position + _HEADER.size + length
    if not _WHOLE <= kind <= _LAST or end > len(data):
        return None
    if end > (position // BLOCK_BYTES + 1) * BLOCK_BYTES:
        return None
    actual = cast(int, checksums.crc32c(data[position + 6 : end]))
    masked = (((actual >> 15) | (actual << 17)) + _MASK_DELTA) & _FULL_32
    return _Fragment(kind, end) if masked == crc else None


def _block_left(position: int) -> int:
    return BLOCK_BYTES - position % BLOCK_BYTES
