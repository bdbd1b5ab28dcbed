"""Transactional batches are taken only for partitions that their coordinator has (KIP-890).

1. A log says whether the coordinator has to be asked: not while the transaction is open in it.
2. One question for each request, about all such partitions, before any of its batches is handed on.
   The connection's next requests wait behind it, so a producer's batches keep their order.
3. What the coordinator knows is durable, so the usual answer comes without a wait.

A batch that came late, behind its transaction's abort, would open a transaction that nobody ends.
Source: Kafka's ReplicaManager.handleProduceAppend and AddPartitionsToTxnManager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from struct import Struct
from typing import NamedTuple

from streamlog.codec.batch import HEADER_BYTES, TRANSACTIONAL, scan
from streamlog.coordinator.api import ProducerIdAndEpoch, TransactionCoordinator
from streamlog.errors import DeadlinePassed, InvalidProducerIdMapping, StreamlogError
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock

_PRODUCER = Struct(">21xh20xqh")
"""Attributes, producer id and epoch of a batch."""


class Verifiable(NamedTuple):
    """Transactional batches of a request whose log is open."""

    partition: TopicPartition
    log: AbstractLog
    batches: Buffer
    producer: ProducerIdAndEpoch

    def needs_verification(self) -> bool:
        return self.log.needs_verification(*self.producer)


class _Asked(NamedTuple):
    """A log whose coordinator is asked, and its guard from before the question."""

    log: AbstractLog
    guard: int


Refusals = Mapping[TopicPartition, StreamlogError]


class Verification:
    def __init__(self, coordinator: TransactionCoordinator, clock: Clock) -> None:
        self._coordinator = coordinator
        self._clock = clock

    async def refusals(
        self,
        transactional_id: str,
        parts: Iterable[Verifiable],
        deadline: float,
        *,
        adds_partitions: bool,
    ) -> Refusals:
        """Partitions whose batches must not be handed on; the logs of the others take theirs.

        `adds_partitions`: makes them part of the transaction, in place of asking (version 2).
        Errors of the whole request: InvalidProducerIdMapping (two producers in it).
        """
        producer, unverified = _unverified(parts)
        if not unverified:
            return {}
        refused: Refusals
        try:
            async with asyncio.timeout(deadline - self._clock.monotonic()):
                if adds_partitions:
                    await self._coordinator.add_partitions(
                        transactional_id, producer, list(unverified)
                    )
                    refused = {}
                else:
                    refused = await self._coordinator.verify_partitions(
                        transactional_id, producer, list(unverified)
                    )
        except TimeoutError:
            late = DeadlinePassed(
                f"the coordinator of {transactional_id[:80]!r} did not say in time which partitions"
                " its transaction has; nothing was stored: send the batches again"
            )
            return dict.fromkeys(unverified, late)
        except StreamlogError as error:
            return dict.fromkeys(unverified, error)
        for partition, asked in unverified.items():
            if partition not in refused:
                asked.log.verified(*producer, asked.guard)
        return refused


def needs_verification(log: AbstractLog, batches: Buffer) -> bool:
    """Whether the coordinator has to be asked before the log takes the first of the batches."""
    producer = transactional_producer(batches)
    return producer is not None and log.needs_verification(*producer)


def transactional_producer(batches: Buffer) -> ProducerIdAndEpoch | None:
    """The first batch's, where it belongs to a transaction. A log finds out whether it lies."""
    if len(batches) < HEADER_BYTES:
        return None
    attributes, producer_id, epoch = _PRODUCER.unpack_from(batches)
    if not attributes & TRANSACTIONAL or producer_id < 0:
        return None
    return ProducerIdAndEpoch(producer_id, epoch)


def _unverified(
    parts: Iterable[Verifiable],
) -> tuple[ProducerIdAndEpoch, dict[TopicPartition, _Asked]]:
    producer: ProducerIdAndEpoch | None = None
    unverified: dict[TopicPartition, _Asked] = {}
    for partition, log, batches, found in parts:
        is_unverified = log.needs_verification(*found)
        if is_unverified and not _is_intact(batches):
            continue  # The header may name anybody. The log says that the batch is damaged.
        if producer is not None and producer != found:
            raise InvalidProducerIdMapping(
                "the request has transactional batches of more than one producer id or epoch: send "
                "each producer's in requests of their own"
            )
        producer = found
        if is_unverified:
            unverified[partition] = _Asked(log, log.verification_guard())
    return producer or ProducerIdAndEpoch(-1, -1), unverified


def _is_intact(batches: Buffer) -> bool:
    try:
        scan(batches)
    except StreamlogError:
        return False
    return True
