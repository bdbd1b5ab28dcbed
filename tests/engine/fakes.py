"""Metadata and a WAL in memory, with switches for faults."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NoReturn, cast

from streamlog.errors import (
    DiskFull,
    StoreUnavailable,
    StreamFenced,
    StreamlogError,
    StreamNotFound,
    TenureFenced,
)
from streamlog.format.entry import StreamEntry
from streamlog.metadata.interface import (
    CommitEntry,
    Committed,
    DeadObject,
    LiveRange,
    Metadata,
    ObjectRow,
    Orphans,
    RangeRow,
    Recovery,
    StreamRow,
    Tenure,
)
from streamlog.model.batch import StreamState
from streamlog.wal.log import WriteAheadLog


class FakeLineage:
    """No recovery ever makes newer metadata."""

    async def reason_for(self, error: StreamlogError) -> StreamlogError:
        return error


class FakeMetadata:
    """One tenure's fold, without a store below it. Outlives an engine when handed to the next."""

    def __init__(self, *, stream_id_min: int = 1) -> None:
        self.cluster_id = "fake"
        self.lineage = FakeLineage()
        self.recovery: Recovery | None = None
        self.tenure = Tenure(1, 1)
        self.is_fenced = False
        self.revision = 0
        self.rows: dict[int, StreamRow] = {}
        self.ranges: dict[int, list[tuple[RangeRow, ObjectRow]]] = {}
        self.commits: list[CommitEntry] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.answers = asyncio.Event()
        """While cleared, commits take place and are not answered."""
        self.answers.set()
        self.caught_up = 0
        self.while_catching_up: Callable[[], None] = lambda: None
        self._lost: Callable[[int, int], None] = lambda stream_id, epoch: None
        self._stream_ids = stream_id_min - 1
        self._object_ids = 0

    @property
    def as_metadata(self) -> Metadata:
        """The fake where all of the metadata is asked for: it has what these tests use."""
        return cast(Metadata, self)

    def next_tenure(self) -> None:
        """A restart."""
        self.tenure = Tenure(1, self.tenure.node_epoch + 1)
        self.is_fenced = False

    def steal(self, *stream_ids: int, is_noticed: bool = True) -> None:
        """Another node takes the streams; the engine is notified at once, or hears of it later."""
        for stream_id in stream_ids:
            row = self.rows[stream_id]
            self.rows[stream_id] = dataclasses.replace(
                row, holder=Tenure(2, 1), epoch=row.epoch + 1
            )
            if is_noticed:
                self._lost(stream_id, row.epoch + 1)

    def stream(self, stream_id: int) -> StreamRow | None:
        return self.rows.get(stream_id)

    def streams(self, *, after: int = 0, limit: int = 1000) -> list[StreamRow]:
        ids = sorted(stream_id for stream_id in self.rows if stream_id > after)
        return [self.rows[stream_id] for stream_id in ids[:limit]]

    async def locate(
        self, stream_id: int, start: int, end: int, *, limit: int = 64
    ) -> list[LiveRange]:
        first = self.rows[stream_id].start
        ranges = [
            LiveRange(max(row.start, first), row.end, object_row)
            for row, object_row in self.ranges.get(stream_id, [])
            if row.end > max(start, first) and row.start < end
        ]
        return ranges[:limit]

    async def catch_up(self) -> int:
        self.caught_up += 1
        self.while_catching_up()
        return self.revision

    async def object(self, object_id: int) -> ObjectRow | None:
        return None

    async def allocate_stream_ids(self, count: int) -> list[int]:
        self._stream_ids += count
        return list(range(self._stream_ids - count + 1, self._stream_ids + 1))

    @asynccontextmanager
    async def owned_object_id(self, *, is_patient: bool = False) -> AsyncIterator[Sequence[int]]:
        self._object_ids += 1
        yield [self._object_ids]

    def check_fits(self, entry: CommitEntry) -> None:
        pass

    async def commit(self, entry: CommitEntry) -> Committed:
        await self.gate.wait()
        if self.is_fenced:
            raise TenureFenced("sealed")
        stripped: set[int] = set()
        for create in entry.creates:
            self.rows[create.stream_id] = StreamRow(
                create.stream_id,
                create.epoch,
                self.tenure,
                0,
                0,
                StreamState.OPEN,
                b"",
                create.tags,
            )
        for new in entry.objects:
            for row in new.ranges:
                stream = self.rows.get(row.stream_id)
                if stream is None or stream.epoch != row.epoch or stream.holder != self.tenure:
                    stripped.add(row.stream_id)
                    continue
                assert stream.end == row.start
                self.rows[row.stream_id] = dataclasses.replace(stream, end=row.end)
                self.ranges.setdefault(row.stream_id, []).append((row, new.row))
        for token in entry.tokens:
            held = self.rows.get(token.stream_id)
            if held is None or held.epoch != token.epoch or held.holder != self.tenure:
                stripped.add(token.stream_id)
            else:
                self.rows[token.stream_id] = dataclasses.replace(held, token=token.token)
        for trim in entry.trims:
            trimmed = self.rows[trim.stream_id]
            assert trim.start <= trimmed.end
            self.rows[trim.stream_id] = dataclasses.replace(trimmed, start=trim.start)
        for close in entry.closes:
            self.rows[close.stream_id] = dataclasses.replace(
                self.rows[close.stream_id], state=StreamState.CLOSED
            )
        for destroy in entry.destroys:
            del self.rows[destroy.stream_id]
        self.commits.append(entry)
        self.revision += 1
        await self.answers.wait()
        return Committed(self.revision, self.revision, frozenset(stripped))

    async def open_streams(
        self, wanted: Sequence[tuple[int, int | None]], *, accept_data_loss: bool = False
    ) -> list[StreamRow]:
        rows = []
        for stream_id, epoch in wanted:
            row = self.rows.get(stream_id)
            if row is None:
                raise StreamNotFound(f"no stream {stream_id}", stream_id=stream_id)
            if epoch is not None and epoch <= row.epoch:
                raise StreamFenced(f"{epoch} is not above {row.epoch}", stream_id=stream_id)
            self.rows[stream_id] = row = dataclasses.replace(
                row,
                holder=self.tenure,
                epoch=row.epoch + 1 if epoch is None else epoch,
                state=StreamState.OPEN,
            )
            rows.append(row)
        return rows

    async def take_over_previous(
        self,
        wal_tenures: frozenset[Tenure],
        *,
        accept_data_loss: bool = False,
        before_taking: Callable[[], Awaitable[None]] | None = None,
    ) -> list[Tenure]:
        if before_taking is not None:
            await before_taking()
        for stream_id, row in self.rows.items():
            if row.holder.node_id == self.tenure.node_id and row.holder != self.tenure:
                self.rows[stream_id] = dataclasses.replace(
                    row, holder=self.tenure, epoch=row.epoch + 1
                )
        return []

    def on_stream_lost(self, callback: Callable[[int, int], None]) -> None:
        self._lost = callback

    has_unsaved_attach = False

    async def checkpoint(self) -> None:
        pass

    stream_count = object_count = 0
    has_history = False

    async def wait_failed(self) -> StreamlogError:
        await asyncio.Event().wait()
        raise AssertionError

    def dead_objects(self, limit: int = 1000) -> list[DeadObject]:
        return []

    async def forget_objects(self, object_ids: Iterable[int]) -> None:
        pass

    async def orphan_candidates(self) -> list[Orphans]:
        return []

    async def orphans_deleted(self, orphans: Orphans) -> None:
        pass

    async def oldest_pin(self) -> int | None:
        return None

    async def close(self, *, drained: bool) -> None:
        pass

    async def kill(self) -> None:
        pass


