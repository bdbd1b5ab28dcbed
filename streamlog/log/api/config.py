"""Settings of the log layer. A comment behind a field is Kafka's name for it."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.codec import choice as codec
from streamlog.log.api.topic_config import DAY_MS, DEFAULTS, INT32_MAX, TopicConfig
from streamlog.runtime.concurrency.byte_pace import UNLIMITED
from streamlog.runtime.config import setting


@dataclass(frozen=True, slots=True)
class LogConfig:
    topics_max: int = setting(
        10_000, "Topics in the cluster; each costs about 1 KiB of memory on every node.", minimum=1
    )
    partitions_max: int = setting(
        100_000,
        "Partitions in the cluster; an open one costs about 20 KiB of memory on its node.",
        minimum=1,
    )
    partitions_per_topic_max: int = setting(10_000, "Partitions of one topic.", minimum=1)
    num_partitions: int = setting(  # num.partitions
        1, "Partitions of a topic that is created without a number.", minimum=1, dynamic=True
    )
    retention_check_interval_ms: int = setting(  # log.retention.check.interval.ms
        300_000,
        "How often segments are checked for retention. Shorter: data is deleted sooner, more CPU.",
        minimum=1,
        dynamic=True,
    )
    producer_id_expiration_ms: int = setting(  # producer.id.expiration.ms
        DAY_MS,
        "A producer that is silent for this long is forgotten: its retries are not recognised. "
        "Longer: more memory, see producer_ids_max.",
        minimum=1,
    )
    producer_ids_max: int = setting(
        100_000,
        "Idempotent producers that a partition remembers. At the bound the producers that are "
        "silent for longest are forgotten, as after producer.id.expiration.ms. More: more memory, "
        "about 300 bytes for a producer with one batch and 1 KiB with 32, and twice that between "
        "an append and the next checkpoint. Checkpoints grow, too, by 44 to 788 bytes a producer; "
        "they are read when the partition is opened, and written when a segment rolls, at most one "
        "at a time. With very many producers keep segment.bytes well above the size of a "
        "checkpoint (4 to 79 MB at 100,000).",
        minimum=1,
    )
    producer_idle_ms_min: int = setting(
        600_000,
        "A producer that appended within this time is not forgotten to make room for another, "
        "because its retries would be stored twice. If all producers are that recent, new ones "
        "are refused (QuotaExceeded). While one appended later than the clock says, it counts as "
        "of now, when its turn comes. One that appended while the clock was behind counts as "
        "silent for longer, by as much as the clock is set on. Keep it longer than the delivery "
        "timeout of clients.",
        minimum=0,
    )
    producer_batches_remembered: int = setting(
        32,
        "Batches per producer and partition whose retries are recognised; a producer keeps at most "
        "this many unanswered.",
        minimum=5,
        maximum=1000,
    )
    producer_id_block: int = setting(
        1000, "Producer ids taken from the metadata at a time.", minimum=1
    )
    record_check: str = setting(
        "native",
        "Whether the structure of uncompressed records is checked before they are stored, so that "
        "every acknowledged batch can be read. native: if the codec is compiled (0.4 µs a batch "
        "and 7 ns a record, which is 3 % of the engine's CPU for a batch of 1 MiB with records of "
        "1 KiB, and 16 % with records of 100 B). always: with the plain codec, too (some µs a "
        "record, on the event loop).",
        choices=("native", "always", "never"),
    )
    decoded_bytes_max: int = setting(
        32 << 20,
        "Largest record, decompressed, that the node decodes itself, for fetches of plain records "
        "and look-ups by time. A batch is decompressed in pieces of 1 MiB, except an LZ4 frame or "
        "a raw snappy block, which is decompressed at once and has this bound, too. Memory: as "
        "much for each such request under way.",
        minimum=1 << 20,
        maximum=128 << 20,
    )
    checkpoint_interval_batches: int = setting(
        10_000,
        "Batches between checkpoints of producer state in the meta stream. More: opening a "
        "partition after a crash reads more attributes (45 bytes a batch).",
        minimum=1,
    )
    meta_compaction_bytes: int = setting(
        256 << 10,
        "Bytes of meta records after which they are replaced by a snapshot. More: opening a "
        "partition reads more.",
        minimum=1,
    )
    cleaner_enable: bool = setting(  # log.cleaner.enable
        True, "Whether compacted topics are cleaned. Off: they grow, and nothing is lost."
    )
    cleaner_backoff_ms: int = setting(  # log.cleaner.backoff.ms
        15_000, "How long the cleaner waits when there is nothing to clean.", minimum=1
    )
    cleaner_dedupe_buffer_bytes: int = setting(  # log.cleaner.dedupe.buffer.size
        64 << 20,
        "Memory of the keys that one cleaning knows, 256 bytes each. A log with more keys in its "
        "dirty part is cleaned in rounds. More: fewer rounds, each of which reads the whole log.",
        minimum=1 << 20,
    )
    cleaner_io_bytes_per_second_max: float = setting(  # log.cleaner.io.max.bytes.per.second
        UNLIMITED,
        "Bytes that the cleaner reads and writes in a second, in all.",
        minimum=1,
        dynamic=True,
    )
    opens_at_once_max: int = setting(
        64, "Partitions opened, closed or deleted at the same time.", minimum=1
    )
    message_bytes_max: int = setting(
        INT32_MAX,
        "Largest record batch that the node takes, even if a topic's max.message.bytes is larger.",
        minimum=1024,
    )
    topic_defaults: TopicConfig = setting(  # noqa: RUF009
        DEFAULTS, "Settings of topics that do not set their own."
    )

    @property
    def checks_records(self) -> bool:
        """Whether records are checked in this process."""
        return self.record_check == "always" or (
            self.record_check == "native" and codec.IN_USE == "native"
        )


KAFKA_NAMES = {
    "num.partitions": "num_partitions",
    "log.retention.check.interval.ms": "retention_check_interval_ms",
    "log.cleaner.io.max.bytes.per.second": "cleaner_io_bytes_per_second_max",
    "producer.id.expiration.ms": "producer_id_expiration_ms",
}
"""Kafka's broker settings → fields of LogConfig."""
