"""What to compact, and into what: pure. The picture and the arithmetic are in docs/compaction.md.

1. An object's *quality* is min(size / small_object_bytes, average part / compacted_part_bytes); a
   part is what one stream has in the object. From quality 1 on the object is *fully compacted*.
2. Other objects stand in tiers, by the order of magnitude that they lack. A tier with enough
   objects is merged. Every merge raises quality, so that no byte is rewritten more often than
   there are tiers.
3. In a merge, streams with much data get objects of their own. All other streams share objects,
   sorted, so that each stream's part is one piece.
   No output is larger than object_bytes_max, except for what one input holds of a stream in one
   piece. So a spec takes no more bytes than its outputs can hold; of a single large stream it
   takes as many inputs as fit.
4. A fully compacted object is rewritten only when most of its bytes are dead.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, compress, count, groupby, islice, repeat
from operator import add, attrgetter, eq, itemgetter
from typing import NamedTuple

from streamlog.compaction.plan.config import CompactionConfig
from streamlog.compaction.plan.spec import (
    INPUTS_MAX,
    OUTPUT_ROWS_MAX,
    OUTPUTS_MAX,
    CompactionSpec,
    OutputKind,
    Rows,
    SpecInput,
    SpecOutput,
)
from streamlog.compaction.plan.stats import ObjectStats
from streamlog.format.rows import ObjectRow
from streamlog.metadata.compaction_interface import CompactionPoint

TIER_WIDTH = 16
"""Below large_objects_min's default: what a merge makes of a tier always leaves it."""
STREAM_END = 1 << 64
ATTRIBUTE_BYTES_MAX = 16 << 20
"""Attributes in one output: readers get them with the index. Streams of tiny batches have many."""
MERGE_ALL_INPUTS_MAX = 240
"""Inputs of a merge of all objects that are not fully compacted."""
MERGE_ALL_PARTS_MAX = 1_500_000
"""Parts of these inputs: some 100 MiB while the merge is planned."""
_PIECES = 15
"""Most outputs that a spec needs because of its size; twice as many where large parts do not pack
well.
"""
_OWNERS_MAX = OUTPUTS_MAX - 2 * _PIECES - 2
"""Streams with objects of their own in a spec."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live object.

    `parts`: its streams when it was written, or its live streams where only these are known.
    `dead_share`: the share of its bytes that is trimmed, as far as known.
    """

    row: ObjectRow
    parts: int
    dead_share: float = 0.0


class Tier(NamedTuple):
    """`steps`: merges until an object is fully compacted; 0 with `is_large` False: mostly dead."""

    steps: int
    is_large: bool


FULLY_COMPACTED = Tier(0, True)
DEAD = Tier(0, False)
ALL = Tier(-1, False)
"""The tier of a merge, never of an object: all objects that are not fully compacted."""


def tier_of(candidate: Candidate, config: CompactionConfig) -> Tier:
    return tier_at(candidate.row.size_bytes, candidate.parts, candidate.dead_share, config)


