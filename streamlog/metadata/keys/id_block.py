"""Id blocks: a counter (key `i/kind`) and the owner of each block (key `b/kind/block`).

    i/kind:        version u8 = 1, blocks handed out u64
    b/kind/block:  version u8 = 1, owner tenure (node id u32, node epoch u32)

Blocks are numbered from 1; block n of objects holds ids n·2^20 to (n+1)·2^20, of streams n·2^16 to
(n+1)·2^16 (end exclusive). So no id is 0.
Changes: taking a block compares and raises the counter. An owner is immutable; it is deleted when
that tenure is retired.
Absent: counter: no block was taken yet; owner: the block is not taken, or its owner is retired.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys.space import U64, unpack

VERSION = 1
COUNTER = struct.Struct("<BQ")
OWNER = struct.Struct("<BII")


@dataclass(frozen=True, slots=True)
class IdKind:
    letter: bytes
    block_bits: int

    @property
    def name(self) -> str:
        return self.letter.decode()

    @property
    def block_ids(self) -> int:
        return 1 << self.block_bits


OBJECTS = IdKind(b"object", 20)
STREAMS = IdKind(b"stream", 16)


def counter_key(prefix: bytes, kind: IdKind) -> bytes:
    return prefix + b"i/" + kind.letter


def encode_counter(blocks: int) -> bytes:
    return COUNTER.pack(VERSION, blocks)


def decode_counter(value: bytes) -> int:
    return unpack(COUNTER, VERSION, value, "an id counter")[0]


def block_prefix(prefix: bytes, kind: IdKind) -> bytes:
    return prefix + b"b/" + kind.letter + b"/"


def block_key(prefix: bytes, kind: IdKind, block: int) -> bytes:
    return block_prefix(prefix, kind) + U64.pack(block)


def encode_owner(tenure: Tenure) -> bytes:
    return OWNER.pack(VERSION, *tenure)


def decode_owner(value: bytes) -> Tenure:
    return Tenure(*unpack(OWNER, VERSION, value, "an id block"))
