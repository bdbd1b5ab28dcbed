"""The commit record: the changes that one tenure makes to the fold in one transaction.

    off  size  field                                    (integers little-endian)
    0    1     version = 1
    1    1     kind: 1 commit; 2 compaction (compaction.py)
    2    1     flags: bit 0: the body is one zstd frame
    3    1     0
    4    4     body bytes, before compression
    8    8     id floor: the tenure's object ids below it are committed or swept
    16   4     CRC-32C over the absolute rows of all objects in order, each stream, epoch, start,
               end as u64: it proves that writer and reader agree on what is not in the record
    20   -     body
    end  4     CRC-32C of everything before

    body:     entries u32, then each entry: sections u8, then each section:
    section:  tag u8, bytes u32, items u32, items
      1 create   stream u64, epoch u32, tags u16, then each: key length u16, value length u16, UTF-8
      2 object   id u64, size u64, index position u64, index length u32, index CRC u32, store u8,
                 runs u32, then each run: first stream u64, rows u32, Δstream u32[rows],
                 count u32[rows]
      3 token    stream u64, epoch u32, length u16, bytes
      4 trim     stream u64, epoch u32, start u64
      5 close    stream u64, epoch u32
      6 destroy  stream u64, epoch u32
      8 stage, 9 attach, 10 unstage: staged_entries.py
      7 open: reserved

Δstream and count lie in byte planes (columns.py): 10,000 rows take 4 to 31 KB so, not 7 to 39.
Start offsets are not stored: a row starts where its stream ends in the fold. Rows of an object are
sorted by stream; a run ends where a Δ passes u32. Entries apply in order, sections by tag.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from operator import sub
from typing import NamedTuple

import zstandard

from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.format.columns import from_planes, to_planes
from streamlog.format.records.body import RecordCursor, check_kind, pack_body, unpack_body
from streamlog.format.records.staged_entries import (
    Attach,
    Stage,
    Unstage,
    decode_attach,
    decode_stage,
    decode_unstage,
    encode_attach,
    encode_stage,
    encode_unstage,
)
from streamlog.format.sealed import seal, unseal
from streamlog.runtime.buffers import Buffer

VERSION = 1
COMMIT, COMPACTION = 1, 2
ENTRIES_MAX = 1 << 16
"""Most entries that a reader accepts: an empty one has one byte here, and a hundred in memory.
Writers count 64 bytes for each against `record_bytes_max`."""
U32_MAX = (1 << 32) - 1

HEADER = struct.Struct("<BBBBIQI")
SECTION = struct.Struct("<BII")
OBJECT = struct.Struct("<QQQIIBI")
RUN = struct.Struct("<QI")
STREAM = struct.Struct("<QI")
TRIM = struct.Struct("<QIQ")
U16 = struct.Struct("<H")
U16_PAIR = struct.Struct("<HH")
U32 = struct.Struct("<I")

CREATE, OBJECTS, TOKEN, TRIMS, CLOSE, DESTROY, OPEN, STAGE, ATTACH, UNSTAGE = range(1, 11)
RESERVED = frozenset((OPEN,))


class Create(NamedTuple):
    stream_id: int
    epoch: int
    tags: tuple[tuple[str, str], ...] = ()


class Token(NamedTuple):
    stream_id: int
    epoch: int
    token: bytes


class Trim(NamedTuple):
    stream_id: int
    epoch: int
    start: int


class StreamAt(NamedTuple):
    """A stream under an epoch."""

    stream_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ObjectRows:
    """A stored object; row i adds `counts[i]` offsets at the end of stream `streams[i]`."""

    object_id: int
    size_bytes: int
    index_position: int
    index_length: int
    index_crc32c: int
    store: int
    streams: array[int]
    counts: array[int]


@dataclass(frozen=True, slots=True)
class RecordEntry:
    creates: Sequence[Create] = ()
    objects: Sequence[ObjectRows] = ()
    tokens: Sequence[Token] = ()
    trims: Sequence[Trim] = ()
    closes: Sequence[StreamAt] = ()
    destroys: Sequence[StreamAt] = ()
    stages: Sequence[Stage] = ()
    attaches: Sequence[Attach] = ()
    unstages: Sequence[Unstage] = ()

    @property
    def is_empty(self) -> bool:
        return not (
            self.creates
            or self.objects
            or self.tokens
            or self.trims
            or self.closes
            or self.destroys
            or self.stages
            or self.attaches
            or self.unstages
        )


@dataclass(frozen=True, slots=True)
class CommitRecord:
    floor: int
    rows_crc32c: int
    entries: Sequence[RecordEntry]


def encode(record: CommitRecord) -> bytes:
    parts = [U32.pack(len(record.entries))]
    for entry in record.entries:
        sections = [section for section in _sections(entry) if section[1]]
        parts.append(bytes([len(sections)]))
        for tag, items in sections:
            data = b"".join(items)
            parts += SECTION.pack(tag, len(data), len(items)), data
    plain = b"".join(parts)
    body, flags = pack_body(plain)
    header = HEADER.pack(VERSION, COMMIT, flags, 0, len(plain), record.floor, record.rows_crc32c)
    return seal(header + body)


def decode(value: Buffer) -> CommitRecord:
    """Errors: Corrupt, UnsupportedVersion."""
    sealed = unseal(value, VERSION, "a commit record")
    try:
        _, kind, flags, _, size, floor, rows_crc = HEADER.unpack_from(sealed)
        check_kind(kind, COMMIT)
        return CommitRecord(
            floor, rows_crc, _decode_body(unpack_body(sealed[HEADER.size :], flags, size))
        )
    except (struct.error, ValueError, OverflowError, zstandard.ZstdError) as error:
        raise Corrupt(f"a commit record cannot be parsed: {error}") from error


def size_bound_bytes(entry: RecordEntry) -> int:
    """An upper bound of the entry's bytes in a body, before compression."""
    rows = sum(len(o.streams) for o in entry.objects)
    tags = sum(len(k) + len(v) for c in entry.creates for k, v in c.tags) * 4
    pairs = sum(len(c.tags) for c in entry.creates)
    tokens = sum(len(t.token) for t in entry.tokens)
    fixed = len(entry.creates) + len(entry.tokens) + len(entry.trims)
    fixed += len(entry.closes) + len(entry.destroys)
    objects = (OBJECT.size + RUN.size) * len(entry.objects)
    staged = sum(map(len, _staged(entry)))
    return 64 + 8 * rows + objects + tags + 4 * pairs + tokens + 20 * fixed + staged


