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
