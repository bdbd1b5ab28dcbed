"""The promises to clients, as models against which every ack and read of a history is checked.

The models do not know the engine: they judge by what clients sent, were told and read.

A stream:
1. An acknowledged batch exists once, at its offset, until it is trimmed.
2. An append of unknown outcome exists at most once, and stays once a client has seen it.
3. A refused append never exists.
4. Offsets have no gap and no overlap; an offset reads the same for ever.
5. Trimmed records do not come back; a start or end that a client has seen does not go back.
6. Batches of one writer are in the order in which it sent them.
7. Visible records stay visible to later openers; an epoch has one opener.
8. An append with a fencing token passes only while that token is the stream's. A change of the
   token that expected the stream's end has its place there: behind it no append has the earlier
   token.

A partition with one idempotent producer: every sent batch exists exactly once, in order, at its
acknowledged offset; an offset that a consumer has read stays the same for ever. A batch that skips
sequence numbers, or comes under an older epoch of its producer, is refused.

Staged writes: of the lists that were committed under an epoch exactly one exists, whole, in every
partition and in order; an uncommitted object shows nowhere; epochs follow one another.

A register is linearizable: its operations have an order, each between its call and its answer, in
which every answer is right. An operation without an answer took effect once, later, or never.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


def few(items: Sequence[str], shown: int = 5) -> str:
    """The first items, and how many more there are."""
    more = f" and {len(items) - shown} more" if len(items) > shown else ""
    return "; ".join(items[:shown]) + more


class Violation(AssertionError):
    """The engine broke a promise."""


class ObservedBatch(Protocol):
    """A batch as read; offsets from `base_offset` to `end_offset` (exclusive)."""

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
    """The history of one stream as its clients saw it."""

    name: str
    start: int = 0
    """Highest acknowledged trim."""
    start_seen: int = 0
    """Highest start that a client has seen or was told."""
    trim_sent: int = 0
    end: int = 0
    """Highest end that a client has seen or was told."""
    openers: dict[int, str] = field(default_factory=dict)
    """Node by epoch: one at most."""
    sent: set[Sent] = field(default_factory=set)
    refused: set[Sent] = field(default_factory=set)
    place: dict[Sent, int] = field(default_factory=dict)
    """Offset at which a batch was acknowledged or seen."""
    batch_at: dict[int, Sent] = field(default_factory=dict)

    def send(self, batch: Sent) -> None:
        self.sent.add(batch)

    def refuse(self, batch: Sent) -> None:
        self.refused.add(batch)

    def acknowledge(self, batch: Sent, base_offset: int) -> None:
        self._learn(batch, base_offset, "acknowledged")

    def opened(
        self, opener: str, epoch: int, start: int, end: int, start_before: int, end_before: int
    ) -> None:
        """`opener` opened the stream under `epoch` with the bounds `start` and `end`. `…_before`:
        `start` and `end` of this model when the open began.

        A holder that lost the stream and does not know it yet shows old bounds, under an old epoch.
        """
        other = self.openers.setdefault(epoch, opener)
        if other != opener:
            raise Violation(f"{self.name}: epoch {epoch} was opened by {other} and {opener}")
        if epoch < max(self.openers):
            return
        if start < start_before:
            raise Violation(
                f"{self.name}: opened with the start {start}, {start_before} was its start before"
            )
        if end < end_before:
            raise Violation(f"{self.name}: opened with the end {end}, {end_before} was visible")

    def trimmed(self, start: int) -> None:
        """A trim was acknowledged."""
        self.start = max(self.start, start)
        self.start_seen = max(self.start_seen, start)

    def recovered(self) -> None:
        """The metadata was rebuilt from the bucket: trimmed records may be back, and epochs that
        only the old metadata knew may be given out again."""
        self.start = self.start_seen = 0
        self.openers.clear()

    def saw(self, start: int, end: int) -> None:
        """A client saw these as the bounds of the readable records."""
        self.start_seen = max(self.start_seen, start)
        self.saw_end(end)

    def saw_end(self, end: int) -> None:
        """A client learned that all records below `end` exist."""
        self.end = max(self.end, end)

    def read(self, batches: Iterable[ObservedBatch], asked: int, start_before: int) -> int:
        """Checks a read from `asked` against the model; returns where it ended.

        `start_before`: the acknowledged start when the read began.
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
        earlier = self.place.setdefault(batch, base_offset)
        if earlier != base_offset:
            raise Violation(f"{self.name}: {how} {batch} at {base_offset}, before at {earlier}")
        self.end = max(self.end, base_offset + batch.record_count)
        other = self.batch_at.setdefault(base_offset, batch)
        if other != batch:
            raise Violation(f"{self.name}: {how} {batch} at {base_offset}, where {other} was")

    def finish(self, start: int, end: int, batches: dict[int, Sent]) -> None:
        """`batches`: everything read from `start` to `end` after healing, by offset."""
        if start < self.start_seen:
            raise Violation(f"{self.name}: start is {start}, {self.start_seen} was its start")
        if start > max(self.start, self.trim_sent):
            raise Violation(
                f"{self.name}: start is {start}, trims went to {self.trim_sent} at most"
            )
        for offset, batch in self.batch_at.items():
            if offset + batch.record_count <= start:
                continue
            if offset >= end or batches.get(offset) != batch:
                raise Violation(f"{self.name}: {batch} at {offset} has gone (end {end})")
        last: dict[int, int] = {}
        for _, batch in sorted(batches.items()):
            if batch.number <= last.get(batch.writer, -1):
                raise Violation(f"{self.name}: {batch} comes after {last[batch.writer]}")
            last[batch.writer] = batch.number


