"""What to compact, and into what: pure. The picture and the arithmetic are in docs/compaction.md.

1. An object's *quality* is what its worst side lacks: min(size / small_object_bytes, average part /
   settled_part_bytes), a part being what one stream has in it. From 1 on it is *settled*.
2. Others stand in tiers by the order of magnitude that they lack. A tier with enough objects is
   merged; quality rises with every merge, so that no byte is rewritten more often than there are
   tiers.
3. In a merge, streams with much data get objects of their own; all others go together, sorted, so
   that each one's part is one piece.
   No output is larger than object_bytes_max, but for what one input holds of a stream in one piece;
   so a spec takes no more than its outputs hold, of one stream alone as many inputs as that.
4. Settled objects are touched again only when most of their bytes are dead.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from streamlog.compaction.config import CompactionConfig
from streamlog.compaction.facts import ObjectFacts
from streamlog.compaction.spec import (
    INPUTS_MAX,
    OUTPUT_ROWS_MAX,
    OUTPUTS_MAX,
    CompactionSpec,
    OutputKind,
    Rows,
    SpecInput,
    SpecOutput,
)
from streamlog.format.rows import ObjectRow, RangeRow
from streamlog.metadata.compaction_interface import CompactionPoint

TIER_WIDTH = 16
"""Below large_objects_min's default: what a merge makes of a tier always leaves it."""
STREAM_END = 1 << 64
ATTRIBUTE_BYTES_MAX = 16 << 20
"""Of an output: a reader gets them all with the index. Streams of tiny batches have many."""
REST_MAX = 240
"""Inputs of a merge of all that is not settled."""
REST_PARTS_MAX = 1_500_000
"""Their parts: some 100 MiB while the merge is planned."""
_PIECES = 15
"""Outputs that the size of a spec alone makes, at most; twice as many where large parts do not pack
well.
"""
_OWNERS_MAX = OUTPUTS_MAX - 2 * _PIECES - 2
"""Streams with objects of their own in a spec."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A live object. `parts`: streams when it was written, or that live in it, if that is all that
    is known; `dead_share` of its bytes is trimmed, as far as known.
    """

    row: ObjectRow
    parts: int
    dead_share: float = 0.0


class Tier(NamedTuple):
    """`steps`: merges that objects need until they are settled; 0: mostly dead ones."""

    steps: int
    is_large: bool


SETTLED = Tier(0, True)
DEAD = Tier(0, False)
ALL = Tier(-1, False)
"""Of a merge, not of an object: whatever is not settled."""


def tier_of(candidate: Candidate, config: CompactionConfig) -> Tier:
    return tier_at(candidate.row.size_bytes, candidate.parts, candidate.dead_share, config)


