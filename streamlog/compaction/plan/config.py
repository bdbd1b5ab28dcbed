"""The settings of compaction; each says what it trades. The arithmetic is in docs/compaction.md."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.runtime.config import setting

KIB = 1 << 10
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CompactionConfig:
    """How small objects become large ones."""

    compaction_process: str = setting(
        "auto",
        "process compacts in a child process, so that appends and reads keep their core; inline in "
        "the node's own event loop; off not at all. auto: a process on local and remote stores "
        "under dev and serve, inline in a library, off on memory://.",
        choices=("auto", "process", "inline", "off"),
    )
    compaction_interval_ms: int = setting(
        5000,
        "Time between two looks at what there is to compact. Lower keeps objects fewer while much "
        "is appended, and looks at the metadata more often.",
        minimum=1,
    )
    compaction_rate_max_bytes_per_s: int = setting(
        128 * MIB,
        "Bytes that compaction reads a second at most; it writes about as many. Lower leaves more "
        "of disk and network to appends and reads; below the append rate objects pile up.",
        minimum=64 * KIB,
    )
    compaction_busy_share: float = setting(
        0.75,
        "While more than this share of append_bytes_max is under way, compaction goes at a quarter "
        "of its rate.",
        minimum=0.0,
        maximum=1.0,
    )
    compaction_memory_bytes: int | None = setting(
        None,
        "Memory for data on its way from inputs to outputs. More makes GETs larger, and so fewer: "
        "with 60 inputs a GET is a hundredth of it. Default: 256 MiB, and 24 MiB for a store in a "
        "folder, where a read costs no request.",
        minimum=4 * MIB,
    )
    object_stats_cache_bytes: int = setting(
        32 * MIB,
        "Memory for what is known about objects' contents, 40 bytes a stream and object. Too "
        "little reads index sections again.",
        minimum=MIB,
        renamed_from="facts_cache_bytes",
    )
    spool_dir: str | None = setting(
        None,
        "Folder for outputs until they are uploaded, up to object_bytes_max at a time; of no "
        "effect on S3 with client=boto3, and in a folder. Default: the system's folder for "
        "temporary files.",
    )
    small_objects_min: int = setting(
        56,
        "Objects of a tier below small_object_bytes are merged once there are so many. More "
        "rewrites less often into longer parts, and readers of fresh data see more objects.",
        minimum=2,
        maximum=60,
    )
    large_objects_min: int = setting(
        28,
        "The same for larger ones, which hold many streams' parts that are still short. Lower "
        "saves readers GETs and rewrites sooner.",
        minimum=2,
        maximum=60,
    )
    small_object_bytes: int = setting(
        32 * MIB,
        "Objects below this size are always merged further. Higher means fewer objects, and may "
        "rewrite once more.",
        minimum=1,
    )
    compacted_part_bytes: int = setting(
        MIB,
        "Objects whose streams have parts of this size on average are left alone. Higher saves "
        "readers GETs and costs one rewrite more.",
        minimum=1,
        renamed_from="settled_part_bytes",
    )
    stream_object_bytes_min: int = setting(
        48 * MIB,
        "A stream with so many bytes in one merge gets objects of its own. Lower frees room sooner "
        "after trims and makes more objects.",
        minimum=1,
    )
    object_bytes_max: int = setting(
        512 * MIB,
        "Largest output. Larger means fewer objects, and more room needed in spool_dir.",
        minimum=1,
    )
    block_target_bytes: int = setting(
        512 * KIB,
        "Small data blocks are merged up to this size; larger than half of it are copied.",
        minimum=1024,
    )
    dead_share_min: float = setting(
        0.5,
        "Objects are rewritten when this share of their bytes is trimmed. Lower frees room sooner "
        "and writes more.",
        minimum=0.05,
        maximum=1.0,
    )
    spec_bytes_max: int = setting(
        2048 * MIB,
        "Bytes that one step reads at most; what it did is lost when it is interrupted.",
        minimum=1,
    )
    worker_nice: int = setting(
        10, "Niceness of the child process: how far it stands back.", minimum=0, maximum=19
    )

    def memory_bytes(self, store_url: str) -> int:
        """Of one merge, on this store."""
        if self.compaction_memory_bytes is not None:
            return self.compaction_memory_bytes
        return 256 * MIB if store_url.startswith("s3://") else 24 * MIB
