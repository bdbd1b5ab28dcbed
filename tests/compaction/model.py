"""A model of the fold for the planner: objects by their rows and sizes; no bytes are moved."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from streamlog.compaction.plan.config import CompactionConfig
from streamlog.compaction.plan.planner import (
    ALL,
    DEAD,
    FULLY_COMPACTED,
    Candidate,
    Choice,
    PlannedInput,
    choose,
    choose_all,
    end_stream,
    plan,
    tier_of,
)
from streamlog.compaction.plan.spec import CompactionSpec, Rows
from streamlog.compaction.plan.stats import ObjectStats
from streamlog.engine.config import ReadConfig
from streamlog.format.rows import ObjectRow, RangeRow
from streamlog.metadata.compaction_interface import CompactionPoint

BLOCK_BYTES = 512 * 1024
GET_BYTES = ReadConfig().read_ahead_bytes_max
"""The size of a catch-up reader's GETs."""


def stats_of(object_id: int, rows: Sequence[RangeRow], sizes: Sequence[int]) -> ObjectStats:
    data = sum(sizes)
    blocks = sum(-(-size // BLOCK_BYTES) for size in sizes)
    region = 20 + 49 * blocks + 13 * blocks
    size_bytes = 16 + data + region + 90 + 32 * len(rows)
    row = ObjectRow(object_id, size_bytes, 16 + data, region, 0)
    return ObjectStats(row, Rows(rows), array("Q", sizes), 13 * blocks)


@dataclass
class FoldModel:
    """Uploads of equal size over `streams` streams; compaction step by step."""

    streams: int
    config: CompactionConfig
    objects: dict[int, ObjectStats] = field(default_factory=dict)
    live: dict[int, Rows] = field(default_factory=dict)
    appended: int = 0
    written: int = 0
    specs: list[CompactionSpec] = field(default_factory=list)
    most_in_a_tier: int = 0
    """Stream-set objects that are to be merged further."""
    most_fully_compacted: int = 0
    """Stream-set objects that are not."""
    futile: list[frozenset[int]] = field(default_factory=list)
    _next_id: int = 1
    _ends: dict[int, int] = field(default_factory=dict)

    def append(self, size_bytes: int) -> None:
        """One upload, in which every stream has the same share; an offset is a byte."""
        share = size_bytes // self.streams
        rows = []
        for stream_id in range(1, self.streams + 1):
            end = self._ends.get(stream_id, 0)
            rows.append(RangeRow(stream_id, 1, end, end + share))
            self._ends[stream_id] = end + share
        self.add(rows, [share] * len(rows))
        self.appended += share * len(rows)

    def add(self, rows: Sequence[RangeRow], sizes: Sequence[int]) -> ObjectStats:
        stats = stats_of(self._next_id, rows, sizes)
        self.objects[self._next_id] = stats
        self.live[self._next_id] = stats.rows
        self._next_id += 1
        self.written += stats.row.size_bytes
        return stats

    def candidates(self) -> list[Candidate]:
        return [
            Candidate(f.row, len(f.rows), 1 - len(self.live[i]) / len(f.rows))
            for i, f in self.objects.items()
        ]

    def compact(self) -> None:
        """Until nothing is due."""
        while (choice := choose(self.candidates(), self.config, self.futile)) is not None:
            self.merge(choice)
        self._count_tiers()

    def compact_all(self) -> None:
        choice = choose_all(self.candidates(), self.config)
        if choice is not None:
            self.merge(choice)

    def merge(self, choice: Choice) -> None:
        """Every spec of a merge; its inputs die."""
        at: int | None = 0
        ids = [row.object_id for row in choice.inputs]
        done = 0
        while at is not None:
            stats = [self.objects[i] for i in ids if i in self.objects]
            end = end_stream(stats, at, self.config)
            inputs = []
            for one in stats:
                rows = self.live[one.row.object_id].between(at, end)
                if len(rows):
                    inputs.append(
                        PlannedInput(one.row, rows, one.bytes_of(rows), one.attribute_bytes)
                    )
            merge_plan = plan(
                CompactionPoint(0, 0),
                inputs,
                end,
                self.config,
                is_reclaiming=choice.tier in (DEAD, ALL),
            )
            at = merge_plan.next_stream
            if merge_plan.spec is not None:
                self.apply(merge_plan.spec, {one.row.object_id: one for one in stats})
                done += 1
        if not done:
            self.futile.append(frozenset(ids))

    def apply(self, spec: CompactionSpec, stats: dict[int, ObjectStats]) -> None:
        self.specs.append(spec)
        sizes: dict[tuple[int, int], int] = {}
        for one in spec.inputs:
            for row, size in zip(
                one.rows, stats[one.row.object_id].bytes_of(one.rows), strict=True
            ):
                sizes[row.stream_id, row.start] = size
            gone = {(row.stream_id, row.start) for row in one.rows}
            left = Rows(
                row
                for row in self.live[one.row.object_id]
                if (row.stream_id, row.start) not in gone
            )
            self.live[one.row.object_id] = left
            if not len(left):
                del self.live[one.row.object_id], self.objects[one.row.object_id]
        starts = sorted(sizes)
        for output in spec.outputs:
            self.add(list(output.rows), [_held(sizes, starts, row) for row in output.rows])

    def _count_tiers(self) -> None:
        counts: dict[object, int] = {}
        for candidate in self.candidates():
            if candidate.parts > 1:
                tier = tier_of(candidate, self.config)
                counts[tier] = counts.get(tier, 0) + 1
        self.most_fully_compacted = max(self.most_fully_compacted, counts.pop(FULLY_COMPACTED, 0))
        self.most_in_a_tier = max(self.most_in_a_tier, *counts.values(), 0)

    @property
    def not_fully_compacted(self) -> int:
        return sum(tier_of(one, self.config) != FULLY_COMPACTED for one in self.candidates())

    @property
    def amplification(self) -> float:
        return self.written / self.appended

    @property
    def gets(self) -> int:
        """To read every stream once: each object's index, then each stream's part in it."""
        return sum(
            1 + sum(-(-size // GET_BYTES) for size in one.bytes_of(self.live[i]))
            for i, one in self.objects.items()
        )


def _held(sizes: dict[tuple[int, int], int], starts: list[tuple[int, int]], row: RangeRow) -> int:
    low = bisect_left(starts, (row.stream_id, row.start))
    high = bisect_left(starts, (row.stream_id, row.end))
    return sum(sizes[key] for key in starts[low:high])
