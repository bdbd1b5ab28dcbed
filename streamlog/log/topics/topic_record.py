"""Topics and partitions in the KV store: bytes ↔ dataclasses, big-endian.

Namespace `_topic`, key: the topic's name. The put-if-absent of this key decides which of several
requests created the topic.

    at  field       type   meaning
    0   version     u8     1; 2 with a log kind; 3 with marks, too; others are refused
    1   state       u8     1 live, 2 deleting: its partitions are deleted, then this key
    2   topic id    16 B   UUID
    18  partitions  i32    partitions 0 to this (exclusive) have their own key
    22  configs     texts  settings that were given for the topic
        pending     u32    count, then as many u64: handles of the partitions that follow and have
                           no key yet; a node that reads them writes the keys and counts them in
        log kind    u8     from version 2 on: 1 unified. Version 1: the topic's logs are shared
        marks       u8     version 3 only, a sum: 1 the topic was compacted once, 2 its tiering was
                           turned off; others are refused

A handle is what the topic's LogFactory gave for a partition: the meta stream's id of a shared log,
a number made from topic id and partition of a unified one. Topics with shared logs are written in
version 1, so that a release that knows no other kind reads them, and those without marks in version
2. The first mark stays for the topic's life, the second until it is tiered again.

Namespace `_partition`, key `<topic>/<partition>`: version u8, handle u64. Version 1; 2 has a log
kind u8 behind it.
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
VERSION_WITH_KIND = 2
VERSION_WITH_MARKS = 3
_WAS_COMPACTED = 1
_HAS_LEFT_TIER = 2
_KIND_NUMBERS = {LogKind.UNIFIED: 1}
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
    was_compacted: bool = False
    """Whether its `cleanup.policy` ever had compact, as far as is known. Unified topics only."""
    has_left_tier: bool = False
    """Whether its tiering was turned off, and what is remote goes. Unified topics only."""
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
    w = FieldWriter()
    marks = _WAS_COMPACTED * record.was_compacted | _HAS_LEFT_TIER * record.has_left_tier
    w.u8(VERSION_WITH_MARKS if marks else _version_of(record.log_kind))
    w.u8(record.state)
    w.raw(record.topic_id.bytes)
    w.i32(record.partitions)
    w.texts(dict(record.configs))
    w.u32(len(record.pending))
    for handle in record.pending:
        w.u64(handle)
    _put_kind(w, record.log_kind)
    if marks:
        w.u8(marks)
    return bytes(w.data)


def _version_of(kind: LogKind) -> int:
    return VERSION if kind is LogKind.SHARED else VERSION_WITH_KIND


def _put_kind(w: FieldWriter, kind: LogKind) -> None:
    if kind is not LogKind.SHARED:
        w.u8(_KIND_NUMBERS[kind])


def _kind(r: FieldReader, version: int) -> LogKind:
    if version == VERSION:
        return LogKind.SHARED
    number = r.u8()
    for kind, known in _KIND_NUMBERS.items():
        if known == number:
            return kind
    raise r.corrupt(f"has log kind {number}")


def decode_topic(name: str, data: bytes) -> TopicRecord:
    """Errors: Corrupt, UnsupportedVersion."""
    r = FieldReader(data, f"the record of topic {name}")
    version = r.check_version(VERSION_WITH_MARKS, VERSION)
    state = r.u8()
    if state not in list(TopicState):
        raise r.corrupt(f"has state {state}")
    topic_id, partitions, configs = UUID(bytes=r.raw(16)), r.i32(), r.texts()
    pending = tuple(r.u64() for _ in range(r.u32()))
    kind = _kind(r, version)
    marks = r.u8() if version == VERSION_WITH_MARKS else 0
    if marks & ~(_WAS_COMPACTED | _HAS_LEFT_TIER):
        raise r.corrupt(f"has marks {marks}")
    r.end()
    return TopicRecord(
        topic_id,
        partitions,
        configs,
        pending,
        TopicState(state),
        kind,
        was_compacted=bool(marks & _WAS_COMPACTED),
        has_left_tier=bool(marks & _HAS_LEFT_TIER),
    )


def encode_partition(handle: int, kind: LogKind = LogKind.SHARED) -> bytes:
    w = FieldWriter()
    w.u8(_version_of(kind))
    w.u64(handle)
    _put_kind(w, kind)
    return bytes(w.data)


def decode_partition(key: bytes, data: bytes) -> int:
    """The partition's handle. Errors: Corrupt, UnsupportedVersion."""
    subject = f"the record of partition {key.decode(errors='replace')}"
    r = FieldReader(data, subject)
    version = r.check_version(VERSION_WITH_KIND, VERSION)
    handle = r.u64()
    _kind(r, version)
    r.end()
    return handle
