"""`m/T/gen`, a move: streams that went from holder T to another tenure, as T's gen-th move.

    off  size  field
    0    1     version = 1
    1    1     kind: 1 a list, 2 ALL of T's streams (each epoch + 1; closed ones stay closed)
    2    8     new holder: node id u32, node epoch u32
    10   16    request id: tells the mover whether this is its own move
    26   4     count: streams in the list, 0 for ALL
    30   -     zstd of the columns stream id u64, new epoch u64 (absent for ALL)
    end  4     CRC-32C of everything before

Changes: immutable; deleted once a checkpoint covers it.
Absent: above the fence's gen: not written; else a checkpoint has it.

A stream of the list that T no longer holds is void; a stream moved by a list becomes OPEN.
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
"""Streams of one list: 16 bytes each before compression, far below a transaction's bound."""


@dataclass(frozen=True, slots=True)
class Move:
    """`streams` None: ALL. Epochs are the new ones."""

    to: Tenure
    request_id: bytes
    streams: Sequence[StreamEpoch] | None


def key(prefix: bytes, tenure: Tenure, gen: int) -> bytes:
    return tenure_key(prefix, b"m", tenure) + b"/" + U64.pack(gen)


def encode(move: Move) -> bytes:
    if move.streams is None:
        body = HEADER.pack(VERSION, ALL, *move.to, move.request_id, 0)
    else:
        columns = to_le(array("Q", (s for s, _ in move.streams))) + to_le(
            array("Q", (e for _, e in move.streams))
        )
        body = HEADER.pack(
            VERSION, LIST, *move.to, move.request_id, len(move.streams)
        ) + zstandard.compress(columns, 3)
    return seal(body)


def decode(value: bytes) -> Move:
    """Errors: Corrupt, UnsupportedVersion."""
    body = unseal(value, VERSION, "a move")
    if len(body) < HEADER.size:
        raise Corrupt(f"a move has {len(body)} bytes only")
    _, kind, node_id, node_epoch, request_id, count = HEADER.unpack_from(body)
    to = Tenure(node_id, node_epoch)
    if kind == ALL:
        return Move(to, request_id, None)
    if kind != LIST or count > STREAMS_MAX:
        raise Corrupt(f"a move has the unknown kind {kind} or {count} streams")
    try:
        columns = decompress_exactly(body[HEADER.size :], 16 * count)
    except ValueError as error:
        raise Corrupt(f"the list of a move of {count} streams is unreadable: {error}") from error
    ids, epochs = from_le("Q", columns[: 8 * count]), from_le("Q", columns[8 * count :])
    return Move(to, request_id, [StreamEpoch(s, e) for s, e in zip(ids, epochs, strict=True)])
