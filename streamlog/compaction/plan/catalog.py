"""Which objects there are to compact, and what is in them; memory is bound, whatever their number.

1. Of a checkpoint file, which never changes, every object is looked at once. 12 bytes are kept of
   each that has several streams, 8 of each that is not settled. While the base stays, only the
   delta and what no file has yet are new: a look over a million settled objects costs as much as
   one over none.
2. What the delta says of an object hides what the base says.
3. The oldest objects of each tier are told, as many as the planner could want.
4. Facts (an object's rows and sizes) are read by one GET and kept, least recently used dropped.
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
from streamlog.metadata.compaction_interface import CompactionMetadata, ObjectFiles
from streamlog.metadata.interface import ObjectRow
from streamlog.metadata.lookup.live_objects import row_of
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.objectstore.object_reader import get_exactly
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import Lane, Offload

TOLD_MAX = 512
"""Of a tier; the planner takes 240 at most, and some may be set aside."""
PAGE_OBJECTS = 1000
PAGES_A_LOOK = 16
TRIES = 5
PARTS_MAX = 10_000
"""Objects that are in no file yet, or were read since."""


@dataclass(slots=True)
class _File:
    """Objects of one checkpoint file that are not settled, by tier, their ids rising."""

    name: str = ""
    tiers: dict[Tier, array[int]] = field(default_factory=dict)
    first: dict[Tier, int] = field(default_factory=dict)
    """Those before it are hidden for good."""
    ids: array[int] = field(default_factory=lambda: array("Q"))
    """Objects with several streams, and all that a delta has something to say of."""
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
        metadata: CompactionMetadata,
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
        """Of objects in files that are told."""
        self._parts: OrderedDict[int, int] = OrderedDict()
        """Streams that an object had when it was first seen or read, until a file has them."""
        self._stats: OrderedDict[int, ObjectStats] = OrderedDict()
        self._stats_bytes = 0
        self.backlog: dict[Tier, int] = {}
        """Objects of each tier at the last look. Where not all are told, those that died out of
        turn may count.
        """

    async def look(self, without: Collection[int] = ()) -> list[Candidate]:
        """The oldest objects of each tier that are not settled, but those in `without`.

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
        known = self._rows | new
        return [known[i] for ids in told.values() for i in ids if i in known]

    # the objects' list

    async def _read_files(self) -> None:
        """Both files are those in use, and what no file has yet can be asked for, on return."""
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
        found = _File(name)
        if name:
            async for blocks in self._metadata.object_blocks(name):
                await self._offload.run(Lane.CPU, self._take_in, found, blocks, is_delta)
        return found

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
        """Ids to tell, rising, and how many there are."""
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
        """Ids of the base; what the delta once hides it hides as long as the base stays."""
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
        """Those that are not known: a few pages at each look, so that it ends soon."""
        self._rows = {i: self._rows[i] for i in wanted if i in self._rows}
        missing = [i for i in wanted if i not in self._rows]
        at = pages = 0
        while at < len(missing) and pages < PAGES_A_LOOK:
            page = await self._metadata.live_objects(after=missing[at] - 1, limit=PAGE_OBJECTS)
            found = {one.row.object_id: one for one in page}
            is_last = len(page) < PAGE_OBJECTS
            while at < len(missing) and (is_last or missing[at] <= page[-1].row.object_id):
                one = found.get(missing[at])
                # Else it died in a checkpoint of this moment, which the next look reads.
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

    # what is in them

    async def stats(self, row: ObjectRow) -> ObjectStats:
        """Errors: Corrupt, ObjectNotFound, StoreUnavailable."""
        found = self._stats.get(row.object_id)
        if found is None:
            key = data_key(row.object_id)
            length = row.size_bytes - row.index_position
            data = await get_exactly(self._store, key, row.index_position, length)
            found = await self._offload.run(Lane.CPU, _decode, row, data, key)
            self._stats[row.object_id] = found
            self._stats_bytes += found.memory_bytes
            streams = len(set(found.rows.streams))
            if streams > 1:
                self._remember_parts(row.object_id, streams)
        self._stats.move_to_end(row.object_id)
        while self._stats_bytes > self._config.object_stats_cache_bytes and len(self._stats) > 1:
            _, dropped = self._stats.popitem(last=False)
            self._stats_bytes -= dropped.memory_bytes
        return found

    def forget(self, object_ids: Collection[int]) -> None:
        """They were compacted."""
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