# encoding


def _sections(entry: RecordEntry) -> Iterator[tuple[int, list[bytes]]]:
    yield CREATE, [_create(create) for create in entry.creates]
    yield OBJECTS, [_object(rows) for rows in entry.objects]
    yield TOKEN, [STREAM.pack(s, e) + U16.pack(len(t)) + t for s, e, t in entry.tokens]
    yield TRIMS, [TRIM.pack(*trim) for trim in entry.trims]
    yield CLOSE, [STREAM.pack(*at) for at in entry.closes]
    yield DESTROY, [STREAM.pack(*at) for at in entry.destroys]
    yield STAGE, list(map(encode_stage, entry.stages))
    yield ATTACH, list(map(encode_attach, entry.attaches))
    yield UNSTAGE, list(map(encode_unstage, entry.unstages))


def _staged(entry: RecordEntry) -> Iterator[bytes]:
    yield from map(encode_stage, entry.stages)
    yield from map(encode_attach, entry.attaches)
    yield from map(encode_unstage, entry.unstages)


def _create(create: Create) -> bytes:
    parts = [STREAM.pack(create.stream_id, create.epoch), U16.pack(len(create.tags))]
    for name, text in create.tags:
        key, value = name.encode(), text.encode()
        parts += U16_PAIR.pack(len(key), len(value)), key, value
    return b"".join(parts)


def _object(rows: ObjectRows) -> bytes:
    runs = list(_runs(rows.streams))
    parts = [
        OBJECT.pack(
            rows.object_id,
            rows.size_bytes,
            rows.index_position,
            rows.index_length,
            rows.index_crc32c,
            rows.store,
            len(runs),
        )
    ]
    for start, end in runs:
        ids = rows.streams[start:end]
        deltas = array("I", [0])
        deltas.extend(map(sub, ids[1:], ids))
        parts += RUN.pack(ids[0], end - start), to_planes(deltas), to_planes(rows.counts[start:end])
    return b"".join(parts)