@dataclass
class TokenModel:
    """The fencing token of one stream: the values that it may have now.

    A change without an answer may have been made or not. A call that carries a token may meet every
    value that the stream may have had while the call was under way.
    """

    name: str
    possible: set[bytes] = field(default_factory=lambda: {b""})
    ever: set[bytes] = field(default_factory=lambda: {b""})
    _under_way: list[set[bytes]] = field(default_factory=list)
    _requests: list[bytes] = field(default_factory=list)
    """The tokens that clients asked for, in the order of their calls."""
    _placed: list[tuple[int, int]] = field(default_factory=list)
    """(end of the stream, number of the request) of changes that expected this end."""
    _appended: list[tuple[int, bytes]] = field(default_factory=list)
    """(offset, token) of appends that carried a token."""

    def change(self, token: bytes) -> int:
        """A client asks for a change to `token`. Returns the number of the request."""
        self.ever.add(token)
        self.possible.add(token)
        for seen in self._under_way:
            seen.add(token)
        self._requests.append(token)
        return len(self._requests) - 1

    def changed(self, token: bytes) -> None:
        """The change was made: no earlier request can take effect any more."""
        self.possible = {token}

    def placed(self, request: int, end: int) -> None:
        """The change of `request` was made when the stream ended at `end`, as it had expected."""
        self._placed.append((end, request))

    def appended(self, token: bytes, offset: int) -> None:
        """An append that carried `token` went to `offset`."""
        self._appended.append((offset, token))

    def finish(self) -> None:
        """From the end that a change expected, appends carry its token, or one asked for later."""
        for end, request in self._placed:
            tokens = self._requests[request:]
            for offset, token in self._appended:
                if offset >= end and token not in tokens:
                    raise Violation(
                        f"{self.name}: {token!r} passed at {offset}, the token was changed to "
                        f"{tokens[0]!r} at {end}"
                    )

    def recovered(self) -> None:
        """Changes since the newest checkpoint may be lost with the metadata."""
        self.possible |= self.ever
        self._placed.clear()
        self._appended.clear()

    @contextmanager
    def call(self) -> Iterator[set[bytes]]:
        """The values that the stream may have had since the call began."""
        seen = set(self.possible)
        self._under_way.append(seen)
        try:
            yield seen
        finally:
            # By identity: two calls may have seen equal sets.
            self._under_way = [tokens for tokens in self._under_way if tokens is not seen]

    def passed(self, token: bytes, seen: set[bytes]) -> None:
        """A call that carried `token` took effect."""
        if token not in seen:
            raise Violation(f"{self.name}: {token!r} passed where the token was one of {seen}")

    def refused(self, token: bytes, seen: set[bytes]) -> None:
        """A call that carried `token` was refused because of it."""
        if seen == {token}:
            raise Violation(f"{self.name}: {token!r} was refused and is the stream's token")


