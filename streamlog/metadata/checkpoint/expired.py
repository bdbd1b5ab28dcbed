"""Which ranges ended since the last checkpoint: each is counted off its object once.

1. A range ends when its last offset is cut off or hidden by a patch.
2. Ranges of the delta that had ended before are no longer in it. The base keeps such: those that
   end at or before the start that the stream had then, and those that the delta hides.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from streamlog.format.checkpoint.blocks import RangeGroup, decode_ranges
from streamlog.metadata.checkpoint.files import BlockReader, LevelFile, Levels, groups_of
from streamlog.metadata.checkpoint.runs import block_in, runs
from streamlog.metadata.fold.generation import Generation
from streamlog.metadata.fold.overlay import FoundRange
from streamlog.metadata.steps import Steps, run_offloaded
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import Lane, Offload

STEP_STREAMS = 512


class StreamEnds(NamedTuple):
    """Ranges that lived are those that end after `start`; those up to `cut` are cut off now, those
    whose last offset is in a patch are hidden.
    """

    start: int
    cut: int
    patches: Sequence[FoundRange]


@dataclass(slots=True)
class Deaths:
    """Ranges that ended, by object. `base_streams`: those of which the base has cut off ranges."""

    by_object: Counter[int] = field(default_factory=Counter)
    in_base: int = 0
    base_streams: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Hidden:
    """Sorted, disjoint offsets."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def holds(self, offset: int) -> bool:
        index = bisect_right(self.starts, offset) - 1
        return index >= 0 and offset < self.ends[index]


async def count_deaths(
    ends: Mapping[int, StreamEnds],
    generation: Generation,
    levels: Levels,
    reader: BlockReader,
    offload: Offload,
) -> Deaths:
    """Errors: ObjectNotFound (a file has gone), StoreUnavailable, Corrupt."""
    deaths, patched = Deaths(), {}
    for stream_id, one in ends.items():
        if one.patches:
            patched[stream_id] = _hidden_by(one.patches)
    await run_offloaded(offload, _count_new(ends, patched, generation, deaths.by_object))
    delta: dict[int, _Hidden] = {}
    if not ends:
        return deaths
    if levels.delta is not None:
        is_needed = levels.base is not None
        async for first, last, run, wanted in _wanted_runs(levels.delta, ends, reader):
            groups = await offload.run(Lane.CPU, _groups_in, levels.delta, first, last, run, wanted)
            await offload.run(Lane.CPU, _count, groups, ends, patched, deaths)
            if is_needed:
                _note_hidden(groups, delta)
    if levels.base is not None:
        async for first, last, run, wanted in _wanted_runs(levels.base, ends, reader):
            groups = await offload.run(Lane.CPU, _groups_in, levels.base, first, last, run, wanted)
            await offload.run(Lane.CPU, _count_in_base, groups, ends, patched, delta, deaths)
    return deaths


def _hidden_by(patches: Sequence[FoundRange]) -> _Hidden:
    return _Hidden([one.start for one in patches], [one.end for one in patches])


def _count_new(
    ends: Mapping[int, StreamEnds],
    patched: Mapping[int, _Hidden],
    generation: Generation,
    by_object: Counter[int],
) -> Steps[None]:
    """Of the generation itself; what its own patches replaced in each other is counted already."""
    for index, (stream_id, (_, cut, patches)) in enumerate(ends.items()):
        if index % STEP_STREAMS == STEP_STREAMS - 1:
            yield
        ranges, hidden = generation.ranges.get(stream_id), patched.get(stream_id)
        if ranges is not None:
            for at in range(1, len(ranges), 2):
                if ranges[at] <= cut or (hidden is not None and hidden.holds(ranges[at] - 1)):
                    by_object[ranges[at + 1]] += 1
                elif hidden is None:
                    break
        for patch in patches:
            if patch.end > cut:
                break
            by_object[patch.object_id] += 1


async def _wanted_runs(
    level: LevelFile, ends: Mapping[int, StreamEnds], reader: BlockReader
) -> AsyncIterator[tuple[int, int, Buffer, Mapping[int, Sequence[int]]]]:
    """(first, last, bytes, streams to look at by block) of blocks where ranges may have ended."""
    index = level.tail.ranges
    wanted: dict[int, list[int]] = {}
    for stream_id, (start, cut, patches) in ends.items():
        windows = [(start, cut)] if cut > start else []
        last = -1
        for low, high in (*windows, *((one.start, one.end) for one in patches)):
            block = max(index.block_of(stream_id, low), last, 0)
            while block < len(index) and (index.streams[block], index.starts[block]) < (
                stream_id,
                high,
            ):
                if block > last:
                    wanted.setdefault(block, []).append(stream_id)
                last = block
                block += 1
    async for first, end, run in runs(level, sorted(wanted), reader, objects=False):
        yield first, end, run, wanted


def _groups_in(
    level: LevelFile, first: int, last: int, run: Buffer, wanted: Mapping[int, Sequence[int]]
) -> list[RangeGroup]:
    found: list[RangeGroup] = []
    for block in range(first, last):
        groups = decode_ranges(block_in(level, block, first, run), level.ref.name)
        for stream_id in wanted[block]:
            found += groups_of(groups, stream_id)
    return found


def _count(
    groups: Sequence[RangeGroup],
    ends: Mapping[int, StreamEnds],
    patched: Mapping[int, _Hidden],
    deaths: Deaths,
) -> None:
    for group in groups:
        start, cut, _ = ends[group.stream_id]
        hidden = patched.get(group.stream_id)
        for end, object_id in zip(_ends(group), group.objects, strict=True):
            if start < end and (end <= cut or (hidden is not None and hidden.holds(end - 1))):
                deaths.by_object[object_id] += 1


def _count_in_base(
    groups: Sequence[RangeGroup],
    ends: Mapping[int, StreamEnds],
    patched: Mapping[int, _Hidden],
    delta: Mapping[int, _Hidden],
    deaths: Deaths,
) -> None:
    for group in groups:
        start, cut, _ = ends[group.stream_id]
        hidden, before = patched.get(group.stream_id), delta.get(group.stream_id)
        for end, object_id in zip(_ends(group), group.objects, strict=True):
            if end <= start:
                continue
            if end <= cut:
                deaths.base_streams.add(group.stream_id)
            elif hidden is None or not hidden.holds(end - 1):
                continue
            if before is None or not before.holds(end - 1):
                deaths.by_object[object_id] += 1
                deaths.in_base += 1


def _note_hidden(groups: Sequence[RangeGroup], delta: dict[int, _Hidden]) -> None:
    """Blocks come in order, so groups of a stream do."""
    for group in groups:
        hidden = delta.setdefault(group.stream_id, _Hidden())
        hidden.starts.append(group.start)
        hidden.ends.append(group.start + sum(group.counts))


def _ends(group: RangeGroup) -> Sequence[int]:
    return list(accumulate(group.counts, initial=group.start))[1:]
