"""Records that take effect together, in as many entries of the meta stream as they need. Pure.

An entry is one append, whose size is bounded. Records that do not fit into one entry are dealt out
to several, in order: each except the last is marked as continued, each except the first as
continuing, and a reader applies them together when it has the last. After a crash in between, the
next entry does not continue the group, which makes the group void.

A checkpoint may have very many producers, which follow it as records of their own then. What it has
of transactions always does: a log without any has the bytes that it always had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from streamlog.log.partition.producer_state_entry import ProducerStateEntry
from streamlog.log.shared.meta.codec import (
    ENTRY_HEAD_BYTES,
    NO_TXN_ENTRIES,
    PRODUCERS_HEAD_BYTES,
    TRANSACTIONS_HEAD_BYTES,
    Checkpoint,
    MetaRecord,
    Producers,
    TransactionalProducers,
    encode_entry,
    encoded_bytes,
    producer_bytes,
    transaction_bytes,
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
    records = [part for record in records for part in _with_transactions(record)]
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


def _with_transactions(record: MetaRecord) -> Iterator[MetaRecord]:
    """A checkpoint, and behind it what it has of transactions; any other record as it is."""
    if not isinstance(record, Checkpoint):
        yield record
        return
    others = [producer for producer in record.producers if producer.has_transactions]
    if not others and record.txn_stream_end == NO_TXN_ENTRIES:
        yield record
        return
    plain = [producer for producer in record.producers if not producer.has_transactions]
    yield replace(record, producers=tuple(plain), txn_stream_end=NO_TXN_ENTRIES)
    yield TransactionalProducers(record.txn_stream_end, tuple(others))


def _divided(records: Sequence[MetaRecord], room: int) -> Iterator[MetaRecord]:
    for record in records:
        if isinstance(record, Checkpoint):
            yield replace(record, producers=())
            head_bytes = PRODUCERS_HEAD_BYTES
            for part in _parts(record.producers, producer_bytes, head_bytes, room):
                yield Producers(part)
        elif isinstance(record, TransactionalProducers):
            yield replace(record, producers=())
            head_bytes = TRANSACTIONS_HEAD_BYTES
            for part in _parts(record.producers, transaction_bytes, head_bytes, room):
                yield replace(record, producers=part)
        else:
            yield record


def _parts(
    producers: Sequence[ProducerStateEntry],
    size_of: Callable[[ProducerStateEntry], int],
    head_bytes: int,
    room: int,
) -> Iterator[tuple[ProducerStateEntry, ...]]:
    """The producers in order, as many at a time as there is room for; at least one."""
    part: list[ProducerStateEntry] = []
    used = head_bytes
    for producer in producers:
        size = size_of(producer)
        if part and used + size > room:
            yield tuple(part)
            part, used = [], head_bytes
        part.append(producer)
        used += size
    if part:
        yield tuple(part)