@dataclass
class SentBatch:
    """One produced batch; resends carry the same `data`."""

    base_sequence: int
    record_count: int
    data: bytes
    base_offset: int | None = None


class SeenBatch(NamedTuple):
    """A batch as a consumer read it; `values` are the values of its records."""

    base_offset: int
    base_sequence: int
    values: tuple[int, ...]


@dataclass
class PartitionModel:
    """The batches of one partition: produced, acknowledged and read."""

    name: str
    sent: list[SentBatch] = field(default_factory=list)
    unanswered: deque[SentBatch] = field(default_factory=deque)
    seen: dict[int, SeenBatch] = field(default_factory=dict)
    start: int = 0
    """Highest acknowledged start."""
    start_asked: int = 0

    def recovered(self) -> None:
        """Deleted records may be back, as for a stream."""
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
        """Checks a read from `asked` against the model; returns where it ended."""
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
            earlier = self.seen.setdefault(batch.base_offset, batch)
            if earlier != batch:
                raise Violation(f"{self.name}: {batch}, where {earlier} was read before")
            position = end
        return position

    def finish(self, start: int, batches: Sequence[SeenBatch]) -> None:
        """`batches`: every batch from `start` on, after all calls were answered."""
        if start < self.start:
            raise Violation(f"{self.name}: start is {start}, {self.start} was acknowledged")
        if start > max(self.start, self.start_asked):
            raise Violation(
                f"{self.name}: start is {start}, at most {self.start_asked} was asked for"
            )
        kept = [
            batch
            for batch in self.sent
            if batch.base_offset is None or batch.base_offset + batch.record_count > start
        ]
        sequences = [batch.base_sequence for batch in batches]
        if sequences != [batch.base_sequence for batch in kept]:
            raise Violation(f"{self.name}: sent {[b.base_sequence for b in kept]}, is {sequences}")
        for seen, batch in zip(batches, kept, strict=True):
            if seen.base_offset != batch.base_offset:
                raise Violation(
                    f"{self.name}: {batch.base_sequence} was acknowledged at {batch.base_offset}, "
                    f"is at {seen.base_offset}"
                )
        self.read(batches, batches[0].base_offset if batches else start)
        offsets = {batch.base_offset for batch in batches}
        for seen in self.seen.values():
            if seen.base_offset + len(seen.values) > start and seen.base_offset not in offsets:
                raise Violation(f"{self.name}: {seen} was read and has gone")


