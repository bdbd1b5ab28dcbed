"""Bytes of staged writes: their entries in a commit record, and their rows in a checkpoint.

    stage     object id u64, size u64, index position u64, index length u32, index CRC u32, store
              u8, expiry ms u64, rows u32, writer id, attempt, stream u64[rows], count u32[rows]
    attach    writer id, epoch u64, time ms u64, counter u64 (the compaction counter that results),
              objects u32, object id u64[objects], streams u32, stream u64[streams], leader
              epoch u32[streams]
    unstage   counter u64 (as above), objects u32, object id u64[objects],
              writers u32, then each: writer id, epoch u64
    writer    writer id, epoch u64, time ms u64, parts u32, stream u64[parts], start u64[parts],
              end u64[parts]
    attached  object id u64, streams u32, stream u64[streams], base u64[streams], epoch
              u64[streams], leader epoch u32[streams]

Integers are little-endian, arrays lie in byte planes (format.columns); writer id and attempt:
length u16, UTF-8. Leader epoch 2^32-1: none. Rows of a stage are sorted by stream, one a stream.
"""

from __future__ import annotations

import struct
from array import array
from operator import ge
from typing import NamedTuple

from streamlog.format.columns import from_planes, to_planes
from streamlog.format.records.body import RecordCursor
from streamlog.format.rows import NO_LEADER_EPOCH, ObjectRow, Placements

NO_EPOCH_STORED = (1 << 32) - 1

_OBJECT = struct.Struct("<QQQIIBQI")
_LENGTH = struct.Struct("<H")
_COUNT = struct.Struct("<I")
_EPOCH = struct.Struct("<Q")
_EPOCH_TIME = struct.Struct("<QQ")
_ATTACH = struct.Struct("<QQQ")


class Stage(NamedTuple):
    """A stored object that is in no stream yet; row i has `counts[i]` offsets of `streams[i]`."""

    row: ObjectRow
    writer_id: str
    attempt: str
    expires_ms: int
    streams: array[int]
    counts: array[int]


class Attach(NamedTuple):
    """Staged objects that are attached in this order; `streams` are all their streams."""

    writer_id: str
    epoch: int
    at_ms: int
    counter: int
    object_ids: array[int]
    streams: array[int]
    leader_epochs: array[int]


class Unstage(NamedTuple):
    """Staged objects that are dropped, and writers (id, last epoch) that are forgotten."""

    counter: int
    object_ids: array[int]
    forgotten: tuple[tuple[str, int], ...] = ()


class WriterRow(NamedTuple):
    """A writer's last attach: offsets start (inclusive) to end (exclusive) of each stream."""

    writer_id: str
    epoch: int
    at_ms: int
    streams: array[int]
    starts: array[int]
    ends: array[int]


def encode_stage(stage: Stage) -> bytes:
    row = stage.row
    head = _OBJECT.pack(
        row.object_id,
        row.size_bytes,
        row.index_position,
        row.index_length,
        row.index_crc32c,
        row.store,
        stage.expires_ms,
        len(stage.streams),
    )
    names = _text(stage.writer_id) + _text(stage.attempt)
    return head + names + to_planes(stage.streams) + to_planes(stage.counts)


def decode_stage(cursor: RecordCursor) -> Stage:
    object_id, size, position, length, crc, store, expires_ms, rows = cursor.unpack(_OBJECT)
    writer_id, attempt = _read_text(cursor), _read_text(cursor)
    streams = from_planes("Q", cursor.take(8 * rows))
    counts = from_planes("I", cursor.take(4 * rows))
    if not rows or not all(counts) or any(map(ge, streams, streams[1:])):
        raise ValueError("a staged object's rows are empty or out of order")
    row = ObjectRow(object_id, size, position, length, crc, store)
    return Stage(row, writer_id, attempt, expires_ms, streams, counts)