def tier_at(size_bytes: int, parts: int, dead_share: float, config: CompactionConfig) -> Tier:
    if dead_share >= config.dead_share_min:
        return DEAD
    # What no output can reach is not asked for.
    wanted = min(config.small_object_bytes, config.object_bytes_max // 2)
    is_large = size_bytes >= wanted
    part = size_bytes / max(parts, 1)
    lack = max(wanted / max(size_bytes, 1), min(config.settled_part_bytes, wanted) / max(part, 1))
    if lack <= 1 or (is_large and parts <= 1):
        return SETTLED
    steps = 1
    while lack > TIER_WIDTH:
        lack /= TIER_WIDTH
        steps += 1
    return Tier(steps, is_large)


@dataclass(frozen=True, slots=True)
class Choice:
    """Objects to be merged, by id."""

    tier: Tier
    inputs: Sequence[ObjectRow]


def tiers(
    candidates: Collection[Candidate], config: CompactionConfig
) -> dict[Tier, list[ObjectRow]]:
    """Objects by tier, those of a tier by id."""
    found: dict[Tier, list[ObjectRow]] = {}
    for candidate in candidates:
        found.setdefault(tier_of(candidate, config), []).append(candidate.row)
    for rows in found.values():
        rows.sort(key=attrgetter("object_id"))
    return found


def choose(
    candidates: Collection[Candidate],
    config: CompactionConfig,
    futile: Collection[frozenset[int]] = (),
) -> Choice | None:
    """The merge that is most due: fresh objects first, dead ones last; None when nothing is.

    `futile`: sets of objects that gained nothing; they are not chosen again as they were, and do
    not keep others of their tier from being merged.
    """
    by_tier = tiers(candidates, config)
    by_tier.pop(SETTLED, None)
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
            # The oldest ones: their streams' parts are neighbours.
            chosen = left[:INPUTS_MAX] if tier != DEAD else _reclaimed(left, config)
            if frozenset(row.object_id for row in chosen) not in futile:
                return Choice(tier, chosen)
    return None


def _reclaimed(rows: Sequence[ObjectRow], config: CompactionConfig) -> Sequence[ObjectRow]:
    """As many as one spec can take: a single stream's may all go into it."""
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
    """All that is not settled, as far as one merge can take it; at least two, or dead ones."""
    rest = [c for c in candidates if tier_of(c, config) != SETTLED]
    rest.sort(key=lambda c: c.row.object_id)
    if len(rest) < 2 and not any(tier_of(c, config) == DEAD for c in rest):
        return None
    chosen: list[ObjectRow] = []
    parts = 0
    for one in rest[:REST_MAX]:
        # Of an object no more than a spec's rows are in memory at a time.
        parts += min(one.parts, OUTPUT_ROWS_MAX)
        if len(chosen) >= 2 and parts > REST_PARTS_MAX:
            break
        chosen.append(one.row)
    if frozenset(row.object_id for row in chosen) in futile:
        return None
    return Choice(ALL, chosen)


@dataclass(frozen=True, slots=True)
class PlannedInput:
    """An input's rows that live, as far as they are looked at, and bytes for each."""

    row: ObjectRow
    rows: Rows
    sizes: array[int]
    attribute_bytes: int = 0
    """Of its index region, beside the entries of blocks."""


class _Part(NamedTuple):
    stream_id: int
    start: int
    end: int
    epoch: int
    size_bytes: int
    input: int


@dataclass(slots=True)
class _Run:
    """A stream's parts without a gap between them."""

    stream_id: int
    parts: list[_Part]
    size_bytes: int

    @property
    def rows(self) -> int:
        """A row for each epoch."""
        pairs = zip(self.parts, self.parts[1:], strict=False)
        return 1 + sum(before.epoch != after.epoch for before, after in pairs)


@dataclass(slots=True)
class _Piece:
    """Rows on their way into one output."""

    rows: list[RangeRow] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, part: _Part) -> None:
        self.size_bytes += part.size_bytes
        if self.rows:
            last = self.rows[-1]
            if (last.stream_id, last.epoch, last.end) == (part.stream_id, part.epoch, part.start):
                self.rows[-1] = last._replace(end=part.end)
                return
        self.rows.append(RangeRow(part.stream_id, part.epoch, part.start, part.end))


@dataclass(frozen=True, slots=True)
class Plan:
    """`spec` None: nothing is gained. The merge goes on from `next_stream`; None: it ends here."""

    spec: CompactionSpec | None
    next_stream: int | None


def end_stream(facts: Sequence[ObjectFacts], first_stream: int, config: CompactionConfig) -> int:
    """Up to which stream (exclusive) one spec can go from `first_stream`; at least one stream."""
    last = max((f.rows.streams[-1] for f in facts if len(f.rows)), default=0)
    low, high = first_stream + 1, last + 1
    if _fits(facts, first_stream, high, config):
        return STREAM_END
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(facts, first_stream, middle, config):
            low = middle
        else:
            high = middle - 1
    return low


def _fits(facts: Sequence[ObjectFacts], first: int, end: int, config: CompactionConfig) -> bool:
    size = sum(f.bytes_between(first, end) for f in facts)
    rows = max(bisect_left(f.rows.streams, end) - bisect_left(f.rows.streams, first) for f in facts)
    return size <= config.spec_bytes_max and rows <= OUTPUT_ROWS_MAX


def plan(
    point: CompactionPoint,
    inputs: Sequence[PlannedInput],
    end: int,
    config: CompactionConfig,
    *,
    is_reclaiming: bool = False,
) -> Plan:
    """Lays `inputs`, looked at up to stream `end` (exclusive), out into outputs.

    `is_reclaiming`: inputs are mostly dead, so that to rewrite them is a gain in itself.
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
            # What is left out stays where it is: the next look at its objects finds it.
            cut, next_stream = _first_inputs(runs, room), stream_id + 1
            if sum(run.rows for run in cut) <= OUTPUT_ROWS_MAX:
                chosen = cut
            break
        if rows > OUTPUT_ROWS_MAX or owners > _OWNERS_MAX or size_bytes > room:
            # One stream alone never gets here but with thousands of epochs: it is left as it is.
            next_stream = stream_id if chosen else stream_id + 1
            break
        chosen += runs
    if not is_reclaiming:
        spared = _spared(chosen, inputs, config)
        chosen = [run for run in chosen if run.parts[0].input not in spared]
    outputs = _outputs(chosen, inputs, config)
    used = _used(inputs, {part.input for run in chosen for part in run.parts}, next_stream)
    if not outputs or not (is_reclaiming or _has_gain(chosen, used, outputs)):
        return Plan(None, next_stream)
    return Plan(CompactionSpec(point, used, outputs, config.block_target_bytes), next_stream)


def _has_gain(
    runs: Sequence[_Run], inputs: Sequence[SpecInput], outputs: Sequence[SpecOutput]
) -> bool:
    """Half the ranges go, or objects become twice as large."""
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
    """A stream's runs of the inputs that begin first, as many as are below `room`; at least one."""
    parts = [part for run in runs for part in run.parts]
    held: dict[int, int] = {}
    for part in parts:
        held[part.input] = held.get(part.input, 0) + part.size_bytes
    kept: set[int] = set()
    size_bytes = 0
    for number, bytes_more in held.items():
        size_bytes += bytes_more
        if kept and size_bytes > room:
            break
        kept.add(number)
    return list(_joined(part for part in parts if part.input in kept))


