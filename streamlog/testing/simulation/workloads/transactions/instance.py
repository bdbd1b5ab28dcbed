"""One instance of a transactional producer: it has a pair, and runs one transaction after another.

1. It adds partitions, appends, then commits, aborts, or leaves the transaction open until it is
   past its time-out; it may stop between any two calls.
2. It asks again where no answer came. It commits only what was acknowledged.
3. Of two versions: 1 adds partitions itself and keeps its epoch; 2 adds them with its batches, and
   each end gives it the next epoch (KIP-890).
4. One that was replaced goes on as a zombie. It finds out by being refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from streamlog.codec.batch import BatchProducer
from streamlog.codec.records import BatchBuilder
from streamlog.coordinator.api import ProducerIdAndEpoch
from streamlog.errors import (
    InvalidProducerIdMapping,
    InvalidTxnState,
    OutOfOrderSequence,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdFenced,
)
from streamlog.log.api.abstract_log import ProduceContext
from streamlog.model.partition import TopicPartition
from streamlog.runtime.rand import SeededRandom
from streamlog.server.services.records.verification import (
    Verifiable,
    Verification,
    transactional_producer,
)
from streamlog.testing.simulation.checker import Violation
from streamlog.testing.simulation.transaction_checker import (
    SentTransaction,
    TransactionsModel,
    TransactionValue,
)
from streamlog.testing.simulation.workloads.logs import FIRST_TIMESTAMP_MS, TRIED_AGAIN
from streamlog.testing.simulation.workloads.transactions.leaders import (
    SimulationLeaders,
    WorldCoordinator,
)
from streamlog.testing.simulation.workloads.transactions.network import Network, NoAnswer
from streamlog.testing.simulation.world.node import SimulationNode
from streamlog.testing.simulation.world.world import World

T = TypeVar("T")

FENCED = (TransactionalIdFenced, ProducerFenced, InvalidProducerIdMapping)
"""A newer instance has the id, or the transaction was aborted because it took too long."""
BROKEN = (TransactionAbortable, InvalidTxnState, OutOfOrderSequence)
"""The transaction cannot go on: it is to be aborted."""
TRIES = 12
RECORDS_MAX = 3
STOPS = 0.015
"""Before how many calls an instance stops for good."""


class Stopped(Exception):
    """The instance does nothing any more."""


class SimulationCluster:
    """What instances know of the world."""

    def __init__(
        self, world: World, network: Network, leaders: SimulationLeaders, model: TransactionsModel
    ) -> None:
        self.world = world
        self.network = network
        self.leaders = leaders
        self.model = model
        self.partitions = [TopicPartition(model.name, n) for n in range(model.partitions)]
        self.coordinator = WorldCoordinator(leaders, network)


class Instance:
    def __init__(
        self,
        cluster: SimulationCluster,
        random: SeededRandom,
        name: str,
        pair: ProducerIdAndEpoch,
        version: int,
        timeout_ms: int,
    ) -> None:
        self._cluster = cluster
        self._model = cluster.model
        self._world = cluster.world
        self._tally = cluster.world.tally
        self._random = random.random
        self._name = name
        self._pair = pair
        self._version = version
        self._timeout_ms = timeout_ms
        self._sequences: dict[int, int] = {}
        """By partition: the next one."""
        self._given_up: set[str] = set()
        """Purposes of calls that were given up without an answer, and may come late."""

    def __repr__(self) -> str:
        return f"{self._name}@{self._pair.producer_epoch}v{self._version}"

    def _note(self, kind: str, *details: object) -> None:
        self._world.trace.add(kind, repr(self), *details)

    @property
    def _is_zombie(self) -> bool:
        return not self._model.is_newest(self._name, self._pair)

    async def work(self) -> None:
        """One transaction after another, until it stops."""
        try:
            while True:
                await asyncio.sleep(0.15 * self._random())
                await self._transaction()
        except (Stopped, NoAnswer):
            self._note("txn-stopped")
        except FENCED as error:
            kind = "zombie refused" if self._is_zombie else "transaction timed out"
            self._tally.count(kind)
            self._note("txn-fenced", type(error).__name__)

    async def _transaction(self) -> None:
        transaction = self._begin()
        is_written = False
        try:
            await self._write(transaction)
            is_written = True
        except BROKEN as error:
            self._note("txn-broken", transaction, type(error).__name__)
        except NoAnswer:
            self._note("txn-unwritten", transaction)
        draw = self._random()
        if draw < 0.12:
            await asyncio.sleep(self._timeout_ms / 1000 * (0.5 + self._random()))
        is_commit = is_written and self._random() < 0.75
        await self._end(transaction, is_commit=is_commit)
        if not is_written and self._version == 1:
            # The outcome of batches is unknown: the next epoch begins at sequence 0.
            await self._begin_epoch()

    async def _begin_epoch(self) -> None:
        """Asks for the next epoch, as the one that has the pair (KIP-360). Errors: FENCED, Stopped,
        NoAnswer"""
        name, pair, timeout_ms = self._name, self._pair, self._timeout_ms
        self._tally.count("next epoch")
        self._take(
            await self._ask(
                f"next epoch of {name}",
                lambda at: at.engine.transactions.init_producer_id(name, timeout_ms, pair),
            )
        )

    def _take(self, pair: ProducerIdAndEpoch) -> None:
        """A newer instance's answer may have come before this one."""
        if not self._is_zombie:
            self._model.initialised(self._name, self, pair)
        self._pair = pair
        self._sequences.clear()

    def _begin(self) -> SentTransaction:
        random, count = self._random, len(self._cluster.partitions)
        numbers = sorted(range(count), key=lambda _: random())[: 1 + int(random() * count)]
        plan = {number: 1 + int(random() * 2 * RECORDS_MAX) for number in sorted(numbers)}
        transaction = self._model.begin(self._name, plan)
        self._tally.count("transaction begun")
        self._note("txn-begin", transaction, plan)
        return transaction

    # partitions and batches

    async def _write(self, transaction: SentTransaction) -> None:
        """Adds the partitions and appends all records. Errors: FENCED, BROKEN, NoAnswer, Stopped"""
        is_rude = self._is_zombie and self._random() < 0.3
        adds_all = self._random() < 0.5
        if self._version == 1 and adds_all and not is_rude:
            await self._add(list(transaction.plan))
        for number in transaction.plan:
            if self._version == 1 and not adds_all and not is_rude:
                await self._add([number])
            values = transaction.values(number)
            while values:
                size = 1 + int(self._random() * RECORDS_MAX)
                await self._append(number, values[:size])
                values = values[size:]

    async def _add(self, numbers: list[int]) -> None:
        partitions = [self._cluster.partitions[number] for number in numbers]
        name, pair = self._name, self._pair
        await self._ask(
            f"partitions for {name}",
            lambda at: at.engine.transactions.add_partitions(name, pair, partitions),
        )

    async def _append(self, number: int, values: list[TransactionValue]) -> None:
        first = self._sequences.get(number, 0)
        data = _encoded(values, BatchProducer(*self._pair, first))
        partition, pair, name = self._cluster.partitions[number], self._pair, self._name
        was_zombie = self._is_zombie
        self._tally.count("transactional produce")

        def leader() -> SimulationNode | None:
            return self._cluster.leaders.node_of(partition)

        base = await self._insist(
            leader,
            f"transactional produce to {partition}",
            lambda at: self._produce(at, partition, data),
            1 + 5 * self._random(),
        )
        self._note("txn-produced", values[0], base)
        if was_zombie:
            self._model.stored_of_fenced(name, pair, number, base)
        self._model.placed(values, base)
        self._sequences[number] = first + len(values)

    async def _produce(self, node: SimulationNode, partition: TopicPartition, data: bytes) -> int:
        """As a server does."""
        deadline = self._world.now + 20
        log = await node.engine.logs.log(partition)
        producer = transactional_producer(data)
        assert producer is not None
        # It makes two of the coordinator's calls alone.
        verification = Verification(self._cluster.coordinator, node.clock)  # type: ignore[arg-type]
        refused = await verification.refusals(
            self._name,
            [Verifiable(partition, log, data, producer)],
            deadline,
            adds_partitions=self._version == 2,
        )
        if partition in refused:
            raise refused[partition]
        info = await (await log.append(data, ProduceContext(deadline)))
        return info.base_offset

    # the end

    async def _end(self, transaction: SentTransaction, *, is_commit: bool) -> None:
        """Errors: FENCED, Stopped."""
        if is_commit:
            self._model.ask_commit(transaction)
        try:
            pair = await self._ask_end(is_commit)
        except (InvalidTxnState, NoAnswer) as error:
            self._note("txn-end-failed", transaction, type(error).__name__)
            raise Stopped from None
        self._ended(transaction, is_commit)
        if self._random() < 0.1:
            await self._end_again(pair, is_commit)
        if self._version == 1 and f"end of {self._name}" in self._given_up:
            # The earlier call may end the next transaction, which has the same epoch: a weakness of
            # version 1, in Kafka too. Only the next instance's epoch keeps it out.
            raise Stopped
        self._check_pair(pair)
        if pair != self._pair:
            self._take(pair)

    async def _ask_end(self, is_commit: bool) -> ProducerIdAndEpoch:
        name, pair, bumps_epoch = self._name, self._pair, self._version == 2
        return await self._ask(
            f"end of {name}",
            lambda at: at.engine.transactions.end(
                name, pair, is_commit=is_commit, bumps_epoch=bumps_epoch
            ),
        )

    def _ended(self, transaction: SentTransaction, is_commit: bool) -> None:
        self._note("txn-ended", transaction, is_commit)
        if is_commit:
            self._tally.count("transaction committed")
            self._model.committed(transaction)
        else:
            self._tally.count("transaction aborted")
            self._model.aborted(transaction)

    async def _end_again(self, pair: ProducerIdAndEpoch, is_commit: bool) -> None:
        """A call that is sent twice gets the same answer twice, unless the id has changed hands."""
        self._tally.count("end repeated")
        try:
            again = await self._ask_end(is_commit)
        except (NoAnswer, InvalidTxnState):
            return
        if again != pair:
            raise Violation(f"{self!r} was told {pair} at the end of a transaction, then {again}")

    def _check_pair(self, pair: ProducerIdAndEpoch) -> None:
        producer_id, epoch = self._pair
        expected = (producer_id, epoch + 1) if self._version == 2 else (producer_id, epoch)
        if pair != expected:
            raise Violation(f"{self!r} was told {pair} at the end, not {expected}")

    # calls

    async def _ask(self, purpose: str, work: Callable[[SimulationNode], Awaitable[T]]) -> T:
        """The coordinator's answer; one call in ten goes to any node. Errors: those of the call."""

        def coordinator() -> SimulationNode | None:
            serving = self._world.serving()
            if serving and self._random() < 0.1:
                return serving[int(self._random() * len(serving))]
            return self._cluster.leaders.coordinator_of(self._name)

        return await self._insist(coordinator, purpose, work, 1 + 8 * self._random())

    async def _insist(
        self,
        node_of: Callable[[], SimulationNode | None],
        purpose: str,
        work: Callable[[SimulationNode], Awaitable[T]],
        patience_s: float,
    ) -> T:
        """Asks until there is an answer. Errors: FENCED, BROKEN, NoAnswer, Stopped."""
        tries = 1 + int(TRIES * self._random())
        while tries:
            if self._random() < STOPS and not self._world.is_ending:
                raise Stopped
            node = node_of()
            try:
                if node is not None:
                    return await self._cluster.network.call(node, purpose, work, patience_s)
            except (*FENCED, *BROKEN):
                raise
            except (NoAnswer, *TRIED_AGAIN) as error:
                if isinstance(error, NoAnswer):
                    self._given_up.add(purpose)
                self._note("txn-again", purpose, node, type(error).__name__)
                tries -= 1
            await asyncio.sleep(0.05 + 0.35 * self._random())
        raise NoAnswer


def _encoded(values: list[TransactionValue], producer: BatchProducer) -> bytes:
    builder = BatchBuilder(1 << 20)
    builder.extend([value.encode() for value in values], timestamp_ms=FIRST_TIMESTAMP_MS)
    return bytes(builder.build(producer, is_transactional=True))
