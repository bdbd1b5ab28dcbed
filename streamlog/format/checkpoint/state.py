"""The state in a checkpoint's delta file: streams, dead objects, and dead ranges of the base.

    off  size  field                              (integers little-endian, columns in byte planes)
    0    1     version: 1; 2 where something was staged or attached
    1    4     streams n
    5    4     holders h
    9    4     streams with a token or tags t
    13   4     dead objects d
    17   4     cut streams c
    21   8     dead ranges in the base
    29   8     objects that live
    37   8     the compaction counter
    45   4     compactions whose inputs are known i, the last ones
    49   8·h   holders: node id u32, node epoch u32
    -    -     columns: stream id u64[n], epoch u32[n], index of the holder u32[n], start u64[n],
               end u64[n]; then state u8[n] (1 OPEN, 2 CLOSED)
    -    -     t times: index of the stream u32, token length u16, tags u16, token, then each tag:
               key length u16, value length u16, UTF-8
    -    -     columns: dead object id u64[d], when it was found dead, ms u64[d], revision u64[d]
    -    -     column: cut stream id u64[c]: the base still holds ranges of it that are dead
    -    -     columns: number of inputs u32[i], then all their object ids u64, the newest last
    -    -     version 2: stages u32, writers u32, attached u32, then each (staged_entries.py)

Streams are in order of id. The whole is compressed and sealed by the tail.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from typing import Literal

from streamlog.errors import UnsupportedVersion
from streamlog.format.columns import from_planes, to_planes
from streamlog.format.records.body import RecordCursor
from streamlog.format.records.staged_entries import (
    Stage,
    WriterRow,
    decode_attached,
    decode_stage,
    decode_writer,
    encode_attached,
    encode_stage,
    encode_writer,
)
from streamlog.format.rows import Placements

VERSION, STAGING_VERSION = 1, 2
HEADER = struct.Struct("<BIIIIIQQQI")
HOLDER = struct.Struct("<II")
TEXT = struct.Struct("<IHH")
PAIR = struct.Struct("<HH")
STAGING = struct.Struct("<III")

Text = tuple[bytes, tuple[tuple[str, str], ...]]
"""A stream's token and tags."""


@dataclass(slots=True)
class StreamTable:
    """Row i of all columns is one stream; `texts` has those with a token or tags, by row."""

    ids: array[int] = field(default_factory=lambda: array("Q"))
    epochs: array[int] = field(default_factory=lambda: array("I"))
    holders: array[int] = field(default_factory=lambda: array("I"))
    starts: array[int] = field(default_factory=lambda: array("Q"))
    ends: array[int] = field(default_factory=lambda: array("Q"))
    states: bytes = b""
    texts: Mapping[int, Text] = field(default_factory=dict)
    holder_names: Sequence[tuple[int, int]] = ()


@dataclass(slots=True)
class DeadTable:
    ids: array[int] = field(default_factory=lambda: array("Q"))
    died_ms: array[int] = field(default_factory=lambda: array("Q"))
    revisions: array[int] = field(default_factory=lambda: array("Q"))


@dataclass(slots=True)
class StagingRows:
    """`attached`: live objects that were staged, with where."""

    stages: Sequence[Stage] = ()
    writers: Sequence[WriterRow] = ()
    attached: Sequence[tuple[int, Placements]] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.stages or self.writers or self.attached)


@dataclass(slots=True)
class CheckpointState:
    streams: StreamTable
    dead: DeadTable
    cut_streams: array[int]
    base_dead_ranges: int
    live_objects: int
    compactions: int = 0
    compaction_inputs: Sequence[array[int]] = ()
    staging: StagingRows = field(default_factory=StagingRows)


