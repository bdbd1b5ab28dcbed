"""One partition of a fetch: what was read of it so far, and the checks before the first read."""

from __future__ import annotations

from streamlog.errors import (
    EpochFenced,
    OffsetOutOfRange,
    StreamlogError,
    Unauthorized,
    UnknownLeaderEpoch,
    UnknownTopicOrPartition,
)
from streamlog.log.api.abstract_log import AbstractLog, EpochEndOffset
from streamlog.runtime.buffers import Buffer
from streamlog.server.services.records.positions import (
    UNKNOWN_OFFSETS,
    LogOffsets,
    ReadPosition,
)
from streamlog.server.services.records.requests import FetchPartitionResult


class PartitionRead:
    """`is_full`: nothing more is read of it in this fetch, which is answered now."""

    __slots__ = (
        "is_begun",
        "is_full",
        "log",
        "max_bytes",
        "offsets",
        "parts",
        "position",
        "result",
        "start_offset",
        "topic_id",
    )

    def __init__(self, position: ReadPosition, max_bytes: int) -> None:
        self.position = position
        self.topic_id = position.topic_id
        self.start_offset = position.offset
        self.max_bytes = min(position.max_bytes or max_bytes, max_bytes)
        self.log: AbstractLog | None = None
        self.parts: list[Buffer] = []
        self.offsets = UNKNOWN_OFFSETS
        self.is_begun = False
        self.is_full = False
        self.result = FetchPartitionResult(position.key.partition, position.offset)

    @property
    def left_bytes(self) -> int:
        """Of its own bound; below 0 behind a batch that is larger."""
        return self.max_bytes - self.result.size_bytes

    @property
    def is_absent(self) -> bool:
        """Whether no such partition was found, or none that the client may read."""
        return self.log is None and isinstance(
            self.result.error, (UnknownTopicOrPartition, Unauthorized)
        )

    @property
    def is_done(self) -> bool:
        """Whether the reader has all that there is to see: the next fetch needs no look at it
        before its log changes."""
        return self.log is not None and not self.is_full and not self.result.size_bytes

    def saw(self, offsets: LogOffsets) -> None:
        self.offsets = offsets
        self.result.high_watermark = offsets.high_watermark
        self.result.last_stable_offset = offsets.last_stable_offset
        self.result.log_start_offset = offsets.log_start_offset

    def fail(self, error: StreamlogError) -> None:
        """Ends the partition's reading. Records already read are answered without the error, which
        the next fetch raises."""
        self.is_full = True
        if not self.parts:
            self.result.error = error


def check_leader_epoch(leader: AbstractLog, current: int | None) -> None:
    """KIP-320. Errors: EpochFenced, UnknownLeaderEpoch."""
    if current is None or current == leader.leader_epoch:
        return
    epochs = f"{leader.topic_partition}: the caller knows leader epoch {current}, this node is at "
    if current < leader.leader_epoch:
        raise EpochFenced(
            f"{epochs}{leader.leader_epoch}; refresh the metadata", leader_epoch=leader.leader_epoch
        )
    raise UnknownLeaderEpoch(
        f"{epochs}{leader.leader_epoch}; retry until it has caught up",
        leader_epoch=leader.leader_epoch,
    )


def epoch_end(log: AbstractLog, epoch: int) -> EpochEndOffset:
    """As `end_offset_for_epoch`; the leader's own epoch is known before a record has it, as in
    Kafka, and ends at the log's end."""
    if epoch == log.leader_epoch:
        return EpochEndOffset(epoch, log.log_end_offset)
    return log.end_offset_for_epoch(epoch)


def divergence(log: AbstractLog, epoch: int | None, offset: int) -> EpochEndOffset | None:
    """Where the log of a reader, whose record before `offset` has this epoch, parts from `log`.

    None: it does not. KIP-595; Kafka asks this of every reader that names an epoch, consumers
    included. Errors: OffsetOutOfRange, where the epoch is newer than the log, or the offset has
    been deleted.
    """
    if epoch is None:
        return None
    end = epoch_end(log, epoch)
    if end.end_offset < 0 or end.leader_epoch < 0 or offset < log.log_start_offset:
        raise OffsetOutOfRange(
            f"offset {offset} of {log.topic_partition} after a record of leader epoch {epoch} is "
            f"not in the log, which goes from {log.log_start_offset} to {log.log_end_offset}",
            offset=offset,
            start_offset=log.log_start_offset,
            end_offset=log.log_end_offset,
        )
    return end if end.leader_epoch < epoch or end.end_offset < offset else None
