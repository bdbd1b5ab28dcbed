"""MetadataSession: the Metadata of one tenure, composed of parts by role."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from streamlog.errors import (
    Closed,
    Internal,
    MetadataUnavailable,
    StreamlogError,
    TenureFenced,
)
from streamlog.format.checkpoint.blocks import ObjectColumns
from streamlog.format.rows import Placements, Rows
from streamlog.metadata.compaction.compactors import Compactors
from streamlog.metadata.compaction.garbage import Garbage
from streamlog.metadata.compaction_interface import (
    CompactionPoint,
    CompactionTenure,
    LiveObject,
    ObjectFiles,
)
from streamlog.metadata.fold.live_parts import live_parts
from streamlog.metadata.fold.overlay import ObjectRange
from streamlog.metadata.fold.staging import FoldedStaging
from streamlog.metadata.interface import (
    CommitEntry,
    Committed,
    DeadObject,
    LiveRange,
    ObjectRow,
    Orphans,
    Recovery,
    StreamRow,
    Tenure,
)
from streamlog.metadata.journal.checkpointer import Checkpointer
from streamlog.metadata.journal.committer import Committer
from streamlog.metadata.journal.follower import Follower
from streamlog.metadata.journal.id_allocator import (
    ObjectIdAllocator,
    StreamIdAllocator,
    check_count,
)
from streamlog.metadata.journal.object_ids import OwnedIds
from streamlog.metadata.keys import fence
from streamlog.metadata.keyspace import KeySpace
from streamlog.metadata.lookup.live_objects import new_objects
from streamlog.metadata.lookup.lookup import Lookup
from streamlog.metadata.ownership.liveness import Liveness
from streamlog.metadata.ownership.own_seal import seal_own
from streamlog.metadata.ownership.registration import compactor_of
from streamlog.metadata.ownership.transfer import OwnershipTransfer
from streamlog.objectstore.cluster.lineage import LineageCheck
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.progress import ProgressWatch

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SessionIdentity:
    """What a session is opened for: its cluster, and the tenure's fence as registered."""

    cluster_id: str
    own_fence: fence.Fence
    recovery: Recovery | None
    lineage: LineageCheck


@dataclass(frozen=True, slots=True)
class SessionParts:
    """The objects that do a session's work."""

    follower: Follower
    lookup: Lookup
    committer: Committer
    allocator: ObjectIdAllocator
    stream_ids: StreamIdAllocator
    ownership: OwnershipTransfer
    checkpointer: Checkpointer
    compactors: Compactors
    garbage: Garbage
    liveness: Liveness


