"""The promises of one partition, as a model of what its clients sent, were told and read.

Every record carries a number, so that each read judges itself.
1. An acknowledged batch is there once, at its offset, and batches of one client are in the order in
   which it sent them. One of unknown outcome is there at most once; what was read once stays.
   A refused one is never there.
2. Without compaction offsets have no hole, and whole batches stay until the start passes them.
3. Start, last stable offset and high watermark never go back. The start moves because somebody
   deleted records, or by a retention that was in force at some time: by age only past records that
   were old enough, by size only while as many bytes are left.
4. A `read_committed` reader sees the records of a committed transaction and none of an aborted one,
   and comes to no record of an open one.
5. With compaction the newest record of each key stays, at its offset. A tombstone may go once
   `delete.retention.ms` have passed since it was sent; no older record of its key is there then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from streamlog.testing.simulation.checker import Violation, few

MARKER = -1
"""In place of a record's number: the offset has a control batch."""
MARKER_BYTES_MAX = 100


class Content(NamedTuple):
    """Of a record, beside its number."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(eq=False)
class NumberedTransaction:
    """`is_commit`: what the coordinator decided; None: nothing yet."""

    number: int
    producer_id: int
    is_commit: bool | None = None
    marker_offset: int = -1
    """Where the marker that was acknowledged is; one of unknown outcome may be before it."""


@dataclass(eq=False)
class NumberedBatch:
    """One batch; all copies of it that are sent have the same bytes.

    Its records have the numbers from `first` on. `keys`: of each record; `tombstones`: the numbers
    without a value. `end_when_sent`: where the log ended at most when it was sent first.
    """

    client: str
    order: int
    first: int
    keys: tuple[bytes | None, ...]
    tombstones: frozenset[int]
    data: bytes
    at_ms: int
    transaction: NumberedTransaction | None = None
    base_offset: int | None = None
    is_refused: bool = False
    end_when_sent: int | None = None
    producer_id: int = -1

    def __str__(self) -> str:
        last = self.first + len(self.keys) - 1
        return f"{self.client}'s batch {self.order} (records {self.first} to {last})"


class ObservedNumberedBatch(NamedTuple):
    """A batch as a reader got it. `records`: (offset, number). `is_commit`: of a marker.
    `is_visible`: what a `read_committed` reader makes of it; None: the reader was none."""

    base_offset: int
    next_offset: int
    records: tuple[tuple[int, int], ...]
    is_commit: bool | None = None
    is_visible: bool | None = None
    producer_id: int = -1
    contents: tuple[Content, ...] = ()
    """Of each record."""


@dataclass
class Retention:
    """Limits that were in force at some time, the lowest of each; None: there was none."""

    size_bytes: int | None = None
    age_ms: int | None = None

    def may_be(self, *, size_bytes: int | None = None, age_ms: int | None = None) -> None:
        """A client asks for these limits."""
        self.size_bytes = _least(self.size_bytes, size_bytes)
        self.age_ms = _least(self.age_ms, age_ms)


def _least(one: int | None, other: int | None) -> int | None:
    known = [value for value in (one, other) if value is not None]
    return min(known, default=None)


@dataclass
class NumberedLogModel:
    """One partition. `clock_slack_ms`: how far the clocks of two nodes may be apart."""

    name: str
    is_compacted: bool
    clock_slack_ms: int
    delete_retention_ms: int = 0
    lag_ms: int = 0
    """For how long a record stays, whatever supersedes it (min.compaction.lag.ms)."""
    retention: Retention = field(default_factory=Retention)
    batches: list[NumberedBatch] = field(default_factory=list)
    start: int = 0
    start_asked: int = 0
    """How far deletions of records that were asked for may go."""
    stable: int = 0
    end: int = 0
    at: dict[int, int] = field(default_factory=dict)
    """Offset → number of the record that is there, or MARKER."""
    contents: dict[int, Content] = field(default_factory=dict)
    """By number: what was sent."""
    _batch_of: dict[int, NumberedBatch] = field(default_factory=dict)
    _next_number: int = 0
    _markers: int = 0

    # What clients do

    def take_numbers(self, count: int) -> int:
        """The first of so many new numbers."""
        first = self._next_number
        self._next_number += count
        return first

    def send(self, batch: NumberedBatch) -> None:
        """A client makes a batch."""
        self.batches.append(batch)
        for number in range(batch.first, batch.first + len(batch.keys)):
            self._batch_of[number] = batch

    def acknowledge(self, batch: NumberedBatch, base_offset: int) -> None:
        for index in range(len(batch.keys)):
            self._learn(batch.first + index, base_offset + index, "acknowledged")
        self.end = max(self.end, base_offset + len(batch.keys))

    def marked(self, offset: int) -> None:
        """A marker was acknowledged."""
        self._learn_marker(offset)
        self.end = max(self.end, offset + 1)

    # What clients see

    def bounds(self, start: int, stable: int, end: int, now_ms: int) -> None:
        """What the newest log object says of itself."""
        if not start <= stable <= end:
            raise Violation(f"{self.name}: {start} ≤ {stable} ≤ {end} does not hold")
        for what, value, before in (
            ("start", start, self.start),
            ("last stable offset", stable, self.stable),
            ("high watermark", end, self.end),
        ):
            if value < before:
                raise Violation(f"{self.name}: the {what} is {value}, and was {before}")
        if start > self.start:
            self._judge_start(start, now_ms)
        self.start, self.stable, self.end = start, stable, end

    def read(self, batches: Sequence[ObservedNumberedBatch], asked: int) -> int:
        """Checks a read from `asked`; returns where it ended."""
        position = asked
        for index, batch in enumerate(batches):
            is_first = index == 0 and batch.base_offset <= asked < batch.next_offset
            is_gap_right = self.is_compacted and batch.base_offset >= position
            if batch.base_offset != position and not is_first and not is_gap_right:
                raise Violation(
                    f"{self.name}: {batch.base_offset} follows {position} in a read from {asked}"
                )
            if batch.is_commit is not None:
                self._learn_marker(batch.base_offset)
            self._check_records(batch)
            position = batch.next_offset
        return position

    def _check_records(self, batch: ObservedNumberedBatch) -> None:
        owners = {self._learn(number, offset, "read") for offset, number in batch.records}
        for (offset, number), content in zip(batch.records, batch.contents, strict=False):
            if self.contents.get(number) != content:
                raise Violation(
                    f"{self.name}: {number} at {offset} is {content}, and was sent as "
                    f"{self.contents.get(number)}"
                )
        if len(owners) > 1:
            raise Violation(f"{self.name}: {batch} has records of {few([str(b) for b in owners])}")
        for owner in owners:
            if not self.is_compacted and len(batch.records) != len(owner.keys):
                raise Violation(f"{self.name}: {batch} is not the whole of {owner}")
            if batch.is_visible is None:
                continue
            transaction = owner.transaction
            if transaction is None:
                if not batch.is_visible:
                    raise Violation(f"{self.name}: {owner} is hidden, and in no transaction")
            elif transaction.is_commit is None:
                raise Violation(f"{self.name}: {owner} is stable, and nobody ended {transaction}")
            elif batch.is_visible != transaction.is_commit:
                shown = "visible" if batch.is_visible else "hidden"
                raise Violation(f"{self.name}: {owner} is {shown} in spite of {transaction}")

    def _learn(self, number: int, offset: int, how: str) -> NumberedBatch:
        batch = self._batch_of.get(number)
        if batch is None or batch.is_refused:
            why = "nobody sent it" if batch is None else f"{batch} had been refused"
            raise Violation(f"{self.name}: {how} record {number} at {offset}: {why}")
        base = offset - (number - batch.first)
        if batch.base_offset is None:
            batch.base_offset = base
        elif batch.base_offset != base:
            raise Violation(
                f"{self.name}: {how} {batch} at {base}, and before at {batch.base_offset}"
            )
        self._place(offset, number, f"{how} {batch}")
        return batch

    def _learn_marker(self, offset: int) -> None:
        if offset not in self.at:
            self._markers += 1
        self._place(offset, MARKER, "a marker")

    def _place(self, offset: int, number: int, what: str) -> None:
        earlier = self.at.setdefault(offset, number)
        if earlier != number:
            raise Violation(f"{self.name}: {what} at {offset}, where record {earlier} was")

    def _judge_start(self, start: int, now_ms: int) -> None:
        """Whether the start may be there."""
        if start <= self.start_asked:
            return
        limits = self.retention
        last = next(
            (self.at[o] for o in range(start - 1, self.start - 1, -1) if o in self.at), None
        )
        if limits.age_ms is not None:
            batch = self._batch_of.get(MARKER if last is None else last)
            # A record of unknown outcome, or a marker, may be the last one that was deleted.
            if batch is None or batch.at_ms <= now_ms - limits.age_ms + self.clock_slack_ms:
                return
        if limits.size_bytes is not None and self._bytes_from(start) >= limits.size_bytes:
            return
        raise Violation(
            f"{self.name}: starts at {start}, was at {self.start}; {self.start_asked} was asked "
            f"for, and {limits} does not allow it: {self._bytes_from(start)} bytes are left, the "
            f"last record before it is {last}"
        )

    def _bytes_from(self, start: int) -> int:
        """An upper bound of the bytes that the log has from there on."""
        left = [
            len(batch.data)
            for batch in self.batches
            if batch.base_offset is None or batch.base_offset + len(batch.keys) > start
        ]
        return sum(left) + self._markers * MARKER_BYTES_MAX

    # The end

    def finish(self, found: Mapping[int, int], start: int, end: int, now_ms: int) -> None:
        """`found`: everything read from `start` to `end` after healing, as `at`."""
        self._check_order()
        if self.is_compacted:
            self._check_newest(found, start, now_ms)
            return
        gone = [
            f"{self.at[o]} at {o}" for o in self.at if o >= start and found.get(o) != self.at[o]
        ]
        if gone:
            raise Violation(f"{self.name}: records have gone (end {end}): {few(gone)}")
        holes = [str(offset) for offset in range(start, end) if offset not in found]
        if holes:
            raise Violation(f"{self.name}: nothing is at {few(holes)}")

    def _check_order(self) -> None:
        last: dict[str, NumberedBatch] = {}
        for batch in self.batches:
            if batch.base_offset is None:
                continue
            before = last.get(batch.client)
            if before is not None and (before.base_offset or 0) >= batch.base_offset:
                raise Violation(f"{self.name}: {batch} comes before {before}")
            last[batch.client] = batch

    def _check_newest(self, found: Mapping[int, int], start: int, now_ms: int) -> None:
        by_key: dict[bytes, list[tuple[int, int]]] = {}
        for offset, number in sorted(self.at.items()):
            batch = self._batch_of.get(number)
            transaction = None if batch is None else batch.transaction
            if batch is None or (transaction is not None and not transaction.is_commit):
                continue
            key = batch.keys[number - batch.first]
            if key is not None and offset >= start:
                by_key.setdefault(key, []).append((offset, number))
        for key, versions in by_key.items():
            offset, number = versions[-1]
            if found.get(offset) == number:
                continue
            batch = self._batch_of[number]
            if self._may_be_deleted(key, now_ms):
                continue
            if number not in batch.tombstones:
                raise Violation(f"{self.name}: {number} at {offset}, the last of {key!r}, has gone")
            self.check_tombstone_is_due(batch, number, now_ms)
            back = [f"{n} at {o}" for o, n in versions[:-1] if found.get(o) == n]
            if back:
                raise Violation(
                    f"{self.name}: {key!r} was deleted by {number}, and has {few(back)}"
                )

    def _may_be_deleted(self, key: bytes, now_ms: int) -> bool:
        """Whether a tombstone of unknown outcome, which no reader met, may have come and gone."""
        return any(
            batch.base_offset is None
            and not batch.is_refused
            and any(
                batch.keys[number - batch.first] == key and self._is_due(batch, now_ms)
                for number in batch.tombstones
            )
            for batch in self.batches
        )

    def _is_due(self, batch: NumberedBatch, now_ms: int) -> bool:
        """Whether its tombstones may be gone."""
        return now_ms >= batch.at_ms + self.delete_retention_ms - self.clock_slack_ms

    def check_tombstone_is_due(self, batch: NumberedBatch, number: int, now_ms: int) -> None:
        """The tombstone `number` was not found. Errors: Violation, where it had to stay."""
        if not self._is_due(batch, now_ms):
            key = batch.keys[number - batch.first]
            raise Violation(
                f"{self.name}: the tombstone {number} of {key!r} went {batch.at_ms} → {now_ms}"
            )

    def transaction_of(self, number: int) -> NumberedTransaction | None:
        """Of a record that was sent."""
        return self._batch_of[number].transaction

    def superseded_and_gone(self, found: Mapping[int, int]) -> int:
        """How many records are known and no longer there."""
        return sum(found.get(offset) != number for offset, number in self.at.items())
