"""Which objects there are to compact, and what is in them; memory is bound, whatever their number.

1. The objects' list is read in pages. Pages with work, the last one, and some others in turn are
   read at each look: so a million settled objects cost a few pages a look.
2. Facts (an object's rows and sizes) are read by one GET and kept, least recently used dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

from streamlog.compaction.config import CompactionConfig
from streamlog.compaction.facts import ObjectFacts, read_facts
from streamlog.compaction.planner import SETTLED, Candidate, tier_of
from streamlog.errors import StreamlogError
from streamlog.format.corrupt import corrupt
from streamlog.metadata.compaction_interface import CompactionMetadata, LiveObject
from streamlog.metadata.interface import ObjectRow
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.offload import Lane, Offload

PAGE_OBJECTS = 1000
PAGES_A_LOOK = 16
PARTS_MAX = 100_000


@dataclass(slots=True)
class _Page:
    """Objects past `after`, up to `last`; `candidates` of them are not settled."""

    after: int
    last: int
    candidates: list[Candidate] = field(default_factory=list)


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
        self._pages: list[_Page] = [_Page(0, 0)]
        self._turn = 0
        self._parts: OrderedDict[int, int] = OrderedDict()
        """Streams that an object had when it was first seen or read."""
        self._facts: OrderedDict[int, ObjectFacts] = OrderedDict()
        self._facts_bytes = 0

    async def look(self, without: Collection[int] = ()) -> list[Candidate]:
        """Objects that are not settled, but those in `without`. Errors: MetadataUnavailable."""
        pages = self._pages
        due = {number for number, page in enumerate(pages) if page.candidates}
        due = set(sorted(due)[:PAGES_A_LOOK])
        due.add(len(pages) - 1)
        for _ in range(min(PAGES_A_LOOK, len(pages))):
            due.add(self._turn % len(pages))
            self._turn += 1
        number = min(due)
        while number < len(pages):
            if number in due:
                await self._read(number)
            number += 1
        return [
            candidate
            for page in pages
            for candidate in page.candidates
            if candidate.row.object_id not in without
        ]

    async def _read(self, number: int) -> None:
        """One page; what it no longer reaches is the next one's."""
        page = self._pages[number]
        found = await self._metadata.live_objects(after=page.after, limit=PAGE_OBJECTS)
        page.candidates = [
            candidate
            for candidate in map(self._candidate, found)
            if tier_of(candidate, self._config) != SETTLED
        ]
        page.last = found[-1].row.object_id if found else page.after
        if number + 1 < len(self._pages):
            self._pages[number + 1].after = page.last
        elif len(found) == PAGE_OBJECTS:
            self._pages.append(_Page(page.last, page.last))
            await self._read(number + 1)
        while len(self._pages) > 1 and self._pages[-1].after == self._pages[-2].after:
            self._pages.pop()

    def _candidate(self, found: LiveObject) -> Candidate:
        object_id, live = found.row.object_id, found.live_ranges
        if live <= 1 and object_id not in self._parts:
            return Candidate(found.row, 1)
        parts = max(self._parts.get(object_id, live), live)
        self._remember_parts(object_id, parts)
        return Candidate(found.row, parts, 1 - live / parts)

    def _remember_parts(self, object_id: int, parts: int) -> None:
        self._parts[object_id] = parts
        self._parts.move_to_end(object_id)
        if len(self._parts) > PARTS_MAX:
            self._parts.popitem(last=False)

    async def facts(self, row: ObjectRow) -> ObjectFacts:
        """Errors: Corrupt, ObjectNotFound, StoreUnavailable."""
        found = self._facts.get(row.object_id)
        if found is None:
            key = data_key(row.object_id)
            length = row.size_bytes - row.index_position
            data = await self._store.get(key, row.index_position, length)
            found = await self._offload.run(Lane.CPU, _decode, row, data, key)
            self._facts[row.object_id] = found
            self._facts_bytes += found.memory_bytes
            streams = len(set(found.rows.streams))
            if streams > 1:
                self._remember_parts(row.object_id, streams)
        self._facts.move_to_end(row.object_id)
        while self._facts_bytes > self._config.facts_cache_bytes and len(self._facts) > 1:
            _, dropped = self._facts.popitem(last=False)
            self._facts_bytes -= dropped.memory_bytes
        return found

    def forget(self, object_ids: Collection[int]) -> None:
        """They were compacted."""
        for object_id in object_ids:
            dropped = self._facts.pop(object_id, None)
            if dropped is not None:
                self._facts_bytes -= dropped.memory_bytes


def _decode(row: ObjectRow, data: Buffer, key: str) -> ObjectFacts:
    try:
        return read_facts(row, data, key)
    except StreamlogError as error:
        if "object_key" in error.fields:
            raise
        raise corrupt(str(error), key, row.index_position, row.size_bytes) from error
