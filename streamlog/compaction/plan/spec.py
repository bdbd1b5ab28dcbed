"""What a compaction is to do, as a decision that any process can carry out, and its bytes.

A *spec* says which live ranges of which inputs go into which outputs; a *job* is one attempt at it,
under object ids and a tenure of its own (`Job`). Outputs are in the order of their rows.

Bytes (integers little-endian)

    offset  field           bytes  meaning
    0       version         1      1
    1       kind            1      1 spec, 2 job, 3 outcome; 4, 5: planning
    2       reserved        2      0
    4       body bytes      4      before compression
    8       body            -      one zstd frame
    end     crc             4      CRC-32C of everything before

Body of a spec: point counter u64, point revision u64, block target u32, inputs u32, outputs u32;
then each input: id u64, size u64, index position u64, index length u32, index CRC u32, store u32,
its rows; then each output: kind u8, size u64 (estimated), its rows. Rows: count u32, then the
columns stream u64, epoch u64, start u64, length u64, each in byte planes.
A store of 2^31 or more says that placements of a staged object follow (count u32, then each: stream
u64, base u64, epoch u64, leader epoch i32); its lower bits are the store.
Body of a job: cluster bytes u16, cluster id, node id u64, node epoch u64, ids u32, object id u64
each, then a spec as bytes. Body of an outcome: bytes read u64, bytes written u64, GETs u64, outputs
u32, then each as an input.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import sub
from typing import TypeVar

import zstandard

from streamlog.codec.crc import crc32c
from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.format.columns import from_planes, to_planes
from streamlog.format.rows import ObjectRow, Placement
from streamlog.format.rows import Rows as Rows
from streamlog.metadata.compaction_interface import CompactionPoint
from streamlog.metadata.interface import NewObject, Tenure
from streamlog.runtime.buffers import Buffer

T = TypeVar("T")

VERSION = 1
OUTPUT_ROWS_MAX = 20_000
"""Rows of all outputs of a spec. The bound keeps the commit record below 512 KiB."""
OUTPUTS_MAX = 64
INPUTS_MAX = 60
BODY_BYTES_MAX = 1 << 28

_HEADER = struct.Struct("<BBxxI")
_CRC = struct.Struct("<I")
_SPEC = struct.Struct("<QQIII")
_INPUT = struct.Struct("<QQQIII")
_OUTPUT = struct.Struct("<BQ")
_COUNT = struct.Struct("<I")
_JOB = struct.Struct("<QQI")
_ID = struct.Struct("<Q")
_CLUSTER = struct.Struct("<H")
_OUTCOME = struct.Struct("<QQQI")
_PLACEMENT = struct.Struct("<QQQi")
_HAS_PLACEMENTS = 1 << 31
_COLUMNS = 4


class Kind(IntEnum):
    SPEC = 1
    JOB = 2
    OUTCOME = 3
    PLAN_REQUEST = 4
    PLAN = 5


class OutputKind(IntEnum):
    STREAM = 1
    """Has data of one stream only."""
    STREAM_SET = 2


@dataclass(frozen=True, slots=True)
class SpecInput:
    """`rows`: the input's live ranges that go into outputs."""

    row: ObjectRow
    rows: Rows


@dataclass(frozen=True, slots=True)
class SpecOutput:
    """Each row covers whole live ranges of inputs; `size_bytes` is an estimate."""

    kind: OutputKind
    rows: Rows
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CompactionSpec:
    """Planned from the ranges that were live at or after `point`."""

    point: CompactionPoint
    inputs: Sequence[SpecInput]
    outputs: Sequence[SpecOutput]
    block_target_bytes: int = 512 * 1024

    @property
    def rows(self) -> int:
        return sum(len(output.rows) for output in self.outputs)


