"""Batches that were fetched and not yet given to the caller, in whole or record by record."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from streamlog.client.fetch_state import FetchState, PartitionFetch
from streamlog.client.records import ConsumerRecord, FetchedBatch


class RecordRun:
    """The decoded records of one batch, `index` of them given to the caller."""

    __slots__ = ("batch", "generation", "index", "place", "records")

    def __init__(self, batch: FetchedBatch, generation: int, place: PartitionFetch) -> None:
        self.batch = batch
        self.generation = generation
        self.place = place
        self.records = batch.records()
        self.index = 0

    def take(self, count: int) -> Sequence[ConsumerRecord]:
        """The next `count` records; moves the position behind them, or behind the batch."""
        taken = self.records[self.index : self.index + count]
        self.index += len(taken)
        self.place.position = (
            self.batch.next_offset
            if self.index == len(self.records)
            else self.records[self.index].offset
        )
        return taken

    @property
    def is_used_up(self) -> bool:
        return self.index >= len(self.records) or self.place.generation != self.generation


class PendingRecords:
    """In order of arrival. What was asked for before a seek is dropped when it comes up."""

    def __init__(self, state: FetchState) -> None:
        self._state = state
        self._batches: deque[tuple[FetchedBatch, int]] = deque()
        self._run: RecordRun | None = None

    def __bool__(self) -> bool:
        if self._run is not None and self._run.is_used_up:
            self._run = None
        while self._batches and not self._state.is_current(*self._batches[0]):
            self._batches.popleft()
        return self._run is not None or bool(self._batches)

    def add(self, batches: list[tuple[FetchedBatch, int]]) -> None:
        self._batches.extend(batches)

    def take_batches(self) -> list[FetchedBatch]:
        """All there are; of a batch that was begun, what is left."""
        taken: list[FetchedBatch] = []
        run, self._run = self._run, None
        if run is not None and not run.is_used_up:
            taken.append(run.batch.starting_at(run.records[run.index].offset))
        while self:
            taken.append(self._batches.popleft()[0])
        for batch in taken:
            self._state.passed(batch, batch.next_offset)
        return taken

    def current_run(self) -> RecordRun | None:
        """The batch that is being given out record by record; a decoded one that has some left.

        Errors: those of decoding; the batch is passed over then only by a seek.
        """
        while self:
            if self._run is not None:
                return self._run
            batch, generation = self._batches[0]
            place = self._state.of((batch.topic, batch.partition))
            self._run = RecordRun(batch, generation, place)
            self._batches.popleft()
            if not self._run.records:
                place.position = batch.next_offset
        return None

    def take_records(self, count: int) -> list[ConsumerRecord]:
        taken: list[ConsumerRecord] = []
        while len(taken) < count:
            run = self.current_run()
            if run is None:
                break
            taken += run.take(count - len(taken))
        return taken
