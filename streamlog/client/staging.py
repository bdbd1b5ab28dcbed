"""Staged writes: many tasks store record batches unseen, one driver makes them visible at once.

1. A task calls `stage`; what it returns, a `StagedObject`, goes to the driver.
2. The driver calls `commit(epoch, objects)`: all of them become visible in one step, or none does.
   The same epoch again, or an earlier one, changes nothing and says so.
3. What is not committed was never visible; `abort` drops it at once, else it expires.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from streamlog.runtime.buffers import Buffer


class TopicPartition(NamedTuple):
    topic: str
    partition: int


class StagedPart(NamedTuple):
    """What a staged object holds of one partition."""

    topic: str
    partition: int
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class StagedObject:
    """One stored, invisible object. Can be pickled and, by `to_json`, written down."""

    writer_id: str
    attempt: str
    object_id: int
    expires_ms: int
    """Epoch milliseconds; a commit that comes later finds it gone (StagedNotFound)."""
    parts: tuple[StagedPart, ...]

    def to_json(self) -> str:
        return json.dumps(
            [self.writer_id, self.attempt, self.object_id, self.expires_ms, self.parts]
        )

    @classmethod
    def from_json(cls, text: str) -> StagedObject:
        """Errors: ValueError, TypeError for what `to_json` did not write."""
        writer_id, attempt, object_id, expires_ms, parts = json.loads(text)
        return cls(
            writer_id, attempt, object_id, expires_ms, tuple(StagedPart(*part) for part in parts)
        )


class CommittedPart(NamedTuple):
    """Where a commit's records of one partition lie: start (inclusive) to end (exclusive)."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class StagedCommit:
    """`parts` is empty where an epoch was committed earlier and is not the writer's last one."""

    epoch: int
    parts: tuple[CommittedPart, ...]
    was_committed: bool
    """This epoch, or a later one, had been committed before the call: nothing was changed."""


@dataclass(frozen=True, slots=True)
class WriterStatus:
    """`last_epoch` None: nothing was committed in the last seven days."""

    last_epoch: int | None
    committed_ms: int
    parts: tuple[CommittedPart, ...]
    """Of the last epoch."""
    staged_objects: int
    """Stored by this writer, neither committed nor dropped."""


class StagedWrites(Protocol):
    """`StagedWriter`, the client of one writer id. Safe to use from many threads."""

    def stage(
        self, attempt: str, batches: Mapping[tuple[str, int], Buffer], *, expires_ms: int = 0
    ) -> list[StagedObject]:
        """Stores whole Kafka v2 record batches, by (topic, partition), durably and unseen.

        Batches carry no producer id, no transaction and any base offset. `attempt` is unique per
        task attempt, at most 200 bytes; calls of one attempt with the same content are answered
        with what is stored. What is more than a message takes becomes several objects.
        `expires_ms`: how long it is kept; 0: as the server says. Retries by itself. Errors: those
        of a produce (UnknownTopicOrPartition, MessageTooLarge, …), Unavailable.
        """
        ...

    def commit(self, epoch: int, objects: Iterable[StagedObject]) -> StagedCommit:
        """Makes the objects visible in all their partitions, in the order given, or none.

        Epochs (≥ 0) of a writer rise. An epoch at or below the last committed one changes nothing,
        whatever `objects` says. Retries by itself, also after a lost answer. Errors:
        StagedNotFound (expired or dropped: stage again), Conflict (a topic was deleted or
        changed), Unavailable, OutcomeUnknown (ask `status`, or commit the same epoch again).
        """
        ...

    def status(self) -> WriterStatus: ...

    def abort(self, objects: Iterable[StagedObject]) -> int:
        """Drops what is not committed; how many objects that were."""
        ...

    def close(self) -> None: ...
