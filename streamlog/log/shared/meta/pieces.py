"""Records that take effect together, in as many entries of the meta stream as they need. Pure.

An entry is one append, whose size is bounded. Records that do not fit into one entry are dealt out
to several, in order: each except the last is marked as continued, each except the first as
continuing, and a reader applies them together when it has the last. After a crash in between, the
next entry does not continue the group, which makes the group void.

A checkpoint may have very many producers, which follow it as records of their own then.
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
"""Encoding so many bytes takes about 2 ms; other tasks get a turn between two pieces."""


def encoded_entries(
    records: Sequence[MetaRecord], *, is_snapshot: bool = False, bytes_max: int = PIECE_BYTES_MAX
) -> Iterator[bytes]:
    """Yields the entries to append, in order; each is encoded when it is taken.

    Only a record that cannot be divided makes an entry larger than `bytes_max`.
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
