"""A partition's meta stream: replayed at open, appended to, and kept short by snapshots.

Invariant: `state` is the fold of the durable entries. Entries are written one at a time; records
that do not fit into one entry still take effect together (`pieces`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streamlog.errors import Corrupt
from streamlog.log.shared.meta.codec import Description, MetaRecord, decode_entry
from streamlog.log.shared.meta.pieces import PIECE_BYTES_MAX, encoded_entries
from streamlog.log.shared.meta.state import MetaState
from streamlog.model.batch import RecordBatch
from streamlog.model.stream import Stream
from streamlog.runtime.buffers import join
from streamlog.runtime.clock import Clock

REPLAY_CHUNK_BYTES = 1 << 20


class MetaLog:
    def __init__(
        self,
        stream: Stream,
        state: MetaState,
        clock: Clock,
        compaction_bytes: int,
        size_bytes: int,
        entry_bytes_max: int,
    ) -> None:
        self.stream = stream
        self.state = state
        self._clock = clock
        self._compaction_bytes = compaction_bytes
        self._size_bytes = size_bytes
        self.entry_bytes_max = entry_bytes_max
        """Bound on the bytes of one append; only a record that cannot be divided is larger."""
        self._writing = asyncio.Lock()

    @classmethod
    async def replay(
        cls,
        stream: Stream,
        clock: Clock,
        compaction_bytes: int,
        entry_bytes_max: int = PIECE_BYTES_MAX,
    ) -> MetaLog:
        """`entry_bytes_max`: the bound on later entries, at most PIECE_BYTES_MAX.

        Errors: Corrupt, UnsupportedVersion, and those of Stream.fetch.
        """
        state, size_bytes = MetaState(), 0
        position, end = stream.start_offset, stream.confirm_offset
        while position < end:
            for batch in (await stream.fetch(position, end, REPLAY_CHUNK_BYTES)).batches:
                data = join(batch.parts)
                state.apply_entry(decode_entry(data))
                size_bytes += len(data)
                position = batch.end_offset
        bytes_max = min(entry_bytes_max, PIECE_BYTES_MAX)
        return cls(stream, state, clock, compaction_bytes, size_bytes, bytes_max)

    @property
    def description(self) -> Description:
        """Errors: Corrupt where the stream has none."""
        if self.state.description is None:
            raise Corrupt(
                f"meta stream {self.stream.stream_id} has no description record: it does not name "
                "its partition"
            )
        return self.state.description

    @property
    def other_stream_ids(self) -> set[int]:
        """The partition's streams without this one: those in use, and those of sealed segments.

        Errors: Corrupt.
        """
        described = self.description
        ids = {described.data_stream_id, described.time_stream_id, described.txn_stream_id}
        for segment in self.state.sealed:
            ids |= {part.stream_id for part in (segment.data, segment.time, segment.txn)}
        return ids.union(() if self.state.cleaned is None else self.state.cleaned.ids)

    async def write(self, records: Sequence[MetaRecord]) -> None:
        """Writes records that take effect together; durable on return."""
        async with self._writing:
            await self._append(records)
            for record in records:
                self.state.apply(record)
            if self._size_bytes > self._compaction_bytes:
                await self._compact()

    async def compact(self) -> None:
        """Writes the state as one snapshot and trims everything before it."""
        async with self._writing:
            await self._compact()

    async def _compact(self) -> None:
        offset, size_bytes = await self._append(self.state.records(), is_snapshot=True)
        await self.stream.trim(offset)
        # A large snapshot must not be written again at every record.
        self._size_bytes = -size_bytes

    async def _append(
        self, records: Sequence[MetaRecord], *, is_snapshot: bool = False
    ) -> tuple[int, int]:
        """Returns the first entry's offset and the bytes of all. Cut short, they have no effect."""
        offsets: list[int] = []
        size_bytes = 0
        entries = encoded_entries(records, is_snapshot=is_snapshot, bytes_max=self.entry_bytes_max)
        for data in entries:
            batch = RecordBatch(1, self._clock.now_ms(), (data,))
            offsets.append((await self.stream.append(batch)).base_offset)
            size_bytes += len(data)
        self._size_bytes += size_bytes
        return offsets[0], size_bytes
