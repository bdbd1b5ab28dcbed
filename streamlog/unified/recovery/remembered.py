"""Finds the batches that a producer snapshot does not keep.

A snapshot has the last batch of each producer. A client has more under way, Kafka's five, this
program's own 32: where a crash, a roll or a clean end came before their answers, it sends all of
them again, and the older ones would be refused as out of order although they are stored (a Kafka
broker does that). So the batches
before the snapshot are read backwards, in windows that grow, until all producers have as many as a
log remembers, or `READ_BACK_BYTES_MAX` were read. A producer whose last append came
`ANSWERED_MS` before the newest one is not looked for: this node lived on, and its client was
answered or has sent again. It blocks: call it through Offload.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from streamlog.codec.batch import CONTROL, SEQUENCE_MAX, BatchHeader
from streamlog.format.kafka_files import offset_index
from streamlog.log.partition.producer_state_entry import ProducerBatch, ProducerStateEntry
from streamlog.runtime.disk.growing import GrowingFile, GrowingFolder
from streamlog.unified.disk.files import read_if_there
from streamlog.unified.recovery.scan import batches
from streamlog.unified.state.segment import UnifiedLogSegment

READ_BACK_BYTES_MAX = 64 << 20
"""Of one partition. 32 batches of 1 MiB of one producer, or of 128 KiB of many, lie within it."""
FIRST_WINDOW_BYTES = 64 << 10
ANSWERED_MS = 600_000


class _Window(NamedTuple):
    """Batches from one position of a segment to another; the first begins behind `next_offset`."""

    file: GrowingFile
    begin: int
    end: int
    next_offset: int


class _Recalled:
    """The batches of one producer, taken newest first."""

    def __init__(self, entry: ProducerStateEntry, most: int) -> None:
        self.entry = entry
        self.older: list[ProducerBatch] = []
        self._oldest = entry.batches[0]
        self._most = most - len(entry.batches)

    @property
    def is_complete(self) -> bool:
        # Before sequence 0 nothing comes, but for a producer of more than 2^31 records.
        return len(self.older) >= self._most or self._oldest.base_sequence == 0

    def take(self, header: BatchHeader) -> bool:
        """Takes the batch if it comes right before those that are known."""
        last = header.last_sequence
        if (
            header.producer_epoch != self.entry.producer_epoch
            or header.last_offset >= self._oldest.base_offset
            or (last + 1) & SEQUENCE_MAX != self._oldest.base_sequence
        ):
            return False
        self._oldest = ProducerBatch(
            header.base_sequence, last, header.base_offset, header.last_offset
        )
        self.older.append(self._oldest)
        return True

    def completed(self) -> ProducerStateEntry:
        found = [*reversed(self.older), *self.entry.batches]
        return self.entry.of(
            self.entry.producer_id, self.entry.producer_epoch, self.entry.last_append_ms, found
        )._replace(
            coordinator_epoch=self.entry.coordinator_epoch,
            txn_first_offset=self.entry.txn_first_offset,
        )


def recall(
    folder: GrowingFolder,
    segments: Sequence[UnifiedLogSegment],
    entries: Iterable[ProducerStateEntry],
    offset: int,
    most: int,
    newest_ms: int,
) -> list[ProducerStateEntry]:
    """The entries of a snapshot of that offset, with up to `most` batches each. `newest_ms`: when
    the newest append came; where that is not certain, the earliest time that it may have.

    Errors: OSError.
    """
    kept = list(entries)
    wanted = {
        entry.producer_id: _Recalled(entry, most)
        for entry in kept
        if entry.packed and newest_ms - entry.last_append_ms <= ANSWERED_MS
    }
    missing = {key for key, one in wanted.items() if not one.is_complete}
    for window in _windows(folder, segments, offset) if missing else ():
        headers = [
            batch.header
            for batch in batches(
                window.file, window.begin, window.next_offset, verify=True, end=window.end
            )
            if batch.header.producer_id in missing
        ]
        for header in reversed(headers):
            recalled = wanted[header.producer_id]
            if recalled.is_complete or header.attributes & CONTROL or header.base_sequence < 0:
                continue
            if recalled.take(header) and recalled.is_complete:
                missing.discard(header.producer_id)
        if not missing:
            break
    found = {key: one.completed() for key, one in wanted.items() if one.older}
    return [found.get(entry.producer_id, entry) for entry in kept]


def _windows(
    folder: GrowingFolder, segments: Sequence[UnifiedLogSegment], offset: int
) -> Iterator[_Window]:
    """From the offset backwards, each twice as long as the one before."""
    left, length = READ_BACK_BYTES_MAX, FIRST_WINDOW_BYTES
    for segment in reversed([one for one in segments if one.base_offset < offset and one.size]):
        entries = segment.offsets
        if entries is None:
            entries = bytearray(read_if_there(folder, segment.index_name) or b"")
        file = folder.open(segment.log_name)
        try:
            end = segment.size
            while end and left > 0:
                begin = offset_index.floor_position(entries, max(end - length, 0))
                yield _Window(file, begin, end, segment.base_offset)
                left -= end - begin
                end, length = begin, length * 2
        finally:
            file.close()
        if left <= 0:
            return
