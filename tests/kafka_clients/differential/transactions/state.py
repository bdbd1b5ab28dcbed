"""What a sequence knows of its producers and partitions, learned from Kafka's answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.kafka_clients.differential.transactions.calls import NO_PAIR, Pair, Place


@dataclass
class Transactional:
    """A transactional id; `pairs` are those that it was given, the newest last."""

    name: str
    pairs: list[Pair] = field(default_factory=list)
    is_open: bool = False
    added: set[Place] = field(default_factory=set)
    """Partitions of the open transaction."""
    is_version_2: bool = False
    """Its producer adds partitions by its batches, and gets the next epoch with each end."""

    @property
    def pair(self) -> Pair:
        return self.pairs[-1] if self.pairs else NO_PAIR

    def give(self, pair: Pair) -> None:
        if pair != self.pair:
            self.pairs.append(pair)

    def end(self) -> None:
        self.is_open = False
        self.added.clear()


@dataclass
class Partition:
    end: int = 0
    following: dict[Pair, int] = field(default_factory=dict)
    """The next sequence number of each producer."""
    last: dict[Pair, tuple[int, bytes]] = field(default_factory=dict)
    """The last batch of each producer, and its sequence number."""
    begun: set[Pair] = field(default_factory=set)
    """Producers with an open transaction here."""
    asked: dict[int, int] = field(default_factory=dict)
    """Producer → the lowest sequence number that was verified, or refused, and began nothing."""

    def attempted(self, pair: Pair, sequence: int) -> None:
        """A transactional batch came, and no transaction was begun by it."""
        if pair not in self.begun:
            self.asked[pair.producer] = min(sequence, self.asked.get(pair.producer, sequence))

    def is_known(self, pair: Pair, sequence: int) -> bool:
        """Whether brokers agree about such a batch: no older one was asked for."""
        return sequence <= self.asked.get(pair.producer, sequence)

    def begin(self, pair: Pair) -> None:
        self.begun.add(pair)
        self.asked.pop(pair.producer, None)

    def marked(self, producer: int) -> None:
        self.begun = {pair for pair in self.begun if pair.producer != producer}
        self.asked.pop(producer, None)
