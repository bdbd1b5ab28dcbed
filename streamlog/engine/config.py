"""The engine's settings, each with its trade-off."""

from __future__ import annotations

from dataclasses import dataclass, field

from streamlog.compaction.collect.collector import CollectorConfig
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.metadata.config import MetadataConfig
from streamlog.objectstore.store_config import StoreConfig
from streamlog.runtime.concurrency.backoff import Backoff
from streamlog.runtime.concurrency.catch_up_throttle import CatchUpLimits
from streamlog.runtime.config import setting
from streamlog.runtime.progress import ProgressConfig
from streamlog.runtime.rand import Random
from streamlog.wal.config import WalConfig

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class StagingConfig:
    """Batches that are stored before they come into their streams."""

    expiry_ms: int = setting(
        24 * 3600 * 1000,
        "How long staged objects are kept without a commit. Shorter: objects of failed jobs are "
        "dropped sooner; a job must commit within this time.",
        minimum=1000,
    )
    writer_memory_ms: int = setting(
        7 * 24 * 3600 * 1000,
        "How long a writer's last epoch is remembered after its commit; a repetition that comes "
        "later would be stored twice. Longer: some hundred bytes of memory for each writer.",
        minimum=1000,
    )
    sweep_interval_ms: int = setting(
        60_000, "How often expired objects and writers are looked for.", minimum=10
    )
    save_interval_ms: int = setting(
        1_000,
        "wal=disk: how often a checkpoint is written for commits that none has, so that the bucket "
        "alone suffices for them. Longer: fewer requests to the store under many commits (two or "
        "three PUTs each time); a lost disk takes the commits of that time with it, and what was "
        "appended behind them.",
        minimum=10,
    )
    object_bytes_max: int = setting(
        64 * MIB,
        "Largest staged object, one call's batches. Larger: more memory.",
        minimum=1024,
        maximum=1024 * MIB,
    )
    bytes_in_flight_max: int = setting(
        128 * MIB,
        "Bytes being staged at a time; further calls wait. Larger: more memory, faster bulk writes "
        "to remote stores.",
        minimum=MIB,
    )
    stages_in_flight_max: int = setting(
        16,
        "Objects being staged at a time; each holds one of metadata.put_window object ids, which "
        "appends need, too.",
        minimum=1,
    )
    staged_objects_max: int = setting(
        100_000,
        "Objects that are staged and not committed yet; at this many, staging is refused until "
        "some are committed, aborted or expired. More: about 2 kB of memory each, on every node.",
        minimum=1,
    )
    commit_rows_max: int = setting(
        1_000_000,
        "Most rows (pairs of staged object and partition) of one commit. More: commits of more "
        "data to more partitions. Each takes about 20 µs of a core, while which appends to these "
        "partitions wait, and until it is compacted about 80 bytes of memory on every node.",
        minimum=1,
    )


@dataclass(frozen=True, slots=True)
class AppendConfig:
    """Bounds on appends under way, and retries."""

    append_bytes_max: int = setting(
        48 * MIB,
        "Bytes of appends that are not in the object store yet (wal=object: not confirmed; "
        "wal=disk: not uploaded). At the bound appends wait. More bridges longer store outages "
        "and costs as much memory.",
        minimum=MIB,
    )
    batch_bytes_max: int = setting(
        32 * MIB,
        "Largest payload of one append. A large batch holds up the appends of other streams "
        "behind it.",
        minimum=1024,
        maximum=1024 * MIB,
    )
    batch_overhead_bytes: int = setting(
        1024,
        "Charged per append beside its payload, so that tiny appends cannot fill the memory.",
        minimum=0,
    )
    group_bytes_max: int = setting(
        4 * MIB,
        "wal=disk: most bytes of one write and sync. Larger groups raise throughput, and the "
        "latency of their appends.",
        minimum=64 * 1024,
    )
    drain_timeout_ms: int = setting(
        30_000,
        "How long closing waits for uploads. The next start replays what is left in a disk WAL.",
        minimum=0,
    )
    retry_backoff_ms: int = setting(
        50,
        "First wait after a failed WAL write or store request; doubles up to the maximum.",
        minimum=1,
    )
    retry_backoff_ms_max: int = setting(
        5000,
        "Longest wait between two tries, and so the delay until a returned store is noticed.",
        minimum=1,
    )

    def backoff(self, random: Random) -> Backoff:
        """The waits of one series of tries."""
        return Backoff(self.retry_backoff_ms, self.retry_backoff_ms_max, random)


