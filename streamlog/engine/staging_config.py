"""Settings of staged writes."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.runtime.config import setting

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StagingConfig:
    """Batches that are stored before they come into their streams."""

    expiry_ms: int = setting(
        24 * 3600 * 1000,
        "How long staged objects are kept when nobody commits them. Shorter: what failed jobs left "
        "goes sooner; a job must commit within this time.",
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
