"""Batches of aborted transactions, left out of what a read_committed reader gets.

A fetch tells the aborted transactions that overlap what it returns, by producer and first offset.
Offsets below the last stable offset alone are returned, so the end of each of them is either in the
same answer or behind it. Cost: per batch; no record is read. Source: Kafka's CompletedFetch.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamlog.codec.batch import ScannedBatch


def without_aborted(
    batches: list[ScannedBatch], aborted: Iterable[tuple[int, int]]
) -> list[ScannedBatch]:
    """Drops transactional batches of aborted producers up to their ABORT markers.

    `aborted`: (first offset, producer id) of each aborted transaction that overlaps.
    """
    todo = sorted(aborted, reverse=True)
    aborting: set[int] = set()
    kept: list[ScannedBatch] = []
    for batch in batches:
        header = batch.header
        while todo and todo[-1][0] <= header.last_offset:
            aborting.add(todo.pop()[1])
        if header.is_control:
            aborting.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in aborting:
            continue
        kept.append(batch)
    return kept