def tier_at(size_bytes: int, parts: int, dead_share: float, config: CompactionConfig) -> Tier:
    if dead_share >= config.dead_share_min:
        return DEAD
    # No output can be larger than object_bytes_max, so no more is required.
    wanted = min(config.small_object_bytes, config.object_bytes_max // 2)
    is_large = size_bytes >= wanted
    part = size_bytes / max(parts, 1)
    lack = max(wanted / max(size_bytes, 1), min(config.compacted_part_bytes, wanted) / max(part, 1))
    if lack <= 1 or (is_large and parts <= 1):
        return FULLY_COMPACTED
    steps = 1
    while lack > TIER_WIDTH:
        lack /= TIER_WIDTH
        steps += 1
    return Tier(steps, is_large)


@dataclass(frozen=True, slots=True)
class Choice:
    """Objects to be merged, in the order of their ids."""

    tier: Tier
    inputs: Sequence[ObjectRow]


def tiers(
    candidates: Collection[Candidate], config: CompactionConfig
) -> dict[Tier, list[ObjectRow]]:
    """The objects of each tier, in the order of their ids."""
    by_tier: dict[Tier, list[ObjectRow]] = {}
    for candidate in candidates:
        by_tier.setdefault(tier_of(candidate, config), []).append(candidate.row)
    for rows in by_tier.values():
        rows.sort(key=attrgetter("object_id"))
    return by_tier


def choose(
    candidates: Collection[Candidate],
    config: CompactionConfig,
    futile: Collection[frozenset[int]] = (),
) -> Choice | None:
    """The most urgent merge, fresh objects first and dead ones last; None: nothing is due.

    `futile`: sets of objects whose merge gains nothing. Such a set is not chosen again, and does
    not keep other objects of its tier from being merged.
    """
    by_tier = tiers(candidates, config)
    by_tier.pop(FULLY_COMPACTED, None)
    tried = frozenset[int]().union(*futile)
    for tier in sorted(by_tier, reverse=True):
        if tier == DEAD:
            least = 1
        else:
            least = config.large_objects_min if tier.is_large else config.small_objects_min
        rows = by_tier[tier]
        for left in (rows, [row for row in rows if row.object_id not in tried]):
            if len(left) < least:
                break
            # The oldest objects: their streams' parts are neighbours.
            chosen = left[:INPUTS_MAX] if tier != DEAD else _reclaimed(left, config)
            if frozenset(row.object_id for row in chosen) not in futile:
                return Choice(tier, chosen)
    return None


def _reclaimed(rows: Sequence[ObjectRow], config: CompactionConfig) -> Sequence[ObjectRow]:
    """As many objects as one spec can take, since one stream may own all of their bytes."""
    count = size_bytes = 0
    for row in rows[:INPUTS_MAX]:
        size_bytes += row.size_bytes
        if count and size_bytes > config.spec_bytes_max:
            break
        count += 1
    return rows[:count]


def choose_all(
    candidates: Collection[Candidate],
    config: CompactionConfig,
    futile: Collection[frozenset[int]] = (),
) -> Choice | None:
    """One merge of all objects that are not fully compacted, as far as a merge can take them.

    None for a single object, unless it is mostly dead.
    """
    left = [c for c in candidates if tier_of(c, config) != FULLY_COMPACTED]
    left.sort(key=lambda c: c.row.object_id)
    if len(left) < 2 and not any(tier_of(c, config) == DEAD for c in left):
        return None
    chosen: list[ObjectRow] = []
    parts = 0
    for candidate in left[:MERGE_ALL_INPUTS_MAX]:
        # No more than a spec's rows of an object are in memory at a time.
        parts += min(candidate.parts, OUTPUT_ROWS_MAX)
        if len(chosen) >= 2 and parts > MERGE_ALL_PARTS_MAX:
            break
        chosen.append(candidate.row)
    if frozenset(row.object_id for row in chosen) in futile:
        return None
    return Choice(ALL, chosen)


@dataclass(frozen=True, slots=True)
class PlannedInput:
    """An input's live rows within the planned streams, and the bytes of each."""

    row: ObjectRow
    rows: Rows
    sizes: array[int]
    attribute_bytes: int = 0
    """Bytes of the index region beside the blocks' entries."""


_Part = tuple[int, int, int, int, int, int]
"""Stream id, start, end, epoch, bytes, number of its input. A plain tuple, because a merge has
hundreds of thousands, and a named tuple takes three times as long to make."""
_BYTES = itemgetter(4)
_INPUT = itemgetter(5)


@dataclass(slots=True)
class _Run:
    """A stream's parts without a gap between them. `rows`: one for each epoch."""

    stream_id: int
    parts: list[_Part]
    size_bytes: int
    rows: int


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of one output."""

    rows: Rows
    size_bytes: int


@dataclass(frozen=True, slots=True)
class MergePlan:
    """`spec` None: a rewrite gains nothing. The merge goes on from stream `next_stream`; None: it
    ends here."""

    spec: CompactionSpec | None
    next_stream: int | None


def end_stream(stats: Sequence[ObjectStats], first_stream: int, config: CompactionConfig) -> int:
    """The end (exclusive) of the streams that one spec can take from `first_stream` on."""
    last = max((f.rows.streams[-1] for f in stats if len(f.rows)), default=0)
    low, high = first_stream + 1, last + 1
    if _fits(stats, first_stream, high, config):
        return STREAM_END
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(stats, first_stream, middle, config):
            low = middle
        else:
            high = middle - 1
    return low


def _fits(stats: Sequence[ObjectStats], first: int, end: int, config: CompactionConfig) -> bool:
    size = sum(f.bytes_between(first, end) for f in stats)
    rows = max(bisect_left(f.rows.streams, end) - bisect_left(f.rows.streams, first) for f in stats)
    return size <= config.spec_bytes_max and rows <= OUTPUT_ROWS_MAX


def plan(
    point: CompactionPoint,
    inputs: Sequence[PlannedInput],
    end: int,
    config: CompactionConfig,
    *,
    is_reclaiming: bool = False,
) -> MergePlan:
    """Distributes the rows of `inputs`, which go up to stream `end` (exclusive), over outputs.

    `is_reclaiming`: the inputs are mostly dead, so that a rewrite alone is a gain.
    """
    chosen: list[_Run] = []
    rows = owners = size_bytes = 0
    room = min(config.spec_bytes_max, _PIECES * config.object_bytes_max)
    next_stream = None if end == STREAM_END else end
    for stream_id, group in groupby(_runs(inputs), key=attrgetter("stream_id")):
        runs = list(group)
        rows += sum(run.rows for run in runs)
        owners += any(run.size_bytes >= config.stream_object_bytes_min for run in runs)
        size_bytes += sum(run.size_bytes for run in runs)
        if size_bytes > room and not chosen:
            # The rows left out stay where they are; the next look at their objects finds them.
            cut, next_stream = _first_inputs(runs, room), stream_id + 1
            if sum(run.rows for run in cut) <= OUTPUT_ROWS_MAX:
                chosen = cut
            break
        if rows > OUTPUT_ROWS_MAX or owners > _OWNERS_MAX or size_bytes > room:
            # A single stream gets here only with thousands of epochs; it is left as it is.
            next_stream = stream_id if chosen else stream_id + 1
            break
        chosen += runs
    if not is_reclaiming:
        spared = _spared(chosen, inputs, config)
        chosen = [run for run in chosen if _INPUT(run.parts[0]) not in spared]
    outputs = _outputs(chosen, inputs, config)
    numbers = set(map(_INPUT, chain.from_iterable(run.parts for run in chosen)))
    used = _used(inputs, numbers, next_stream)
    if not outputs or not (is_reclaiming or _has_gain(chosen, used, outputs)):
        return MergePlan(None, next_stream)
    return MergePlan(CompactionSpec(point, used, outputs, config.block_target_bytes), next_stream)


def _has_gain(
    runs: Sequence[_Run], inputs: Sequence[SpecInput], outputs: Sequence[SpecOutput]
) -> bool:
    """Whether half of the ranges go, or objects become twice as large on average."""
    rows = sum(len(output.rows) for output in outputs)
    if 2 * rows <= sum(len(run.parts) for run in runs):
        return True
    before = sum(one.row.size_bytes for one in inputs) / len(inputs)
    return sum(output.size_bytes for output in outputs) / len(outputs) >= 2 * before


def _used(
    inputs: Sequence[PlannedInput], numbers: Collection[int], next_stream: int | None
) -> list[SpecInput]:
    end = STREAM_END if next_stream is None else next_stream
    return [
        SpecInput(inputs[number].row, inputs[number].rows.between(0, end))
        for number in sorted(numbers)
    ]


def _first_inputs(runs: Sequence[_Run], room: int) -> list[_Run]:
    """The runs of one stream from its first inputs, as many inputs as fit `room`; at least one."""
    parts = [part for run in runs for part in run.parts]
    held: dict[int, int] = {}
    for part in parts:
        held[_INPUT(part)] = held.get(_INPUT(part), 0) + _BYTES(part)
    kept: set[int] = set()
    size_bytes = 0
    for number, bytes_more in held.items():
        size_bytes += bytes_more
        if kept and size_bytes > room:
            break
        kept.add(number)
    return list(_joined([part for part in parts if _INPUT(part) in kept]))


def _runs(inputs: Sequence[PlannedInput]) -> Iterator[_Run]:
    """All runs, by (stream, start)."""
    parts = list(chain.from_iterable(map(_parts, range(len(inputs)), inputs)))
    # The parts of each input are sorted already, which makes this sort fast.
    parts.sort()
    return _joined(parts)


def _parts(number: int, one: PlannedInput) -> Iterator[_Part]:
    rows = one.rows
    if len(rows) != len(one.sizes):
        raise ValueError(f"{len(rows)} rows with {len(one.sizes)} sizes")
    return zip(
        rows.streams, rows.starts, rows.ends, rows.epochs, one.sizes, repeat(number), strict=False
    )


def _joined(parts: list[_Part]) -> Iterator[_Run]:
    """The runs of `parts`, which are sorted by (stream, start)."""
    first = size_bytes = rows = 0
    last_stream = last_end = last_epoch = -1
    for number, (stream_id, start, end, epoch, part_bytes, _) in enumerate(parts):
        if start != last_end or stream_id != last_stream:
            if number:
                yield _Run(last_stream, parts[first:number], size_bytes, rows)
            first, last_stream, last_epoch = number, stream_id, epoch
            size_bytes, rows = 0, 1
        elif epoch != last_epoch:
            rows += 1
            last_epoch = epoch
        last_end = end
        size_bytes += part_bytes
    if parts:
        yield _Run(last_stream, parts[first:], size_bytes, rows)


def _spared(
    runs: Sequence[_Run], inputs: Sequence[PlannedInput], config: CompactionConfig
) -> frozenset[int]:
    """Inputs that hold one large piece of one stream and touch no other input: rewriting them gains
    nothing."""
    return frozenset(
        _INPUT(run.parts[0])
        for run in runs
        if len(run.parts) == 1
        and run.size_bytes >= config.compacted_part_bytes
        and len(inputs[_INPUT(run.parts[0])].rows) == 1
    )


def _outputs(
    runs: Sequence[_Run], inputs: Sequence[PlannedInput], config: CompactionConfig
) -> list[SpecOutput]:
    """The outputs, sorted by their first row."""
    size_bytes = sum(run.size_bytes for run in runs)
    attribute_share = sum(one.attribute_bytes for one in inputs) / max(
        sum(one.row.size_bytes for one in inputs), 1
    )
    # Attributes bound an output's size, as long as a spec does not get too many outputs.
    fitting = max(int(ATTRIBUTE_BYTES_MAX / max(attribute_share, 1e-9)), size_bytes // _PIECES)
    # An input written under other settings may alone hold more than a spec should.
    max_bytes = max(min(config.object_bytes_max, fitting), size_bytes // (2 * _PIECES), 1)
    least = config.stream_object_bytes_min
    own = [run for run in runs if run.size_bytes >= least]
    if len(own) + 2 * _PIECES >= OUTPUTS_MAX:
        own, least = [], STREAM_END
    pieces = [piece for run in own for piece in _even(run.parts, max_bytes)]
    shared = [part for run in runs if run.size_bytes < least for part in run.parts]
    pieces += _even(shared, max_bytes)
    outputs = [
        SpecOutput(
            OutputKind.STREAM
            if piece.rows.streams[0] == piece.rows.streams[-1]
            else OutputKind.STREAM_SET,
            piece.rows,
            piece.size_bytes,
        )
        for piece in pieces
    ]
    outputs.sort(key=lambda output: (output.rows.streams[0], output.rows.starts[0]))
    return outputs


def _even(parts: Sequence[_Part], max_bytes: int) -> Iterator[_Piece]:
    """Cuts `parts` into pieces of about the same size, below `max_bytes` unless a part is larger.

    Neighbouring rows of one input are not cut apart: the fold has them as one range, even where
    their epochs differ.
    """
    if not parts:
        return
    places = _places(parts)
    before = list(accumulate(map(_BYTES, parts), initial=0))
    ends = before if len(before) == len(places) else [before[place] for place in places]
    # Twice the middle between two neighbouring ends.
    middles = list(map(add, ends, ends[1:]))
    wanted = ends[-1] / max(-(-ends[-1] // max_bytes), 1)
    goal, first = wanted, 0
    while first < len(middles):
        largest = bisect_right(ends, ends[first] + max_bytes) - 1
        nearest = bisect_right(middles, 2 * goal)
        end = min(max(first + 1, min(largest, nearest)), len(middles))
        rows = _rows(parts[places[first] : places[end]])
        yield _Piece(rows, ends[end] - ends[first])
        first = end
        goal += wanted


def _places(parts: Sequence[_Part]) -> Sequence[int]:
    """The indexes at which `parts` may be cut, both ends included."""
    inputs = list(map(_INPUT, parts))
    candidates = compress(count(1), map(eq, inputs, islice(inputs, 1, None)))
    held = {number for number in candidates if _meet(parts[number - 1], parts[number])}
    every = range(len(parts) + 1)
    return [number for number in every if number not in held] if held else every


def _meet(before: _Part, after: _Part) -> bool:
    return before[0] == after[0] and before[2] == after[1]


def _rows(parts: Sequence[_Part]) -> Rows:
    """The parts as rows; neighbours of one epoch become one row."""
    rows = Rows()
    last_stream = last_end = last_epoch = -1
    for stream_id, start, end, epoch, _, _ in parts:
        if start != last_end or stream_id != last_stream or epoch != last_epoch:
            if last_stream >= 0:
                rows.ends.append(last_end)
            rows.streams.append(stream_id)
            rows.epochs.append(epoch)
            rows.starts.append(start)
            last_stream, last_epoch = stream_id, epoch
        last_end = end
    if last_stream >= 0:
        rows.ends.append(last_end)
    return rows
