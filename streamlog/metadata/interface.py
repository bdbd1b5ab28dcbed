"""The metadata as the engine uses it: a view of streams, commits, ids, ownership and garbage.

Each role is a port of a few calls; `Metadata` is all of them for one tenure. The names are those of
docs/protocol.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from streamlog.errors import StreamlogError
from streamlog.format.records.staged_entries import Stage
from streamlog.format.rows import ObjectRow as ObjectRow
from streamlog.format.rows import RangeRow as RangeRow
from streamlog.format.rows import Tenure as Tenure
from streamlog.model.batch import StreamState
from streamlog.model.numbers import checked_int
from streamlog.objectstore.cluster.lineage import LineageCheck

EPOCH_MAX = (1 << 31) - 1
"""The highest epoch that a caller may ask for: the limit of a record batch. A checkpoint can hold
twice as much, for later opens."""


@dataclass(frozen=True, slots=True)
class NewObject:
    """A stored object and its ranges, by (stream_id, start); a stream's ranges are adjacent."""

    row: ObjectRow
    ranges: Sequence[RangeRow]


@dataclass(frozen=True, slots=True)
class CreateEntry:
    stream_id: int
    epoch: int
    tags: dict[str, str] = field(default_factory=dict)


class StreamEpoch(NamedTuple):
    stream_id: int
    epoch: int


def check_epoch(stream_id: int, epoch: int | None) -> None:
    """Checks the epoch under which a stream is to be opened. Errors: Invalid."""
    if epoch is not None:
        checked_int(f"the epoch under which stream {stream_id} is opened", epoch, 0, EPOCH_MAX)


class TrimEntry(NamedTuple):
    stream_id: int
    epoch: int
    start: int


class TokenEntry(NamedTuple):
    stream_id: int
    epoch: int
    token: bytes


@dataclass(frozen=True, slots=True)
class AttachEntry:
    """Attaches staged objects of a writer to their streams in this order, all or none.

    An epoch that is attached already, or an earlier one, changes nothing. `stream_epochs`: the
    epochs under which the caller holds the streams. `leader_epochs`: for streams of Kafka record
    batches. Errors of the commit: StagedNotFound, StreamFenced, Conflict (a stream is gone or
    closed).
    """

    writer_id: str
    epoch: int
    at_ms: int
    object_ids: Sequence[int]
    stream_epochs: Mapping[int, int]
    leader_epochs: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UnstageEntry:
    """Drops objects that are still staged; forgets writers whose last epoch is the given one."""

    object_ids: Sequence[int]
    forgotten: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """Changes of one caller for the next commit record, applied in field order.

    `creates` come first, so that objects may hold ranges of streams created in the same entry.
    Several entries may share a record; they are applied in the order of calls.
    """

    creates: Sequence[CreateEntry] = ()
    objects: Sequence[NewObject] = ()
    tokens: Sequence[TokenEntry] = ()
    trims: Sequence[TrimEntry] = ()
    closes: Sequence[StreamEpoch] = ()
    destroys: Sequence[StreamEpoch] = ()
    stages: Sequence[Stage] = ()
    attaches: Sequence[AttachEntry] = ()
    unstages: Sequence[UnstageEntry] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """The entry is folded, except for `stripped`: streams that this tenure no longer holds.

    `has_changed` False: it was applied before, as an attach of an epoch that is attached already.
    """

    revision: int
    seq: int
    stripped: frozenset[int] = frozenset()
    has_changed: bool = True


@dataclass(frozen=True, slots=True)
class StreamRow:
    """A stream in the fold; it has the offsets start (inclusive) to end (exclusive)."""

    stream_id: int
    epoch: int
    holder: Tenure
    start: int
    end: int
    state: StreamState
    token: bytes
    tags: dict[str, str]


class LiveRange(NamedTuple):
    """Offsets [start, end) that lie in the object, clipped to the stream's start."""

    start: int
    end: int
    object: ObjectRow


class DeadObject(NamedTuple):
    """An object without a live range; it never gets one again.

    It was found dead at `died_ms`; `revision` is at or after that moment.
    """

    object_id: int
    died_ms: int
    revision: int


