"""All topic settings of Kafka 4.1 as one frozen class: defaults, ranges, what each does here.

A field's Kafka name is its own with dots for underscores. Three kinds of setting: *built* ones have
an effect; those in `KEPT` are accepted with any value that Kafka takes, are shown, and have nothing
to act on here; of those in `REFUSED` only the default is accepted, because another value would
promise something that the node does not do.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.runtime.config import setting

INT64_MAX = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1
DAY_MS = 24 * 60 * 60 * 1000
CREATE_TIME = "CreateTime"
LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """Defaults and least values are Kafka 4.1's."""

    cleanup_policy: str = setting(
        "delete",
        "What happens to old segments: delete, compact (the newest record of each key stays, and a "
        "record without a key is refused), or both.",
        choices=("delete", "compact"),
    )
    compression_gzip_level: int = setting(-1, "Level of gzip, -1 or 1 to 9.", minimum=-1, maximum=9)
    compression_lz4_level: int = setting(9, "Level of lz4.", minimum=1, maximum=17)
    compression_type: str = setting(
        "producer",
        "Batches are stored as the producer compressed them.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )
    compression_zstd_level: int = setting(3, "Level of zstd.", minimum=-131_072, maximum=22)
    delete_retention_ms: int = setting(
        DAY_MS,
        "How long a tombstone stays in a compacted log, from the first cleaning that meets it. A "
        "reader that takes longer from the log's start to its end may miss a deletion.",
        minimum=0,
    )
    file_delete_delay_ms: int = setting(
        60_000,
        "How long what a cleaning has replaced, and with log.type=unified any deleted file, stays "
        "for readers that have found it. What retention removes of a shared topic leaves the store "
        "after the node's engine.collector.deletion_delay_ms.",
        minimum=0,
    )
    flush_messages: int = setting(
        INT64_MAX, "Records after which the log is forced to disk.", minimum=1
    )
    flush_ms: int = setting(INT64_MAX, "Time after which the log is forced to disk.", minimum=0)
    follower_replication_throttled_replicas: str = setting(
        "", "Followers whose replication is throttled: partition:broker, …, or *."
    )
    index_interval_bytes: int = setting(
        4096,
        "Bytes of data per time index entry of 12 bytes. More: smaller index, longer timestamp "
        "look-ups.",
        minimum=0,
        maximum=INT32_MAX,
    )
    internal_segment_bytes: int = setting(
        0,
        "For tests: takes the place of segment.bytes, without its least value; 0: not set.",
        minimum=0,
        maximum=INT32_MAX,
    )
    leader_replication_throttled_replicas: str = setting(
        "", "Leaders whose replication is throttled: partition:broker, …, or *."
    )
    local_retention_bytes: int = setting(
        -2,
        "Bytes kept on this node, of a topic whose older segments are in tiered storage; -2: "
        "retention.bytes. Segments that are not copied yet stay.",
        minimum=-2,
    )
    local_retention_ms: int = setting(
        -2,
        "How long records are kept on this node, of a topic whose older segments are in tiered "
        "storage; -2: retention.ms. Segments that are not copied yet stay.",
        minimum=-2,
    )
    log_type: str = setting(
        "shared",
        "What keeps the topic's records, from its creation on and for life. shared: the object "
        "store, together with other topics. unified: files of Kafka's own formats in this node's "
        "log folder alone (node.log_dir), durable before they are acknowledged unless "
        "flush.messages or flush.ms say less; a lost disk costs them. A default counts for topics "
        "that are created later.",
        choices=("shared", "unified"),
    )
    max_compaction_lag_ms: int = setting(
        INT64_MAX,
        "How long a record may wait for a cleaning, once its segment is closed, whatever "
        "min.cleanable.dirty.ratio says. Shorter: more cleanings, each of which writes the log "
        "anew.",
        minimum=1,
    )
    max_message_bytes: int = setting(
        1_048_588,
        "Largest record batch, bytes, as it is sent (compressed). At most what one message carries "
        "(limits.message_bytes_max less 1 KiB) and one append takes "
        "(engine.append.batch_bytes_max). Larger batches cost fewer requests and less overhead per "
        "record; each holds up those behind it, and needs as much memory at once in producer, node "
        "and consumer.",
        minimum=0,
        maximum=INT32_MAX,
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000, "How far a record's timestamp may be ahead of the server's clock.", minimum=0
    )
    message_timestamp_before_max_ms: int = setting(
        INT64_MAX, "How far a record's timestamp may be behind the server's clock.", minimum=0
    )
    message_timestamp_type: str = setting(
        CREATE_TIME,
        "Whose clock stamps records. LogAppendTime makes the server compute each batch's CRC anew.",
        choices=(CREATE_TIME, LOG_APPEND_TIME),
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        "Share of a compacted log that may be new since its last cleaning. Less: the log is "
        "shorter, and written anew more often.",
        minimum=0,
        maximum=1,
    )
    min_compaction_lag_ms: int = setting(
        0, "How long every record of a compacted log stays at least.", minimum=0
    )
    min_insync_replicas: int = setting(
        1,
        "Replicas that must have a record before it is acknowledged.",
        minimum=1,
        maximum=INT32_MAX,
    )
    preallocate: bool = setting(False, "Whether a segment's file gets its size at once.")
    remote_copy_lag_bytes: int = setting(
        -1,
        "A closed segment goes to tiered storage when so many bytes of the log lie behind it, or "
        "when it is as old as remote.copy.lag.ms; 0: at once; -1: local.retention.bytes. It has an "
        "effect where remote.copy.lag.ms is not 0.",
        minimum=-1,
    )
    remote_copy_lag_ms: int = setting(
        0,
        "A closed segment goes to tiered storage when its newest record is as old, or when "
        "remote.copy.lag.bytes lie behind it; 0: at once; -1: local.retention.ms. Longer: what is "
        "deleted early is never copied, and the node's disk has the one copy for longer.",
        minimum=-1,
    )
    remote_log_copy_disable: bool = setting(
        False,
        "Whether no more data goes to tiered storage: what is there is read and expires; the local "
        "part then has the limits of the whole log.",
    )
    remote_log_delete_on_disable: bool = setting(
        False,
        "Whether tiered data is deleted when tiering is turned off. remote.storage.enable=false is "
        "refused without it.",
    )
    remote_storage_enable: bool = setting(
        False,
        "Whether closed segments go to tiered storage, and local ones by local.retention.*. It "
        "needs log.type=unified, cleanup.policy=delete and a node with "
        "remote.log.storage.system.enable.",
    )
    retention_bytes: int = setting(
        -1, "Oldest segments go while the partition is larger; -1: no limit.", minimum=-1
    )
    retention_ms: int = setting(
        7 * DAY_MS,
        "Segments go when their newest record is older; -1: never. Longer costs storage.",
        minimum=-1,
    )
    segment_bytes: int = setting(
        1 << 30,
        "A new segment starts before this one grows larger; a record batch must fit into one. "
        "Smaller: retention is more exact, for whole segments go, at the price of more meta "
        "records.",
        minimum=1 << 20,
        maximum=INT32_MAX,
    )
    segment_index_bytes: int = setting(
        10 << 20, "Size of a segment's offset index.", minimum=4, maximum=INT32_MAX
    )
    segment_jitter_ms: int = setting(
        0,
        "Random part of segment.ms that is left out, so that partitions do not roll at once.",
        minimum=0,
    )
    segment_ms: int = setting(
        7 * DAY_MS, "A new segment starts when records span more time than this.", minimum=1
    )
    unclean_leader_election_enable: bool = setting(
        False, "Whether a replica that lacks records may lead."
    )
    is_policy_unknown: bool = False
    """No setting, so it has no metadata: whether `cleanup.policy` is the brokers', and nobody can
    tell which it is. `cleanup_policy` then is one that deletes nothing."""

    @property
    def is_deleted_by_age(self) -> bool:
        """Whether `cleanup.policy` has delete."""
        return "delete" in self.cleanup_policy

    @property
    def is_compacted(self) -> bool:
        """Whether `cleanup.policy` has compact."""
        return "compact" in self.cleanup_policy

    @property
    def needs_keys(self) -> bool:
        """Whether a cleaning, now or once the policy is known, deletes records without a key."""
        return self.is_compacted or self.is_policy_unknown

    @property
    def is_copied(self) -> bool:
        """Whether closed segments go to the remote tier."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def local_limits(self) -> tuple[int, int]:
        """Bytes and milliseconds that the node's own part of a log is kept; -1: no limit."""
        limit_bytes, limit_ms = self.retention_bytes, self.retention_ms
        if self.is_copied:
            # -2 is that of the whole log.
            if self.local_retention_bytes >= -1:
                limit_bytes = self.local_retention_bytes
            if self.local_retention_ms >= -1:
                limit_ms = self.local_retention_ms
        return limit_bytes, limit_ms

    @property
    def copy_lags(self) -> tuple[int, int]:
        """Bytes behind a segment, and milliseconds of its age, of which either lets it be copied.

        0: at once. -1: never by this one.
        """
        limit_bytes, limit_ms = self.local_limits
        lag_bytes, lag_ms = self.remote_copy_lag_bytes, self.remote_copy_lag_ms
        return (limit_bytes if lag_bytes == -1 else lag_bytes), (
            limit_ms if lag_ms == -1 else lag_ms
        )


_NO_FILES = (
    "objects hold batches of many topics; the files of log.type=unified grow with what is in them"
)
_DURABLE = (
    "a record is acknowledged when it is durable: synced to the disk or in the store. Topics with "
    "log.type=unified are synced as this setting says"
)
_RECOMPRESSES = "the node compresses nothing anew: batches stay as the producer sent them"
_REPLICAS = "the store replicates: a partition has no followers"
KEPT = {
    "compression.gzip.level": _RECOMPRESSES,
    "compression.lz4.level": _RECOMPRESSES,
    "compression.zstd.level": _RECOMPRESSES,
    "flush.messages": _DURABLE,
    "flush.ms": _DURABLE,
    "follower.replication.throttled.replicas": _REPLICAS,
    "leader.replication.throttled.replicas": _REPLICAS,
    "min.insync.replicas": "the store keeps the copies: every acknowledged record has all of them, "
    "whatever the number says",
    "preallocate": _NO_FILES,
    "segment.index.bytes": f"{_NO_FILES}, their indexes, too",
    "unclean.leader.election.enable": "every leader reads all records from the store: none can "
    "lack some",
}
"""Settings without meaning on a shared store → why."""

OF_FILES = frozenset({"flush.messages", "flush.ms"})
"""Those of KEPT that have their meaning on topics with log.type=unified."""

_TIERED = (
    "topics with log.type=unified take others, and tiered storage their closed segments; all data "
    "of other topics is in the object store already"
)
REFUSED = {
    "compression.type": f"{_RECOMPRESSES}; use producer",
    "local.retention.bytes": _TIERED,
    "local.retention.ms": _TIERED,
    "remote.copy.lag.bytes": _TIERED,
    "remote.copy.lag.ms": _TIERED,
    "remote.log.copy.disable": _TIERED,
    "remote.log.delete.on.disable": _TIERED,
    "remote.storage.enable": _TIERED,
}
"""Settings of which only the default is accepted → why. Unified topics take what tiered storage
needs."""

UNKNOWN_SINCE_4 = {
    "message.downconversion.enable": "Kafka 4 converts no records for old clients, nor does this "
    "node; leave it out",
    "message.format.version": "Kafka 4 has one record format; leave it out",
}
"""Settings that older tools give, and that Kafka 4 has no longer → what to do."""
