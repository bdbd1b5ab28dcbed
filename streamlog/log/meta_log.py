"""A partition's meta stream: replayed at open, appended to, and kept short by snapshots.

Invariant: `state` is the fold of what is durable in the stream. Entries are written one at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streamlog.errors import Corrupt
from streamlog.log.meta_codec import Description, MetaRecord, decode_entry, encode_entry
from streamlog.log.meta_state import MetaState
from streamlog.model.batch import RecordBatch
from streamlog.model.stream import Stream
from streamlog.runtime.buffers import join
from streamlog.runtime.clock import Clock

REPLAY_CHUNK_BYTES = 1 << 20


class MetaLog:
    def __init__(
        self, stream: Stream, state: MetaState, clock: Clock, compaction_bytes: int, size_bytes: int
    ) -> None:
        self.stream = stream
        self.state = state
        self._clock = clock
        self._compaction_bytes = compaction_bytes
        self._size_bytes = size_bytes
        self._writing = asyncio.Lock()

    @classmethod
    async def replay(cls, stream: Stream, clock: Clock, compaction_bytes: int) -> MetaLog:
        """Errors: Corrupt, UnsupportedVersion, and those of Stream.fetch."""
        state, size_bytes = MetaState(), 0
        position, end = stream.start_offset, stream.confirm_offset
        while position < end:
            for batch in (await stream.fetch(position, end, REPLAY_CHUNK_BYTES)).batches:
                data = join(batch.parts)
                state.apply_entry(decode_entry(data))
                size_bytes += len(data)
                position = batch.end_offset
        return cls(stream, state, clock, compaction_bytes, size_bytes)

    @property
    def description(self) -> Description:
        """Errors: Corrupt where the stream has none."""
        if self.state.description is None:
            raise Corrupt(
                f"meta stream {self.stream.stream_id} does not say whose it is: it has no "
                "description record"
            )
        return self.state.description

    async def write(self, records: Sequence[MetaRecord]) -> None:
        """All of them take effect together; durable on return."""
        async with self._writing:
            await self._append(encode_entry(records))
            for record in records:
                self.state.apply(record)
            if self._size_bytes > self._compaction_bytes:
                await self._compact()

    async def compact(self) -> None:
        """Writes the state as one snapshot and trims everything before it."""
        async with self._writing:
            await self._compact()

    async def _compact(self) -> None:
        data = encode_entry(self.state.records(), is_snapshot=True)
        offset = await self._append(data)
        await self.stream.trim(offset)
        # A snapshot that is itself large must not be written again at every record.
        self._size_bytes = -len(data)

    async def _append(self, data: bytes) -> int:
        batch = RecordBatch(1, self._clock.now_ms(), (data,))
        result = await self.stream.append(batch)
        self._size_bytes += len(data)
        return result.base_offset
