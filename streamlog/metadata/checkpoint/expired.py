"""Counts the ranges that expired since the last checkpoint; each counts once, for its object.

1. A range expires when its last offset is cut off or hidden by a patch.
2. The delta has no ranges that expired before. The base still has them: those that end at or before
   the start that the stream had then, and those that the delta hides.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from streamlog.format.checkpoint.blocks import RangeGroup, decode_ranges
from streamlog.metadata.checkpoint.files import CheckpointReader, LevelFile, Levels, groups_of
from streamlog.metadata.checkpoint.runs import block_in, runs
from streamlog.metadata.fold.generation import Generation
from streamlog.metadata.fold.overlay import ObjectRange
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.steps import Steps, run_offloaded
from streamlog.runtime.offload import Lane, Offload

STEP_STREAMS = 512


class StreamEnds(NamedTuple):
    """What ended ranges of one stream since the last checkpoint.

    Ranges that end after `start` were live. Those that end at or before `cut` are cut off now, and
    those whose last offset is in a patch are hidden.
    """

    start: int
    cut: int
    patches: Sequence[ObjectRange]


@dataclass(slots=True)
class ExpiredRanges:
    """Numbers of expired ranges, by object and of those in the base.

    `base_streams`: streams of which the base holds ranges that are cut off.
    """

    by_object: Counter[int] = field(default_factory=Counter)
    in_base: int = 0
    base_streams: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Hidden:
    """Hidden offsets of one stream: sorted, disjoint intervals."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def holds(self, offset: int) -> bool:
        index = bisect_right(self.starts, offset) - 1
        return index >= 0 and offset < self.ends[index]


async def count_expired(
    ends: Mapping[int, StreamEnds],
    generation: Generation,
    levels: Levels,
    reader: CheckpointReader,
    offload: Offload,
) -> ExpiredRanges:
    """Errors: ObjectNotFound (a file has gone), StoreUnavailable, Corrupt."""
    expired, patched = ExpiredRanges(), {}
    for stream_id, stream_ends in ends.items():
        if stream_ends.patches:
            patched[stream_id] = _hidden_by(stream_ends.patches)
    await run_offloaded(offload, _count_new(ends, patched, generation, expired.by_object))
    delta: dict[int, _Hidden] = {}
    if not ends:
        return expired
    if levels.delta is not None:
        is_needed = levels.base is not None
        async for first, last, run, wanted in _wanted_runs(levels.delta, ends, reader):
            groups = await offload.run(Lane.CPU, _groups_in, levels.delta, first, last, run, wanted)
            await offload.run(Lane.CPU, _count, groups, ends, patched, expired)
            if is_needed:
                _note_hidden(groups, delta)
    if levels.base is not None:
        async for first, last, run, wanted in _wanted_runs(levels.base, ends, reader):
            groups = await offload.run(Lane.CPU, _groups_in, levels.base, first, last, run, wanted)
            await offload.run(Lane.CPU, _count_in_base, groups, ends, patched, delta, expired)
    return expired


def _hidden_by(patches: Sequence[ObjectRange]) -> _Hidden:
    return _Hidden([patch.start for patch in patches], [patch.end for patch in patches])


def _count_new(
    ends: Mapping[int, StreamEnds],
    patched: Mapping[int, _Hidden],
    generation: Generation,
    by_object: Counter[int],
) -> Steps[None]:
    """Counts ranges of the generation, and of its patches those that are cut off.

    Patches that later patches replaced are counted already.
    """
    for index, (stream_id, (_, cut, patches)) in enumerate(ends.items()):
        if index % STEP_STREAMS == STEP_STREAMS - 1:
            yield
        ranges, hidden = generation.ranges.get(stream_id), patched.get(stream_id)
        if ranges is not None:
            for place in range(1, len(ranges), 2):
                end = ranges[place]
                if end <= cut or (hidden is not None and hidden.holds(end - 1)):
                    by_object[ranges[place + 1]] += 1
                elif hidden is None:
                    break
        for patch in patches:
            if patch.end > cut:
                break
            by_object[patch.object_id] += 1


async def _wanted_runs(
    level: LevelFile, ends: Mapping[int, StreamEnds], reader: CheckpointReader
) -> AsyncIterator[tuple[int, int, Buffer, Mapping[int, Sequence[int]]]]:
    """(first, last, bytes, streams to check by block) of blocks where ranges may have expired."""
    index = level.tail.ranges
    wanted: dict[int, list[int]] = {}
    for stream_id, (start, cut, patches) in ends.items():
        windows = [(start, cut)] if cut > start else []
        last = -1
        for low, high in (*windows, *((patch.start, patch.end) for patch in patches)):
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
    wanted_groups: list[RangeGroup] = []
    for block in range(first, last):
        groups = decode_ranges(block_in(level, block, first, run), level.ref.name)
        for stream_id in wanted[block]:
            wanted_groups += groups_of(groups, stream_id)
    return wanted_groups


def _count(
    groups: Sequence[RangeGroup],
    ends: Mapping[int, StreamEnds],
    patched: Mapping[int, _Hidden],
    expired: ExpiredRanges,
) -> None:
    for group in groups:
        start, cut, _ = ends[group.stream_id]
        hidden = patched.get(group.stream_id)
        for end, object_id in zip(_ends(group), group.objects, strict=True):
            if start < end and (end <= cut or (hidden is not None and hidden.holds(end - 1))):
                expired.by_object[object_id] += 1


def _count_in_base(
    groups: Sequence[RangeGroup],
    ends: Mapping[int, StreamEnds],
    patched: Mapping[int, _Hidden],
    delta: Mapping[int, _Hidden],
    expired: ExpiredRanges,
) -> None:
    for group in groups:
        start, cut, _ = ends[group.stream_id]
        hidden, before = patched.get(group.stream_id), delta.get(group.stream_id)
        for end, object_id in zip(_ends(group), group.objects, strict=True):
            if end <= start:
                continue
            if end <= cut:
                expired.base_streams.add(group.stream_id)
            elif hidden is None or not hidden.holds(end - 1):
                continue
            if before is None or not before.holds(end - 1):
                expired.by_object[object_id] += 1
                expired.in_base += 1


def _note_hidden(groups: Sequence[RangeGroup], delta: dict[int, _Hidden]) -> None:
    """Notes the delta's ranges. Blocks arrive in order, and so do the groups of a stream."""
    for group in groups:
        hidden = delta.setdefault(group.stream_id, _Hidden())
        hidden.starts.append(group.start)
        hidden.ends.append(group.start + sum(group.counts))


def _ends(group: RangeGroup) -> Sequence[int]:
    return list(accumulate(group.counts, initial=group.start))[1:]
