"""What a Kafka 4.1.1 answered for a topic that sets nothing, to DescribeConfigs 4 with synonyms.

Name → value, number of the type, broker setting that its default is shown under (empty: none).
"""

from __future__ import annotations

KAFKA_TOPIC_SETTINGS = {
    "cleanup.policy": ("delete", 7, "log.cleanup.policy"),
    "compression.gzip.level": ("-1", 3, "compression.gzip.level"),
    "compression.lz4.level": ("9", 3, "compression.lz4.level"),
    "compression.type": ("producer", 2, "compression.type"),
    "compression.zstd.level": ("3", 3, "compression.zstd.level"),
    "delete.retention.ms": ("86400000", 5, "log.cleaner.delete.retention.ms"),
    "file.delete.delay.ms": ("60000", 5, "log.segment.delete.delay.ms"),
    "flush.messages": ("9223372036854775807", 5, "log.flush.interval.messages"),
    "flush.ms": ("9223372036854775807", 5, ""),
    "follower.replication.throttled.replicas": ("", 7, ""),
    "index.interval.bytes": ("4096", 3, "log.index.interval.bytes"),
    "leader.replication.throttled.replicas": ("", 7, ""),
    "local.retention.bytes": ("-2", 5, "log.local.retention.bytes"),
    "local.retention.ms": ("-2", 5, "log.local.retention.ms"),
    "max.compaction.lag.ms": ("9223372036854775807", 5, "log.cleaner.max.compaction.lag.ms"),
    "max.message.bytes": ("1048588", 3, "message.max.bytes"),
    "message.timestamp.after.max.ms": ("3600000", 5, "log.message.timestamp.after.max.ms"),
    "message.timestamp.before.max.ms": (
        "9223372036854775807",
        5,
        "log.message.timestamp.before.max.ms",
    ),
    "message.timestamp.type": ("CreateTime", 2, "log.message.timestamp.type"),
    "min.cleanable.dirty.ratio": ("0.5", 6, "log.cleaner.min.cleanable.ratio"),
    "min.compaction.lag.ms": ("0", 5, "log.cleaner.min.compaction.lag.ms"),
    "min.insync.replicas": ("1", 3, "min.insync.replicas"),
    "preallocate": ("false", 1, "log.preallocate"),
    "remote.log.copy.disable": ("false", 1, ""),
    "remote.log.delete.on.disable": ("false", 1, ""),
    "remote.storage.enable": ("false", 1, ""),
    "retention.bytes": ("-1", 5, "log.retention.bytes"),
    "retention.ms": ("604800000", 5, ""),
    "segment.bytes": ("1073741824", 3, "log.segment.bytes"),
    "segment.index.bytes": ("10485760", 3, "log.index.size.max.bytes"),
    "segment.jitter.ms": ("0", 5, ""),
    "segment.ms": ("604800000", 5, ""),
    "unclean.leader.election.enable": ("false", 1, "unclean.leader.election.enable"),
}
