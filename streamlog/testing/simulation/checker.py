"""What users may rely on: every ack and every read of a history is held against these models.

Nothing here knows the engine: it judges what users sent, were told and saw.

A stream:
1. An acknowledged batch is there once, at its offset, until it is trimmed.
2. An append of unknown outcome is there at most once, and stays if it was ever seen.
3. A refused append is never there.
4. Offsets have no gap and no overlap; what was read once reads the same for ever.
5. What was trimmed does not come back; neither start nor end that somebody saw goes back.
6. Batches of one writer are in the order in which it sent them.
7. What is visible stays visible, whoever opens the stream next; an epoch has one opener.
8. An append with a fencing token passes only while that is the stream's, whoever holds it.

A partition with one idempotent producer: every batch that was sent is there exactly once, in order,
at the offset that was acknowledged; what a consumer read at an offset is there for ever. A batch
that skips sequence numbers, or comes under an older epoch of its producer, is refused.

Staged writes: of the lists that were committed under an epoch exactly one is there, whole, in every
partition and in order; of what was never committed nothing; an epoch comes after the one before it.

A register: there is an order of its operations, each between its call and its answer, in which
every answer is right. An operation without an answer took effect once, later, or never.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


def few(found: Sequence[str], shown: int = 5) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(found) - shown} more" if len(found) > shown else ""
    return "; ".join(found[:shown]) + more


class Violation(AssertionError):
    """The engine broke a promise."""


class ReadBatch(Protocol):
    """A batch that a reader got; offsets from `base_offset` to `end_offset` (exclusive)."""

    @property
    def base_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def record_count(self) -> int: ...

    @property
    def parts(self) -> Sequence[bytes | bytearray | memoryview]: ...


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
    """Highest trim that was acknowledged."""
    start_seen: int = 0
    """Highest start that somebody saw or was told."""
    trim_sent: int = 0
    end: int = 0
    """Highest end that somebody saw or was told."""
    openers: dict[int, str] = field(default_factory=dict)
    """By epoch: one at most."""
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

    def opened(
        self, opener: str, epoch: int, start: int, end: int, start_before: int, end_before: int
    ) -> None:
        """`opener` has the stream under `epoch`, from `start` to `end`. `…_before`: `start` and
        `end` of this model when it began to open it.

        Whoever lost the stream and has not heard of it yet shows what it had, under an old epoch.
        """
        other = self.openers.setdefault(epoch, opener)
        if other != opener:
            raise Violation(f"{self.name}: epoch {epoch} of {other} was opened by {opener} too")
        if epoch < max(self.openers):
            return
        if start < start_before:
            raise Violation(f"{self.name}: opened at {start}, {start_before} was its start before")
        if end < end_before:
            raise Violation(f"{self.name}: opened with the end {end}, {end_before} was visible")

    def trimmed(self, start: int) -> None:
        """A trim was acknowledged."""
        self.start = max(self.start, start)
        self.start_seen = max(self.start_seen, start)

    def recovered(self) -> None:
        """The metadata was rebuilt from the bucket: records that were trimmed may be back, and
        epochs that old metadata gave out, unknown to the new, may be given out again."""
        self.start = self.start_seen = 0
        self.openers.clear()

    def saw(self, start: int, end: int) -> None:
        """Somebody saw these as the bounds of what can be read."""
        self.start_seen = max(self.start_seen, start)
        self.saw_end(end)

    def saw_end(self, end: int) -> None:
        """Somebody learned that everything below `end` is there."""
        self.end = max(self.end, end)

    def read(self, batches: Iterable[ReadBatch], asked: int, start_before: int) -> int:
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
        self.end = max(self.end, base_offset + batch.record_count)
        other = self.at.setdefault(base_offset, batch)
        if other != batch:
            raise Violation(f"{self.name}: {how} {batch} at {base_offset}, where {other} was")

    def finish(self, start: int, end: int, found: dict[int, Sent]) -> None:
        """`found`: everything read from `start` to `end` after all faults are over."""
        if start < self.start_seen:
            raise Violation(f"{self.name}: start is {start}, {self.start_seen} was its start")
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


@dataclass
class TokenModel:
    """The fencing token of one stream: which values it may have now.

    A change without an answer may have been made or not. Of a call that carries a token all values
    count that the stream may have had while it was under way.
    """

    name: str
    possible: set[bytes] = field(default_factory=lambda: {b""})
    ever: set[bytes] = field(default_factory=lambda: {b""})
    _under_way: list[set[bytes]] = field(default_factory=list)

    def change(self, token: bytes) -> None:
        """A change to `token` is asked for."""
        self.ever.add(token)
        self.possible.add(token)
        for seen in self._under_way:
            seen.add(token)

    def changed(self, token: bytes) -> None:
        """It was made: whatever was asked for before is over."""
        self.possible = {token}

    def recovered(self) -> None:
        """Changes since the newest checkpoint may be lost with the metadata."""
        self.possible |= self.ever

    @contextmanager
    def call(self) -> Iterator[set[bytes]]:
        """The values that the stream may have had since the call began."""
        seen = set(self.possible)
        self._under_way.append(seen)
        try:
            yield seen
        finally:
            # By identity: two calls may have seen the same.
            self._under_way = [one for one in self._under_way if one is not seen]

    def passed(self, token: bytes, seen: set[bytes]) -> None:
        """A call that carried `token` was carried out."""
        if token not in seen:
            raise Violation(f"{self.name}: {token!r} passed where the token was one of {seen}")

    def refused(self, token: bytes, seen: set[bytes]) -> None:
        """A call that carried `token` was refused for it."""
        if seen == {token}:
            raise Violation(f"{self.name}: {token!r} was refused and is the stream's token")


@dataclass
class SentBatch:
    """One produced batch; `data` is sent unchanged every time."""

    base_sequence: int
    record_count: int
    data: bytes
    base_offset: int | None = None


class SeenBatch(NamedTuple):
    """A batch as a consumer finds it; `values` are those of its records."""

    base_offset: int
    base_sequence: int
    values: tuple[int, ...]


@dataclass
class PartitionModel:
    """What was produced to one partition, acknowledged and seen of it."""

    name: str
    sent: list[SentBatch] = field(default_factory=list)
    unanswered: deque[SentBatch] = field(default_factory=deque)
    seen: dict[int, SeenBatch] = field(default_factory=dict)
    start: int = 0
    """Highest start that was acknowledged."""
    start_asked: int = 0

    def recovered(self) -> None:
        """As for a stream: records that were deleted may be back."""
        self.start = 0

    def acknowledge(self, batch: SentBatch, base_offset: int) -> None:
        if batch.base_offset is None:
            batch.base_offset = base_offset
        if batch.base_offset != base_offset:
            raise Violation(
                f"{self.name}: sequence {batch.base_sequence} was acknowledged at "
                f"{batch.base_offset}, then at {base_offset}"
            )
        if batch in self.unanswered:
            self.unanswered.remove(batch)

    def read(self, batches: Iterable[SeenBatch], asked: int) -> int:
        """Holds a read from `asked` against the model; where it ended."""
        position = asked
        for index, batch in enumerate(batches):
            end = batch.base_offset + len(batch.values)
            if batch.base_offset != position and not (
                index == 0 and batch.base_offset <= asked < end
            ):
                raise Violation(f"{self.name}: a gap between {position} and {batch.base_offset}")
            expected = tuple(range(batch.base_sequence, batch.base_sequence + len(batch.values)))
            if batch.values != expected:
                raise Violation(f"{self.name}: {batch} should have the records {expected}")
            known = self.seen.setdefault(batch.base_offset, batch)
            if known != batch:
                raise Violation(f"{self.name}: {batch}, where {known} was read before")
            position = end
        return position

    def finish(self, start: int, found: Sequence[SeenBatch]) -> None:
        """`found`: every batch from `start` on, once all is answered."""
        if start < self.start:
            raise Violation(f"{self.name}: start is {start}, {self.start} was acknowledged")
        if start > max(self.start, self.start_asked):
            raise Violation(f"{self.name}: start is {start}, nobody asked for {self.start_asked}")
        kept = [
            batch
            for batch in self.sent
            if batch.base_offset is None or batch.base_offset + batch.record_count > start
        ]
        sequences = [batch.base_sequence for batch in found]
        if sequences != [batch.base_sequence for batch in kept]:
            raise Violation(f"{self.name}: sent {[b.base_sequence for b in kept]}, is {sequences}")
        for there, batch in zip(found, kept, strict=True):
            if there.base_offset != batch.base_offset:
                raise Violation(
                    f"{self.name}: {batch.base_sequence} was acknowledged at {batch.base_offset}, "
                    f"is at {there.base_offset}"
                )
        self.read(found, found[0].base_offset if found else start)
        offsets = {batch.base_offset for batch in found}
        for seen in self.seen.values():
            if seen.base_offset + len(seen.values) > start and seen.base_offset not in offsets:
                raise Violation(f"{self.name}: {seen} was seen and has gone")


@dataclass
class StagedModel:
    """What a job staged and committed, what others appended beside it, and what was seen.

    Values are never used twice; an object's are listed by partition.
    """

    name: str
    partitions: int
    objects: dict[int, dict[int, list[bytes]]] = field(default_factory=dict)
    offered: dict[int, list[list[int]]] = field(default_factory=dict)
    """By epoch: the lists of objects that a commit was asked for with."""
    chosen: dict[int, list[int]] = field(default_factory=dict)
    """Where the job was told that its own list was committed."""
    places: dict[int, dict[int, int]] = field(default_factory=dict)
    """By epoch: first offset in each partition, as told."""
    next_epoch: int = 0
    seen: list[dict[int, bytes]] = field(default_factory=list)
    sent: list[set[bytes]] = field(default_factory=list)
    end: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seen = [{} for _ in range(self.partitions)]
        self.sent = [set() for _ in range(self.partitions)]
        self.end = [0] * self.partitions

    def staged(self, object_id: int, values: dict[int, list[bytes]]) -> None:
        if object_id in self.objects:
            raise Violation(f"{self.name}: object {object_id} is staged twice")
        self.objects[object_id] = values

    def asked(self, epoch: int, object_ids: list[int]) -> None:
        self.offered.setdefault(epoch, []).append(object_ids)

    def told(self, epoch: int, object_ids: list[int]) -> None:
        """This very list was committed."""
        known = self.chosen.setdefault(epoch, object_ids)
        if known != object_ids:
            raise Violation(f"{self.name}: epoch {epoch} is {known} and {object_ids}")

    def confirmed(self, epoch: int, places: dict[int, int]) -> None:
        """`places`: first offset by partition; empty where it was not told."""
        if places:
            known = self.places.setdefault(epoch, places)
            if known != places:
                raise Violation(f"{self.name}: epoch {epoch} was at {known}, then at {places}")
        self.next_epoch = max(self.next_epoch, epoch + 1)

    def appended(self, partition: int, value: bytes) -> None:
        self.sent[partition].add(value)

    def acknowledged(self, partition: int, offset: int, value: bytes) -> None:
        self.read(partition, offset, value)

    def read(self, partition: int, offset: int, value: bytes) -> None:
        known = self.seen[partition].setdefault(offset, value)
        if known != value:
            raise Violation(f"{self.name}-{partition}: {value!r} at {offset}, where {known!r} was")

    def ends(self, partition: int, end: int) -> None:
        """Everything below `end` was read just now."""
        self.end[partition] = end

    def finish(self) -> None:
        """All was read after all faults were over."""
        for partition, seen in enumerate(self.seen):
            if sorted(seen) != list(range(self.end[partition])):
                raise Violation(
                    f"{self.name}-{partition}: {max(seen, default=-1)} was seen and "
                    f"has gone: it ends at {self.end[partition]}"
                )
            values = list(seen.values())
            if len(set(values)) != len(values):
                twice = sorted({v for v in values if values.count(v) > 1})
                raise Violation(f"{self.name}-{partition}: {twice[:5]} are there twice")
        at = [0] * self.partitions
        committed: set[bytes] = set()
        for epoch in range(max(self.offered, default=-1) + 1):
            lists = self.offered.get(epoch, [])
            if epoch in self.chosen:
                lists = [self.chosen[epoch]]
            found = [one for one in lists if self._is_there(one)]
            if not found and epoch < self.next_epoch:
                raise Violation(
                    f"{self.name}: epoch {epoch} was confirmed, none of {lists} is there"
                )
            for one in found[:1]:
                for partition in range(self.partitions):
                    own = self._values(one, partition)
                    committed.update(own)
                    at[partition] = self._check_run(epoch, partition, own, at[partition])
        for partition, seen in enumerate(self.seen):
            strange = set(seen.values()) - committed - self.sent[partition]
            if strange:
                raise Violation(
                    f"{self.name}-{partition}: {sorted(strange)[:5]} were never committed"
                )

    def _values(self, object_ids: list[int], partition: int) -> list[bytes]:
        return [v for i in object_ids for v in self.objects[i].get(partition, ())]

    def _is_there(self, object_ids: list[int]) -> bool:
        """Whole: a list of which a part alone is there shows as never committed, or as missing."""
        return all(
            set(self._values(object_ids, partition)) <= set(self.seen[partition].values())
            for partition in range(self.partitions)
        )

    def _check_run(self, epoch: int, partition: int, values: list[bytes], after: int) -> int:
        """The values follow one another, behind the epoch before; where they end."""
        if not values:
            return after
        offsets = {value: offset for offset, value in self.seen[partition].items()}
        start = offsets[values[0]]
        run = [self.seen[partition].get(start + n) for n in range(len(values))]
        told = self.places.get(epoch, {}).get(partition, start)
        if run != values or start < after or told != start:
            raise Violation(
                f"{self.name}-{partition}: epoch {epoch} is {run} at {start} (told: {told}), after "
                f"{after}; it was {values}"
            )
        return start + len(values)


@dataclass
class RegisterOperation:
    """`kind`: put, get, cas or delete. `answer` None: it never came. Values are never used twice.

    `value`: what a put or cas writes, or a get saw (None: absent). `expected`: the value that a cas
    compares with. `has_changed`: whether the cas was carried out.
    """

    kind: str
    called: float
    value: str | None = None
    expected: str | None = None
    answered: float | None = None
    has_changed: bool = True

    def answer(self, now: float) -> None:
        self.answered = now

    def apply(self, state: str | None) -> tuple[bool, str | None]:
        """Whether its answer is right in this state, and the state after it."""
        if self.kind == "put":
            return True, self.value
        if self.kind == "delete":
            return True, None
        if self.kind == "get":
            return state == self.value, state
        if self.answered is not None and (state == self.expected) != self.has_changed:
            return False, state
        return True, self.value if state == self.expected else state


@dataclass
class RegisterModel:
    """The operations of one key, in the order of their calls."""

    name: str
    operations: list[RegisterOperation] = field(default_factory=list)

    def call(self, operation: RegisterOperation) -> RegisterOperation:
        self.operations.append(operation)
        return operation

    def withdraw(self, operation: RegisterOperation) -> None:
        """It is known to have had no effect and told nothing."""
        self.operations = [one for one in self.operations if one is not operation]

    def finish(self) -> None:
        """Looks for an order in which every answer is right."""
        told = {one.value for one in self.operations if one.kind == "get"}
        told |= {one.expected for one in self.operations if one.kind == "cas"}
        is_hidden = any(not one.has_changed for one in self.operations)
        # A write without an answer may as well never have happened, unless somebody saw its value
        # or a cas failed, perhaps because of it.
        waiting = [
            one
            for one in self.operations
            if one.answered is not None or (one.kind != "get" and (one.value in told or is_hidden))
        ]
        if not _is_linearizable(waiting):
            raise Violation(
                f"{self.name}: no order explains the answers:\n"
                + "\n".join(str(operation) for operation in self.operations)
            )


def _is_linearizable(operations: Sequence[RegisterOperation]) -> bool:
    """Depth first over (operations that happened, state); each pair is tried once."""
    ends = [one.answered if one.answered is not None else float("inf") for one in operations]
    must = sum(1 << index for index, end in enumerate(ends) if end != float("inf"))
    todo: list[tuple[int, str | None]] = [(0, None)]
    seen = set(todo)
    while todo:
        done, state = todo.pop()
        if done & must == must:
            return True
        horizon = min(end for index, end in enumerate(ends) if not done >> index & 1)
        for index, operation in enumerate(operations):
            if done >> index & 1 or operation.called > horizon:
                continue
            is_right, after = operation.apply(state)
            step = (done | 1 << index, after)
            if is_right and step not in seen:
                seen.add(step)
                todo.append(step)
    return False