class MetadataSession:
    """The Metadata of one tenure; `open_metadata` makes it. For one event loop only.

    It owns the tenure, its lease and the tasks of its parts. It does not own the KV store and the
    object store: the caller closes them.
    """

    def __init__(
        self, identity: SessionIdentity, parts: SessionParts, keys: KeySpace, clock: Clock
    ) -> None:
        self._identity = identity
        self._keys = keys
        self._clock = clock
        self._follower = parts.follower
        self._lookup = parts.lookup
        self._committer = parts.committer
        self._allocator = parts.allocator
        self._stream_ids = parts.stream_ids
        self._ownership = parts.ownership
        self._checkpointer = parts.checkpointer
        self._compactors = parts.compactors
        self._garbage = parts.garbage
        self._liveness = parts.liveness
        self._background = Background("metadata", self._on_failure)
        self._ended = asyncio.Event()
        self._follower.on_sealed(self._on_sealed)
        self._failure: StreamlogError | None = None
        self._is_closed = False

    def start(self) -> None:
        """Starts the tasks that follow, commit, checkpoint and keep the lease alive.

        Seals the compaction tenure that an earlier process of the node left behind.
        """
        self._follower.show_compactions()
        mine = compactor_of(self.tenure.node_id)
        fences = self._follower.state.fences
        left = [t for t, seen in fences.items() if t.node_id == mine and seen.is_live]
        self._background.spawn(self._follower.follow(), name="follow")
        self._background.spawn(self._follower.adopt(), name="adopt")
        self._background.spawn(self._committer.run(), name="commit")
        self._background.spawn(self._checkpointer.run(), name="checkpoint")
        self._background.every(self._liveness.interval_s, self._liveness.tick, name="lease")
        if left:
            self._background.spawn(self._seal_compactors(left), name="seal_compactors")

    # session info and streams

    @property
    def cluster_id(self) -> str:
        return self._identity.cluster_id

    @property
    def recovery(self) -> Recovery | None:
        return self._identity.recovery

    @property
    def lineage(self) -> LineageCheck:
        return self._identity.lineage

    @property
    def tenure(self) -> Tenure:
        return self._follower.tenure

    @property
    def is_fenced(self) -> bool:
        return self._follower.is_sealed

    @property
    def revision(self) -> int:
        return self._follower.revision

    @property
    def stream_count(self) -> int:
        return len(self._follower.state.fold.ids)

    @property
    def object_count(self) -> int:
        state = self._follower.state
        return state.live_objects + sum(len(g.objects) for g in state.fold.generations)

    @property
    def has_history(self) -> bool:
        return self._follower.state.has_history

    @property
    def staging(self) -> FoldedStaging:
        """Staged and attached objects, as folded now; read only."""
        return self._follower.state.fold.staging

    def stream(self, stream_id: int) -> StreamRow | None:
        return self._follower.state.fold.row(stream_id)

    def streams(self, *, after: int = 0, limit: int = 1000) -> list[StreamRow]:
        fold = self._follower.state.fold
        first = bisect_right(fold.ids, after)
        rows = (fold.row(stream_id) for stream_id in fold.ids[first : first + limit])
        return [row for row in rows if row is not None]

    async def locate(
        self, stream_id: int, start: int, end: int, *, limit: int = 64
    ) -> list[LiveRange]:
        self._check_open()
        return await self._lookup.locate(stream_id, start, end, limit)

    async def object(self, object_id: int) -> ObjectRow | None:
        self._check_open()
        return await self._lookup.object(object_id)

    async def ranges(self, stream_id: int, start: int, end: int) -> Sequence[ObjectRange]:
        """As `locate`, without the objects' rows and without a limit."""
        self._check_open()
        return await self._lookup.ranges(stream_id, start, end)

    async def warm(self, sections: Sequence[tuple[int, int, int]]) -> tuple[int, int]:
        """As `Lookup.warm`."""
        self._check_open()
        return await self._lookup.warm(sections)

    def attached(self) -> Mapping[int, Placements]:
        """Object id → where the object was attached, for live objects that were staged once."""
        return self._follower.state.fold.staging.attached

    async def catch_up(self) -> int:
        self._check_open()
        backoff = self._keys.retry.bounded()
        await self._in_time(self._follower.catch_up(backoff))
        return self.revision

    # ids

    async def allocate_stream_ids(self, count: int) -> list[int]:
        self._check_open()
        check_count(count)
        return await self._stream_ids.take(count)

    @property
    def open_object_ids(self) -> frozenset[int]:
        """Ids of running uploads and compactions: neither committed nor given up."""
        return self._allocator.open_ids | self._compactors.open_ids

    def owned_object_id(self, *, is_patient: bool = False) -> OwnedIds:
        self._check_open()
        return self._allocator.owned(is_patient=is_patient)

    # changes

    def check_fits(self, entry: CommitEntry) -> None:
        self._committer.check_fits(entry)

    async def commit(self, entry: CommitEntry) -> Committed:
        self._check_open()
        return await asyncio.shield(self._committer.submit(entry))

    async def open_streams(
        self, wanted: Sequence[tuple[int, int | None]], *, accept_data_loss: bool = False
    ) -> list[StreamRow]:
        self._check_open()
        return await self._ownership.open_streams(wanted, accept_data_loss=accept_data_loss)

    async def take_streams(self, wanted: Sequence[tuple[int, int | None]]) -> list[StreamRow]:
        """As open_streams, but also takes open streams from a live holder, to balance load.

        A stream that this tenure holds open already keeps its epoch, where none is asked for.
        """
        self._check_open()
        return await self._ownership.open_streams(wanted, accept_data_loss=False, force=True)

    async def take_over_previous(
        self,
        wal_tenures: frozenset[Tenure],
        *,
        accept_data_loss: bool = False,
        before_taking: Callable[[], Awaitable[None]] | None = None,
    ) -> list[Tenure]:
        self._check_open()
        return await self._ownership.take_over_previous(
            wal_tenures, accept_data_loss=accept_data_loss, before_taking=before_taking
        )

    async def take_over(self, tenure: Tenure, *, accept_data_loss: bool = False) -> None:
        """As OwnershipTransfer.take_over: seals a dead tenure and takes all its streams."""
        self._check_open()
        await self._ownership.take_over(tenure, accept_data_loss=accept_data_loss)

    async def seal(self, tenure: Tenure, *, even_if_alive: bool = False) -> None:
        """As OwnershipTransfer.seal: on return the other tenure can never commit again."""
        self._check_open()
        await self._ownership.seal(tenure, even_if_alive=even_if_alive)

    def on_stream_lost(self, callback: Callable[[int, int], None]) -> None:
        self._follower.on_moved(lambda moved: callback(moved.stream_id, moved.epoch))

    @property
    def has_unsaved_attach(self) -> bool:
        state = self._follower.state
        return state.fold.staging.attached_revision > state.levels.revision

    def watch_progress(self, watch: ProgressWatch) -> None:
        """Adds its checks: commits, object_ids, checkpoints, metadata_watch."""
        stalled_after_s = watch.config.stalled_after_ms / 1000
        watch.watch("commits", self._committer.progress)
        watch.watch("object_ids", self._allocator.progress)
        watch.watch("metadata_watch", self._follower.progress)
        watch.watch("checkpoints", lambda: self._checkpointer.progress(stalled_after_s))

    async def checkpoint(self) -> None:
        self._check_open()
        # If it were cancelled half-way, it would not know whether the metadata names its files.
        await self._background.shielded(self._checkpointer.checkpoint, name="checkpoint_now")

    # compaction and repair

    async def compaction_point(self) -> CompactionPoint:
        self._check_open()
        return await self._in_time(self._compactors.point())

    async def live_objects(self, *, after: int = 0, limit: int = 1000) -> list[LiveObject]:
        self._check_open()
        return await self._lookup.live_objects(after, limit)

    def object_files(self) -> ObjectFiles:
        return self._lookup.object_files()

    def object_blocks(self, file: str) -> AsyncIterator[Sequence[ObjectColumns]]:
        self._check_open()
        return self._lookup.object_blocks(file)

    def new_objects(self) -> list[LiveObject]:
        return new_objects(self._follower.state.fold.generations)

    async def live_parts(self, own: Mapping[int, Rows]) -> dict[int, Rows]:
        self._check_open()
        return await live_parts(own, self._lookup.ranges)

    async def open_compaction_tenure(self, *, ids_max: int) -> CompactionTenure:
        self._check_open()
        return await self._in_time(self._compactors.open(ids_max))

    # garbage

    def waiting_for_sweep(self) -> list[str]:
        """What waits until the collector deletes objects that were given up, in words."""
        return self._garbage.waiting()

    @property
    def sweep_wanted(self) -> asyncio.Event:
        return self._allocator.sweep_wanted

    def dead_objects(self, limit: int = 1000) -> list[DeadObject]:
        return self._garbage.dead_objects(limit)

    def is_dead(self, object_id: int) -> bool:
        return self._garbage.is_dead(object_id)

    def is_uploading(self, object_id: int) -> bool:
        return self._garbage.is_uploading(object_id)

    def is_swept(self, object_id: int) -> bool:
        return self._garbage.is_swept(object_id)

    async def forget_objects(self, object_ids: Iterable[int]) -> None:
        self._garbage.forget(object_ids)

    async def orphan_candidates(self) -> list[Orphans]:
        self._check_open()
        return await self._garbage.orphan_candidates()

    async def orphans_deleted(self, orphans: Orphans) -> None:
        self._check_open()
        await self._garbage.orphans_deleted(orphans)

    async def oldest_pin(self) -> int | None:
        self._check_open()
        return await self._garbage.oldest_pin()

    # the end

    async def wait_failed(self) -> StreamlogError:
        await self._ended.wait()
        return self._failure or TenureFenced(
            f"tenure {self.tenure} was sealed: another process took over; start this one again"
        )

    async def close(self, *, drained: bool) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            backoff = self._keys.retry.bounded()
            async with asyncio.timeout(backoff.left_s()):
                await self._committer.drained()
                await self._compactors.close()
                await seal_own(
                    self._keys,
                    self._follower,
                    self.tenure,
                    self._identity.own_fence,
                    drained=drained,
                    clock=self._clock,
                    backoff=backoff,
                )
                await self._liveness.end()
        except TimeoutError:
            log.warning("the metadata store did not answer: the next start seals this tenure")
        except StreamlogError as error:
            log.warning("the tenure was not sealed, the next start does it: %s", error)
        finally:
            await self._stop()

    async def kill(self) -> None:
        self._is_closed = True
        await self._stop()

    async def _seal_compactors(self, tenures: Sequence[Tenure]) -> None:
        for tenure in tenures:
            seal = partial(self._ownership.seal, tenure, even_if_alive=True)
            await self._keys.retry.endless().run(seal)

    async def _stop(self) -> None:
        closed = self._failure or Closed("the metadata was closed")
        await self._compactors.kill()
        await self._background.close()
        self._committer.fail(closed)
        self._follower.fail(closed)

    def _on_sealed(self) -> None:
        if not self._is_closed:
            self._ended.set()

    def _on_failure(self, error: BaseException) -> None:
        if not isinstance(error, StreamlogError):
            cause = error
            error = Internal(f"the metadata of tenure {self.tenure} failed: {cause!r}")
            error.__cause__ = cause
        self._failure = error
        self._committer.fail(error)
        self._compactors.fail(error)
        self._follower.fail(error)
        self._ended.set()

    async def _in_time(self, work: Awaitable[T]) -> T:
        """Limits a wait for the fold, which may be a wait for the metadata store."""
        try:
            async with asyncio.timeout(self._keys.retry.bounded().left_s()):
                return await work
        except TimeoutError as error:
            raise MetadataUnavailable(
                "the metadata store did not bring its newest records in time; try again"
            ) from error

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise Closed("the metadata was closed")
