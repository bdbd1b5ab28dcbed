"""An aborted transaction, as Kafka's transaction index has it (AbortedTxn): 34 bytes, big-endian.

    at  field               type  meaning
    0   version             i16   0; others are refused
    2   producer id         i64
    10  first offset        i64   of the transaction in this partition
    18  last offset         i64   of its ABORT marker
    26  last stable offset  i64   when the marker was appended: the first offset of the oldest
                                  transaction that was open then, or the offset behind the marker

Entries are in the order of their markers. Every later entry begins at or after the last stable
offset of this one, which is where a search may end.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.runtime.buffers import Buffer

VERSION = 0
ENTRY_BYTES = 34
_ENTRY = Struct(">hqqqq")


class AbortedTxn(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_aborted(entries: Iterable[AbortedTxn]) -> bytes:
    return b"".join(_ENTRY.pack(VERSION, *entry) for entry in entries)


def decode_aborted(data: Buffer) -> list[AbortedTxn]:
    """Errors: Corrupt, UnsupportedVersion."""
    if len(data) % ENTRY_BYTES:
        raise Corrupt(f"aborted transactions of {len(data)} bytes are not whole entries")
    return [_decoded(*fields) for fields in _ENTRY.iter_unpack(data)]


def _decoded(version: int, *fields: int) -> AbortedTxn:
    if version != VERSION:
        raise UnsupportedVersion(
            f"an aborted transaction has version {version}, this program knows {VERSION}; use the "
            "program that wrote it, or a newer one",
            found=version,
            supported=VERSION,
        )
    return AbortedTxn(*fields)
