"""Merges changed entries into a file's object blocks; a block without a change is copied. Pure.

1. Block i holds ids from its first one up to the next block's first one (the first block holds
   smaller ids too).
2. A changed entry replaces the old one; None removes it.
3. Blocks are written as in merge_ranges: in even pieces, and none far below 4 KiB.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

from streamlog.format.checkpoint.blocks import (
    OBJECTS_PER_BLOCK,
    ObjectEntry,
    decode_objects,
    encode_objects,
)
from streamlog.format.checkpoint.tail import ObjectBlockIndex
from streamlog.metadata.checkpoint.merge_input import blocks_of
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.steps import Steps

STEP_OBJECTS = 512
SMALL = OBJECTS_PER_BLOCK // 4


@dataclass(slots=True)
class ObjectBlocks:
    """The second section of the new file, as written so far."""

    parts: list[Buffer] = field(default_factory=list)
    index: ObjectBlockIndex = field(default_factory=ObjectBlockIndex)
    objects: int = 0


class ObjectMerger:
    """Merges one file: `feed` every run of the old file's blocks in order, then `finish`."""

    def __init__(
        self,
        index: ObjectBlockIndex,
        object_count: int,
        changes: Mapping[int, ObjectEntry | None],
        name: str,
        position: int,
    ) -> None:
        """`position`: where the section begins in the new file."""
        self._old = index
        self._changes = changes
        self._changed: list[int] = []
        self._name = name
        self._open: list[ObjectEntry] = []
        self.written = ObjectBlocks(objects=object_count)
        self.written.index.positions[0] = position
        self.parsed_blocks = 0

    def feed(self, run: Buffer, first: int, last: int) -> Steps[None]:
        """`run` holds blocks first (inclusive) to last (exclusive). Errors: Corrupt."""
        self._sort()
        positions = self._old.positions
        for block, data in blocks_of(run, positions, first, last):
            low, high = self._changes_in(block)
            if low == high and not 0 < len(self._open) < SMALL:
                self._close()
                self._append(self._old.ids[block], data)
            else:
                self.parsed_blocks += 1
                entries = decode_objects(data, self._name, positions[block]).rows()
                yield from self._merge(entries, self._changed[low:high])
                yield

    def finish(self) -> Steps[ObjectBlocks]:
        self._sort()
        if not len(self._old):
            yield from self._merge([], self._changed)
        self._close()
        return self.written

    def _sort(self) -> None:
        if len(self._changed) != len(self._changes):
            self._changed = sorted(self._changes)

    def _changes_in(self, block: int) -> tuple[int, int]:
        ids = self._old.ids
        low = bisect_left(self._changed, ids[block]) if block else 0
        if block + 1 == len(ids):
            return low, len(self._changed)
        return low, bisect_left(self._changed, ids[block + 1])

    def _merge(self, entries: list[ObjectEntry], changed: list[int]) -> Steps[None]:
        """Merges one block's entries; only the last block can have far more changes."""
        for low in range(0, len(changed), STEP_OBJECTS):
            part = changed[low : low + STEP_OBJECTS]
            rest = low + STEP_OBJECTS < len(changed)
            bound = bisect_right(entries, part[-1], key=_object_id) if rest else len(entries)
            self._merge_part(entries[:bound], part)
            entries = entries[bound:]
            yield
        if not changed:
            self._merge_part(entries, [])

    def _merge_part(self, entries: list[ObjectEntry], changed: list[int]) -> None:
        merged = {entry.object_id: entry for entry in entries}
        for object_id in changed:
            entry = self._changes[object_id]
            if entry is None:
                merged.pop(object_id, None)
            else:
                merged[object_id] = entry
        self.written.objects += len(merged) - len(entries)
        self._open += [merged[object_id] for object_id in sorted(merged)]
        while len(self._open) > 2 * OBJECTS_PER_BLOCK:
            self._write(OBJECTS_PER_BLOCK)

    def _close(self) -> None:
        while self._open:
            pieces = -(-len(self._open) // OBJECTS_PER_BLOCK)
            self._write(-(-len(self._open) // pieces))

    def _write(self, count: int) -> None:
        taken, self._open = self._open[:count], self._open[count:]
        self._append(taken[0].object_id, encode_objects(taken))

    def _append(self, object_id: int, data: Buffer) -> None:
        written = self.written
        written.parts.append(data)
        written.index.ids.append(object_id)
        written.index.positions.append(written.index.positions[-1] + len(data))


def _object_id(entry: ObjectEntry) -> int:
    return entry.object_id
