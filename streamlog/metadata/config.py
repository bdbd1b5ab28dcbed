"""Settings of the metadata: what a commit holds, when checkpoints are written, how to retry."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.errors import InvalidConfig
from streamlog.runtime.config import setting


@dataclass(frozen=True, slots=True)
class MetadataConfig:
    object_streams_max: int = setting(
        60_000,
        "Most rows (object and stream pairs) of one commit record. Larger: fewer commits under "
        "very many streams, larger transactions.",
        minimum=1,
        maximum=60_000,
    )
    record_bytes_max: int = setting(
        512 << 10,
        "Most bytes of one commit record before compression. A transaction holds 1.5 MiB at most.",
        minimum=1 << 10,
        maximum=1 << 20,
    )
    put_window: int = setting(
        64,
        "Object ids that may be stored and not yet committed. Larger: more uploads in flight, more "
        "blind deletes when a node died.",
        minimum=1,
        maximum=100_000,
    )
    lease_ttl_ms: int = setting(
        10_000,
        "A node counts as dead when it has not renewed its lease for this long. Smaller: faster "
        "takeover, more false alarms; safety does not depend on it.",
        minimum=100,
    )
    checkpoint_interval_ms: int = setting(
        30_000,
        "New records are checkpointed this long after the last checkpoint, or sooner. Smaller: "
        "faster start, more requests to the store (two or three PUTs each).",
        minimum=10,
    )
    checkpoint_records: int = setting(
        400, "Records that trigger a checkpoint at once.", minimum=1, maximum=512
    )
    checkpoint_record_bytes: int = setting(
        12 << 20, "Bytes of records that trigger a checkpoint at once.", minimum=1 << 10
    )
    checkpoint_rows: int = setting(
        1_500_000,
        "Rows that trigger a checkpoint at once; each holds 16 bytes of memory until then.",
        minimum=1,
    )
    delta_percent: int = setting(
        25,
        "The delta is merged into the base when it reaches this share of it. Smaller: more bytes "
        "written; larger: more read back.",
        minimum=1,
        maximum=100,
    )
    delta_bytes_min: int = setting(
        256 << 10, "A delta below this size is never merged into the base.", minimum=0
    )
    block_cache_bytes: int = setting(
        8 << 20, "Memory for checkpoint blocks that look-ups read.", minimum=1 << 16
    )
    retry_backoff_ms: int = setting(
        20,
        "Wait before the first retry against the metadata store; doubles, with jitter.",
        minimum=1,
    )
    retry_backoff_max_ms: int = setting(2_000, "Longest wait between retries.", minimum=1)
    operation_timeout_ms: int = setting(
        30_000,
        "How long opens, transfers of streams and id allocation are retried before they fail as "
        "unavailable. Commits are retried without end.",
        minimum=1,
    )
    orphan_resweep_ms: int = setting(
        24 * 3600 * 1000,
        "How long after its seal the orphans of a tenure are swept once more, for PUTs that arrive "
        "late; then the tenure is retired.",
        minimum=0,
    )
    file_sweep_interval_ms: int = setting(
        3600 * 1000, "How often unused checkpoint files are looked for.", minimum=1000
    )
    lineage_check_interval_ms: int = setting(
        10_000,
        "How often a node looks whether a recover or restore has made newer metadata for its "
        "bucket. Until then it may acknowledge appends that the newer metadata never sees. "
        "Smaller: it stops sooner, for one GET each time.",
        minimum=100,
    )
    rack: str = setting(
        "",
        "Where the node stands. It would have no effect yet: it comes with replicas, and must be "
        "left empty.",
    )

    def __post_init__(self) -> None:
        if self.rack:
            raise InvalidConfig(
                f"engine.metadata.rack is {self.rack!r}, but would have no effect: no node or "
                "client chooses by racks yet (it comes with replicas); leave it out",
                name="rack",
            )