def _runs(inputs: Sequence[PlannedInput]) -> Iterator[_Run]:
    """By (stream, start). One part of each input is held at a time."""
    return _joined(merge(*(_parts(number, one) for number, one in enumerate(inputs))))


def _joined(parts: Iterable[_Part]) -> Iterator[_Run]:
    """Of parts by (stream, start)."""
    run: _Run | None = None
    for part in parts:
        if run and run.stream_id == part.stream_id and run.parts[-1].end == part.start:
            run.parts.append(part)
            run.size_bytes += part.size_bytes
            continue
        if run:
            yield run
        run = _Run(part.stream_id, [part], part.size_bytes)
    if run:
        yield run


def _parts(number: int, one: PlannedInput) -> Iterator[_Part]:
    rows = one.rows
    for stream, start, end, epoch, size in zip(
        rows.streams, rows.starts, rows.ends, rows.epochs, one.sizes, strict=True
    ):
        yield _Part(stream, start, end, epoch, size, number)


def _spared(
    runs: Sequence[_Run], inputs: Sequence[PlannedInput], config: CompactionConfig
) -> frozenset[int]:
    """Inputs of one stream that meet no other and are no small fry: nothing is gained by them."""
    return frozenset(
        run.parts[0].input
        for run in runs
        if len(run.parts) == 1
        and run.size_bytes >= config.settled_part_bytes
        and len(inputs[run.parts[0].input].rows) == 1
    )


def _outputs(
    runs: Sequence[_Run], inputs: Sequence[PlannedInput], config: CompactionConfig
) -> list[SpecOutput]:
    """By their first row."""
    size_bytes = sum(run.size_bytes for run in runs)
    attribute_share = sum(one.attribute_bytes for one in inputs) / max(
        sum(one.row.size_bytes for one in inputs), 1
    )
    # Attributes bound the size where that makes no more outputs than a spec may have.
    fitting = max(int(ATTRIBUTE_BYTES_MAX / max(attribute_share, 1e-9)), size_bytes // _PIECES)
    # One input alone may hold more than a spec is to: it was written with other settings.
    max_bytes = max(min(config.object_bytes_max, fitting), size_bytes // (2 * _PIECES), 1)
    least = config.stream_object_bytes_min
    own = [run for run in runs if run.size_bytes >= least]
    if len(own) + 2 * _PIECES >= OUTPUTS_MAX:
        own, least = [], STREAM_END
    pieces = [piece for run in own for piece in _even(run.parts, max_bytes)]
    rest = [part for run in runs if run.size_bytes < least for part in run.parts]
    pieces += _even(rest, max_bytes)
    outputs = [
        SpecOutput(
            OutputKind.STREAM
            if piece.rows[0].stream_id == piece.rows[-1].stream_id
            else OutputKind.STREAM_SET,
            Rows(piece.rows),
            piece.size_bytes,
        )
        for piece in pieces
    ]
    outputs.sort(key=lambda output: (output.rows.streams[0], output.rows.starts[0]))
    return outputs


def _even(parts: Sequence[_Part], max_bytes: int) -> Iterator[_Piece]:
    """`parts` cut into pieces of about the same size, below `max_bytes` unless a part is larger.

    What an input holds without a gap is one range to the fold, whatever its epochs: it is not cut.
    """
    if not parts:
        return
    size_bytes = sum(part.size_bytes for part in parts)
    wanted = size_bytes / max(-(-size_bytes // max_bytes), 1)
    piece, done, goal = _Piece(), 0, wanted
    for whole in _whole(parts):
        held = sum(part.size_bytes for part in whole)
        if piece.rows and (piece.size_bytes + held > max_bytes or done + held / 2 > goal):
            yield piece
            piece = _Piece()
            goal += wanted
        for part in whole:
            piece.add(part)
        done += held
    yield piece


def _whole(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """Parts that one input holds without a gap, together."""
    whole: list[_Part] = []
    for part in parts:
        last = whole[-1] if whole else None
        if last and (last.input, last.stream_id, last.end) != (
            part.input,
            part.stream_id,
            part.start,
        ):
            yield whole
            whole = []
        whole.append(part)
    yield whole
