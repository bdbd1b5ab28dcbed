"""Where a stream's offsets lie, what is known of an object: memory first, then checkpoint files.

At most one range block and one object block are read for neighbouring offsets, through the cache.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from streamlog.errors import Corrupt, ObjectNotFound
from streamlog.metadata.checkpoint_files import BlockReader, Levels, find_object, find_ranges
from streamlog.metadata.follower import Follower
from streamlog.metadata.generation import FoundRange, find, span
from streamlog.metadata.interface import LiveRange, ObjectRow
from streamlog.metadata.loader import State

T = TypeVar("T")


class Lookup:
    def __init__(self, follower: Follower, reader: BlockReader) -> None:
        self._follower = follower
        self._reader = reader

    async def locate(self, stream_id: int, start: int, end: int, limit: int) -> list[LiveRange]:
        """As Metadata.locate."""
        return await self._with_levels(
            lambda state: self._locate(state, stream_id, start, end, limit)
        )

    async def object(self, object_id: int) -> ObjectRow | None:
        """As Metadata.object."""
        return await self._with_levels(lambda state: self._object(state, state.levels, object_id))

    async def _locate(
        self, state: State, stream_id: int, start: int, end: int, limit: int
    ) -> list[LiveRange]:
        # Everything of the state is looked at before the first wait: the fold goes on meanwhile.
        fold, levels = state.fold, state.levels
        if stream_id not in fold.info:
            return []
        fold_start = fold.starts[stream_id]
        low = max(start, fold_start)
        # A record that is being folded shows its ranges before its objects; the ends move last.
        end = min(end, fold.ends[stream_id])
        if low >= end:
            return []
        newest: list[FoundRange] = []
        first_in_memory = end
        for generation in fold.generations:
            ranges = generation.ranges.get(stream_id)
            if ranges is not None:
                first_in_memory = min(first_in_memory, span(ranges)[0])
                newest += find(ranges, low, end, limit - len(newest))
        known = {r.object_id: self._in_memory(state, r.object_id) for r in newest}
        found: list[FoundRange] = []
        if low < first_in_memory:
            found = await self._in_files(levels, stream_id, low, first_in_memory, limit)
        found = (found + newest)[:limit]
        rows: list[LiveRange] = []
        for one in found:
            row = known.get(one.object_id)
            if row is None:
                row = known[one.object_id] = await self._object(state, levels, one.object_id)
            if row is None:
                raise Corrupt(
                    f"the metadata has no entry for object {one.object_id}, in which stream "
                    f"{stream_id} has offsets {one.start} to {one.end}"
                )
            rows.append(LiveRange(max(one.start, fold_start), one.end, row))
        return rows

    async def _in_files(
        self, levels: Levels, stream_id: int, start: int, end: int, limit: int
    ) -> list[FoundRange]:
        newer: list[FoundRange] = []
        if levels.delta is not None:
            newer = await find_ranges(self._reader, levels.delta, stream_id, start, end, limit)
        if newer and newer[0].start <= start:
            return newer
        older: list[FoundRange] = []
        if levels.base is not None:
            low_end = newer[0].start if newer else end
            older = await find_ranges(self._reader, levels.base, stream_id, start, low_end, limit)
        return (older + newer)[:limit]

    async def _object(self, state: State, levels: Levels, object_id: int) -> ObjectRow | None:
        known = self._in_memory(state, object_id)
        if known is not None:
            return known
        for level in (levels.delta, levels.base):
            if level is not None:
                entry = await find_object(self._reader, level, object_id)
                if entry is not None:
                    if not entry.live:
                        return None
                    return ObjectRow(
                        entry.object_id,
                        entry.size_bytes,
                        entry.index_position,
                        entry.index_length,
                        entry.index_crc32c,
                        entry.store,
                    )
        return None

    def _in_memory(self, state: State, object_id: int) -> ObjectRow | None:
        for generation in reversed(state.fold.generations):
            entry = generation.objects.get(object_id)
            if entry is not None:
                return entry.row
        return None

    async def _with_levels(self, look: Callable[[State], Awaitable[T]]) -> T:
        """Looks again when a newer checkpoint has taken the files away."""
        while True:
            state = self._follower.state
            put_at = state.checkpoint_revision
            try:
                return await look(state)
            except ObjectNotFound as error:
                await self._follower.replaced(put_at, error)
