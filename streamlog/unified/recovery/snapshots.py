"""Producer snapshots of a unified log: one for the first offset of each segment, and the newest.

A snapshot that cannot be read is passed over: the one before it, and the batches behind that one,
come to the same state. It blocks: call it through Offload.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from streamlog.codec.batch import SEQUENCE_MAX
from streamlog.errors import StreamlogError
from streamlog.format.kafka_files.names import SNAPSHOT, file_name, parse_file_name
from streamlog.format.kafka_files.producer_snapshot import (
    SnapshotEntry,
    decode_snapshot,
    encode_snapshot,
)
from streamlog.log.partition.producer_state_entry import ProducerBatch, ProducerStateEntry
from streamlog.log.partition.producer_state_manager import ProducerStateManager
from streamlog.runtime.disk.growing import GrowingFolder
from streamlog.unified.disk.files import read_file, remove_if_there

log = logging.getLogger(__name__)


def snapshot_of(producers: ProducerStateManager) -> bytes:
    return encode_snapshot([_entry_of(entry) for entry in producers.snapshot()])


def _entry_of(entry: ProducerStateEntry) -> SnapshotEntry:
    batches = entry.batches
    last_offset = batches[-1].last_offset if batches else -1
    delta = batches[-1].last_offset - batches[-1].base_offset if batches else 0
    return SnapshotEntry(
        entry.producer_id,
        entry.producer_epoch,
        entry.last_sequence,
        last_offset,
        delta,
        entry.last_append_ms,
        entry.coordinator_epoch,
        entry.txn_first_offset,
    )


def _state_of(entry: SnapshotEntry) -> ProducerStateEntry:
    batches: list[ProducerBatch] = []
    if entry.last_sequence >= 0 and entry.last_offset >= 0:
        first = (entry.last_sequence - entry.offset_delta) & SEQUENCE_MAX
        base = entry.last_offset - entry.offset_delta
        batches.append(ProducerBatch(first, entry.last_sequence, base, entry.last_offset))
    return ProducerStateEntry.of(
        entry.producer_id, entry.producer_epoch, entry.timestamp_ms, batches
    )._replace(coordinator_epoch=entry.coordinator_epoch, txn_first_offset=entry.txn_first_offset)


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """Of the files with these names, rising."""
    parsed = (parse_file_name(name) for name in names)
    return sorted(found[0] for found in parsed if found is not None and found[1:] == (SNAPSHOT, ""))


class FoundSnapshot(NamedTuple):
    """The producers before the offset, each with its last batch alone."""

    offset: int
    entries: list[ProducerStateEntry]


def newest_snapshot(
    folder: GrowingFolder, offsets: Iterable[int], start_offset: int, end_offset: int
) -> FoundSnapshot:
    """The newest sound snapshot from start_offset to end_offset (inclusive); without one an empty
    one of start_offset. Errors: OSError."""
    for offset in sorted(offsets, reverse=True):
        if not start_offset <= offset <= end_offset:
            continue
        name = file_name(offset, SNAPSHOT)
        try:
            entries = decode_snapshot(name, read_file(folder, name))
        except StreamlogError as error:
            log.warning("a producer snapshot is passed over: %s", error)
            continue
        return FoundSnapshot(offset, [_state_of(entry) for entry in entries])
    return FoundSnapshot(start_offset, [])


def remove_others(folder: GrowingFolder, kept: Iterable[int], end_offset: int) -> None:
    """Removes all snapshots but those of the kept offsets and the newest one up to the end.

    Errors: OSError.
    """
    offsets = snapshot_offsets(folder.list())
    newest = max((offset for offset in offsets if offset <= end_offset), default=-1)
    wanted = {*kept, newest}
    for offset in offsets:
        if offset not in wanted or offset > end_offset:
            remove_if_there(folder, file_name(offset, SNAPSHOT))
