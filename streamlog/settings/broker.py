"""`[broker]`: Kafka's broker settings, under Kafka's exact names.

Those marked `dynamic` may be set at run time, for one node or for all (`streamlog config alter`).
So may every broker setting that a topic setting follows from (`log/configs/broker_synonyms.py`).

A field's name is Kafka's with `_` for `.`; the field `log_retention_ms` is `log.retention.ms`.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.runtime.concurrency.byte_pace import UNLIMITED
from streamlog.runtime.config import setting


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Settings that Kafka gives to a broker."""

    auto_create_topics_enable: bool | None = setting(
        None,
        "Makes a topic that is produced to, or asked for by a client that allows it, and does not "
        "exist. Default: true in `streamlog dev`, false in `streamlog serve`.",
        dynamic=True,
    )
    num_partitions: int = setting(
        1,
        "Partitions of a topic that is created without a count.",
        minimum=1,
        maximum=10_000,
        dynamic=True,
    )
    message_max_bytes: int = setting(
        1_048_588,
        "Largest record batch; a topic's max.message.bytes overrides it. Capped at what one "
        "message carries (limits.message_bytes_max less 1 KiB).",
        minimum=0,
        maximum=2**31 - 1,
        dynamic=True,
    )
    log_retention_ms: int | None = setting(
        None,
        "How long records are kept, -1 for ever; before log.retention.minutes and .hours.",
        minimum=-1,
        dynamic=True,
    )
    log_retention_minutes: int | None = setting(
        None,
        "How long records are kept, -1 for ever; before log.retention.hours.",
        minimum=-1,
        maximum=2**31 - 1,
    )
    log_retention_hours: int = setting(
        168, "How long records are kept, -1 for ever.", minimum=-1, maximum=2**31 - 1
    )
    log_retention_bytes: int = setting(
        -1, "How many bytes a partition keeps, -1 without bound.", minimum=-1, dynamic=True
    )
    log_retention_check_interval_ms: int = setting(
        300_000, "Time between two looks for what has to go.", minimum=1, dynamic=True
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        UNLIMITED,
        "Bytes that the cleaner of compacted topics reads and writes in a second, in all. Less: "
        "producers and consumers have more of the disk while it cleans, and topics are cleaned "
        "later.",
        minimum=1,
        dynamic=True,
    )
    producer_id_expiration_ms: int = setting(
        86_400_000,
        "A producer silent for this long is forgotten: its retries are no longer recognised.",
        minimum=1,
    )
    log_segment_bytes: int = setting(
        1_073_741_824,
        "Size of a segment; retention deletes whole segments.",
        minimum=1 << 20,
        maximum=2**31 - 1,
        dynamic=True,
    )
    log_roll_ms: int | None = setting(
        None, "Time span of a segment; before log.roll.hours.", minimum=1, dynamic=True
    )
    log_roll_hours: int = setting(168, "Time span of a segment.", minimum=1, maximum=2**31 - 1)
    log_cleanup_policy: str = setting(
        "delete",
        "What happens to old records: deletion by age and size, compaction, or both.",
        choices=("delete", "compact", "compact,delete", "delete,compact"),
        dynamic=True,
    )
    log_message_timestamp_type: str = setting(
        "CreateTime",
        "Whose time a record carries: the producer's, or the server's at append.",
        choices=("CreateTime", "LogAppendTime"),
        dynamic=True,
    )
    log_message_timestamp_before_max_ms: int = setting(
        2**63 - 1, "How far a producer's time may lie behind the server's.", minimum=0, dynamic=True
    )
    log_message_timestamp_after_max_ms: int = setting(
        3_600_000,
        "How far a producer's time may lie ahead of the server's.",
        minimum=0,
        dynamic=True,
    )

    transaction_max_timeout_ms: int = setting(
        900_000,
        "Longest time-out that a transactional producer may ask for. Longer: a producer that is "
        "gone may hold up read_committed readers for longer.",
        minimum=1,
        maximum=2**31 - 1,
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000,
        "A transactional id that is unused for this long is forgotten: its producer has to "
        "initialise itself again.",
        minimum=1,
    )
    transaction_state_log_num_partitions: int = setting(
        16,
        "Partitions of `__transaction_state`, fixed when the first transactional producer makes it "
        "be created. More: transactional ids spread over more nodes.",
        minimum=1,
        maximum=10_000,
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        10_000,
        "Time between two looks for transactions past their time-out. Shorter: they are aborted "
        "sooner.",
        minimum=1,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000,
        "Time between two looks for transactional ids that are unused for too long.",
        minimum=1,
    )
    remote_log_storage_system_enable: bool = setting(
        True,
        "Whether topics with log.type=unified may have remote.storage.enable. It costs nothing "
        "while none has. (Kafka's default is false, because it brings no storage with it.)",
    )
    remote_log_storage_manager_class_name: str = setting(
        "",
        "Plug-in that keeps remote segments, as `module:Class`; it gets the settings that begin "
        "with rsm.config. (in the file or by flag). Default: the node's own object store.",
    )
    remote_log_storage_manager_class_path: str = setting(
        "",
        "Folders in which that plug-in is looked for too, with `:` between them.",
    )
    remote_log_storage_manager_impl_prefix: str = setting(
        "rsm.config.",
        "What the settings begin with that the storage plug-in gets, less this.",
    )
    remote_log_metadata_manager_class_name: str = setting(
        "",
        "Plug-in that knows which remote segments there are, as `module:Class`; it gets the "
        "settings that begin with rlmm.config. Default: the node's own metadata store. "
        "TopicBasedRemoteLogMetadataManager (or Kafka's name of it, with its package): the topic "
        "__remote_log_metadata, which the first copy makes. Choose before the first topic is "
        "tiered: a node that finds segments in the other place refuses to start.",
    )
    remote_log_metadata_manager_class_path: str = setting(
        "",
        "Folders in which that plug-in is looked for too, with `:` between them.",
    )
    remote_log_metadata_manager_impl_prefix: str = setting(
        "rlmm.config.",
        "What the settings begin with that the metadata plug-in gets, less this.",
    )
    remote_log_metadata_custom_metadata_max_bytes: int = setting(
        128,
        "What a storage plug-in may keep with each segment. Those that come with the program keep "
        "51 bytes.",
        minimum=0,
        maximum=1 << 16,
    )
    remote_log_manager_task_interval_ms: int = setting(
        30_000,
        "Time between two looks for segments to copy, and for what has expired. Shorter: segments "
        "are copied sooner, more CPU with very many partitions.",
        minimum=1,
    )
    remote_log_manager_task_retry_backoff_ms: int = setting(
        500,
        "Pause before a copy or an expiration that failed is tried again; it doubles with each "
        "failure.",
        minimum=1,
    )
    remote_log_manager_task_retry_backoff_max_ms: int = setting(
        30_000,
        "Longest of these pauses. Shorter: more requests to a store that is away.",
        minimum=1,
    )
    remote_log_manager_task_retry_jitter: float = setting(
        0.2,
        "Share by which these pauses vary, so that partitions that failed together do not come "
        "back together.",
        minimum=0,
        maximum=0.5,
    )
    remote_log_manager_copier_thread_pool_size: int = setting(
        10, "Partitions that are copied at a time.", minimum=1, maximum=1000
    )
    remote_log_manager_copy_max_bytes_per_second: int = setting(
        2**63 - 1,
        "Bytes a second that the node copies to the remote storage at most, over the window; the "
        "default is no bound. A segment is copied as a whole: what it is above the bound is taken "
        "from the time behind it.",
        minimum=1,
        dynamic=True,
    )
    remote_log_manager_copy_quota_window_num: int = setting(
        61, "Buckets of the window over which copies are measured.", minimum=1, maximum=3600
    )
    remote_log_manager_copy_quota_window_size_seconds: int = setting(
        1, "Length of each of these buckets.", minimum=1, maximum=3600
    )
    remote_log_manager_fetch_max_bytes_per_second: int = setting(
        2**63 - 1,
        "Bytes a second that the node reads from the remote storage at most, over the window; the "
        "default is no bound. A fetch that finds no room is answered without these partitions.",
        minimum=1,
        dynamic=True,
    )
    remote_log_manager_fetch_quota_window_num: int = setting(
        11, "Buckets of the window over which reads are measured.", minimum=1, maximum=3600
    )
    remote_log_manager_fetch_quota_window_size_seconds: int = setting(
        1, "Length of each of these buckets.", minimum=1, maximum=3600
    )
    remote_log_manager_expiration_thread_pool_size: int = setting(
        10, "Partitions whose remote segments expire at a time.", minimum=1, maximum=1000
    )
    remote_log_manager_follower_thread_pool_size: int = setting(
        2,
        "Partitions at a time of which a follower looks how far its leader has copied. No node "
        "follows one yet.",
        minimum=1,
        maximum=1000,
    )
    remote_log_copy_spread_ms: int = setting(
        60_000,
        "How long what waits to be copied is spread over while appends or reads of newest records "
        "are served (not one of Kafka's settings). Longer: they are delayed less, and local disks "
        "hold so much more of what comes in; 0: copies always have full speed.",
        minimum=0,
    )
    remote_log_purge_interval_ms: int = setting(
        86_400_000,
        "Time between two looks for files in the remote storage that no metadata names (not one of "
        "Kafka's settings). Each lists the storage, one request for 1000 files; 0 is never.",
        minimum=0,
    )
    remote_log_purge_age_ms: int = setting(
        604_800_000,
        "How old such files have to be to be deleted (not one of Kafka's settings). Longer: more "
        "time to put lost metadata back.",
        minimum=3_600_000,
    )
    remote_log_purge_max_share: float = setting(
        0.5,
        "Which part of all remote segments may be such files (not one of Kafka's settings). Where "
        "it is more, none is deleted, and the status says so: the metadata is likely to be lost.",
        minimum=0,
        maximum=1,
    )
    remote_log_reader_threads: int = setting(
        10,
        "Reads of the remote storage at a time; each brings up to 4 MiB.",
        minimum=1,
        maximum=1000,
    )
    remote_log_reader_memory_bytes: int = setting(
        83_886_080,
        "Memory that keeps what was read of remote segments for the next fetch (not one of Kafka's "
        "settings); a fifth of it is for indexes that came too late for theirs. It holds the two "
        "largest batches in any case.",
        minimum=1_048_576,
    )
    remote_log_reader_max_pending_tasks: int = setting(
        100,
        "Reads of the remote storage under way or waiting; more of them are refused, each for its "
        "partition alone.",
        minimum=1,
        maximum=100_000,
    )
    remote_log_index_file_cache_total_size_bytes: int = setting(
        1 << 30,
        "Indexes of remote segments kept in files of the log folder (remote-log-index-cache).",
        minimum=1,
    )
    remote_fetch_max_wait_ms: int = setting(
        500,
        "How long a fetch waits for the remote storage. What comes later is kept for the next "
        "one, so a slow store makes progress.",
        minimum=1,
    )
    remote_list_offsets_request_timeout_ms: int = setting(
        30_000, "How long a look-up by time waits for the remote storage.", minimum=1
    )
    quota_window_num: int = setting(
        11,
        "Samples of the window over which a client's rates are measured for its quotas. More: "
        "longer bursts are allowed; the longest throttle, which is the whole window, is longer.",
        minimum=2,
        maximum=3600,
    )
    quota_window_size_seconds: int = setting(
        1,
        "Length of each sample. It is the longest throttle of request_percentage, too.",
        minimum=1,
        maximum=3600,
    )

    def topic_defaults(self) -> dict[str, str]:
        """The topic settings that follow from the broker's, by Kafka's topic-level names."""
        if self.log_retention_ms is not None:
            retention_ms = self.log_retention_ms
        elif self.log_retention_minutes is not None:
            retention_ms = _scaled(self.log_retention_minutes, 60_000)
        else:
            retention_ms = _scaled(self.log_retention_hours, 3_600_000)
        roll_ms = self.log_roll_hours * 3_600_000 if self.log_roll_ms is None else self.log_roll_ms
        return {
            "max.message.bytes": str(self.message_max_bytes),
            "retention.ms": str(retention_ms),
            "retention.bytes": str(self.log_retention_bytes),
            "segment.bytes": str(self.log_segment_bytes),
            "segment.ms": str(roll_ms),
            "cleanup.policy": self.log_cleanup_policy,
            "message.timestamp.type": self.log_message_timestamp_type,
            "message.timestamp.before.max.ms": str(self.log_message_timestamp_before_max_ms),
            "message.timestamp.after.max.ms": str(self.log_message_timestamp_after_max_ms),
        }


def _scaled(value: int, factor: int) -> int:
    return -1 if value < 0 else value * factor