def encode_attach(attach: Attach) -> bytes:
    return b"".join(
        (
            _text(attach.writer_id),
            _ATTACH.pack(attach.epoch, attach.at_ms, attach.counter),
            _COUNT.pack(len(attach.object_ids)),
            to_planes(attach.object_ids),
            _COUNT.pack(len(attach.streams)),
            to_planes(attach.streams),
            to_planes(attach.leader_epochs),
        )
    )


def decode_attach(cursor: RecordCursor) -> Attach:
    writer_id = _read_text(cursor)
    epoch, at_ms, counter = cursor.unpack(_ATTACH)
    object_ids = _read_ids(cursor)
    streams = _read_ids(cursor)
    leader_epochs = from_planes("I", cursor.take(4 * len(streams)))
    return Attach(writer_id, epoch, at_ms, counter, object_ids, streams, leader_epochs)


def encode_unstage(unstage: Unstage) -> bytes:
    parts = [
        _EPOCH.pack(unstage.counter),
        _COUNT.pack(len(unstage.object_ids)),
        to_planes(unstage.object_ids),
        _COUNT.pack(len(unstage.forgotten)),
    ]
    for writer_id, epoch in unstage.forgotten:
        parts += _text(writer_id), _EPOCH.pack(epoch)
    return b"".join(parts)


def decode_unstage(cursor: RecordCursor) -> Unstage:
    (counter,) = cursor.unpack(_EPOCH)
    object_ids = _read_ids(cursor)
    (count,) = cursor.unpack(_COUNT)
    forgotten = []
    for _ in range(count):
        writer_id = _read_text(cursor)
        forgotten.append((writer_id, int(cursor.unpack(_EPOCH)[0])))
    return Unstage(counter, object_ids, tuple(forgotten))


def encode_writer(writer: WriterRow) -> bytes:
    return b"".join(
        (
            _text(writer.writer_id),
            _EPOCH_TIME.pack(writer.epoch, writer.at_ms),
            _COUNT.pack(len(writer.streams)),
            *map(to_planes, (writer.streams, writer.starts, writer.ends)),
        )
    )


def decode_writer(cursor: RecordCursor) -> WriterRow:
    writer_id = _read_text(cursor)
    epoch, at_ms = cursor.unpack(_EPOCH_TIME)
    streams = _read_ids(cursor)
    starts, ends = (from_planes("Q", cursor.take(8 * len(streams))) for _ in range(2))
    return WriterRow(writer_id, epoch, at_ms, streams, starts, ends)


def encode_attached(object_id: int, placements: Placements) -> bytes:
    *columns, leaders = placements.columns
    head = _EPOCH.pack(object_id) + _COUNT.pack(len(placements))
    # The low four bytes of an i64 are the value of `stored_epoch`.
    epochs = to_planes(leaders)[: 4 * len(leaders)]
    return head + b"".join(map(to_planes, columns)) + epochs


def decode_attached(cursor: RecordCursor) -> tuple[int, Placements]:
    (object_id,) = cursor.unpack(_EPOCH)
    streams = _read_ids(cursor)
    bases, epochs = (from_planes("Q", cursor.take(8 * len(streams))) for _ in range(2))
    leaders = from_planes("I", cursor.take(4 * len(streams)))
    if any(map(ge, streams, streams[1:])):
        raise ValueError("an attached object's streams are out of order")
    leader_epochs = array("q", map(leader_epoch_of, leaders))
    return object_id, Placements(streams, bases, epochs, leader_epochs)


def stored_epoch(leader_epoch: int) -> int:
    return NO_EPOCH_STORED if leader_epoch == NO_LEADER_EPOCH else leader_epoch


def leader_epoch_of(stored: int) -> int:
    return NO_LEADER_EPOCH if stored == NO_EPOCH_STORED else stored


def _text(text: str) -> bytes:
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


def _read_text(cursor: RecordCursor) -> str:
    (size,) = cursor.unpack(_LENGTH)
    return bytes(cursor.take(size)).decode()


def _read_ids(cursor: RecordCursor) -> array[int]:
    (count,) = cursor.unpack(_COUNT)
    return from_planes("Q", cursor.take(8 * count))
