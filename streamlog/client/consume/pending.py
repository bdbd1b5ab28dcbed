"""Fetched batches that the caller has not got yet, as batches or record by record.

A batch that cannot be decoded stays at the head: the records before it are returned first, then
each poll raises its error, until the caller seeks past it. Decoding is bounded by bytes and by
records, because a batch of some kilobytes may expand to a hundred megabytes or to millions of
records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from streamlog.client.consume.fetch_state import FetchState
from streamlog.client.consume.partition_state import PartitionFetchState
from streamlog.client.consume.records import ConsumerRecord, DecodedBatch, FetchedBatch
from streamlog.errors import StreamlogError

WINDOW_RECORDS = 32_768
"""How many records of one batch exist as objects at a time."""
OFF_LOOP_BYTES = 1 << 20
"""Size from which an uncompressed batch is decoded outside of an event loop."""


class _Entry:
    """A waiting batch; once decoded, its records or its error."""

    __slots__ = ("batch", "decoded", "error", "generation")

    def __init__(self, batch: FetchedBatch, generation: int) -> None:
        self.batch = batch
        self.generation = generation
        self.decoded: DecodedBatch | None = None
        self.error: StreamlogError | None = None

    def decode(self) -> int:
        """Decodes once; returns the decoded size in bytes. Safe in any thread."""
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
    """The batch whose records the caller is getting, a window of records at a time."""

    __slots__ = ("_decoded", "batch", "generation", "index", "records", "size_bytes", "state")

    def __init__(self, entry: _Entry, decoded: DecodedBatch, state: PartitionFetchState) -> None:
        self.batch = entry.batch
        self.size_bytes = decoded.size_bytes
        self.generation = entry.generation
        self.state = state
        self.index = 0
        self._decoded = decoded
        self.records = self._window()

    def _window(self) -> list[ConsumerRecord]:
        records: list[ConsumerRecord] = []
        while not records and self._decoded.left:
            records = self._decoded.take(WINDOW_RECORDS)
        return records

    def load(self) -> None:
        """Makes the next window where this one is used up. Errors: those of decoding."""
        if self.index >= len(self.records) and self._decoded.left:
            self.records, self.index = self._window(), 0

    def take(self, count: int) -> Sequence[ConsumerRecord]:
        """Up to `count` records; moves the position behind them, or behind the batch."""
        taken = self.records[self.index : self.index + count]
        self.index += len(taken)
        if self.index < len(self.records):
            self.state.position = self.records[self.index].offset
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
            self.state.position = self.batch.next_offset
        elif self.records:
            self.state.position = self.records[-1].offset + 1

    @property
    def is_used_up(self) -> bool:
        is_at_end = self.index >= len(self.records) and not self._decoded.left
        return is_at_end or self.state.generation != self.generation


class PendingRecords:
    """Fetched batches in order of arrival. Batches from before a seek are dropped at the head."""

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
        self._entries.extend(_Entry(batch, generation) for batch, generation in batches)

    def take_batches(self) -> list[FetchedBatch]:
        """All waiting batches, the first without the records that the caller has."""
        taken: list[FetchedBatch] = []
        run, self._run = self._run, None
        if run is not None and not run.is_used_up and run.state.position is not None:
            taken.append(run.batch.starting_at(run.state.position))
        while self:
            taken.append(self._entries.popleft().batch)
        for batch in taken:
            self._state.consumed_to(batch, batch.next_offset)
        return taken

    def long_work(self, count: int) -> list[_Entry]:
        """The entries with the next `count` records, up to the first that is decoded quickly."""
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
        """Decodes the entries up to the first with an error, or as many as one poll returns.

        Changes nothing else, so that it may run in another thread.
        """
        size = 0
        for entry in entries:
            size += entry.decode()
            if entry.error is not None or size >= self._poll_bytes_max:
                break

    def current_run(self) -> RecordRun | None:
        """The decoded batch with the next records; None where no batch waits.

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
                state = self._state.assigned((entry.batch.topic, entry.batch.partition))
                self._run = RecordRun(entry, entry.decoded, state)
                self._entries.popleft()
            self._run.load()
            if self._run.records:
                return self._run
            self._run.window_passed()
        return None

    def take_records(self, count: int) -> list[ConsumerRecord]:
        """Up to `count` records; takes no further batch once `poll_bytes_max` bytes were decoded.

        Errors: those of decoding, when no record comes before the batch.
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
