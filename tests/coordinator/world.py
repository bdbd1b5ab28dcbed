"""Coordinators on the nodes of a cluster in memory, with logs that note the markers they get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from prometheus_client import CollectorRegistry

from streamlog.coordinator.api import (
    TRANSACTION_STATE_TOPIC,
    ProducerIdAndEpoch,
    TransactionState,
)
from streamlog.coordinator.config import TransactionConfig
from streamlog.coordinator.coordinator import Coordinator
from streamlog.coordinator.markers import Outcome
from streamlog.coordinator.replay import replay
from streamlog.errors import ConcurrentTransactions, CoordinatorLoadInProgress, StreamlogError
from streamlog.log.api.abstract_log import TransactionMarker
from streamlog.log.manager import LogManager
from streamlog.model.partition import TopicPartition
from tests.log.cluster import Cluster, cluster

T = TypeVar("T")
TIMEOUT_MS = 60_000
A, B = TopicPartition("a", 0), TopicPartition("b", 1)


class NotedMarkers:
    """A sender that keeps what it is given; `failing` says what partitions answer instead."""

    def __init__(self) -> None:
        self.written: list[tuple[TopicPartition, TransactionMarker]] = []
        self.failing: dict[TopicPartition, StreamlogError] = {}
        self.held: dict[TopicPartition, asyncio.Event] = {}

    async def send(
        self, partition: TopicPartition, markers: Sequence[TransactionMarker]
    ) -> Sequence[Outcome]:
        held = self.held.get(partition)
        if held is not None:
            await held.wait()
        error = self.failing.get(partition)
        if error is not None:
            return [error] * len(markers)
        self.written += [(partition, marker) for marker in markers]
        return [None] * len(markers)


class Node:
    """One node: its logs and its coordinator."""

    def __init__(self, world: World, logs: LogManager, config: TransactionConfig) -> None:
        self.logs = logs
        self.registry = CollectorRegistry()
        self.coordinator = Coordinator(
            logs,
            clock=world.cluster.clock,
            random=world.cluster.random,
            registry=self.registry,
            config=config,
            sender=world.markers,
        )


class World:
    def __init__(self, made: Cluster) -> None:
        self.cluster = made
        self.clock = made.clock
        self.markers = NotedMarkers()
        self.nodes: list[Node] = []

    async def node(self, node_id: int = 1, **config: int) -> Node:
        logs = await self.cluster.node(node_id=node_id)
        settings = TransactionConfig(**{"state_partitions": 2, **config})
        node = Node(self, logs, settings)
        node.coordinator.open()
        self.nodes.append(node)
        return node

    async def crash(self) -> None:
        for node in self.nodes:
            await node.coordinator.kill()
        self.nodes.clear()
        await self.cluster.crash()

    async def assign(self, number: int, node_id: int | None) -> None:
        partition = TopicPartition(TRANSACTION_STATE_TOPIC, number)
        for node in sorted(self.nodes, key=lambda one: one.logs.leadership.node_id == node_id):
            await node.logs.leadership.assign(partition, node_id)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with cluster() as made:
        one = World(made)
        try:
            yield one
        finally:
            for node in one.nodes:
                await node.coordinator.kill()


def run(test: Callable[[World, Node], Awaitable[None]], **config: int) -> None:
    """Runs `test` with a world and its first node."""

    async def body() -> None:
        async with world() as one:
            await test(one, await one.node(**config))

    asyncio.run(body())


RETRIED = (CoordinatorLoadInProgress, ConcurrentTransactions)


async def retried(
    call: Callable[[], Awaitable[T]], on: tuple[type[StreamlogError], ...] = RETRIED
) -> T:
    """As a client does that asks again, at once: nothing here takes time of the clock."""
    for _ in range(10_000):
        try:
            return await call()
        except on:
            await asyncio.sleep(0)
    raise AssertionError("the call never succeeded")


async def init(
    node: Node, name: str = "tx", expected: ProducerIdAndEpoch | None = None
) -> ProducerIdAndEpoch:
    return await retried(
        lambda: node.coordinator.init_producer_id(name, TIMEOUT_MS, expected),
        on=(CoordinatorLoadInProgress,),
    )


async def state_of(node: Node, name: str = "tx") -> TransactionState:
    described = await retried(lambda: node.coordinator.describe(name))
    return described.state


async def until(node: Node, state: TransactionState, name: str = "tx") -> None:
    for _ in range(10_000):
        if await state_of(node, name) is state:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{name} never came to {state.name}")


async def check_replay(node: Node) -> None:
    """A replay of each partition's bytes comes to the state that is in force."""
    for partition in node.coordinator.hosted.loaded:
        await partition.settled()
        replayed = await replay(partition.log)
        assert replayed.table.transactions == partition.table.transactions
        assert replayed.table.sizes == partition.table.sizes
        assert replayed.table.counts == partition.table.counts