@dataclass(frozen=True, slots=True)
class Orphans:
    """Ids whose objects `tenure` may have stored and can never commit."""

    tenure: Tenure
    object_ids: tuple[int, ...]
    is_final: bool = False
    """The late sweep: after it the tenure is retired."""
    is_living: bool = False
    """A live tenure of this node gave them up; it may store more objects."""
    last_of_window: int | None = None
    """Of a sealed tenure: no object past this id can have been stored before the floor rose. The
    other ids may be of other blocks: a node also deletes late what its compactors gave up."""


RECOVERED_EPOCHS = 1000
"""How far a recovery raises a stream's epoch above the highest one that it saw."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The metadata was rebuilt from the object store.

    `knows_deletions`: it knows all trims and destructions up to `from_revision`. Tenures from
    before the rebuild have node epochs up to `node_epoch_max` (inclusive); objects stored after it
    have ids from `object_id_min` (inclusive) on.
    """

    knows_deletions: bool
    at_ms: int
    from_revision: int
    node_epoch_max: int
    object_id_min: int

    def is_before(self, tenure: Tenure) -> bool:
        """Whether the tenure is older than the rebuild: the metadata may lack its commits."""
        return tenure.node_epoch <= self.node_epoch_max


class SessionInfo(Protocol):
    """Which cluster and tenure a session belongs to, and whether it goes on."""

    @property
    def cluster_id(self) -> str: ...

    @property
    def recovery(self) -> Recovery | None:
        """None: the metadata was never rebuilt, and knows all that was ever committed."""
        ...

    @property
    def lineage(self) -> LineageCheck:
        """Checks whether a recovery has made newer metadata for the same bucket."""
        ...

    @property
    def tenure(self) -> Tenure: ...

    @property
    def is_fenced(self) -> bool:
        """Whether this tenure was sealed: it will never commit again."""
        ...

    async def wait_failed(self) -> StreamlogError:
        """Waits until this tenure has ended; returns why (TenureFenced, Corrupt, Internal).

        A clean `close` does not end the wait.
        """
        ...


class StreamView(Protocol):
    """Streams, their ranges and their objects, as folded."""

    @property
    def revision(self) -> int:
        """The fold holds every record up to this revision."""
        ...

    @property
    def stream_count(self) -> int: ...

    @property
    def object_count(self) -> int:
        """Live objects; those that died since the last checkpoint still count."""
        ...

    @property
    def has_history(self) -> bool:
        """Whether there are streams or a checkpoint; False for a new or an emptied store."""
        ...

    def stream(self, stream_id: int) -> StreamRow | None: ...

    def streams(self, *, after: int = 0, limit: int = 1000) -> list[StreamRow]:
        """Streams by id, beginning with the first id above `after`."""
        ...

    async def locate(
        self, stream_id: int, start: int, end: int, *, limit: int = 64
    ) -> list[LiveRange]:
        """The first live ranges, up to `limit`, that overlap [start, end), in order.

        O(log n) in the number of objects; may read one checkpoint block.
        """
        ...

    async def object(self, object_id: int) -> ObjectRow | None:
        """None: not committed, or dead."""
        ...

    async def catch_up(self) -> int:
        """Folds every record that is in the metadata store at the call; returns the revision.

        Errors: MetadataUnavailable.
        """
        ...


class IdSource(Protocol):
    """New ids for streams and objects."""

    async def allocate_stream_ids(self, count: int) -> list[int]: ...

    def owned_object_id(
        self, *, is_patient: bool = False
    ) -> AbstractAsyncContextManager[Sequence[int]]:
        """One id of this tenure's own block, as a list of one, owned for an `async with` block.

        At the end of the block the id is given up and swept, unless a `commit` holds it. Waits
        while [floor, floor+W) is used up, and for the metadata store when a new block of ids is
        needed: with `is_patient` without end, else for `operation_timeout_ms`.
        Errors: MetadataUnavailable, Overloaded; what ended the tenure.
        """
        ...


