"""Topics and partitions in the KV store: bytes ↔ dataclasses, big-endian.

Namespace `_topic`, key: the topic's name. The put-if-absent of this key decides which of several
requests created the topic.

    at  field       type   meaning
    0   version     u8     1; others are refused
    1   state       u8     1 live, 2 deleting: its partitions are deleted, then this key
    2   topic id    16 B   UUID
    18  partitions  i32    partitions 0 to this (exclusive) have their own key
    22  configs     texts  settings that were given for the topic
        pending     u32    count, then as many u64: handles of the partitions that follow and have
                           no key yet; a node that reads them writes the keys and counts them in

A handle is what the topic's LogFactory gave for a partition: the meta stream's id of a shared log.

Namespace `_partition`, key `<topic>/<partition>`: version u8 (1), handle u64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from uuid import UUID

from streamlog.log.api.log_factory import LogKind
from streamlog.log.api.wire import FieldReader, FieldWriter
from streamlog.model.kv import Key
from streamlog.model.partition import TopicPartition

VERSION = 1
TOPIC_NAMESPACE = "_topic"
PARTITION_NAMESPACE = "_partition"


class TopicState(IntEnum):
    LIVE = 1
    DELETING = 2


@dataclass(frozen=True, slots=True)
class TopicRecord:
    topic_id: UUID
    partitions: int
    configs: Mapping[str, str]
    pending: tuple[int, ...] = ()
    state: TopicState = TopicState.LIVE
    log_kind: LogKind = LogKind.SHARED
    """Version 1 has no field for it: all its topics have shared logs."""

    is_usable: bool = field(init=False, repr=False, compare=False)
    """Whether it has partitions and is not being deleted; each request asks for it."""

    def __post_init__(self) -> None:
        usable = self.state is TopicState.LIVE and self.partitions > 0
        object.__setattr__(self, "is_usable", usable)


def topic_key(name: str) -> Key:
    return Key(name.encode(), TOPIC_NAMESPACE)


def partition_key(partition: TopicPartition) -> Key:
    return Key(f"{partition.topic}/{partition.partition}".encode(), PARTITION_NAMESPACE)


def encode_topic(record: TopicRecord) -> bytes:
    assert record.log_kind is LogKind.SHARED, "version 1 has no field for the kind"
    w = FieldWriter()
    w.u8(VERSION)
    w.u8(record.state)
    w.raw(record.topic_id.bytes)
    w.i32(record.partitions)
    w.texts(dict(record.configs))
    w.u32(len(record.pending))
    for handle in record.pending:
        w.u64(handle)
    return bytes(w.data)


def decode_topic(name: str, data: bytes) -> TopicRecord:
    """Errors: Corrupt, UnsupportedVersion."""
    r = FieldReader(data, f"the record of topic {name}")
    r.check_version(VERSION)
    state = r.u8()
    if state not in list(TopicState):
        raise r.corrupt(f"has state {state}")
    topic_id, partitions, configs = UUID(bytes=r.raw(16)), r.i32(), r.texts()
    pending = tuple(r.u64() for _ in range(r.u32()))
    r.end()
    return TopicRecord(topic_id, partitions, configs, pending, TopicState(state))


def encode_partition(handle: int) -> bytes:
    w = FieldWriter()
    w.u8(VERSION)
    w.u64(handle)
    return bytes(w.data)


def decode_partition(key: bytes, data: bytes) -> int:
    """The partition's handle. Errors: Corrupt, UnsupportedVersion."""
    subject = f"the record of partition {key.decode(errors='replace')}"
    r = FieldReader(data, subject)
    r.check_version(VERSION)
    handle = r.u64()
    r.end()
    return handle
