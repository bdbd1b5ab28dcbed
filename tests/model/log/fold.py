"""The fold of the record log, and the rules that no record may break.

("C", tenure, seq, object, ranges, trims)      commit: ranges (stream, epoch, start, values),
                                               trims (stream, epoch, start)
("M", holder, gen, to, streams, new epochs)    move
("X", tenure, seq, inputs, output, ranges)     compaction: ranges (stream, start, end)
"""

from __future__ import annotations

from typing import Any, NamedTuple

Record = tuple[Any, ...]


class Fold(NamedTuple):
    """`streams`: (epoch, holder, start, end); `ranges`: per stream (start, end, object).

    `dead`: (object, records at its death). `truth`: every value that was ever committed, per
    stream. `bad`: the invariant that some record broke.
    """

    count: int
    streams: tuple[tuple[int, int, int, int], ...]
    ranges: tuple[tuple[tuple[int, int, int], ...], ...]
    dead: tuple[tuple[int, int], ...]
    committed: frozenset[int]
    truth: tuple[tuple[int, ...], ...]
    bad: str | None

    @property
    def live(self) -> frozenset[int]:
        return frozenset(row[2] for rows in self.ranges for row in rows)


class RecordLog:
    """Logs by number, each a parent and one record, so that a state only holds a number."""

    def __init__(self, streams: tuple[tuple[int, int, int, int], ...]) -> None:
        empty = ((),) * len(streams)
        first = Fold(0, streams, empty, (), frozenset(), empty, None)
        self._logs: list[tuple[int, Record | None, Fold]] = [(0, None, first)]
        self._numbers: dict[tuple[int, Record], int] = {}

    def add(self, log: int, record: Record) -> int:
        number = self._numbers.get((log, record))
        if number is None:
            number = self._numbers[log, record] = len(self._logs)
            self._logs.append((log, record, apply(self._logs[log][2], record)))
        return number

    def fold(self, log: int) -> Fold:
        return self._logs[log][2]

    def fold_at(self, log: int, count: int) -> Fold:
        """As it was after the first `count` records."""
        while self._logs[log][2].count > count:
            log = self._logs[log][0]
        return self._logs[log][2]

    def records(self, log: int) -> list[Record]:
        found = []
        while (record := self._logs[log][1]) is not None:
            found.append(record)
            log = self._logs[log][0]
        return found[::-1]


def apply(fold: Fold, record: Record) -> Fold:
    work = _Work(fold)
    if record[0] == "C":
        work.commit(*record[1:])
    elif record[0] == "M":
        work.move(*record[1:])
    else:
        work.compact(*record[1:])
    return work.finish(fold)


class _Work:
    def __init__(self, fold: Fold) -> None:
        self.streams = list(fold.streams)
        self.ranges = [list(rows) for rows in fold.ranges]
        self.truth = list(fold.truth)
        self.committed = set(fold.committed)
        self.bad = fold.bad

    def note(self, fault: str) -> None:
        self.bad = self.bad or fault

    def commit(self, tenure: int, seq: int, obj: int, ranges: Any, trims: Any) -> None:
        if obj in self.committed:
            self.note("an object was committed twice")
        if ranges:
            self.committed.add(obj)
        for stream, epoch, start, values in ranges:
            held_epoch, holder, low, end = self.streams[stream]
            if holder != tenure or held_epoch != epoch:
                self.note("zombie committed to a stream it no longer holds")
            elif start != end:
                self.note("overlap" if start < end else "gap")
            else:
                self.streams[stream] = (held_epoch, holder, low, end + len(values))
                self.truth[stream] += values
                self.ranges[stream].append((start, start + len(values), obj))
        for stream, epoch, to in trims:
            held_epoch, holder, low, end = self.streams[stream]
            if holder != tenure or held_epoch != epoch:
                self.note("zombie trimmed")
            self.streams[stream] = (held_epoch, holder, max(low, to), end)

    def move(self, source: int, gen: int, to: int, streams: Any, epochs: Any) -> None:
        for stream, new_epoch in zip(streams, epochs, strict=True):
            epoch, holder, low, end = self.streams[stream]
            if holder != source:
                continue  # skips a stream that the holder no longer has
            if new_epoch <= epoch:
                self.note("a move took a stream that was reopened since: its epoch fell")
            self.streams[stream] = (new_epoch, to, low, end)

    def compact(self, tenure: int, seq: int, inputs: Any, output: int, out_rows: Any) -> None:
        """An input that a trim has emptied is fine; one that another compaction replaced is not."""
        if output in self.committed:
            self.note("an object was committed twice")
        self.committed.add(output)
        for stream in range(len(self.streams)):
            low = self.streams[stream][2]
            rows = self.ranges[stream]
            gone = [at for a, b, obj in rows if obj in inputs for at in range(a, b)]
            kept = [row for row in rows if row[2] not in inputs]
            new = [(max(a, low), b, output) for s, a, b in out_rows if s == stream and b > low]
            if sorted(gone) != [at for a, b, _ in sorted(new) for at in range(a, b)]:
                self.note("compaction changed content")
            self.ranges[stream] = sorted(kept + new)

    def finish(self, before: Fold) -> Fold:
        count = before.count + 1
        ranges = tuple(
            tuple((max(a, low), b, obj) for a, b, obj in rows if b > low)
            for rows, (_, _, low, _) in zip(self.ranges, self.streams, strict=True)
        )
        committed = frozenset(self.committed)
        streams, truth = tuple(self.streams), tuple(self.truth)
        made = Fold(count, streams, ranges, (), committed, truth, self.bad)
        died = (before.live | (committed - before.committed)) - made.live
        return made._replace(dead=before.dead + tuple((obj, count) for obj in sorted(died)))
