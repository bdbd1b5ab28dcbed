"""Staged writes over streams: batches stored unseen, which come into their streams all at once.

`StagedStreams` is what a log needs of a medium for them, beside `Stream` and `StreamClient`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from streamlog.errors import OutcomeUnknown
from streamlog.model.batch import BatchAttributes, RecordBatch


class StagedRow(NamedTuple):
    """`record_count` offsets that a stream will get."""

    stream_id: int
    record_count: int


@dataclass(frozen=True, slots=True)
class StagedObject:
    """Stored by one attempt of a writer's task; in no stream. `rows` by stream id."""

    object_id: int
    writer_id: str
    attempt: str
    expires_ms: int
    size_bytes: int
    rows: tuple[StagedRow, ...]


class AttachedRow(NamedTuple):
    """Offsets start (inclusive) to end (exclusive) that a stream got."""

    stream_id: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Attached:
    """`rows` by stream id; empty where `epoch` was attached earlier and is not the last one.

    `was_attached`: that epoch or a later one was in before the call, which changed nothing.
    """

    epoch: int
    rows: tuple[AttachedRow, ...]
    was_attached: bool


@dataclass(frozen=True, slots=True)
class WriterState:
    """`last_epoch` -1: nothing is known of the writer. `rows`, `attached_ms`: of that epoch."""

    last_epoch: int = -1
    attached_ms: int = 0
    rows: tuple[AttachedRow, ...] = ()
    staged_objects: int = 0


class StagedStreams(Protocol):
    async def stage(
        self,
        writer_id: str,
        attempt: str,
        batches: Mapping[int, Sequence[RecordBatch]],
        *,
        expires_ms: int = 0,
    ) -> StagedObject:
        """Stores the batches, by stream id, durably; they are in no stream.

        What the attempt has staged already is returned instead. `expires_ms`: how long it is kept;
        0: the setting. A cancelled call's object is staged all the same, or swept. Errors:
        StreamNotFound, Invalid, MessageTooLarge, Overloaded (too many objects wait for a commit),
        StoreUnavailable, TenureFenced, Closed.
        """
        ...

    def staged(self, object_id: int) -> StagedObject | None:
        """None: it never was, it is attached, or it was dropped."""
        ...

    async def streams_of(self, object_ids: Sequence[int]) -> set[int]:
        """That the objects have rows of; of an object that is not staged, none."""
        ...

    async def attach(
        self,
        writer_id: str,
        epoch: int,
        object_ids: Sequence[int],
        *,
        leader_epochs: Mapping[int, int] | None = None,
    ) -> Attached:
        """Gives the objects' rows the next offsets of their streams, in this order, in one step.

        Appends to these streams wait meanwhile; those sequenced before are committed first. Durable
        and readable on return. It goes on when the caller is cancelled. `leader_epochs`: of streams
        of Kafka record batches, which are read with their offset and that epoch. Errors, with which
        nothing was attached: StagedNotFound, StreamFenced, Conflict (a stream is gone or closed),
        Invalid, TenureFenced, Closed. OutcomeUnknown: the node ended meanwhile; the same epoch
        again is safe.
        """
        ...

    def attributes(
        self, object_ids: Sequence[int]
    ) -> AsyncIterator[tuple[int, Sequence[BatchAttributes]]]:
        """Of the batches of objects that `attach` took: runs of a stream's batches, each stream's
        in the order of the objects. One that is not known any more, for compaction has replaced
        it, is left out. Errors: StoreUnavailable, ObjectNotFound, Corrupt.
        """
        ...

    async def unstage(self, writer_id: str, object_ids: Sequence[int]) -> int:
        """Drops what is staged still and is the writer's; how many objects."""
        ...

    def writer(self, writer_id: str) -> WriterState: ...


def maybe_attached(writer_id: str, epoch: int) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the node ended while epoch {epoch} of writer {writer_id} was being committed, which may "
        "have happened; commit the same epoch again"
    )