@dataclass(frozen=True, slots=True)
class FlushConfig:
    """wal=object: when appends are flushed as an object."""

    flush_bytes_target: int = setting(
        8 * MIB,
        "A batch of this size is uploaded at once. Larger objects cost fewer PUTs.",
        minimum=1024,
    )
    flush_interval_ms: int = setting(
        100,
        "Longest wait of an append for others while uploads are under way; an idle node uploads "
        "at once, on remote stores as far as put_rate_max_per_s lets it. Lower is faster and costs "
        "more PUTs under load.",
        minimum=0,
    )
    flush_bytes_overlap: int = setting(
        2 * MIB,
        "Local stores: a batch of this size, and as large as the uploads under way, goes up beside "
        "them. Smaller ones keep the disk busier and make more objects.",
        minimum=64 * 1024,
    )
    flush_bytes_overlap_remote: int = setting(
        3 * MIB,
        "Remote stores: a batch of this size, and as large as the uploads under way, goes up at "
        "once, whatever put_rate_max_per_s says: what its PUT costs follows the bytes. Lower is "
        "faster under load and costs more PUTs: at 3 MiB, and 5 dollars a million, 1.75 dollars a "
        "TiB at most.",
        minimum=64 * 1024,
    )
    put_rate_max_per_s: float = setting(
        10.0,
        "Remote stores: PUTs a second at most of batches smaller than flush_bytes_overlap_remote. "
        "An append that comes sooner after the last PUT waits, on an idle node too: at 10 up to "
        "100 ms, which is what appends take that are sent one after another. Each one more costs "
        "up to 2.6 million PUTs a month; at 100 they wait 10 ms at most. wal=disk answers before "
        "the PUT, and does not wait.",
        minimum=0.01,
    )
    uploads_in_flight_max: int = setting(
        4,
        "Uploads at a time; to remote stores as many more as fit into append_bytes_max. More raise "
        "throughput on stores with long latency, and memory.",
        minimum=1,
    )
    hedge_delay_ms_min: int = setting(
        40,
        "A PUT that takes longer than three times the running p95, and than this, is sent again "
        "under the same key with the same bytes. Lower cuts tail latency and costs PUTs.",
        minimum=1,
    )


@dataclass(frozen=True, slots=True)
class UploadConfig:
    """wal=disk: how the WAL is emptied into the store."""

    upload_bytes_target: int = setting(
        16 * MIB,
        "Bytes of one upload. Larger objects cost fewer PUTs, and more memory during the upload.",
        minimum=1024,
    )
    upload_interval_ms: int = setting(
        1000,
        "Longest wait before acknowledged bytes go to the store. Lower loses less with a lost "
        "disk and costs more PUTs.",
        minimum=0,
    )
    uploads_in_flight_max: int = setting(
        2,
        "Uploads at a time; to remote stores as many more as fit into append_bytes_max.",
        minimum=1,
    )


@dataclass(frozen=True, slots=True)
class ObjectConfig:
    """How object files are laid out."""

    compression: str = setting(
        "none",
        "zstd makes smaller objects where it pays, and costs CPU. Record batches that producers "
        "compressed gain nothing.",
        choices=("none", "zstd"),
    )
    block_target_bytes: int = setting(
        512 * 1024,
        "Size of a data block: the least that a reader gets. Smaller ones cost index.",
        minimum=1024,
    )