def encode_state(state: CheckpointState) -> bytes:
    s, dead = state.streams, state.dead
    parts = [
        HEADER.pack(
            VERSION if state.staging.is_empty else STAGING_VERSION,
            len(s.ids),
            len(s.holder_names),
            len(s.texts),
            len(dead.ids),
            len(state.cut_streams),
            state.base_dead_ranges,
            state.live_objects,
            state.compactions,
            len(state.compaction_inputs),
        )
    ]
    parts += [HOLDER.pack(*name) for name in s.holder_names]
    parts += [to_planes(column) for column in (s.ids, s.epochs, s.holders, s.starts, s.ends)]
    parts.append(s.states)
    for row, (token, tags) in sorted(s.texts.items()):
        parts += TEXT.pack(row, len(token), len(tags)), token
        for name, text in tags:
            key, value = name.encode(), text.encode()
            parts += PAIR.pack(len(key), len(value)), key, value
    parts += [to_planes(column) for column in (dead.ids, dead.died_ms, dead.revisions)]
    parts.append(to_planes(state.cut_streams))
    every = array("Q", chain.from_iterable(state.compaction_inputs))
    parts += to_planes(array("I", map(len, state.compaction_inputs))), to_planes(every)
    staging = state.staging
    if not staging.is_empty:
        parts.append(STAGING.pack(len(staging.stages), len(staging.writers), len(staging.attached)))
        parts += map(encode_stage, staging.stages)
        parts += map(encode_writer, staging.writers)
        parts += [encode_attached(*item) for item in staging.attached]
    return b"".join(parts)


def decode_state(data: bytes) -> CheckpointState:
    """The state in `data`, which passed its CRC.

    Errors: UnsupportedVersion; ValueError, struct.error (it makes no sense).
    """
    version, n, h, t, d, c, base_dead, live_objects, compactions, i = HEADER.unpack_from(data)
    if version > STAGING_VERSION:
        raise UnsupportedVersion(
            "a checkpoint was written by a newer version of streamlog; upgrade this node",
            found=version,
            supported=STAGING_VERSION,
        )
    if version not in (VERSION, STAGING_VERSION):
        raise ValueError(f"version {version} of a checkpoint's state is unknown")
    reader = _Reader(data, HEADER.size)
    names = [HOLDER.unpack(reader.take(HOLDER.size)) for _ in range(h)]
    streams = StreamTable(
        reader.column("Q", n),
        reader.column("I", n),
        reader.column("I", n),
        reader.column("Q", n),
        reader.column("Q", n),
        bytes(reader.take(n)),
        dict(reader.text() for _ in range(t)),
        names,
    )
    if any(index >= h for index in streams.holders):
        raise ValueError("a stream's holder is not in the table")
    dead = DeadTable(reader.column("Q", d), reader.column("Q", d), reader.column("Q", d))
    cut = reader.column("Q", c)
    sizes = reader.column("I", i)
    inputs = reader.column("Q", sum(sizes))
    staging = reader.staging() if version == STAGING_VERSION else StagingRows()
    reader.check_at_end()
    ends = list(accumulate(sizes, initial=0))
    each = [inputs[low:high] for low, high in pairwise(ends)]
    return CheckpointState(streams, dead, cut, base_dead, live_objects, compactions, each, staging)


class _Reader:
    def __init__(self, data: bytes, position: int) -> None:
        self._data = memoryview(data)
        self._position = position

    def take(self, size: int) -> memoryview:
        start, self._position = self._position, self._position + size
        if self._position > len(self._data):
            raise ValueError(f"{size} bytes at {start} pass the end at {len(self._data)}")
        return self._data[start : self._position]

    def column(self, typecode: Literal["I", "Q"], count: int) -> array[int]:
        return from_planes(typecode, self.take(count * array(typecode).itemsize))

    def text(self) -> tuple[int, Text]:
        row, token_size, tags = TEXT.unpack(self.take(TEXT.size))
        token, pairs = bytes(self.take(token_size)), []
        for _ in range(tags):
            key_size, value_size = PAIR.unpack(self.take(PAIR.size))
            key, value = bytes(self.take(key_size)), bytes(self.take(value_size))
            pairs.append((key.decode(), value.decode()))
        return row, (token, tuple(pairs))

    def staging(self) -> StagingRows:
        """The staging rows, which are the rest of the state."""
        cursor = RecordCursor(self._data[self._position :])
        self._position = len(self._data)
        stages, writers, attached = cursor.unpack(STAGING)
        rows = StagingRows(
            [decode_stage(cursor) for _ in range(stages)],
            [decode_writer(cursor) for _ in range(writers)],
            [decode_attached(cursor) for _ in range(attached)],
        )
        cursor.check_at_end()
        return rows

    def check_at_end(self) -> None:
        if self._position != len(self._data):
            raise ValueError(f"{len(self._data) - self._position} bytes too many")