def _runs(streams: array[int]) -> Iterator[tuple[int, int]]:
    """[start, end) of runs of rows whose neighbouring stream ids differ by a u32 at most."""
    start = 0
    if streams and streams[-1] - streams[0] > U32_MAX:
        for i in range(1, len(streams)):
            if streams[i] - streams[i - 1] > U32_MAX:
                yield start, i
                start = i
    if streams:
        yield start, len(streams)


# decoding


def _decode_body(body: memoryview) -> tuple[RecordEntry, ...]:
    cursor = RecordCursor(body)
    (count,) = cursor.unpack(U32)
    if count > ENTRIES_MAX:
        raise ValueError(f"{count} entries; at most {ENTRIES_MAX} are in a record")
    entries = tuple(_decode_entry(cursor) for _ in range(count))
    cursor.check_at_end()
    return entries


def _decode_entry(cursor: RecordCursor) -> RecordEntry:
    fields: dict[str, tuple[object, ...]] = {}
    for _ in range(cursor.take(1)[0]):
        tag, size, items = cursor.unpack(SECTION)
        section = RecordCursor(cursor.take(size))
        if tag in RESERVED:
            raise UnsupportedVersion(
                f"a commit record has a section {tag}, which a newer version of streamlog wrote; "
                "upgrade this node",
                found=tag,
                supported=UNSTAGE,
            )
        name, read = READERS.get(tag, ("", None))
        if read is None or name in fields:
            raise ValueError(f"section {tag} is unknown or there twice")
        fields[name] = tuple(read(section) for _ in range(items))
        section.check_at_end()
    return RecordEntry(**fields)  # type: ignore[arg-type]


def _read_create(cursor: RecordCursor) -> Create:
    stream_id, epoch = cursor.unpack(STREAM)
    tags = []
    for _ in range(cursor.unpack(U16)[0]):
        key_size, value_size = cursor.unpack(U16_PAIR)
        key, value = bytes(cursor.take(key_size)), bytes(cursor.take(value_size))
        tags.append((key.decode(), value.decode()))
    return Create(stream_id, epoch, tuple(tags))


def _read_object(cursor: RecordCursor) -> ObjectRows:
    *fixed, runs = cursor.unpack(OBJECT)
    streams, counts = array("Q"), array("I")
    for _ in range(runs):
        first, rows = cursor.unpack(RUN)
        deltas = from_planes("I", cursor.take(4 * rows))
        if not rows or deltas[0]:
            raise ValueError(f"a run of {rows} rows does not start at its first stream")
        deltas_and_first = chain((first,), islice(deltas, 1, None))
        streams.extend(accumulate(deltas_and_first))
        counts.extend(from_planes("I", cursor.take(4 * rows)))
    object_id, size, index_position, index_length, index_crc, store = fixed
    return ObjectRows(
        object_id, size, index_position, index_length, index_crc, store, streams, counts
    )


def _read_token(cursor: RecordCursor) -> Token:
    stream_id, epoch = cursor.unpack(STREAM)
    return Token(stream_id, epoch, bytes(cursor.take(cursor.unpack(U16)[0])))


def _read_trim(cursor: RecordCursor) -> Trim:
    return Trim(*cursor.unpack(TRIM))


def _read_at(cursor: RecordCursor) -> StreamAt:
    return StreamAt(*cursor.unpack(STREAM))


READERS: dict[int, tuple[str, Callable[[RecordCursor], object]]] = {
    CREATE: ("creates", _read_create),
    OBJECTS: ("objects", _read_object),
    TOKEN: ("tokens", _read_token),
    TRIMS: ("trims", _read_trim),
    CLOSE: ("closes", _read_at),
    DESTROY: ("destroys", _read_at),
    STAGE: ("stages", decode_stage),
    ATTACH: ("attaches", decode_attach),
    UNSTAGE: ("unstages", decode_unstage),
}
