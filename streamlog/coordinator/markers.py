"""Writes the markers of decided transactions to their partitions, until each has its own.

1. A transaction whose decision is durable is *pending* from then on: `begin`. When no partition is
   left, it is completed. Several ends of one id are never pending: the next one needs Complete.
2. Each partition that has to get markers has a queue and one task, which writes what lies ready
   together. So a partition that hangs holds up its own markers, and nobody else's.
3. A marker that fails is tried again with back-off. It is given up only where no open transaction
   of it can be: the topic is gone, or a newer epoch of the producer has written there.
4. A partition that another coordinator has written to says that this one is out of date. It proves
   it to itself by writing to its own log again, which ends it if that is so.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from streamlog.coordinator.api import TransactionState
from streamlog.coordinator.partition import CoordinatorPartition
from streamlog.coordinator.transactions.decisions import shown
from streamlog.coordinator.transactions.state import Transaction
from streamlog.errors import (
    CoordinatorFenced,
    Invalid,
    NotCoordinator,
    NotFound,
    ProducerFenced,
    StreamlogError,
    Unavailable,
    UnknownTopicOrPartition,
)
from streamlog.log.api.abstract_log import TransactionMarker
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.backoff import Backoff
from streamlog.runtime.progress import Due
from streamlog.runtime.rand import Random

log = logging.getLogger(__name__)

AT_ONCE_MAX = 256
"""Markers of one call of a sender."""
TRY_S_MAX = 30.0
"""A try without an answer for so long is given up, and the next one begins."""
RETRY_MS, RETRY_MS_MAX = 20, 5_000
PREPARED_ALARM_S = 30.0

Outcome = StreamlogError | None


class MarkerSender(Protocol):
    """Takes markers to the node that leads the partition."""

    async def send(
        self, partition: TopicPartition, markers: Sequence[TransactionMarker]
    ) -> Sequence[Outcome]:
        """An outcome for each marker, None where it is durable. May be cancelled, and asked again:
        markers are idempotent. Errors: those that all markers share."""
        ...


class Pending:
    """A decided transaction, and the partitions that do not have its marker yet."""

    __slots__ = ("left", "marker", "owner", "prepared", "since")

    def __init__(self, owner: CoordinatorPartition, prepared: Transaction, since: float) -> None:
        self.owner = owner
        self.prepared = prepared
        self.left = set(prepared.partitions)
        self.since = since
        """Monotonic seconds."""
        self.marker = TransactionMarker(
            prepared.producer_id,
            prepared.producer_epoch,
            owner.coordinator_epoch,
            prepared.state is TransactionState.PREPARE_COMMIT,
        )


class Markers:
    """The pending transactions of all partitions that this node coordinates."""

    def __init__(
        self, sender: MarkerSender, clock: Clock, random: Random, background: Background
    ) -> None:
        self._sender = sender
        self._clock = clock
        self._random = random
        self._background = background
        self._pending: dict[Pending, None] = {}
        """In the order in which they were decided."""
        self._queues: dict[TopicPartition, deque[Pending]] = {}

    @property
    def left(self) -> int:
        """Markers that are not written yet."""
        return sum(len(pending.left) for pending in self._pending)

    def begin(self, owner: CoordinatorPartition, prepared: Transaction) -> None:
        """The decision is durable: its markers go out from now on. Never waits."""
        pending = Pending(owner, prepared, self._clock.monotonic())
        if not pending.left:
            owner.complete(prepared)
            return
        self._pending[pending] = None
        for partition in sorted(pending.left):
            queue = self._queues.get(partition)
            if queue is None:
                queue = self._queues[partition] = deque()
                self._background.spawn(self._write_all(partition, queue), name="markers")
            queue.append(pending)

    def forget(self, owner: CoordinatorPartition) -> None:
        """Drops what the partition has pending; whoever loads it next goes on."""
        for pending in [one for one in self._pending if one.owner is owner]:
            del self._pending[pending]

    def progress(self) -> Due | None:
        """A check: the transaction that waits for its markers for longest."""
        pending = next(iter(self._pending), None)
        if pending is None:
            return None
        transaction = pending.prepared
        return Due(
            pending,
            f"markers of the transactional id {shown(transaction.transactional_id)} "
            f"({transaction.state.name}) in {len(pending.left)} partitions, among them "
            f"{min(pending.left)}; {len(self._pending)} transactions wait",
            PREPARED_ALARM_S,
            pending.since,
        )

    async def _write_all(self, partition: TopicPartition, queue: deque[Pending]) -> None:
        """Ends with the queue."""
        backoff = Backoff(RETRY_MS, RETRY_MS_MAX, self._random)
        while queue:
            batch = [queue.popleft() for _ in range(min(len(queue), AT_ONCE_MAX))]
            batch = [one for one in batch if one in self._pending]
            outcomes = await self._try(partition, [one.marker for one in batch])
            again = [
                one
                for one, outcome in zip(batch, outcomes, strict=True)
                if not self._is_done(one, partition, outcome)
            ]
            queue.extendleft(reversed(again))
            if again:
                await backoff.sleep()
            else:
                backoff = Backoff(RETRY_MS, RETRY_MS_MAX, self._random)
        del self._queues[partition]

    async def _try(
        self, partition: TopicPartition, markers: Sequence[TransactionMarker]
    ) -> Sequence[Outcome]:
        if not markers:
            return ()
        try:
            async with asyncio.timeout(TRY_S_MAX):
                return await self._sender.send(partition, markers)
        except TimeoutError:
            error = Unavailable(f"{partition} has not answered for {TRY_S_MAX:.0f} s")
            return [error] * len(markers)
        except StreamlogError as error:
            return [error] * len(markers)

    def _is_done(self, pending: Pending, partition: TopicPartition, outcome: Outcome) -> bool:
        """Whether the partition needs no other try."""
        if pending not in self._pending:
            return True
        if outcome is not None and not self._is_given_up(pending, partition, outcome):
            return False
        pending.left.discard(partition)
        if not pending.left:
            del self._pending[pending]
            pending.owner.complete(pending.prepared)
        return True

    def _is_given_up(
        self, pending: Pending, partition: TopicPartition, error: StreamlogError
    ) -> bool:
        name = shown(pending.prepared.transactional_id)
        if isinstance(error, UnknownTopicOrPartition):
            log.info("%s is gone, and with it the transaction of %s in it", partition, name)
            return True
        if isinstance(error, CoordinatorFenced):
            log.warning("marker of %s in %s: %s", name, partition, error)
            self._prove(pending)
            return False
        if isinstance(error, ProducerFenced) or _is_hopeless(error):
            log.error("%s takes no marker of %s, which has nothing open there: %s",
                      partition, name, error)  # fmt: skip
            return True
        log.debug("marker of %s in %s failed, and is tried again: %s", name, partition, error)
        return False

    def _prove(self, pending: Pending) -> None:
        try:
            pending.owner.write_again(pending.prepared.transactional_id)
        except NotCoordinator:
            self.forget(pending.owner)


def _is_hopeless(error: StreamlogError) -> bool:
    """The partition says that the call can never be right."""
    is_wrong = isinstance(error, Invalid) and not isinstance(error, NotFound)
    return is_wrong and not error.is_retryable