@dataclass(frozen=True, slots=True)
class ReadConfig:
    """Caches, reading ahead, and the throttle of catch-up reads."""

    tail_cache_bytes: int = setting(
        56 * MIB,
        "Memory for the newest batches, those of appends under way included; readers near the end "
        "never ask the store.",
        minimum=0,
    )
    block_cache_bytes: int = setting(
        128 * MIB,
        "Decoded blocks of readers further behind, least recently used dropped first, and GETs "
        "under way. Readers in sequence share it: with less than 64 MiB for each their GETs are "
        "smaller, and more.",
        minimum=0,
    )
    index_cache_bytes: int = setting(16 * MIB, "Decoded index sections of objects.", minimum=0)
    read_ahead_bytes_min: int = setting(
        512 * 1024,
        "Smallest GET of a reader in sequence, when many share the block cache.",
        minimum=0,
    )
    read_ahead_bytes_first: int = setting(
        12 * MIB,
        "First GET of a reader that begins at the stream's start, or goes on past its first fetch. "
        "Larger: fewer GETs; smaller: less is read in vain.",
        minimum=0,
    )
    read_ahead_bytes_max: int = setting(
        28 * MIB,
        "Largest GET ahead. Larger: fewer GETs, but beyond 31 MiB the C library takes new memory "
        "from the system for each; smaller: less memory for each reader, and shorter waits where "
        "a connection is slow.",
        minimum=0,
    )
    object_scan_bytes_max: int = setting(
        12 * MIB,
        "How far to read ahead in an object for readers that scan its small streams one after "
        "another. Larger: fewer GETs; smaller: fewer bytes read in vain; 0: a GET for each.",
        minimum=0,
        renamed_from="walk_bytes_max",
    )
    get_bytes_max: int = setting(
        8 * MIB,
        "A fetch larger than this uses several GETs at a time. Smaller GETs answer sooner and cost "
        "requests.",
        minimum=MIB,
    )
    get_piece_bytes: int = setting(
        4 * MIB,
        "A GET's blocks are decoded and returned in pieces of this size (the first: an eighth) "
        "while the rest arrives. Smaller: blocks are available sooner, for some CPU.",
        minimum=1024,
    )
    get_gap_bytes_max: int = setting(
        512 * 1024,
        "Two runs of blocks this close in an object are read by one GET, with the bytes in "
        "between. Larger: fewer GETs, more bytes read in vain.",
        minimum=0,
    )
    small_object_bytes: int = setting(
        256 * 1024,
        "Objects up to this size are read whole, index and data in one GET.",
        minimum=0,
    )
    catch_up_reads_max: int = setting(
        4,
        "GETs at a time of readers that are far behind, so that they cannot slow other reads.",
        minimum=1,
        renamed_from="lagging_reads_max",
    )
    catch_up_bytes_per_s_min: int = setting(
        8 * MIB,
        "Least rate of all consumers together that are far behind (shared topics: behind the tail "
        "cache; unified topics: 32 MiB from the end, and all of the remote tier) while appends or "
        "reads of newest records are served; the rate is higher while the event loop is on time, "
        "and unbounded when nothing else is served. Higher: they catch up sooner, and acks and "
        "tail reads of a busy node are later.",
        minimum=MIB,
        renamed_from="lagging_bytes_per_s_min",
    )
    catch_up_piece_bytes: int = setting(
        MIB,
        "Largest answer to such a consumer while it is throttled. Each MiB holds the event loop up "
        "for about 1 ms; smaller answers cost requests, and CPU for each.",
        minimum=64 * 1024,
        renamed_from="lagging_piece_bytes",
    )
    catch_up_loop_lag_ms: float = setting(
        2.0,
        "An event loop that is later than this halves the rate of such consumers. Higher: they "
        "catch up sooner beside a busy node, and other requests wait longer.",
        minimum=0.5,
        renamed_from="lagging_loop_lag_ms",
    )
    catch_up_wait_ms_max: int = setting(
        10_000,
        "Longest wait of such a fetch; after it the fetch runs whatever the rate. Keep it below "
        "the clients' request time-out. Lower: many hundreds of such consumers at a time slow "
        "other requests.",
        minimum=0,
        renamed_from="lagging_wait_ms_max",
    )

    @property
    def catch_up_limits(self) -> CatchUpLimits:
        return CatchUpLimits(
            self.catch_up_bytes_per_s_min,
            self.catch_up_piece_bytes,
            self.catch_up_loop_lag_ms,
            self.catch_up_wait_ms_max,
        )


@dataclass(frozen=True, slots=True)
class StreamEngineConfig:
    """All of the engine's settings."""

    append: AppendConfig = AppendConfig()
    flush: FlushConfig = FlushConfig()
    upload: UploadConfig = UploadConfig()
    object: ObjectConfig = ObjectConfig()
    read: ReadConfig = ReadConfig()
    collector: CollectorConfig = field(default_factory=CollectorConfig)
    compaction: CompactionConfig = field(default_factory=CompactionConfig)
    wal: WalConfig = field(default_factory=WalConfig)
    metadata: MetadataConfig = field(default_factory=MetadataConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    staging: StagingConfig = field(default_factory=StagingConfig)
    progress: ProgressConfig = field(default_factory=ProgressConfig)
