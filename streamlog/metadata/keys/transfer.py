"""The transfer record (key `m/T/gen`): streams that another tenure took from holder T, as gen-th.

    off  size  field
    0    1     version = 1
    1    1     kind: 1 a list, 2 ALL of T's streams (each epoch + 1; closed ones stay closed)
    2    8     new holder: node id u32, node epoch u32
    10   16    request id: by it a tenure knows a transfer of its own
    26   4     count: streams in the list, 0 for ALL
    30   -     zstd of the columns stream id u64, new epoch u64 (absent for ALL)
    end  4     CRC-32C of everything before

Changes: immutable; deleted once a checkpoint covers it.
Absent: not written yet (gen above the fence's), or covered by a checkpoint (any other gen).

A listed stream that T no longer holds is skipped. A stream that a list transfers becomes OPEN.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import zstandard

from streamlog.errors import Corrupt
from streamlog.format.columns import from_le, to_le
from streamlog.format.sealed import seal, unseal
from streamlog.format.zstd import decompress_exactly
from streamlog.metadata.interface import StreamEpoch, Tenure
from streamlog.metadata.keys.space import U64, tenure_key

VERSION = 1
HEADER = struct.Struct("<BBII16sI")
LIST, ALL = 1, 2
STREAMS_MAX = 60_000
"""Most streams of one list: 16 bytes each before compression, far below a transaction's limit."""


@dataclass(frozen=True, slots=True)
class TransferRecord:
    """`streams` None: ALL. The epochs are the new ones."""

    to: Tenure
    request_id: bytes
    streams: Sequence[StreamEpoch] | None


def key(prefix: bytes, tenure: Tenure, gen: int) -> bytes:
    return tenure_key(prefix, b"m", tenure) + b"/" + U64.pack(gen)


def encode(record: TransferRecord) -> bytes:
    if record.streams is None:
        body = HEADER.pack(VERSION, ALL, *record.to, record.request_id, 0)
    else:
        columns = to_le(array("Q", (s for s, _ in record.streams))) + to_le(
            array("Q", (e for _, e in record.streams))
        )
        body = HEADER.pack(
            VERSION, LIST, *record.to, record.request_id, len(record.streams)
        ) + zstandard.compress(columns, 3)
    return seal(body)


def decode(value: bytes) -> TransferRecord:
    """Errors: Corrupt, UnsupportedVersion."""
    body = unseal(value, VERSION, "a transfer record")
    if len(body) < HEADER.size:
        raise Corrupt(f"a transfer record has {len(body)} bytes only")
    _, kind, node_id, node_epoch, request_id, count = HEADER.unpack_from(body)
    to = Tenure(node_id, node_epoch)
    if kind == ALL:
        return TransferRecord(to, request_id, None)
    if kind != LIST or count > STREAMS_MAX:
        raise Corrupt(f"a transfer record has the unknown kind {kind} or {count} streams")
    try:
        columns = decompress_exactly(body[HEADER.size :], 16 * count)
    except ValueError as error:
        raise Corrupt(f"the list of {count} transferred streams is unreadable: {error}") from error
    ids, epochs = from_le("Q", columns[: 8 * count]), from_le("Q", columns[8 * count :])
    streams = [StreamEpoch(s, e) for s, e in zip(ids, epochs, strict=True)]
    return TransferRecord(to, request_id, streams)
