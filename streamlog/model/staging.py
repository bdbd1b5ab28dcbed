"""Staged writes: batches stored out of sight, and attached to their streams all at once.

A log that offers them needs `StagedStreams` of its medium, beside `Stream` and `StreamClient`.
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
class UnattachedObject:
    """An object that one attempt of a writer's task stored; in no stream yet. `rows` by stream."""

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

    `was_attached`: that epoch, or a later one, was attached before; the call changed nothing.
    """

    epoch: int
    rows: tuple[AttachedRow, ...]
    was_attached: bool


@dataclass(frozen=True, slots=True)
class WriterState:
    """The last attach of a writer, with its rows and its time. `last_epoch` -1: there is none."""

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
    ) -> UnattachedObject:
        """Stores the batches, by stream id, durably; they are in no stream yet.

        If the attempt has staged an object already, returns that one. `expires_ms`: how long the
        object is kept; 0: the setting. A cancelled call's object is staged all the same, or swept.
        Errors:
        StreamNotFound, Invalid, MessageTooLarge, Overloaded (too many objects wait for a commit),
        StoreUnavailable, TenureFenced, Closed.
        """
        ...

    def staged(self, object_id: int) -> UnattachedObject | None:
        """None: the object was never staged, is attached, or was dropped."""
        ...

    async def streams_of(self, object_ids: Sequence[int]) -> set[int]:
        """The streams of the objects' rows; objects that are not staged have none."""
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

        Durable and readable on return. Appends to these streams wait until then; those sequenced
        before are committed first. A cancelled call still runs to its end. `leader_epochs`: for
        streams of Kafka record batches, which are read with their offset and that epoch.
        Errors after which nothing is attached: StagedNotFound, StreamFenced, Conflict (a stream is
        gone or closed), Invalid, TenureFenced, Closed. OutcomeUnknown: the node ended; to attach
        the same epoch again is safe.
        """
        ...

    def attributes(
        self, object_ids: Sequence[int]
    ) -> AsyncIterator[tuple[int, Sequence[BatchAttributes]]]:
        """Attributes of the batches of attached objects, as (stream id, run of batches).

        The runs of a stream come in the order of the objects. An object that compaction has
        replaced is left out. Errors: StoreUnavailable, ObjectNotFound, Corrupt.
        """
        ...

    async def unstage(self, writer_id: str, object_ids: Sequence[int]) -> int:
        """Drops those objects of the writer that are still staged; their number."""
        ...

    def writer(self, writer_id: str) -> WriterState: ...


def maybe_attached(writer_id: str, epoch: int) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the node ended while epoch {epoch} of writer {writer_id} was being committed, which may "
        "have happened; commit the same epoch again"
    )