@dataclass
class FakeGroup:
    sequence: int
    tenure: Tenure
    entries: list[StreamEntry]


class FakeWal:
    """Keeps its groups. `failures` writes fail, every other one after it took place, and with each
    those that were called meanwhile."""

    def __init__(self) -> None:
        self.write_s = 0.0
        """How long each write takes, however many there are."""
        self._turn = asyncio.Lock()
        self._failed = 0
        self.groups: list[FakeGroup] = []
        self.failures = 0
        self.is_writing = False
        self.released = 0
        self.tenures: frozenset[Tenure] = frozenset()
        self.gate = asyncio.Event()
        self.gate.set()
        self.group_bytes_max = 128 << 20
        self._undone: list[FakeGroup] = []
        """Released sequence; a crash undoes it."""
        self._sequence = 0
        self._tenure = Tenure(0, 0)

    @property
    def as_wal(self) -> WriteAheadLog:
        """The fake where the real class is asked for: it has what these tests use."""
        return cast(WriteAheadLog, self)

    async def wait_failed(self) -> NoReturn:
        """It has no work of its own that could fail."""
        await asyncio.Event().wait()
        raise AssertionError

    @property
    def last_sequence(self) -> int:
        return self._sequence

    @property
    def released_through(self) -> int:
        return self.released

    @property
    def live_bytes(self) -> int:
        return sum(entry.size_bytes for group in self.groups for entry in group.entries)

    async def begin(self, tenure: Tenure, *, cluster_id: str) -> None:
        self.tenures |= {tenure}
        self._tenure = tenure

    async def recover(self) -> AsyncIterator[FakeGroup]:
        for group in list(self.groups):
            yield group

    @property
    def failure_count(self) -> int:
        return self._failed

    async def append(
        self, entries: Sequence[StreamEntry], known_failures: int | None = None
    ) -> int:
        failed_before = self._failed if known_failures is None else known_failures
        if self.write_s:
            await asyncio.sleep(self.write_s)
        async with self._turn:
            return await self._append(entries, failed_before)

    async def _append(self, entries: Sequence[StreamEntry], failed_before: int) -> int:
        if failed_before < self._failed:
            raise StoreUnavailable("the group before this one failed", operation="writing")
        self.is_writing = True
        await self.gate.wait()
        self.is_writing = False
        if self.failures:
            self.failures -= 1
            self._failed += 1
            if self.failures % 2:
                self._sequence += 1
                self.groups.append(FakeGroup(self._sequence, self._tenure, list(entries)))
            raise DiskFull("no room", path="wal")
        self._sequence += 1
        self.groups.append(FakeGroup(self._sequence, self._tenure, list(entries)))
        return self._sequence

    def release(self, through_sequence: int) -> None:
        self.released = max(self.released, through_sequence)
        self._undone += [group for group in self.groups if group.sequence <= through_sequence]
        self.groups = [group for group in self.groups if group.sequence > through_sequence]

    async def forget_tenures(self, tenures: frozenset[Tenure]) -> None:
        self.tenures -= tenures

    async def persist_release(self) -> None:
        if self.failures:
            self.failures -= 1
            raise DiskFull("no room", path="wal")
        self._undone = []

    def crash(self) -> None:
        """Drops everything that is not durable."""
        self.groups = self._undone + self.groups
        self._undone = []
        self.released = self.groups[0].sequence - 1 if self.groups else self._sequence

    async def close(self) -> None:
        pass