class Commits(Protocol):
    """Commits of this tenure, and the checkpoints that make attaches visible to a recovery."""

    def check_fits(self, entry: CommitEntry) -> None:
        """Checks that a commit record can hold the entry. Errors: MessageTooLarge."""
        ...

    async def commit(self, entry: CommitEntry) -> Committed:
        """Commits the entry: durable and folded on return; entries keep the order of calls.

        Waits while the metadata store is away, and sends the same bytes again after an unknown
        outcome. A cancelled call's entry is committed all the same. The commit owns the ids of the
        entry's objects from the call on: it gives up those that are certainly not committed.
        Errors: MessageTooLarge (nothing was stored), TenureFenced, Closed.
        """
        ...

    @property
    def has_unsaved_attach(self) -> bool:
        """Whether any node attached an epoch of a writer that no checkpoint covers yet."""
        ...

    async def checkpoint(self) -> None:
        """Writes a checkpoint now; MetadataUnavailable, StoreUnavailable leave the old one."""
        ...


class Ownership(Protocol):
    """Which streams this tenure holds."""

    async def open_streams(
        self, wanted: Sequence[tuple[int, int | None]], *, accept_data_loss: bool = False
    ) -> list[StreamRow]:
        """Opens streams (id, epoch or None for the next) for this tenure; folded on return.

        Errors: StreamNotFound, StreamFenced (epoch too low), Conflict (open, and its holder lives),
        WalPending, TenureFenced, MetadataUnavailable.
        """
        ...

    async def take_over_previous(
        self,
        wal_tenures: frozenset[Tenure],
        *,
        accept_data_loss: bool = False,
        before_taking: Callable[[], Awaitable[None]] | None = None,
    ) -> list[Tenure]:
        """Takes every stream that earlier tenures of this node hold (`ALL`); folded on return.

        Call it once, after the local WAL durably names this tenure. `before_taking` is awaited
        after all checks, before the first stream is taken. Returns the tenures taken over.
        Errors: WalPending: one of them wrote a disk WAL, is not drained, and is not among
        `wal_tenures` (the tenures whose entries the WAL in hand holds).
        """
        ...

    def on_stream_lost(self, callback: Callable[[int, int], None]) -> None:
        """Calls `callback(stream_id, new_epoch)` when another tenure took a stream."""
        ...


class GarbageSource(Protocol):
    """What the collector may delete: dead objects and orphans."""

    def dead_objects(self, limit: int = 1000) -> list[DeadObject]:
        """Objects to delete, those first that are dead for longest; checkpoints find them dead.

        Delete one after the delay, and only if `oldest_pin`, read after this call, is not below its
        `revision`.
        """
        ...

    def is_dead(self, object_id: int) -> bool:
        """Whether it is one of the dead objects."""
        ...

    def is_uploading(self, object_id: int) -> bool:
        """Whether this node, or its compactor, may have stored it, and neither committed nor swept
        it.
        """
        ...

    def is_swept(self, object_id: int) -> bool:
        """Whether it was an orphan, and is deleted once more in case a late PUT stored it again."""
        ...

    async def forget_objects(self, object_ids: Iterable[int]) -> None:
        """Forgets objects that are deleted; durable with the next checkpoint.

        If that is lost, they are deleted again, which is harmless.
        """
        ...

    @property
    def sweep_wanted(self) -> asyncio.Event:
        """Set when uploads wait for a run of the collector, which clears it."""
        ...

    async def orphan_candidates(self) -> list[Orphans]:
        """Objects that this tenure gave up, and objects that sealed tenures never committed.

        Delete them all without a look whether they exist, then call `orphans_deleted`.
        Errors: MetadataUnavailable, StoreUnavailable.
        """
        ...

    async def orphans_deleted(self, orphans: Orphans) -> None:
        """Notes that the objects are deleted. Errors: MetadataUnavailable, OutcomeUnknown (call
        again).
        """
        ...

    async def oldest_pin(self) -> int | None:
        """The lowest revision that a reader pins now. Errors: MetadataUnavailable."""
        ...


class Metadata(SessionInfo, StreamView, IdSource, Commits, Ownership, GarbageSource, Protocol):
    """One tenure's session with the shared metadata: all roles, and their end."""

    async def close(self, *, drained: bool) -> None:
        """Seals this tenure (`drained`: its disk WAL is empty) and frees everything.

        Queued entries are committed first, while the metadata store answers.
        """
        ...

    async def kill(self) -> None:
        """Stops at once, as a crash would: waits for nothing, and does not seal the tenure."""
        ...
