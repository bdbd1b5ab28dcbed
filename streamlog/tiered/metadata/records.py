"""Kafka's records of the topic `__remote_log_metadata`: what is known of remote segments as bytes.

    key    null
    value  uvarint 1 (the frame's version), uvarint kind, uvarint version 0, then a message by kind:
           0  RemoteLogSegmentMetadataRecord        a segment
           1  RemoteLogSegmentMetadataUpdateRecord  a change of a segment's state
           2  RemotePartitionDeleteMetadataRecord   a change of the state of a partition's deletion

Kafka's readers take what is written here, and what Kafka writes is read. A frame, kind or version
that is not listed is refused: who passes it over does not know what there is. Source: Kafka's
RemoteLogMetadataSerde and AbstractApiMessageSerde.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from streamlog.errors import Corrupt, Invalid, UnsupportedVersion
from streamlog.kafka.protocol.primitives import OUT_OF_BYTES, Malformed, Records, Wrong, uvarint_at
from streamlog.kafka.records import remote_log_segment_metadata_record as added
from streamlog.kafka.records import remote_log_segment_metadata_update_record as changed
from streamlog.kafka.records import remote_partition_delete_metadata_record as deleted
from streamlog.runtime.buffers import Buffer
from streamlog.tiered.api import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)

FRAME_VERSION, VERSION = 1, 0
SEGMENT, SEGMENT_UPDATE, PARTITION_DELETE = 0, 1, 2

RemoteLogRecord = (
    RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate | RemotePartitionDeleteMetadata
)
_IdEntry = added.RemoteLogSegmentIdEntry | changed.RemoteLogSegmentIdEntry
_PartitionEntry = (
    added.TopicIdPartitionEntry | changed.TopicIdPartitionEntry | deleted.TopicIdPartitionEntry
)
_Entry = TypeVar("_Entry")


def partition_of(record: RemoteLogRecord) -> TopicIdPartition:
    """The partition that the record tells of."""
    if isinstance(record, RemoteLogSegmentMetadataUpdate):
        return record.remote_log_segment_id.topic_id_partition
    return record.topic_id_partition


def encode(record: RemoteLogRecord) -> bytes:
    """Errors: Invalid (a number or name that the record's fields cannot hold)."""
    try:
        if isinstance(record, RemoteLogSegmentMetadata):
            return _framed(SEGMENT, added.encode(_segment_message(record), VERSION))
        if isinstance(record, RemoteLogSegmentMetadataUpdate):
            return _framed(SEGMENT_UPDATE, changed.encode(_update_message(record), VERSION))
        return _framed(PARTITION_DELETE, deleted.encode(_delete_message(record), VERSION))
    except (struct.error, ValueError) as error:
        raise Invalid(
            f"what is to be kept of {partition_of(record)} is beyond what a record holds: {error}"
        ) from error


def decode(value: Buffer | None) -> RemoteLogRecord:
    """Errors: Corrupt, UnsupportedVersion."""
    view = memoryview(b"" if value is None else value)
    try:
        frame, at = uvarint_at(view, 0)
        _check_known("a frame of version", frame, frame == FRAME_VERSION, FRAME_VERSION)
        kind, at = uvarint_at(view, at)
        _check_known("the kind", kind, kind <= PARTITION_DELETE, PARTITION_DELETE)
        version, at = uvarint_at(view, at)
        _check_known(f"the kind {kind} in version", version, version == VERSION, VERSION)
    except (Wrong, *OUT_OF_BYTES) as error:
        raise _corrupt(f"its head is cut short or wrong: {error}") from error
    try:
        return _DECODERS[kind](view, at)
    except (Malformed, Invalid, ValueError) as error:
        raise _corrupt(str(error)) from error


def _framed(kind: int, message: Sequence[Buffer]) -> bytes:
    return b"".join((bytes((FRAME_VERSION, kind, VERSION)), *message))


def _segment_message(one: RemoteLogSegmentMetadata) -> added.RemoteLogSegmentMetadataRecord:
    partition = _partition_entry(added.TopicIdPartitionEntry, one.topic_id_partition)
    return added.RemoteLogSegmentMetadataRecord(
        remote_log_segment_id=added.RemoteLogSegmentIdEntry(
            topic_id_partition=partition, id=one.remote_log_segment_id.id.bytes
        ),
        start_offset=one.start_offset,
        end_offset=one.end_offset,
        broker_id=one.broker_id,
        max_timestamp_ms=one.max_timestamp_ms,
        event_timestamp_ms=one.event_timestamp_ms,
        segment_leader_epochs=[
            added.SegmentLeaderEpochEntry(
                leader_epoch=epoch, offset=one.segment_leader_epochs[epoch]
            )
            for epoch in one.epochs
        ],
        segment_size_in_bytes=one.segment_size_bytes,
        custom_metadata=one.custom_metadata,
        remote_log_segment_state=one.state,
        txn_index_empty=one.is_txn_index_empty,
    )


def _update_message(
    one: RemoteLogSegmentMetadataUpdate,
) -> changed.RemoteLogSegmentMetadataUpdateRecord:
    partition, segment_id = one.remote_log_segment_id
    return changed.RemoteLogSegmentMetadataUpdateRecord(
        remote_log_segment_id=changed.RemoteLogSegmentIdEntry(
            topic_id_partition=_partition_entry(changed.TopicIdPartitionEntry, partition),
            id=segment_id.bytes,
        ),
        broker_id=one.broker_id,
        event_timestamp_ms=one.event_timestamp_ms,
        custom_metadata=one.custom_metadata,
        remote_log_segment_state=one.state,
    )


def _delete_message(
    one: RemotePartitionDeleteMetadata,
) -> deleted.RemotePartitionDeleteMetadataRecord:
    return deleted.RemotePartitionDeleteMetadataRecord(
        topic_id_partition=_partition_entry(deleted.TopicIdPartitionEntry, one.topic_id_partition),
        broker_id=one.broker_id,
        event_timestamp_ms=one.event_timestamp_ms,
        remote_partition_delete_state=one.state,
    )


def _partition_entry(entry: Callable[..., _Entry], partition: TopicIdPartition) -> _Entry:
    """Each message has a class of its own for it, with the same fields."""
    return entry(name=partition.topic, id=partition.topic_id.bytes, partition=partition.partition)


def _decode_segment(view: memoryview, at: int) -> RemoteLogSegmentMetadata:
    one, end = added.decode(view, at, VERSION)
    _check_whole(end, view)
    return RemoteLogSegmentMetadata(
        remote_log_segment_id=_segment_id(one.remote_log_segment_id),
        start_offset=one.start_offset,
        end_offset=one.end_offset,
        max_timestamp_ms=one.max_timestamp_ms,
        broker_id=one.broker_id,
        event_timestamp_ms=one.event_timestamp_ms,
        segment_size_bytes=one.segment_size_in_bytes,
        state=RemoteLogSegmentState(one.remote_log_segment_state),
        segment_leader_epochs={
            entry.leader_epoch: entry.offset for entry in one.segment_leader_epochs
        },
        custom_metadata=_own(one.custom_metadata),
        is_txn_index_empty=one.txn_index_empty,
    )


def _decode_update(view: memoryview, at: int) -> RemoteLogSegmentMetadataUpdate:
    one, end = changed.decode(view, at, VERSION)
    _check_whole(end, view)
    return RemoteLogSegmentMetadataUpdate(
        _segment_id(one.remote_log_segment_id),
        one.event_timestamp_ms,
        RemoteLogSegmentState(one.remote_log_segment_state),
        one.broker_id,
        _own(one.custom_metadata),
    )


def _decode_delete(view: memoryview, at: int) -> RemotePartitionDeleteMetadata:
    one, end = deleted.decode(view, at, VERSION)
    _check_whole(end, view)
    return RemotePartitionDeleteMetadata(
        _topic_id_partition(one.topic_id_partition),
        RemotePartitionDeleteState(one.remote_partition_delete_state),
        one.event_timestamp_ms,
        one.broker_id,
    )


_DECODERS: Sequence[Callable[[memoryview, int], RemoteLogRecord]] = (
    _decode_segment,
    _decode_update,
    _decode_delete,
)
"""By kind."""


def _segment_id(entry: _IdEntry) -> RemoteLogSegmentId:
    return RemoteLogSegmentId(_topic_id_partition(entry.topic_id_partition), UUID(bytes=entry.id))


def _topic_id_partition(entry: _PartitionEntry) -> TopicIdPartition:
    return TopicIdPartition(UUID(bytes=entry.id), entry.name, entry.partition)


def _own(data: Records | None) -> bytes | None:
    """A copy: the state must not hold the batches that it was read from."""
    if data is None:
        return None
    assert isinstance(data, memoryview)
    return bytes(data)


def _check_known(what: str, found: int, is_known: bool, supported: int) -> None:
    if not is_known:
        raise UnsupportedVersion(
            f"a record of remote segments has {what} {found}, this program knows up to "
            f"{supported}; use the program that wrote it, or a newer one",
            found=found,
            supported=supported,
        )


def _check_whole(end: int, view: memoryview) -> None:
    if end != len(view):
        raise _corrupt(f"{len(view) - end} bytes follow its message")


def _corrupt(fault: str) -> Corrupt:
    return Corrupt(f"a record of remote segments cannot be read: {fault}")
