"""Settings of the in-process key-value stores: how much past they keep, RocksDB's sizes."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.runtime.config import setting


@dataclass(frozen=True, slots=True)
class KVSettings:
    history_bytes_max: int = setting(
        32 << 20,
        "Keys and values of past changes kept in memory for watches and reads at a revision. "
        "A watcher that falls further behind starts over.",
        minimum=1 << 16,
    )
    history_revisions_max: int = setting(
        16_384,
        "Past revisions kept in memory. A read at an old one looks through all that are newer.",
        minimum=16,
    )
    group_bytes_max: int = setting(
        8 << 20,
        "Most bytes of queued transactions that one synced write makes durable together.",
        minimum=1 << 20,
    )
    group_operations_max: int = setting(
        256,
        "Most queued transactions that one synced write makes durable together.",
        minimum=1,
    )
    queue_bytes_max: int = setting(
        64 << 20,
        "Bytes of transactions that may wait for a synced write; more are refused as Overloaded.",
        minimum=2 << 20,
    )
    page_bytes_max: int = setting(
        1 << 20,
        "Bytes that one step of a range read takes from RocksDB; transactions run between steps.",
        minimum=1 << 12,
    )
    write_buffer_bytes: int = setting(
        16 << 20,
        "RocksDB's memtable. Larger: fewer flushes, more memory, a longer recovery.",
        minimum=1 << 20,
    )
    block_cache_bytes: int = setting(
        16 << 20,
        "RocksDB's block cache; what is in it is read without a thread hop.",
        minimum=1 << 20,
    )
