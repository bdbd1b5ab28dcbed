"""The promises of a remote tier, looked at from outside: at its metadata and at its objects.

While the history goes on, at any moment:
1. What the log has and its local part does not is covered by segments that are
   COPY_SEGMENT_FINISHED.
2. The objects of such a segment are there, whole.
3. A segment that is copied lies below the last stable offset, and was closed: of two segments that
   overlap, both have the same range.
4. What a copy holds is right (`copy_checker.py`); each is read once.

After healing no segment stays half copied or half deleted, and no object that no segment names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from uuid import UUID

from streamlog.engine.kv_client import EngineKVClient
from streamlog.errors import ObjectNotFound
from streamlog.log.api.tiering import TierableLog
from streamlog.testing.simulation.checker import Violation, few
from streamlog.testing.simulation.local.copy_checker import check_copy
from streamlog.testing.simulation.local.node import PREFIX
from streamlog.testing.simulation.world.environment import Environment
from streamlog.tiered.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from streamlog.tiered.api.storage_manager import IndexType
from streamlog.tiered.metadata.kv_records import SEGMENTS, decode_segment
from streamlog.tiered.storage.names import OWN_PREFIX as REMOTE
from streamlog.tiered.storage.names import parsed_key, segment_key

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_COPIED = (RemoteLogSegmentState.COPY_SEGMENT_STARTED, _FINISHED)


class TierChecker:
    """Reads stores past all faults, and in no time."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._kv = EngineKVClient(environment.kv, PREFIX)
        self._read: set[UUID] = set()
        """Segments whose content was looked at."""

    @property
    def copies_read(self) -> int:
        return len(self._read)

    async def segments(self) -> list[RemoteLogSegmentMetadata]:
        """All that the metadata has, by start offset."""
        entries = await self._kv.list_kv(SEGMENTS, b"")
        found = [decode_segment(one.key.name, one.value.data) for one in entries]
        return sorted(found, key=lambda one: one.start_offset)

    async def look(self, log: TierableLog) -> None:
        """`log`: the one that its topic's clients use now. Errors: Violation."""
        # While the metadata is listed, copies may end, and local parts go.
        local_start = log.local_log_start_offset
        segments = await self.segments()
        await self._judge(segments, log.log_start_offset, local_start, log.last_stable_offset)

    async def look_at(self, start: int, local_start: int, stable: int) -> None:
        """As `look`, of a log with these offsets."""
        await self._judge(await self.segments(), start, local_start, stable)

    async def _judge(
        self,
        segments: Sequence[RemoteLogSegmentMetadata],
        start: int,
        local_start: int,
        stable: int,
    ) -> None:
        finished = [one for one in segments if one.state is _FINISHED]
        _check_covered(finished, start, local_start)
        for one in segments:
            if one.state in _COPIED and one.end_offset >= stable:
                raise Violation(f"{_named(one)} is not below the last stable offset {stable}")
        for one, following in pairwise(finished):
            is_same = (one.start_offset, one.end_offset) == (
                following.start_offset,
                following.end_offset,
            )
            if following.start_offset <= one.end_offset and not is_same:
                raise Violation(f"{_named(one)} and {_named(following)} overlap")
        for one in finished:
            await self._check_stored(one)

    async def _check_stored(self, segment: RemoteLogSegmentMetadata) -> None:
        key = segment_key(REMOTE, segment, None)
        try:
            info = await self._environment.store.head(key)
        except ObjectNotFound:
            raise Violation(f"{_named(segment)} is finished, and {key} is not there") from None
        if info.size_bytes != segment.segment_size_bytes:
            raise Violation(f"{_named(segment)}: {key} has {info.size_bytes} bytes")

    async def check_copies(self, at: Mapping[int, int]) -> None:
        """`at`: the number of each record that is known to be there. Errors: Violation."""
        for one in await self.segments():
            if one.state is not _FINISHED or one.remote_log_segment_id.id in self._read:
                continue
            self._read.add(one.remote_log_segment_id.id)
            get = self._environment.store.get
            log = await get(segment_key(REMOTE, one, None))
            snapshot = await get(segment_key(REMOTE, one, IndexType.PRODUCER_SNAPSHOT))
            check_copy(_named(one), log, snapshot, range(one.start_offset, one.end_offset + 1), at)

    async def left_over(self) -> list[str]:
        """What is neither a finished segment nor part of one."""
        segments = await self.segments()
        left = [_named(one) for one in segments if one.state is not _FINISHED]
        known = {one.remote_log_segment_id.id for one in segments if one.state is _FINISHED}
        for info in await self.objects():
            parsed = parsed_key(REMOTE, info)
            if parsed is None or parsed[2] not in known:
                left.append(info)
        return left

    async def objects(self) -> Sequence[str]:
        """Keys of the remote storage."""
        return [one.key for one in (await self._environment.store.list(REMOTE)).objects]


def _check_covered(
    finished: Sequence[RemoteLogSegmentMetadata], start: int, local_start: int
) -> None:
    position = start
    for one in finished:
        if one.start_offset <= position <= one.end_offset:
            position = one.end_offset + 1
    if position < local_start:
        ranges = [f"{one.start_offset} to {one.end_offset}" for one in finished]
        raise Violation(
            f"the log begins at {start}, its local part at {local_start}, and {position} is in no "
            f"finished segment: {few(ranges)}"
        )


def _named(segment: RemoteLogSegmentMetadata) -> str:
    return (
        f"the remote segment {segment.start_offset} to {segment.end_offset} "
        f"({segment.state.name}, {segment.remote_log_segment_id.id.hex})"
    )
