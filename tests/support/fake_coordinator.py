"""A transaction coordinator in memory: one state for each id, errors and waits by script."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from streamlog.coordinator.api import (
    TRANSACTION_STATE_TOPIC,
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionFilter,
    TransactionState,
)
from streamlog.errors import (
    Invalid,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    StreamlogError,
    TransactionAbortable,
    TransactionalIdFenced,
    TransactionalIdNotFound,
)
from streamlog.model.partition import TopicPartition

TIMEOUT_MS_MAX = 900_000


class FakeCoordinator:
    """`errors`: what the next calls raise, by the name of the call; they do nothing then.

    `calls`: what was asked, in order. `gate`: while it is cleared, calls wait.
    """

    def __init__(self) -> None:
        self.states: dict[str, TransactionDescription] = {}
        self.errors: dict[str, deque[StreamlogError]] = {}
        self.calls: list[tuple[object, ...]] = []
        self.topic_is_made = False
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()
        self._next_id = 1000

    def fails(self, call: str, *errors: StreamlogError) -> None:
        self.errors.setdefault(call, deque()).extend(errors)

    async def _enter(self, *call: object) -> None:
        self.calls.append(call)
        self.entered.set()
        await self.gate.wait()
        scripted = self.errors.get(str(call[0]))
        if scripted:
            raise scripted.popleft()

    def partition_of(self, transactional_id: str) -> TopicPartition:
        return TopicPartition(TRANSACTION_STATE_TOPIC, len(transactional_id) % 16)

    async def ensure_topic(self) -> None:
        await self._enter("ensure_topic")
        self.topic_is_made = True

    async def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None = None,
    ) -> ProducerIdAndEpoch:
        await self._enter("init_producer_id", transactional_id, timeout_ms, expected)
        if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
            raise InvalidTransactionTimeout("out of range", max_ms=TIMEOUT_MS_MAX)
        state = self.states.get(transactional_id)
        if state is None:
            self._next_id += 1
            producer = ProducerIdAndEpoch(self._next_id, 0)
        else:
            if expected is not None and expected != (state.producer_id, state.producer_epoch):
                raise TransactionalIdFenced("another instance has the id")
            producer = ProducerIdAndEpoch(state.producer_id, state.producer_epoch + 1)
        self.states[transactional_id] = TransactionDescription(
            transactional_id, TransactionState.EMPTY, *producer, timeout_ms, -1, ()
        )
        return producer

    def _state(self, transactional_id: str, producer: ProducerIdAndEpoch) -> TransactionDescription:
        state = self.states.get(transactional_id)
        if state is None or state.producer_id != producer.producer_id:
            raise InvalidProducerIdMapping("another producer id has the id")
        if state.producer_epoch != producer.producer_epoch:
            raise TransactionalIdFenced("another instance has the id")
        return state

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
    ) -> None:
        await self._enter("add_partitions", transactional_id, producer, list(partitions))
        state = self._state(transactional_id, producer)
        self.states[transactional_id] = replace(
            state,
            state=TransactionState.ONGOING,
            start_ms=state.start_ms if state.start_ms >= 0 else 1234,
            partitions=tuple(dict.fromkeys((*state.partitions, *partitions))),
        )

    async def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
    ) -> Mapping[TopicPartition, StreamlogError]:
        await self._enter("verify_partitions", transactional_id, producer, list(partitions))
        state = self._state(transactional_id, producer)
        return {
            partition: TransactionAbortable(f"{partition} is not part of the transaction")
            for partition in partitions
            if partition not in state.partitions
        }

    async def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        is_commit: bool,
        bumps_epoch: bool = False,
        application_epoch: int | None = None,
    ) -> ProducerIdAndEpoch:
        await self._enter("end", transactional_id, producer, is_commit, bumps_epoch)
        state = self._state(transactional_id, producer)
        if state.state is not TransactionState.ONGOING:
            raise InvalidTxnState("no transaction is open")
        complete = (
            TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT
        )
        following = ProducerIdAndEpoch(producer.producer_id, producer.producer_epoch + bumps_epoch)
        self.states[transactional_id] = replace(
            state,
            state=complete,
            producer_epoch=following.producer_epoch,
            start_ms=-1,
            partitions=(),
            application_epoch=state.application_epoch
            if application_epoch is None or not is_commit
            else application_epoch,
        )
        return following

    async def describe(self, transactional_id: str) -> TransactionDescription:
        await self._enter("describe", transactional_id)
        if transactional_id not in self.states:
            raise TransactionalIdNotFound("not known", transactional_id=transactional_id)
        return self.states[transactional_id]

    async def transactions(self, wanted: TransactionFilter) -> Sequence[TransactionDescription]:
        await self._enter("transactions", wanted)
        try:
            pattern = re.compile(wanted.id_pattern) if wanted.id_pattern else None
        except re.error as error:
            raise Invalid(f"{wanted.id_pattern!r} is no regular expression") from error
        return [
            state
            for name, state in sorted(self.states.items())
            if (not wanted.states or state.state in wanted.states)
            and (not wanted.producer_ids or state.producer_id in wanted.producer_ids)
            and (pattern is None or pattern.fullmatch(name) is not None)
        ]

    async def abort(self, transactional_id: str) -> TransactionDescription:
        await self._enter("abort", transactional_id)
        found = await self.describe(transactional_id)
        self.states[transactional_id] = replace(
            found,
            state=TransactionState.COMPLETE_ABORT,
            producer_epoch=found.producer_epoch + 1,
            start_ms=-1,
            partitions=(),
        )
        return found