@dataclass
class StagedModel:
    """Values that a job staged and committed, that producers appended, and that were read.

    A value is never used twice. `objects`: values by object and partition.
    """

    name: str
    partitions: int
    objects: dict[int, dict[int, list[bytes]]] = field(default_factory=dict)
    offered: dict[int, list[list[int]]] = field(default_factory=dict)
    """By epoch: the lists of objects that commits named."""
    chosen: dict[int, list[int]] = field(default_factory=dict)
    """By epoch: the list of which the job was told that it was committed."""
    places: dict[int, dict[int, int]] = field(default_factory=dict)
    """By epoch: first offset in each partition, as the commit told."""
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
        """The job was told that this list was committed."""
        earlier = self.chosen.setdefault(epoch, object_ids)
        if earlier != object_ids:
            raise Violation(f"{self.name}: epoch {epoch} is {earlier} and {object_ids}")

    def confirmed(self, epoch: int, places: dict[int, int]) -> None:
        """`places`: first offset by partition; empty if the commit did not tell."""
        if places:
            earlier = self.places.setdefault(epoch, places)
            if earlier != places:
                raise Violation(f"{self.name}: epoch {epoch} was at {earlier}, then at {places}")
        self.next_epoch = max(self.next_epoch, epoch + 1)

    def appended(self, partition: int, value: bytes) -> None:
        self.sent[partition].add(value)

    def acknowledged(self, partition: int, offset: int, value: bytes) -> None:
        self.read(partition, offset, value)

    def read(self, partition: int, offset: int, value: bytes) -> None:
        earlier = self.seen[partition].setdefault(offset, value)
        if earlier != value:
            raise Violation(
                f"{self.name}-{partition}: {value!r} at {offset}, where {earlier!r} was"
            )

    def ends(self, partition: int, end: int) -> None:
        """All records below `end` were read just now."""
        self.end[partition] = end

    def finish(self) -> None:
        """Judges, after everything was read once the world had healed."""
        for partition, seen in enumerate(self.seen):
            if sorted(seen) != list(range(self.end[partition])):
                raise Violation(
                    f"{self.name}-{partition}: {max(seen, default=-1)} was read and "
                    f"has gone: it ends at {self.end[partition]}"
                )
            values = list(seen.values())
            if len(set(values)) != len(values):
                twice = sorted({v for v in values if values.count(v) > 1})
                raise Violation(f"{self.name}-{partition}: {twice[:5]} exist twice")
        ends = [0] * self.partitions
        committed: set[bytes] = set()
        for epoch in range(max(self.offered, default=-1) + 1):
            lists = self.offered.get(epoch, [])
            if epoch in self.chosen:
                lists = [self.chosen[epoch]]
            existing = [object_ids for object_ids in lists if self._exists(object_ids)]
            if not existing and epoch < self.next_epoch:
                raise Violation(f"{self.name}: epoch {epoch} was confirmed, none of {lists} exists")
            for object_ids in existing[:1]:
                for partition in range(self.partitions):
                    values = self._values(object_ids, partition)
                    committed.update(values)
                    ends[partition] = self._check_run(epoch, partition, values, ends[partition])
        for partition, seen in enumerate(self.seen):
            strange = set(seen.values()) - committed - self.sent[partition]
            if strange:
                raise Violation(
                    f"{self.name}-{partition}: {sorted(strange)[:5]} were never committed"
                )

    def _values(self, object_ids: list[int], partition: int) -> list[bytes]:
        return [v for i in object_ids for v in self.objects[i].get(partition, ())]

    def _exists(self, object_ids: list[int]) -> bool:
        """Whether the list exists whole. A partial list counts as uncommitted or missing."""
        return all(
            set(self._values(object_ids, partition)) <= set(self.seen[partition].values())
            for partition in range(self.partitions)
        )

    def _check_run(self, epoch: int, partition: int, values: list[bytes], after: int) -> int:
        """Checks that the values are contiguous and after the epoch before; returns their end."""
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
    """`kind`: put, get, cas or delete. `answered` None: no answer came. Values are unique.

    `value`: the value that a put or cas writes, or a get read (None: absent). `expected`: the value
    that a cas compares with. `has_changed`: whether the cas took effect.
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
        """Whether the answer is right in this state, and the state after the operation."""
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
        """Removes an operation that had no effect and told nothing."""
        self.operations = [kept for kept in self.operations if kept is not operation]

    def finish(self) -> None:
        """Searches for an order in which every answer is right."""
        seen = {op.value for op in self.operations if op.kind == "get"}
        seen |= {op.expected for op in self.operations if op.kind == "cas"}
        has_failed_cas = any(not op.has_changed for op in self.operations)
        # A write without an answer only matters if its value was seen, or if a cas failed, perhaps
        # because of it.
        relevant = [
            op
            for op in self.operations
            if op.answered is not None
            or (op.kind != "get" and (op.value in seen or has_failed_cas))
        ]
        if not _is_linearizable(relevant):
            raise Violation(
                f"{self.name}: no order explains the answers:\n"
                + "\n".join(str(operation) for operation in self.operations)
            )


def _is_linearizable(operations: Sequence[RegisterOperation]) -> bool:
    """Searches depth first over (operations done, state); each pair is tried once."""
    ends = [op.answered if op.answered is not None else float("inf") for op in operations]
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
