"""Bytes that once did harm, or would: each with what it was. All must be refused."""

from __future__ import annotations

import gzip
import struct
from array import array

import zstandard

from streamlog.codec.batch import HEADER_BYTES, Compression, resealed
from streamlog.codec.crc import crc32c
from streamlog.format.checkpoint.tail import TAIL
from streamlog.format.object import index as object_index
from streamlog.format.records import commit as commit_record
from streamlog.format.records import compaction as compaction_record
from streamlog.format.records.body import BODY_BYTES_MAX, ZSTD
from streamlog.format.sealed import seal
from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys import transfer
from tests.fuzz.codec_parsers import BATCHES
from tests.fuzz.format_parsers import WAL_FILE, mend_frame

HUGE = 1 << 40


def _frame_stating(size: int) -> bytes:
    """A zstd frame of a few bytes that states `size`."""
    magic, single_segment_u64 = zstandard.compress(b"")[:4], b"\xe0"
    return magic + single_segment_u64 + struct.pack("<Q", size) + b"\x01\x00\x00"


def _bomb(size: int) -> bytes:
    return zstandard.compress(bytes(size), 19)


def _move(columns: bytes, count: int) -> bytes:
    head = transfer.HEADER.pack(1, transfer.LIST, *Tenure(1, 1), bytes(16), count)
    return seal(head + columns)


def _commit(body: bytes, size: int, flags: int = ZSTD) -> bytes:
    return seal(commit_record.HEADER.pack(1, commit_record.COMMIT, flags, 0, size, 0, 0) + body)


def _compaction(body: bytes, size: int) -> bytes:
    kind = commit_record.COMPACTION
    return seal(compaction_record.HEADER.pack(1, kind, ZSTD, 0, size, 0, 1) + body)


def _tail(state: bytes, size: int) -> bytes:
    columns = array("Q", [8, 8]).tobytes()
    return seal(TAIL.pack(1, 0, 0, 0, 0, size, len(state)) + columns + state)


def _empty_entries() -> bytes:
    """A record of four million entries of one byte each, in a few hundred bytes."""
    size = BODY_BYTES_MAX
    body = struct.pack("<I", size - 4) + bytes(size - 4)
    return _commit(zstandard.compress(body), size)


def _batch(codec: Compression, records: bytes, count: int) -> bytes:
    header = bytearray(BATCHES[0][:HEADER_BYTES])
    header[8:12] = (HEADER_BYTES + len(records) - 12).to_bytes(4, "big")
    header[21:23] = int(codec).to_bytes(2, "big")
    header[23:27] = (count - 1).to_bytes(4, "big")
    header[57:61] = count.to_bytes(4, "big")
    return bytes(resealed(header + records))


def _shared_runs() -> bytes:
    """Index rows that all point to one attributes run: rows × batches of work."""
    run = struct.pack("<IqB", 1, 0, 0) * 60
    rows = [
        object_index.encode_row(5, 60 * i, 60 * (i + 1), 16, 32 + 29 * 60, 0, 60, 0, 0)
        for i in range(60)
    ]
    return object_index.encode_region(rows, [run])


def _endless_file() -> bytes:
    """A superblock that states 2^62 bytes, in a file of four pages."""
    changed = bytearray(WAL_FILE)
    changed[60:68] = (1 << 62).to_bytes(8, "little")
    changed[68:72] = crc32c(bytes(changed[:68])).to_bytes(4, "little")
    return bytes(changed)


def _frame_too_long() -> bytes:
    """A frame header that states 2^63 payload bytes."""
    frame = bytearray(WAL_FILE[4096:8192].rstrip(b"\0"))
    frame[56:64] = (1 << 63).to_bytes(8, "little")
    return mend_frame(bytes(frame))


_COUNTS = {
    "two-thousand-million-records": _batch(Compression.NONE, b"", (1 << 31) - 1),
    # A number of headers of 2^62, and none there.
    "headers-without-end": _batch(
        Compression.NONE, b"\x1e\x00\x00\x00\x01\x01" + b"\x80" * 8 + b"\x80\x01", 1
    ),
}
REFUSED: dict[str, dict[str, bytes]] = {
    "key_move": {
        "states-a-tebibyte": _move(_frame_stating(HUGE), 2),
        "bomb": _move(_bomb(8 << 20), 2),
    },
    "commit_record": {
        "states-a-tebibyte": _commit(_frame_stating(HUGE), 300),
        "bomb": _commit(_bomb(16 << 20), 300),
        "empty-entries": _empty_entries(),
        "entries-without-bytes": _commit(struct.pack("<I", (1 << 32) - 1), 4, 0),
    },
    "compaction_record": {
        "states-a-tebibyte": _compaction(_frame_stating(HUGE), 300),
        "bomb": _compaction(_bomb(16 << 20), 300),
    },
    "checkpoint_tail": {
        "states-a-tebibyte": _tail(_frame_stating(HUGE), 300),
        "state-of-a-gibibyte": _tail(_frame_stating(1 << 30), 1 << 30),
        "bomb": _tail(_bomb(8 << 20), 300),
    },
    "checkpoint_ranges": {"zeros": bytes(4)},
    "decompress_zstd": {
        "states-a-tebibyte": _frame_stating(HUGE),
        "bomb": _bomb(32 << 20),
    },
    "decompress_gzip": {
        "many-members": gzip.compress(b"", mtime=0) * 200,
        "bomb": gzip.compress(bytes(4 << 20), mtime=0),
    },
    "decompress_snappy": {
        "states-four-gibibytes": b"\xff\xff\xff\xff\x0f\x00",
        "block-past-the-end": b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\x7f\xff\xff\xff",
        "header-cut-short": b"\x82SNAPPY\x00\x00\x00",
    },
    "columns": _COUNTS,
    "columns_pure": _COUNTS,
    "batch_decode": {
        **_COUNTS,
        "zstd-bomb": _batch(Compression.ZSTD, _bomb(8 << 20), 1),
    },
    "object_attributes": {"shared-runs": _shared_runs()},
    "key": {"short": b"\x00" * 3},
    "key_pin": {"version-0": b"\x00" + bytes(8)},
    "wal_frame": {"payload-of-2-63": _frame_too_long()},
}
READ: dict[str, dict[str, bytes]] = {
    "key_checkpoint_file": {
        "five-thousand-digits": b"checkpoint/" + b"9" * 5000 + b".1/1",
        "other-digits": "checkpoint/٣.1/1".encode(),
    },
    "wal_file": {"endless": _endless_file()},
}
"""Those that a parser may read as something harmless, in bounds."""
