"""What is known of a segment in the remote tier, and the states that it goes through. Pure.

A segment's copy is announced (COPY_SEGMENT_STARTED) before its first byte is written, and readers
see it from COPY_SEGMENT_FINISHED on. A deletion is announced, too, so that a node that takes over
finishes what another began. Source: KIP-405, Kafka's RemoteLogSegmentMetadata and
RemoteLogSegmentState.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from streamlog.errors import Invalid
from streamlog.model.partition import TopicPartition

CUSTOM_METADATA_BYTES_MAX = 128
"""Of one segment (`remote.log.metadata.custom.metadata.max.bytes`)."""


class TopicIdPartition(NamedTuple):
    """A partition of one life of a topic: a topic that is made again has another id."""

    topic_id: UUID
    topic: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic_id}:{self.topic}-{self.partition}"


class RemoteLogSegmentId(NamedTuple):
    """Each try to copy a segment has an id of its own."""

    topic_id_partition: TopicIdPartition
    id: UUID

    def __str__(self) -> str:
        return f"{self.topic_id_partition}:{self.id}"


class RemoteLogSegmentState(IntEnum):
    """Kafka's numbers."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class RemotePartitionDeleteState(IntEnum):
    """Kafka's numbers."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


_S, _P = RemoteLogSegmentState, RemotePartitionDeleteState
SEGMENT_TRANSITIONS: Mapping[RemoteLogSegmentState | None, frozenset[RemoteLogSegmentState]] = {
    None: frozenset({_S.COPY_SEGMENT_STARTED}),
    _S.COPY_SEGMENT_STARTED: frozenset({_S.COPY_SEGMENT_FINISHED, _S.DELETE_SEGMENT_STARTED}),
    _S.COPY_SEGMENT_FINISHED: frozenset({_S.DELETE_SEGMENT_STARTED}),
    _S.DELETE_SEGMENT_STARTED: frozenset({_S.DELETE_SEGMENT_FINISHED}),
    _S.DELETE_SEGMENT_FINISHED: frozenset(),
}
PARTITION_TRANSITIONS: Mapping[
    RemotePartitionDeleteState | None, frozenset[RemotePartitionDeleteState]
] = {
    None: frozenset({_P.DELETE_PARTITION_MARKED}),
    _P.DELETE_PARTITION_MARKED: frozenset({_P.DELETE_PARTITION_STARTED}),
    _P.DELETE_PARTITION_STARTED: frozenset({_P.DELETE_PARTITION_FINISHED}),
    _P.DELETE_PARTITION_FINISHED: frozenset(),
}


def check_segment_transition(
    segment: object, source: RemoteLogSegmentState | None, target: RemoteLogSegmentState
) -> None:
    """The same state again is taken: whoever writes a state may have to write it twice.

    Errors: Invalid.
    """
    if target is not source and target not in SEGMENT_TRANSITIONS[source]:
        known = "is not known" if source is None else f"is in state {source.name}"
        raise Invalid(f"the remote segment {segment} {known}: it cannot become {target.name}")


def check_partition_transition(
    partition: object,
    source: RemotePartitionDeleteState | None,
    target: RemotePartitionDeleteState,
) -> None:
    """As `check_segment_transition`. Errors: Invalid."""
    if target is not source and target not in PARTITION_TRANSITIONS[source]:
        known = "is not deleted" if source is None else f"is in state {source.name}"
        raise Invalid(f"the remote partition {partition} {known}: it cannot become {target.name}")


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadata:
    """`end_offset` is inclusive, as in Kafka. `segment_leader_epochs`: epoch → its first offset in
    the segment, rising; never empty. `custom_metadata`: what the storage plug-in returned."""

    remote_log_segment_id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    segment_size_bytes: int
    state: RemoteLogSegmentState
    segment_leader_epochs: Mapping[int, int]
    custom_metadata: bytes | None = None
    is_txn_index_empty: bool = False
    """Whether no transaction was aborted there; False also where that is not known."""
    _epochs: tuple[int, ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        """Errors: Invalid."""
        if not self.segment_leader_epochs:
            raise Invalid(f"the remote segment {self.remote_log_segment_id} has no leader epoch")
        if not 0 <= self.start_offset <= self.end_offset:
            raise Invalid(
                f"the remote segment {self.remote_log_segment_id} would go from offset "
                f"{self.start_offset} to {self.end_offset}"
            )
        object.__setattr__(self, "_epochs", tuple(sorted(self.segment_leader_epochs)))

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return self.remote_log_segment_id.topic_id_partition

    @property
    def epochs(self) -> tuple[int, ...]:
        """The leader epochs of its batches, rising."""
        return self._epochs

    def end_offset_of_epoch(self, epoch: int) -> int:
        """The epoch's last offset in the segment, inclusive. Errors: KeyError."""
        index = self._epochs.index(epoch) + 1
        if index == len(self._epochs):
            return self.end_offset
        return self.segment_leader_epochs[self._epochs[index]] - 1

    def updated(self, update: RemoteLogSegmentMetadataUpdate) -> RemoteLogSegmentMetadata:
        """Errors: Invalid."""
        check_segment_transition(self.remote_log_segment_id, self.state, update.state)
        custom = update.custom_metadata
        return replace(
            self,
            state=update.state,
            event_timestamp_ms=update.event_timestamp_ms,
            broker_id=update.broker_id,
            custom_metadata=self.custom_metadata if custom is None else custom,
        )


class RemoteLogSegmentMetadataUpdate(NamedTuple):
    """A change of a segment's state."""

    remote_log_segment_id: RemoteLogSegmentId
    event_timestamp_ms: int
    state: RemoteLogSegmentState
    broker_id: int
    custom_metadata: bytes | None = None


class RemotePartitionDeleteMetadata(NamedTuple):
    """A change of the state of a partition that is deleted."""

    topic_id_partition: TopicIdPartition
    state: RemotePartitionDeleteState
    event_timestamp_ms: int
    broker_id: int
