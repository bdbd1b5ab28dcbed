"""Which broker settings stand behind a topic setting: Kafka's table of synonyms. Pure.

A topic that does not set `retention.ms` has the broker's `log.retention.ms`, and so on. The first
synonym of a setting is the one that may change at run time, as in Kafka; the others are units of
it, and read at the start.
"""

from __future__ import annotations

from collections.abc import Mapping

_SAME_NAME = (
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "min.insync.replicas",
    "unclean.leader.election.enable",
)
_LOG_PREFIX = (
    "cleanup.policy",
    "index.interval.bytes",
    "local.retention.bytes",
    "local.retention.ms",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.type",
    "preallocate",
    "remote.copy.lag.bytes",
    "remote.copy.lag.ms",
    "retention.bytes",
    "segment.bytes",
)
_CLEANER_PREFIX = ("delete.retention.ms", "max.compaction.lag.ms", "min.compaction.lag.ms")

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in _SAME_NAME},
    **{name: (f"log.{name}",) for name in _LOG_PREFIX},
    **{name: (f"log.cleaner.{name}",) for name in _CLEANER_PREFIX},
    "file.delete.delay.ms": ("log.segment.delete.delay.ms",),
    "flush.messages": ("log.flush.interval.messages",),
    "flush.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    "max.message.bytes": ("message.max.bytes",),
    "min.cleanable.dirty.ratio": ("log.cleaner.min.cleanable.ratio",),
    "retention.ms": ("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
    "segment.index.bytes": ("log.index.size.max.bytes",),
    "segment.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "segment.ms": ("log.roll.ms", "log.roll.hours"),
}
"""Topic setting → broker settings, the one that counts first in front."""

TOPIC_SETTINGS: Mapping[str, str] = {brokers[0]: name for name, brokers in SYNONYMS.items()}
"""Broker setting that may change at run time → the topic setting that follows from it."""
