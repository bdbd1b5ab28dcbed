"""Batches that were fetched and not yet given to the caller, in whole or record by record.

A batch that cannot be decoded stays at the head: what came before it is returned first, then each
poll raises its error, until the caller seeks past it. How much is decoded at a time is bounded by
bytes and by records, because a batch of some kilobytes may expand to a hundred megabytes or to
millions of records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from streamlog.client.consume.fetch_state import FetchState, PartitionFetch
from streamlog.client.consume.records import ConsumerRecord, DecodedBatch, FetchedBatch
from streamlog.errors import StreamlogError

WINDOW_RECORDS = 32_768
"""Of one batch, so many records exist as objects at a time."""
OFF_LOOP_BYTES = 1 << 20
"""An uncompressed batch of so many bytes is decoded outside of an event loop."""


class _Entry:
    """A batch in line; once decoded, its records or why it has none."""

    __slots__ = ("batch", "decoded", "error", "generation")

    def __init__(self, batch: FetchedBatch, generation: int) -> None:
        self.batch = batch
        self.generation = generation
        self.decoded: DecodedBatch | None = None
        self.error: StreamlogError | None = None

    def decode(self) -> int:
        """Once; returns how many bytes there are. Safe in any thread."""
        if self.decoded is None and self.error is None:
            try:
                self.decoded = self.batch.decoded()
            except StreamlogError as error:
                self.error = error
        return 0 if self.decoded is None else self.decoded.size_bytes

    @property
    def is_long_work(self) -> bool:
        """Decoding may take longer than an event loop should stand still."""
        is_new = self.decoded is None and self.error is None
        return is_new and (self.batch.header.codec != 0 or len(self.batch.data) >= OFF_LOOP_BYTES)


class RecordRun:
    """The records of one batch that are being given to the caller, a window of them at a time."""

    __slots__ = ("_decoded", "batch", "generation", "index", "place", "records", "size_bytes")

    def __init__(self, entry: _Entry, decoded: DecodedBatch, place: PartitionFetch) -> None:
        self.batch = entry.batch
        self.size_bytes = decoded.size_bytes
        self.generation = entry.generation
        self.place = place
        self.index = 0
        self._decoded = decoded
        self.records = self._window()

    def _window(self) -> list[ConsumerRecord]:
        records: list[ConsumerRecord] = []
        while not records and self._decoded.left:
            records = self._decoded.take(WINDOW_RECORDS)
        return records

    def load(self) -> None:
        """The next window where this one is used up. Errors: those of decoding."""
        if self.index >= len(self.records) and self._decoded.left:
            self.records, self.index = self._window(), 0

    def take(self, count: int) -> Sequence[ConsumerRecord]:
        """Up to `count` records; moves the position behind them, or behind the batch."""
        taken = self.records[self.index : self.index + count]
        self.index += len(taken)
        if self.index < len(self.records):
            self.place.position = self.records[self.index].offset
        else:
            self.window_passed()
        return taken

    @property
    def left(self) -> int:
        """Records that the caller has not got yet."""
        return len(self.records) - self.index + self._decoded.left

    def window_passed(self) -> None:
        """The caller has all of this window."""
        if not self._decoded.left:
            self.place.position = self.batch.next_offset
        elif self.records:
            self.place.position = self.records[-1].offset + 1

    @property
    def is_used_up(self) -> bool:
        is_at_end = self.index >= len(self.records) and not self._decoded.left
        return is_at_end or self.place.generation != self.generation


class PendingRecords:
    """In order of arrival. What was asked for before a seek is dropped when it comes up."""

    def __init__(self, state: FetchState, poll_bytes_max: int) -> None:
        self._state = state
        self._poll_bytes_max = poll_bytes_max
        self._entries: deque[_Entry] = deque()
        self._run: RecordRun | None = None

    def __bool__(self) -> bool:
        if self._run is not None and self._run.is_used_up:
            self._run = None
        while self._entries and not self._is_current(self._entries[0]):
            self._entries.popleft()
        return self._run is not None or bool(self._entries)

    def _is_current(self, entry: _Entry) -> bool:
        return self._state.is_current(entry.batch, entry.generation)

    def add(self, batches: list[tuple[FetchedBatch, int]]) -> None:
        self._entries.extend(_Entry(*one) for one in batches)

    def take_batches(self) -> list[FetchedBatch]:
        """All there are; of a batch that was begun, what is left."""
        taken: list[FetchedBatch] = []
        run, self._run = self._run, None
        if run is not None and not run.is_used_up and run.place.position is not None:
            taken.append(run.batch.starting_at(run.place.position))
        while self:
            taken.append(self._entries.popleft().batch)
        for batch in taken:
            self._state.passed(batch, batch.next_offset)
        return taken

    def long_work(self, count: int) -> list[_Entry]:
        """What the next `count` records lie in and takes long to decode, up to what does not."""
        if not self:
            return []
        if self._run is not None:
            count -= self._run.left
        entries: list[_Entry] = []
        for entry in self._entries:
            if count <= 0 or not entry.is_long_work:
                break
            entries.append(entry)
            count -= max(1, entry.batch.header.record_count)
        return entries

    def decode(self, entries: Sequence[_Entry]) -> None:
        """Decodes the entries up to the first that cannot be, or as many as one poll returns.

        Changes nothing else, so that it may run in another thread.
        """
        size = 0
        for entry in entries:
            size += entry.decode()
            if entry.error is not None or size >= self._poll_bytes_max:
                break

    def current_run(self) -> RecordRun | None:
        """The batch that is being given out record by record; a decoded one that has some left.

        Errors: those of decoding; the batch is passed over then only by a seek.
        """
        while self:
            if self._run is None:
                entry = self._entries[0]
                entry.decode()
                if entry.error is not None:
                    raise entry.error.with_traceback(None)
                if entry.decoded is None:
                    raise AssertionError("an entry has records or an error")
                place = self._state.of((entry.batch.topic, entry.batch.partition))
                self._run = RecordRun(entry, entry.decoded, place)
                self._entries.popleft()
            self._run.load()
            if self._run.records:
                return self._run
            self._run.window_passed()
        return None

    def take_records(self, count: int) -> list[ConsumerRecord]:
        """Up to `count` records, of no further batch once so many bytes were decoded for them.

        Errors: those of decoding, when nothing comes before the batch.
        """
        taken: list[ConsumerRecord] = []
        size = 0
        while len(taken) < count and size < self._poll_bytes_max:
            before = self._run
            try:
                run = self.current_run()
            except Exception:
                if not taken:
                    raise
                break
            if run is None:
                break
            if run is not before:
                size += run.size_bytes
            taken += run.take(count - len(taken))
        return taken
