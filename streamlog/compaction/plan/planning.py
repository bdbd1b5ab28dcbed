"""A request for a merge plan and its answer as bytes, in the frame of a spec.

The node's compactor sends requests to its compactor process.

Body of a request: point counter u64, point revision u64, end u64 (exclusive; 0: no end), 1 when
reclaiming u8, settings bytes u32, inputs u32; the settings as JSON; then each input: as in a spec,
with attribute bytes u64 before its rows and the column of sizes u64, in byte planes, behind them.
Body of an answer: next stream u64 (0: the merge ends here), 1 when there is a spec u8, inputs u32,
outputs u32; then the number of each input in the request u32, and each output as in a spec. The
answer repeats nothing of the request.
"""

from __future__ import annotations

import dataclasses
import json
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from streamlog.compaction.plan.config import CompactionConfig
from streamlog.compaction.plan.planner import STREAM_END, MergePlan, PlannedInput, plan
from streamlog.compaction.plan.spec import (
    CompactionSpec,
    Cursor,
    Kind,
    SpecInput,
    object_bytes,
    output_bytes,
    rows_bytes,
    seal,
)
from streamlog.errors import Corrupt
from streamlog.format.columns import from_planes, to_planes
from streamlog.metadata.compaction_interface import CompactionPoint
from streamlog.runtime.buffers import Buffer

_REQUEST = struct.Struct("<QQQBII")
_ATTRIBUTES = struct.Struct("<Q")
_ANSWER = struct.Struct("<QBII")
_NUMBER = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class MergePlanRequest:
    """The arguments of `planner.plan`."""

    point: CompactionPoint
    inputs: Sequence[PlannedInput]
    end: int
    config: CompactionConfig
    is_reclaiming: bool = False

    def planned(self) -> MergePlan:
        """Burns CPU: microseconds a row."""
        return plan(
            self.point, self.inputs, self.end, self.config, is_reclaiming=self.is_reclaiming
        )


def encode_request(request: MergePlanRequest) -> bytes:
    config = json.dumps(dataclasses.asdict(request.config)).encode()
    head = _REQUEST.pack(
        request.point.counter,
        request.point.revision,
        0 if request.end == STREAM_END else request.end,
        request.is_reclaiming,
        len(config),
        len(request.inputs),
    )
    parts = [head, config]
    for one in request.inputs:
        parts += (object_bytes(one.row), _ATTRIBUTES.pack(one.attribute_bytes))
        parts += (*rows_bytes(one.rows), to_planes(one.sizes))
    return seal(Kind.PLAN_REQUEST, parts)


def decode_request(data: Buffer) -> MergePlanRequest:
    """Errors: Corrupt, UnsupportedVersion."""
    cursor = Cursor(data, Kind.PLAN_REQUEST)
    counter, revision, end, is_reclaiming, config_bytes, count = cursor.take(_REQUEST)
    config = CompactionConfig(**json.loads(bytes(cursor.bytes(config_bytes))))
    inputs = [_input(cursor) for _ in range(count)]
    point = CompactionPoint(counter, revision)
    return cursor.done(
        MergePlanRequest(point, inputs, end or STREAM_END, config, bool(is_reclaiming))
    )


def _input(cursor: Cursor) -> PlannedInput:
    row, (attribute_bytes,), rows = cursor.object(), cursor.take(_ATTRIBUTES), cursor.rows()
    sizes: array[int] = from_planes("Q", cursor.bytes(8 * len(rows)))
    return PlannedInput(row, rows, sizes, attribute_bytes)


def encode_plan(plan: MergePlan, request: MergePlanRequest) -> bytes:
    """`plan` answers `request`."""
    spec = plan.spec
    inputs, outputs = (spec.inputs, spec.outputs) if spec is not None else ((), ())
    numbers = {one.row.object_id: number for number, one in enumerate(request.inputs)}
    head = _ANSWER.pack(plan.next_stream or 0, spec is not None, len(inputs), len(outputs))
    parts = [head, *(_NUMBER.pack(numbers[one.row.object_id]) for one in inputs)]
    for output in outputs:
        parts += output_bytes(output)
    return seal(Kind.PLAN, parts)


def decode_plan(data: Buffer, request: MergePlanRequest) -> MergePlan:
    """Errors: Corrupt, UnsupportedVersion."""
    cursor = Cursor(data, Kind.PLAN)
    next_stream, has_spec, input_count, output_count = cursor.take(_ANSWER)
    numbers = [cursor.take(_NUMBER)[0] for _ in range(input_count)]
    outputs = [cursor.output() for _ in range(output_count)]
    if any(number >= len(request.inputs) for number in numbers):
        raise Corrupt("a compaction plan has an input that it was not asked about")
    if not has_spec:
        return cursor.done(MergePlan(None, next_stream or None))
    used = [request.inputs[number] for number in numbers]
    spec = CompactionSpec(
        request.point,
        [SpecInput(one.row, one.rows.between(0, next_stream or STREAM_END)) for one in used],
        outputs,
        request.config.block_target_bytes,
    )
    return cursor.done(MergePlan(spec, next_stream or None))
