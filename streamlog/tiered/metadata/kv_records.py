"""Bytes and keys of remote segments in the KV store. Pure, big-endian.

    key of a segment     namespace `_remote_log`: topic id (16), partition u32, segment's uuid (16)
    version              u8: 2
    state                u8
    topic                text
    start, end offset    i64, i64 (inclusive)
    max timestamp        i64
    broker, event time   i32, i64
    size                 u64
    transaction index    u8: 1 where it is empty
    epochs               u32 count, then (epoch i32, first offset i64) of each
    custom metadata      u8: 0, or 1 and u16 length and the bytes
    crc                  u32, little-endian: CRC-32C of all before it

    key of a deletion    namespace `_remote_log_deletion`: topic id (16), partition u32
    version              u8: 2
    state                u8
    topic                text
    broker, event time   i32, i64
    crc                  u32, as above

A segment whose deletion is finished, and a partition's, have no entry.

Version 1, of the releases before, is the same without a crc, and is read: most of its single bits
may change unnoticed, a finished copy into one that has only begun among them. Its next change
writes it as version 2.
"""

from __future__ import annotations

from struct import Struct
from uuid import UUID

from streamlog.errors import Corrupt, Invalid
from streamlog.format.sealed import seal, unseal
from streamlog.log.api.wire import FieldReader, FieldWriter
from streamlog.model.kv import Key
from streamlog.tiered.api.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)

VERSION = 2
VERSION_WITHOUT_CRC = 1
SEGMENTS = "_remote_log"
DELETIONS = "_remote_log_deletion"
_PARTITION = Struct(">16sI")


def partition_prefix(partition: TopicIdPartition) -> bytes:
    return _PARTITION.pack(partition.topic_id.bytes, partition.partition)


def segment_key(segment_id: RemoteLogSegmentId) -> Key:
    return Key(partition_prefix(segment_id.topic_id_partition) + segment_id.id.bytes, SEGMENTS)


def deletion_key(partition: TopicIdPartition) -> Key:
    return Key(partition_prefix(partition), DELETIONS)


def encode_segment(metadata: RemoteLogSegmentMetadata) -> bytes:
    w = FieldWriter()
    w.u8(VERSION)
    w.u8(metadata.state)
    w.text(metadata.topic_id_partition.topic)
    w.i64(metadata.start_offset)
    w.i64(metadata.end_offset)
    w.i64(metadata.max_timestamp_ms)
    w.i32(metadata.broker_id)
    w.i64(metadata.event_timestamp_ms)
    w.u64(metadata.segment_size_bytes)
    w.u8(metadata.is_txn_index_empty)
    w.u32(len(metadata.epochs))
    for epoch in metadata.epochs:
        w.i32(epoch)
        w.i64(metadata.segment_leader_epochs[epoch])
    custom = metadata.custom_metadata
    w.u8(custom is not None)
    if custom is not None:
        w.u16(len(custom))
        w.raw(custom)
    return seal(bytes(w.data))


def decode_segment(name: bytes, data: bytes) -> RemoteLogSegmentMetadata:
    """Errors: Corrupt, UnsupportedVersion."""
    topic_id, number, unique = _split(name)
    subject = f"the metadata record of the remote segment {unique} of partition {topic_id}-{number}"
    r = _reader(data, subject)
    state = RemoteLogSegmentState(_checked(r, 3))
    partition = TopicIdPartition(topic_id, r.text(), number)
    start, end, max_timestamp = r.i64(), r.i64(), r.i64()
    broker, event, size = r.i32(), r.i64(), r.u64()
    is_empty = bool(r.u8())
    epochs = {}
    for _ in range(r.u32()):
        epoch = r.i32()
        epochs[epoch] = r.i64()
    custom = bytes(r.raw(r.u16())) if r.u8() else None
    r.end()
    try:
        return RemoteLogSegmentMetadata(
            RemoteLogSegmentId(partition, unique),
            start,
            end,
            max_timestamp,
            broker,
            event,
            size,
            state,
            epochs,
            custom,
            is_empty,
        )
    except Invalid as error:
        raise r.corrupt(f"holds what no segment has: {error}") from error


def encode_deletion(metadata: RemotePartitionDeleteMetadata) -> bytes:
    w = FieldWriter()
    w.u8(VERSION)
    w.u8(metadata.state)
    w.text(metadata.topic_id_partition.topic)
    w.i32(metadata.broker_id)
    w.i64(metadata.event_timestamp_ms)
    return seal(bytes(w.data))


def decode_deletion(name: bytes, data: bytes) -> RemotePartitionDeleteMetadata:
    """Errors: Corrupt, UnsupportedVersion."""
    topic_id, number = _unpacked(name)
    r = _reader(data, f"the record of the deletion of the remote partition {topic_id}-{number}")
    state = RemotePartitionDeleteState(_checked(r, 2))
    partition = TopicIdPartition(topic_id, r.text(), number)
    broker, event = r.i32(), r.i64()
    r.end()
    return RemotePartitionDeleteMetadata(partition, state, event, broker)


def _split(name: bytes) -> tuple[UUID, int, UUID]:
    if len(name) != _PARTITION.size + 16:
        raise Corrupt(f"{name.hex()} is no key of a remote segment")
    topic_id, number = _unpacked(name[: _PARTITION.size])
    return topic_id, number, UUID(bytes=name[_PARTITION.size :])


def _unpacked(name: bytes) -> tuple[UUID, int]:
    if len(name) != _PARTITION.size:
        raise Corrupt(f"{name.hex()} is no key of a remote partition")
    topic_id, number = _PARTITION.unpack(name)
    return UUID(bytes=topic_id), number


def _reader(data: bytes, subject: str) -> FieldReader:
    """Behind the version; its fields have passed the CRC, where the version has one.

    Errors: Corrupt, UnsupportedVersion.
    """
    has_crc = data[:1] != bytes([VERSION_WITHOUT_CRC])
    r = FieldReader(unseal(data, VERSION, subject) if has_crc else data, subject)
    r.check_version(VERSION, VERSION_WITHOUT_CRC)
    return r


def _checked(r: FieldReader, most: int) -> int:
    state = r.u8()
    if state > most:
        raise r.corrupt(f"has the unknown state {state}")
    return state
