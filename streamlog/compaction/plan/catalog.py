"""The objects that may be compacted, and their contents, in bounded memory.

1. Checkpoint files never change, so each object in them is looked at once. The catalog keeps 12
   bytes for each object with several streams, and 8 for each that is not fully compacted. As long
   as the base stays, only the delta and objects in no file yet are new: a look over a million
   fully compacted objects costs as much as a look over none.
2. An object's entry in the delta hides its entry in the base.
3. A look returns the oldest objects of each tier, as many as the planner could take.
4. An object's stats (rows and sizes) are read by one GET and cached; the least recently used are
   dropped.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge

from streamlog.compaction.plan.config import CompactionConfig
from streamlog.compaction.plan.planner import FULLY_COMPACTED, Candidate, Tier, tier_at, tier_of
from streamlog.compaction.plan.stats import ObjectStats, read_stats
from streamlog.errors import MetadataUnavailable, ObjectNotFound, StreamlogError
from streamlog.format.checkpoint.blocks import ObjectColumns
from streamlog.format.corrupt import corrupt
from streamlog.metadata.compaction_interface import ObjectFiles, ObjectView
from streamlog.metadata.interface import ObjectRow
from streamlog.metadata.lookup.live_objects import row_of
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.objectstore.object_reader import get_exactly
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import Lane, Offload

TOLD_MAX = 512
"""Objects of a tier in one look; the planner takes 240 at most, and may have set some aside."""
PAGE_OBJECTS = 1000
PAGES_A_LOOK = 16
TRIES = 5
PARTS_MAX = 10_000
"""Objects in no file yet whose number of streams is remembered."""


@dataclass(slots=True)
class _File:
    """The objects of one checkpoint file that are not fully compacted; `tiers`: ids, rising."""

    name: str = ""
    tiers: dict[Tier, array[int]] = field(default_factory=dict)
    first: dict[Tier, int] = field(default_factory=dict)
    """By tier: the ids before this index are hidden by the delta, for as long as the base stays."""
    ids: array[int] = field(default_factory=lambda: array("Q"))
    """Objects with several streams; of a delta all objects."""
    parts: array[int] = field(default_factory=lambda: array("I"))
    """How many streams each of `ids` had when it was first seen; 0: dead."""

    def parts_of(self, object_id: int) -> int | None:
        at = bisect_left(self.ids, object_id)
        return self.parts[at] if at < len(self.ids) and self.ids[at] == object_id else None

    def count(self, tier: Tier) -> int:
        return len(self.tiers.get(tier, ())) - self.first.get(tier, 0)


class Catalog:
    def __init__(
        self,
        metadata: ObjectView,
        store: ObjectStore,
        offload: Offload,
        config: CompactionConfig,
    ) -> None:
        self._metadata = metadata
        self._store = store
        self._offload = offload
        self._config = config
        self._base = _File()
        self._delta = _File()
        self._rows: dict[int, Candidate] = {}
        """The objects in files that the last look returned."""
        self._parts: OrderedDict[int, int] = OrderedDict()
        """Object id → its streams when it was first seen or read, until a file has the object."""
        self._stats: OrderedDict[int, ObjectStats] = OrderedDict()
        self._stats_bytes = 0
        self.backlog: dict[Tier, int] = {}
        """Objects of each tier at the last look. In a tier with more than TOLD_MAX objects, some
        that died since may count.
        """

    async def look(self, without: Collection[int] = ()) -> list[Candidate]:
        """The oldest objects of each tier that are not fully compacted, except those in `without`.

        Errors: MetadataUnavailable, StoreUnavailable, Corrupt.
        """
        await self._read_files()
        newest: dict[Tier, dict[int, Candidate]] = {}
        for one in self._metadata.new_objects():
            candidate = self._candidate(one.row, one.live_ranges)
            newest.setdefault(tier_of(candidate, self._config), {})[one.row.object_id] = candidate
        tiers = newest.keys() | self._base.tiers.keys() | self._delta.tiers.keys()
        tiers.discard(FULLY_COMPACTED)
        told: dict[Tier, list[int]] = {}
        for tier in tiers:
            new = newest.get(tier, {})
            told[tier], self.backlog[tier] = self._oldest(tier, sorted(new), without)
        for tier in self.backlog.keys() - tiers:
            del self.backlog[tier]
        new = {object_id: one for by_id in newest.values() for object_id, one in by_id.items()}
        in_files = sorted(i for ids in told.values() for i in ids if i not in new)
        await self._read_rows(in_files)
        candidates = self._rows | new
        return [candidates[i] for ids in told.values() for i in ids if i in candidates]

    # the list of objects

    async def _read_files(self) -> None:
        """Reads the newest checkpoint's files, unless they are the ones read before."""
        for _ in range(TRIES):
            files = self._metadata.object_files()
            if files == ObjectFiles(self._base.name, self._delta.name):
                return
            try:
                if files.base != self._base.name:
                    self._rows.clear()
                    self._base = await self._read_file(files.base, is_delta=False)
                self._delta = await self._read_file(files.delta, is_delta=True)
            except ObjectNotFound:
                await self._metadata.catch_up()
        raise MetadataUnavailable(
            f"{TRIES} times a newer checkpoint came while the list of objects was read"
        )

    async def _read_file(self, name: str, *, is_delta: bool) -> _File:
        file = _File(name)
        if name:
            async for blocks in self._metadata.object_blocks(name):
                await self._offload.run(Lane.CPU, self._take_in, file, blocks, is_delta)
        return file

    def _take_in(self, file: _File, blocks: Sequence[ObjectColumns], is_delta: bool) -> None:
        for block in blocks:
            sizes, lives = block.others[0], block.others[4]
            for at, (object_id, size, live) in enumerate(zip(block.ids, sizes, lives, strict=True)):
                parts = self._parts_of(object_id, live) if live else 0
                if is_delta:
                    self._rows.pop(object_id, None)
                if is_delta or parts > 1:
                    file.ids.append(object_id)
                    file.parts.append(parts)
                    self._parts.pop(object_id, None)
                if not parts:
                    continue
                tier = tier_at(size, parts, 1 - live / parts, self._config)
                if tier == FULLY_COMPACTED:
                    continue
                ids = file.tiers.setdefault(tier, array("Q"))
                ids.append(object_id)
                if len(ids) <= TOLD_MAX:
                    self._rows[object_id] = Candidate(
                        row_of(block.row(at)), parts, 1 - live / parts
                    )

    def _oldest(
        self, tier: Tier, new: Sequence[int], without: Collection[int]
    ) -> tuple[list[int], int]:
        """The first TOLD_MAX ids of a tier, rising, and how many objects the tier has."""
        told: list[int] = []
        skipped = 0
        delta = self._delta.tiers.get(tier, array("Q"))
        for object_id in merge(self._not_hidden(tier), delta, new):
            if object_id in without:
                skipped += 1
            elif len(told) < TOLD_MAX:
                told.append(object_id)
            else:
                count = self._base.count(tier) + len(delta) + len(new) - skipped
                return told, count
        return told, len(told)

    def _not_hidden(self, tier: Tier) -> Iterator[int]:
        """Ids of the base that the delta does not hide. A hidden id stays hidden as long as the
        base stays."""
        ids = self._base.tiers.get(tier, array("Q"))
        first = at = self._base.first.get(tier, 0)
        while at < len(ids):
            is_hidden = self._delta.parts_of(ids[at]) is not None
            at += 1
            if not is_hidden:
                yield ids[at - 1]
            elif first == at - 1:
                first = self._base.first[tier] = at

    async def _read_rows(self, wanted: Sequence[int]) -> None:
        """Reads the rows of objects that are not cached, a few pages a look to keep it short."""
        self._rows = {i: self._rows[i] for i in wanted if i in self._rows}
        missing = [i for i in wanted if i not in self._rows]
        at = pages = 0
        while at < len(missing) and pages < PAGES_A_LOOK:
            page = await self._metadata.live_objects(after=missing[at] - 1, limit=PAGE_OBJECTS)
            live = {one.row.object_id: one for one in page}
            is_last = len(page) < PAGE_OBJECTS
            while at < len(missing) and (is_last or missing[at] <= page[-1].row.object_id):
                one = live.get(missing[at])
                # Absent: it died in a newer checkpoint, which the next look reads.
                if one is not None:
                    self._rows[missing[at]] = self._candidate(one.row, one.live_ranges)
                at += 1
            pages += 1

    def _candidate(self, row: ObjectRow, live: int) -> Candidate:
        parts = self._parts_of(row.object_id, live)
        if parts > 1:
            self._remember_parts(row.object_id, parts)
        return Candidate(row, parts, 1 - live / max(parts, 1))

    def _parts_of(self, object_id: int, live: int) -> int:
        return max(
            live,
            self._parts.get(object_id, 0),
            self._delta.parts_of(object_id) or 0,
            self._base.parts_of(object_id) or 0,
        )

    def _remember_parts(self, object_id: int, parts: int) -> None:
        self._parts[object_id] = parts
        self._parts.move_to_end(object_id)
        if len(self._parts) > PARTS_MAX:
            self._parts.popitem(last=False)

    # the contents of objects

    async def stats(self, row: ObjectRow) -> ObjectStats:
        """Errors: Corrupt, ObjectNotFound, StoreUnavailable."""
        stats = self._stats.get(row.object_id)
        if stats is None:
            key = data_key(row.object_id)
            length = row.size_bytes - row.index_position
            data = await get_exactly(self._store, key, row.index_position, length)
            stats = await self._offload.run(Lane.CPU, _decode, row, data, key)
            self._stats[row.object_id] = stats
            self._stats_bytes += stats.memory_bytes
            streams = len(set(stats.rows.streams))
            if streams > 1:
                self._remember_parts(row.object_id, streams)
        self._stats.move_to_end(row.object_id)
        while self._stats_bytes > self._config.object_stats_cache_bytes and len(self._stats) > 1:
            _, dropped = self._stats.popitem(last=False)
            self._stats_bytes -= dropped.memory_bytes
        return stats

    def forget(self, object_ids: Collection[int]) -> None:
        """Drops the stats of objects that were compacted."""
        for object_id in object_ids:
            dropped = self._stats.pop(object_id, None)
            if dropped is not None:
                self._stats_bytes -= dropped.memory_bytes


def _decode(row: ObjectRow, data: Buffer, key: str) -> ObjectStats:
    try:
        return read_stats(row, data, key)
    except StreamlogError as error:
        if "object_key" in error.fields:
            raise
        raise corrupt(str(error), key, row.index_position, row.size_bytes) from error
