"""Records that take effect together, in as many entries of the meta stream as they need. Pure.

An entry is one append, whose size is bounded. What fits into one is written as one. Otherwise the
records are dealt out in order to several entries: all but the last say that more follow, all but
the first that they continue one, and a reader applies them together when it has the last. A crash
leaves a beginning without its end: the next entry does not continue it, which makes it void.

The producers of a checkpoint, of which there may be very many, follow it as records of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from streamlog.log.partition.producer_state_entry import ProducerStateEntry
from streamlog.log.shared.meta.codec import (
    ENTRY_HEAD_BYTES,
    PRODUCERS_HEAD_BYTES,
    Checkpoint,
    MetaRecord,
    Producers,
    encode_entry,
    encoded_bytes,
    producer_bytes,
)

PIECE_BYTES_MAX = 256 << 10
"""Encoding as much takes about 2 ms; other work of the node gets a turn between two pieces."""


def encoded_entries(
    records: Sequence[MetaRecord], *, is_snapshot: bool = False, bytes_max: int = PIECE_BYTES_MAX
) -> Iterator[bytes]:
    """The entries to append, in order, each encoded when it is asked for.

    Only a record that cannot be divided makes an entry of more than `bytes_max`.
    """
    room = bytes_max - ENTRY_HEAD_BYTES
    if sum(encoded_bytes(record) for record in records) <= room:
        yield encode_entry(records, is_snapshot=is_snapshot)
        return
    pieces = list(_dealt(records, room))
    for number, piece in enumerate(pieces, 1):
        yield encode_entry(
            piece,
            is_snapshot=is_snapshot,
            is_continuing=number > 1,
            is_continued=number < len(pieces),
        )


def _dealt(records: Sequence[MetaRecord], room: int) -> Iterator[list[MetaRecord]]:
    piece: list[MetaRecord] = []
    used = 0
    for record in _divided(records, room):
        size = encoded_bytes(record)
        if piece and used + size > room:
            yield piece
            piece, used = [], 0
        piece.append(record)
        used += size
    yield piece


def _divided(records: Sequence[MetaRecord], room: int) -> Iterator[MetaRecord]:
    for record in records:
        if not isinstance(record, Checkpoint):
            yield record
            continue
        yield replace(record, producers=())
        part: list[ProducerStateEntry] = []
        used = PRODUCERS_HEAD_BYTES
        for producer in record.producers:
            size = producer_bytes(producer)
            if part and used + size > room:
                yield Producers(tuple(part))
                part, used = [], PRODUCERS_HEAD_BYTES
            part.append(producer)
            used += size
        if part:
            yield Producers(tuple(part))
