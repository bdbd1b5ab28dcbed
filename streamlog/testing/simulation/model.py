"""What a stream's users may rely on, as a model that every ack and every read is held against.

1. An acknowledged batch is there once, at its offset, until it is trimmed.
2. An append of unknown outcome is there at most once, and stays if it was ever seen.
3. A refused append is never there.
4. Offsets have no gap and no overlap; what was read once reads the same for ever.
5. What was trimmed does not come back.
6. Batches of one writer are in the order in which it sent them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from streamlog.model.batch import StoredBatch


class Violation(AssertionError):
    """The engine broke a promise."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One append: `number` rises per writer."""

    writer: int
    number: int
    record_count: int

    def payload(self, size_bytes: int) -> bytes:
        head = f"{self.writer}/{self.number}/{self.record_count}|".encode()
        return head + b"." * max(0, size_bytes - len(head))

    @staticmethod
    def parse(payload: bytes) -> Sent:
        writer, number, count = payload.split(b"|", 1)[0].split(b"/")
        return Sent(int(writer), int(number), int(count))


@dataclass
class StreamModel:
    """The history of one stream as its users saw it."""

    name: str
    start: int = 0
    trim_sent: int = 0
    sent: set[Sent] = field(default_factory=set)
    refused: set[Sent] = field(default_factory=set)
    place: dict[Sent, int] = field(default_factory=dict)
    """Where a batch was acknowledged or seen."""
    at: dict[int, Sent] = field(default_factory=dict)

    def send(self, batch: Sent) -> None:
        self.sent.add(batch)

    def refuse(self, batch: Sent) -> None:
        self.refused.add(batch)

    def acknowledge(self, batch: Sent, base_offset: int) -> None:
        self._learn(batch, base_offset, "acknowledged")

    def trimmed(self, start: int) -> None:
        """A trim was acknowledged."""
        self.start = max(self.start, start)

    def read(self, batches: Iterable[StoredBatch], asked: int, start_before: int) -> int:
        """Holds a read from `asked` against the model; where it ended.

        `start_before`: the acknowledged start when the read was asked for.
        """
        position: int | None = None
        for batch in batches:
            sent = Sent.parse(bytes(b"".join(batch.parts)))
            if position is None:
                if not batch.base_offset <= asked < batch.end_offset:
                    raise Violation(f"{self.name}: asked for {asked}, got {batch.base_offset}")
                if batch.end_offset <= start_before:
                    raise Violation(f"{self.name}: trimmed records at {batch.base_offset} are back")
            elif batch.base_offset != position:
                raise Violation(f"{self.name}: a gap between {position} and {batch.base_offset}")
            position = batch.end_offset
            if batch.record_count != sent.record_count:
                raise Violation(f"{self.name}: {sent} has {batch.record_count} records")
            self._learn(sent, batch.base_offset, "read")
        return asked if position is None else position

    def _learn(self, batch: Sent, base_offset: int, how: str) -> None:
        if batch not in self.sent:
            raise Violation(f"{self.name}: {how} {batch} at {base_offset}: never sent")
        if batch in self.refused:
            raise Violation(f"{self.name}: {how} {batch} at {base_offset}: it had been refused")
        known = self.place.setdefault(batch, base_offset)
        if known != base_offset:
            raise Violation(f"{self.name}: {how} {batch} at {base_offset}, before at {known}")
        other = self.at.setdefault(base_offset, batch)
        if other != batch:
            raise Violation(f"{self.name}: {how} {batch} at {base_offset}, where {other} was")

    def finish(self, start: int, end: int, found: dict[int, Sent]) -> None:
        """`found`: everything read from `start` to `end` after all faults are over."""
        if start < self.start:
            raise Violation(f"{self.name}: start is {start}, trimmed to {self.start}")
        if start > max(self.start, self.trim_sent):
            raise Violation(f"{self.name}: start is {start}, nobody trimmed past {self.trim_sent}")
        for offset, batch in self.at.items():
            if offset + batch.record_count <= start:
                continue
            if offset >= end or found.get(offset) != batch:
                raise Violation(f"{self.name}: {batch} at {offset} has gone (end {end})")
        last: dict[int, int] = {}
        for _, batch in sorted(found.items()):
            if batch.number <= last.get(batch.writer, -1):
                raise Violation(f"{self.name}: {batch} comes after {last[batch.writer]}")
            last[batch.writer] = batch.number
