"""What a log with transactions is to show, computed anew from the list of its batches. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from streamlog.log.api.abstract_log import ProducerDescription


class Appended(NamedTuple):
    """One batch: `values` None and `is_commit` for a marker; producer -1: none."""

    base: int
    values: tuple[bytes, ...] | None
    at_ms: int
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    is_transactional: bool = False
    is_commit: bool = False
    coordinator_epoch: int = -1

    @property
    def end(self) -> int:
        return self.base + (1 if self.values is None else len(self.values))


class Aborted(NamedTuple):
    producer_id: int
    first: int
    marker: int


@dataclass
class Producer:
    epoch: int
    last_sequence: int
    at_ms: int
    coordinator_epoch: int
    first: int


@dataclass
class Fold:
    """The state behind the last of some batches."""

    expiration_ms: int
    producers: dict[int, Producer] = field(default_factory=dict)
    aborted: list[Aborted] = field(default_factory=list)
    end: int = 0

    @classmethod
    def of(cls, batches: Iterable[Appended], expiration_ms: int) -> Fold:
        fold = cls(expiration_ms)
        for batch in batches:
            fold.add(batch)
        return fold

    def add(self, batch: Appended) -> None:
        self.end = batch.end
        if batch.producer_id < 0:
            return
        known = self.known(batch.producer_id, batch.at_ms)
        producer = known or Producer(batch.epoch, -1, batch.at_ms, -1, -1)
        if producer.epoch != batch.epoch:
            producer.last_sequence = -1
        producer.epoch, producer.at_ms = batch.epoch, batch.at_ms
        if batch.values is None:
            if producer.first >= 0 and not batch.is_commit:
                self.aborted.append(Aborted(batch.producer_id, producer.first, batch.base))
            producer.first = -1
            producer.coordinator_epoch = batch.coordinator_epoch
        else:
            producer.last_sequence = batch.sequence + len(batch.values) - 1
            if batch.is_transactional and producer.first < 0:
                producer.first = batch.base
        self.producers[batch.producer_id] = producer

    def known(self, producer_id: int, now_ms: int) -> Producer | None:
        found = self.producers.get(producer_id)
        if found is None or found.first >= 0 or now_ms - found.at_ms < self.expiration_ms:
            return found
        return None

    @property
    def first_open(self) -> int:
        """The log's end where no transaction is open."""
        return min(
            (one.first for one in self.producers.values() if one.first >= 0), default=self.end
        )

    def told(self, offset: int, end: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of the aborted transactions that a fetch tells."""
        found = [one for one in self.aborted if one.marker >= offset and one.first < end]
        return [(one.producer_id, one.first) for one in sorted(found, key=lambda one: one.first)]

    def described(self, now_ms: int) -> set[ProducerDescription]:
        return {
            ProducerDescription(
                producer_id,
                one.epoch,
                one.last_sequence,
                one.at_ms,
                one.coordinator_epoch,
                one.first,
            )
            for producer_id, one in self.producers.items()
            if self.known(producer_id, now_ms) is not None
        }


def visible(batches: Iterable[Appended], fold: Fold, start: int, end: int) -> list[bytes]:
    """The values that a read-committed consumer returns from start (inclusive) to end."""
    values: list[bytes] = []
    for batch in batches:
        is_aborted = batch.is_transactional and any(
            one.producer_id == batch.producer_id and one.first <= batch.base < one.marker
            for one in fold.aborted
        )
        if batch.values is not None and not is_aborted:
            values += [
                value
                for offset, value in enumerate(batch.values, batch.base)
                if start <= offset < end
            ]
    return values