@dataclass(frozen=True, slots=True)
class Job:
    """One attempt at a spec: output i is stored as object `object_ids[i]`."""

    spec: CompactionSpec
    cluster_id: str
    tenure: Tenure
    object_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    """The outputs of a job, all of which are in the store."""

    objects: Sequence[ObjectRow]
    bytes_read: int
    bytes_written: int
    gets: int

    def outputs(self, spec: CompactionSpec) -> list[NewObject]:
        """The outputs in the form that a commit takes."""
        return [
            NewObject(row, list(output.rows))
            for row, output in zip(self.objects, spec.outputs, strict=True)
        ]


def encode_spec(spec: CompactionSpec) -> bytes:
    parts: list[bytes] = [
        _SPEC.pack(
            spec.point.counter,
            spec.point.revision,
            spec.block_target_bytes,
            len(spec.inputs),
            len(spec.outputs),
        )
    ]
    for one in spec.inputs:
        parts += (object_bytes(one.row), *rows_bytes(one.rows))
    for output in spec.outputs:
        parts += output_bytes(output)
    return seal(Kind.SPEC, parts)


def decode_spec(data: Buffer) -> CompactionSpec:
    """Errors: Corrupt, UnsupportedVersion."""
    cursor = Cursor(data, Kind.SPEC)
    counter, revision, block_target, inputs, outputs = cursor.take(_SPEC)
    return cursor.done(
        CompactionSpec(
            CompactionPoint(counter, revision),
            [SpecInput(cursor.object(), cursor.rows()) for _ in range(inputs)],
            [cursor.output() for _ in range(outputs)],
            block_target,
        )
    )


def encode_job(job: Job) -> bytes:
    cluster = job.cluster_id.encode()
    ids = [_ID.pack(object_id) for object_id in job.object_ids]
    head = _JOB.pack(job.tenure.node_id, job.tenure.node_epoch, len(ids))
    parts = [_CLUSTER.pack(len(cluster)), cluster, head, *ids, encode_spec(job.spec)]
    return seal(Kind.JOB, parts)


def decode_job(data: Buffer) -> Job:
    """Errors: Corrupt, UnsupportedVersion."""
    cursor = Cursor(data, Kind.JOB)
    (cluster_bytes,) = cursor.take(_CLUSTER)
    cluster_id = str(cursor.bytes(cluster_bytes), "utf-8")
    node_id, node_epoch, count = cursor.take(_JOB)
    ids = [cursor.take(_ID)[0] for _ in range(count)]
    spec = decode_spec(cursor.rest())
    if len(ids) != len(spec.outputs):
        raise Corrupt("a compaction job has not one id for each output")
    return Job(spec, cluster_id, Tenure(node_id, node_epoch), ids)


def encode_outcome(outcome: MergeOutcome) -> bytes:
    head = _OUTCOME.pack(
        outcome.bytes_read, outcome.bytes_written, outcome.gets, len(outcome.objects)
    )
    return seal(Kind.OUTCOME, [head, *map(object_bytes, outcome.objects)])


def decode_outcome(data: Buffer, body_bytes_max: int = BODY_BYTES_MAX) -> MergeOutcome:
    """Errors: Corrupt, UnsupportedVersion."""
    cursor = Cursor(data, Kind.OUTCOME, body_bytes_max)
    read, written, gets, count = cursor.take(_OUTCOME)
    return cursor.done(MergeOutcome([cursor.object() for _ in range(count)], read, written, gets))


def object_bytes(row: ObjectRow) -> bytes:
    fixed = _INPUT.pack(
        row.object_id,
        row.size_bytes,
        row.index_position,
        row.index_length,
        row.index_crc32c,
        row.store | (_HAS_PLACEMENTS if row.placements else 0),
    )
    if not row.placements:
        return fixed
    places = [_PLACEMENT.pack(*place) for place in row.placements]
    return b"".join((fixed, _COUNT.pack(len(places)), *places))


def output_bytes(output: SpecOutput) -> list[bytes]:
    return [_OUTPUT.pack(output.kind, output.size_bytes), *rows_bytes(output.rows)]


