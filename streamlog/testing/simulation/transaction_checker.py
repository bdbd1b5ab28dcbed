"""The promises of transactions, as a model against which each answer and each read is checked.

It does not know the engine. A value tells its transaction, so every read judges itself.

1. A transaction's records are all visible to `read_committed` readers, or all hidden, in all of its
   partitions; which one never changes.
2. One whose commit was acknowledged is visible, one whose abort was acknowledged is hidden, and so
   is one whose commit nobody asked for.
3. A visible record is at the offset that its append was acknowledged with, and nowhere else.
4. The transactions of one transactional id have the same order in every partition: that in which
   they began. So no two of them precede each other.
5. What a reader has seen below the last stable offset stays, visible or hidden, whoever leads.
6. The last stable offset lies between start and high watermark, and goes back neither with one
   leader nor with the next.
7. In a partition no producer's epoch goes back, nor the epoch of the coordinator that ends its
   transactions: fenced producers and replaced coordinators write nothing any more.
8. A pair of producer id and epoch is given to one instance; those given later are newer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from streamlog.testing.simulation.checker import Violation

Pair = tuple[int, int]
"""Producer id and epoch."""


class TransactionValue(NamedTuple):
    """What a record says: the `position`th of `records` of a transaction in its partition, and in
    how many partitions the transaction has records."""

    name: str
    number: int
    partition: int
    position: int
    records: int
    partitions: int

    def encode(self) -> bytes:
        return "/".join(map(str, self)).encode()

    @staticmethod
    def parse(value: bytes) -> TransactionValue:
        name, *numbers = value.decode().split("/")
        number, partition, position, records, partitions = map(int, numbers)
        return TransactionValue(name, number, partition, position, records, partitions)


@dataclass(eq=False)
class SentTransaction:
    """A transaction of one instance. `plan`: records by partition; commits come after all of them
    are acknowledged."""

    name: str
    number: int
    plan: Mapping[int, int]
    is_commit_asked: bool = False
    is_committed: bool = False
    is_aborted: bool = False
    places: dict[tuple[int, int], int] = field(default_factory=dict)
    """(partition, position) → offset, acknowledged or read."""
    shown: str = ""
    """Where a `read_committed` reader saw a record of it."""
    hidden: str = ""
    """Where such a reader passed over a record of it."""

    def __str__(self) -> str:
        return f"{self.name}/{self.number}"

    def values(self, partition: int) -> list[TransactionValue]:
        records, partitions = self.plan[partition], len(self.plan)
        return [
            TransactionValue(self.name, self.number, partition, position, records, partitions)
            for position in range(records)
        ]


class ObservedTransaction(NamedTuple):
    """A batch as fetched. `values` are empty for a marker, whose coordinator has
    `coordinator_epoch`, and -1 elsewhere."""

    base_offset: int
    producer: Pair
    values: tuple[TransactionValue, ...]
    coordinator_epoch: int = -1
    is_visible: bool = False
    """A `read_committed` reader gets it."""

    @property
    def end_offset(self) -> int:
        return self.base_offset + max(1, len(self.values))


@dataclass
class TransactionalLog:
    """What readers of one partition saw."""

    name: str
    batches: dict[int, ObservedTransaction] = field(default_factory=dict)
    """By base offset, whether it is visible left out."""
    view: dict[int, bool] = field(default_factory=dict)
    """By base offset: whether the batch is visible, once it lies below the last stable offset."""
    stable: dict[int, int] = field(default_factory=dict)
    """By leader epoch: the highest last stable offset."""
    start: int = 0
    """Highest acknowledged start."""
    start_asked: int = 0

    def bounds(self, epoch: int, start: int, stable: int, high_watermark: int) -> None:
        """A client saw these at a leader of that epoch."""
        if not start <= stable <= high_watermark:
            raise Violation(
                f"{self.name}: the last stable offset {stable} is not between {start} and "
                f"{high_watermark}"
            )
        before = max((seen for at, seen in self.stable.items() if at <= epoch), default=0)
        if stable < before:
            raise Violation(
                f"{self.name}: the last stable offset is {stable} under leader epoch {epoch}, "
                f"and was {before}"
            )
        self.stable[epoch] = stable

    def read(
        self, batches: Iterable[ObservedTransaction], asked: int, *, is_committed: bool
    ) -> int:
        """Checks one fetch from `asked`; returns where it ended."""
        position = asked
        for index, batch in enumerate(batches):
            covers = index == 0 and batch.base_offset <= asked < batch.end_offset
            if batch.base_offset != position and not covers:
                raise Violation(f"{self.name}: a gap between {position} and {batch.base_offset}")
            bare = batch._replace(is_visible=False)
            earlier = self.batches.setdefault(batch.base_offset, bare)
            if earlier != bare:
                raise Violation(f"{self.name}: {bare}, where {earlier} was read before")
            if is_committed:
                self._see(batch)
            position = batch.end_offset
        return position

    def _see(self, batch: ObservedTransaction) -> None:
        earlier = self.view.setdefault(batch.base_offset, batch.is_visible)
        if earlier != batch.is_visible:
            was, now = ("visible", "hidden") if earlier else ("hidden", "visible")
            raise Violation(f"{self.name}: {batch} is {now}, and was {was} before")

    def finish(self, start: int, end: int) -> None:
        """Everything from `start` to `end` was read as committed just now."""
        if start < self.start:
            raise Violation(f"{self.name}: starts at {start}, {self.start} was acknowledged")
        if start > max(self.start, self.start_asked):
            raise Violation(f"{self.name}: starts at {start}, at most {self.start_asked} was asked")
        last = max((batch.end_offset for batch in self.batches.values()), default=0)
        if last > end:
            raise Violation(f"{self.name}: ends at {end}, and was read up to {last}")
        self._check_epochs()
        self._check_order(start)

    def _check_epochs(self) -> None:
        producers: dict[int, int] = {}
        coordinators: dict[int, int] = {}
        for _, batch in sorted(self.batches.items()):
            producer_id, epoch = batch.producer
            if epoch < producers.get(producer_id, -1):
                raise Violation(f"{self.name}: {batch} of a producer that was fenced before")
            producers[producer_id] = epoch
            if batch.coordinator_epoch >= 0:
                if batch.coordinator_epoch < coordinators.get(producer_id, -1):
                    raise Violation(f"{self.name}: {batch} of a coordinator that was replaced")
                coordinators[producer_id] = batch.coordinator_epoch

    def _check_order(self, start: int) -> None:
        last: dict[str, tuple[int, int]] = {}
        for offset, batch in sorted(self.batches.items()):
            if batch.end_offset <= start or not self.view.get(offset):
                continue
            for value in batch.values:
                place = (value.number, value.position)
                if place <= last.get(value.name, (-1, -1)):
                    raise Violation(f"{self.name}: {value} comes after {last[value.name]}")
                last[value.name] = place


@dataclass
class TransactionsModel:
    """All transactions of a topic."""

    name: str
    partitions: int
    logs: list[TransactionalLog] = field(default_factory=list)
    transactions: dict[tuple[str, int], SentTransaction] = field(default_factory=dict)
    newest: dict[str, Pair] = field(default_factory=dict)
    """By transactional id: the pair that was given out last."""
    owners: dict[Pair, object] = field(default_factory=dict)
    _numbers: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def __post_init__(self) -> None:
        self.logs = [TransactionalLog(f"{self.name}-{n}") for n in range(self.partitions)]

    # producers

    def initialised(self, name: str, instance: object, pair: Pair) -> None:
        """The instance was given the pair, also by the end of a transaction."""
        owner = self.owners.setdefault(pair, instance)
        if owner is not instance:
            raise Violation(f"{self.name}: {pair} of {name} was given to {owner} and {instance}")
        newest = self.newest.get(name)
        if newest is not None and newest[0] == pair[0] and pair[1] < newest[1]:
            raise Violation(f"{self.name}: {name} got {pair} after {newest}")
        self.newest[name] = pair

    def is_newest(self, name: str, pair: Pair) -> bool:
        """No other pair of the id was given out since."""
        return self.newest.get(name) == pair

    def stored_of_fenced(self, name: str, pair: Pair, partition: int, offset: int) -> None:
        """A batch was taken that a producer sent after another one had got the id."""
        raise Violation(
            f"{self.name}-{partition}: a batch of {pair} was taken at {offset}, after {name} had "
            f"gone to {self.newest.get(name)}"
        )

    # transactions

    def begin(self, name: str, plan: Mapping[int, int]) -> SentTransaction:
        number = self._numbers[name]
        self._numbers[name] = number + 1
        begun = self.transactions[name, number] = SentTransaction(name, number, plan)
        return begun

    def placed(self, values: Iterable[TransactionValue], base_offset: int) -> None:
        """The records were acknowledged, or read, from this offset on."""
        for offset, value in enumerate(values, base_offset):
            sent = self._sent(value)
            earlier = sent.places.setdefault((value.partition, value.position), offset)
            if earlier != offset:
                raise Violation(f"{self.name}: {value} is at {offset} and at {earlier}")

    def ask_commit(self, transaction: SentTransaction) -> None:
        assert len(transaction.places) == sum(transaction.plan.values()), "not all acknowledged"
        transaction.is_commit_asked = True

    def committed(self, transaction: SentTransaction) -> None:
        """The commit was acknowledged."""
        transaction.is_committed = True
        self._judge(transaction)

    def aborted(self, transaction: SentTransaction) -> None:
        """The abort was acknowledged."""
        transaction.is_aborted = True
        self._judge(transaction)

    def _judge(self, transaction: SentTransaction) -> None:
        """What is known of a transaction agrees."""
        known = f"{self.name}: {transaction}"
        if transaction.is_committed and transaction.is_aborted:
            raise Violation(f"{known} was acknowledged as committed and as aborted")
        if transaction.shown and transaction.hidden:
            raise Violation(
                f"{known} is torn: visible in {transaction.shown}, hidden in {transaction.hidden}"
            )
        if transaction.is_committed and transaction.hidden:
            raise Violation(f"{known} was committed, and is hidden in {transaction.hidden}")
        if transaction.is_aborted and transaction.shown:
            raise Violation(f"{known} was aborted, and is visible in {transaction.shown}")
        if transaction.shown and not transaction.is_commit_asked:
            raise Violation(f"{known} was never to be committed, and is in {transaction.shown}")

    def _sent(self, value: TransactionValue) -> SentTransaction:
        sent = self.transactions.get((value.name, value.number))
        if sent is None or value not in sent.values(value.partition):
            raise Violation(f"{self.name}: {value} was never sent")
        return sent

    # reads

    def read(
        self, partition: int, batches: list[ObservedTransaction], asked: int, *, is_committed: bool
    ) -> int:
        """Checks one fetch from `asked`; returns where it ended."""
        end = self.logs[partition].read(batches, asked, is_committed=is_committed)
        for batch in batches:
            for value in batch.values:
                if value.partition != partition:
                    raise Violation(f"{self.name}: {value} is in partition {partition}")
            self.placed(batch.values, batch.base_offset)
            if is_committed and batch.values:
                self._seen(self._sent(batch.values[0]), partition, batch)
        return end

    def _seen(
        self, transaction: SentTransaction, partition: int, batch: ObservedTransaction
    ) -> None:
        place = f"{self.name}-{partition} at {batch.base_offset}"
        if batch.is_visible:
            transaction.shown = transaction.shown or place
        else:
            transaction.hidden = transaction.hidden or place
        self._judge(transaction)

    def finish(self, starts: list[int]) -> None:
        """Judges all transactions, after every partition was read from its start to its end, as
        committed, and its log was judged."""
        for transaction in self.transactions.values():
            self._judge(transaction)
            if not transaction.is_committed and not transaction.shown:
                continue
            for partition, position in transaction.places:
                offset = transaction.places[partition, position]
                if offset >= starts[partition] and not self._is_visible(partition, offset):
                    raise Violation(
                        f"{self.name}: {transaction} was committed, and its record {position} at "
                        f"{offset} of partition {partition} has gone"
                    )

    def _is_visible(self, partition: int, offset: int) -> bool:
        log = self.logs[partition]
        for base in range(offset, -1, -1):
            batch = log.batches.get(base)
            if batch is not None:
                return offset < batch.end_offset and log.view.get(base, False)
        return False