def rows_bytes(rows: Rows) -> list[bytes]:
    lengths = array("Q", map(sub, rows.ends, rows.starts))
    columns = (rows.streams, rows.epochs, rows.starts, lengths)
    return [_COUNT.pack(len(rows)), *map(to_planes, columns)]


def seal(kind: Kind, parts: Sequence[bytes]) -> bytes:
    body = b"".join(parts)
    packed = zstandard.ZstdCompressor(level=1).compress(body)
    data = _HEADER.pack(VERSION, kind, len(body)) + packed
    return data + _CRC.pack(crc32c(data))


class Cursor:
    """Reads a body from its start."""

    def __init__(self, data: Buffer, kind: Kind, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        end = len(data) - _CRC.size
        if end < _HEADER.size or _CRC.unpack_from(data, end)[0] != crc32c(memoryview(data)[:end]):
            raise Corrupt(f"a compaction {kind.name.lower()} of {len(data)} bytes fails its CRC")
        version, stored_kind, size = _HEADER.unpack_from(data)
        if version > VERSION:
            raise UnsupportedVersion(
                "a compaction spec was written by a newer version of streamlog; upgrade this node",
                found=version,
                supported=VERSION,
            )
        if version != VERSION or stored_kind != kind or size > body_bytes_max:
            raise Corrupt(f"not a compaction {kind.name.lower()}")
        packed = memoryview(data)[_HEADER.size : end]
        try:
            # A frame that states its size is decompressed to that size, beyond any bound.
            if zstandard.frame_content_size(packed) != size:
                raise Corrupt("a compaction spec does not hold what it states")
            body = zstandard.ZstdDecompressor().decompress(
                packed, max_output_size=size, allow_extra_data=False
            )
        except zstandard.ZstdError as error:
            raise Corrupt("a compaction spec cannot be decompressed") from error
        self._data = memoryview(body)
        self._at = 0

    def bytes(self, count: int) -> memoryview:
        data = self._data[self._at : self._at + count]
        if len(data) != count:
            raise Corrupt("a compaction spec is cut short")
        self._at += count
        return data

    def take(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self.bytes(form.size))

    def rest(self) -> memoryview:
        return self.bytes(len(self._data) - self._at)

    def object(self) -> ObjectRow:
        object_id, size, position, length, crc, store = self.take(_INPUT)
        places: tuple[Placement, ...] = ()
        if store >= _HAS_PLACEMENTS:
            store -= _HAS_PLACEMENTS
            (count,) = self.take(_COUNT)
            data = self.bytes(count * _PLACEMENT.size)
            places = tuple(map(Placement._make, _PLACEMENT.iter_unpack(data)))
        return ObjectRow(object_id, size, position, length, crc, store, places)

    def output(self) -> SpecOutput:
        kind, size_bytes = self.take(_OUTPUT)
        if kind not in (OutputKind.STREAM, OutputKind.STREAM_SET):
            raise Corrupt(f"a compaction spec has an output of kind {kind}")
        return SpecOutput(OutputKind(kind), self.rows(), size_bytes)

    def rows(self) -> Rows:
        (count,) = self.take(_COUNT)
        if count * 8 * _COLUMNS > len(self._data) - self._at:
            raise Corrupt("a compaction spec is cut short")
        rows = Rows()
        rows.streams, rows.epochs, rows.starts, lengths = (
            from_planes("Q", self.bytes(count * 8)) for _ in range(_COLUMNS)
        )
        rows.ends = array("Q", map(_sum, rows.starts, lengths))
        return rows

    def done(self, value: T) -> T:
        """`value`, when nothing is left behind it."""
        if self._at != len(self._data):
            raise Corrupt("a compaction spec has bytes behind its end")
        return value


def _sum(start: int, length: int) -> int:
    end = start + length
    if length < 1 or end >= 1 << 63:
        raise Corrupt("a compaction spec has an impossible range")
    return end
