"""Coordinators on the nodes of a cluster in memory, on a virtual loop.

Time passes where nothing else can run, so that hours cost nothing, and a call that nobody answers
ends the test: nothing is left that could happen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from streamlog.codec.batch import scan
from streamlog.codec.committed import committed
from streamlog.codec.records import decode
from streamlog.coordinator.api import (
    ProducerIdAndEpoch,
    TransactionState,
)
from streamlog.coordinator.config import TransactionConfig
from streamlog.coordinator.coordinator import Coordinator
from streamlog.coordinator.local_markers import LocalMarkers
from streamlog.coordinator.markers import Outcome
from streamlog.coordinator.replay import replay
from streamlog.coordinator.transactions.state import Transaction
from streamlog.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    NotLeader,
    StreamlogError,
)
from streamlog.log.api.abstract_log import AbstractLog, Isolation, TransactionMarker
from streamlog.log.manager import LogManager
from streamlog.model.partition import TopicPartition
from streamlog.testing.simulation.world.incarnation import SimulationClock
from streamlog.testing.simulation.world.loop import SimulationLoop
from streamlog.testing.simulation.world.loop import run as run_virtually
from tests.log.cluster import Cluster, cluster

T = TypeVar("T")
TIMEOUT_MS = 60_000
A, B = TopicPartition("a", 0), TopicPartition("b", 1)


class NotedMarkers:
    """Takes markers to the node that leads the partition, and notes them.

    `failing` says what partitions answer instead; those that are `held` do not answer.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.written: list[tuple[TopicPartition, TransactionMarker]] = []
        self.failing: dict[TopicPartition, StreamlogError] = {}
        self.held: dict[TopicPartition, asyncio.Event] = {}
        self.delay_s: Callable[[], float] = lambda: 0.0
        self.senders: dict[LogManager, LocalMarkers] = {}

    async def send(
        self, partition: TopicPartition, markers: Sequence[TransactionMarker]
    ) -> Sequence[Outcome]:
        await asyncio.sleep(self.delay_s())
        held = self.held.get(partition)
        if held is not None:
            await held.wait()
        error = self.failing.get(partition)
        if error is not None:
            return [error] * len(markers)
        node = self._world.leader(partition)
        sender = self.senders.setdefault(node.logs, LocalMarkers(node.logs))
        outcomes = await sender.send(partition, markers)
        written = zip(markers, outcomes, strict=True)
        self.written += [(partition, marker) for marker, error in written if error is None]
        return outcomes


class Node:
    """One node: its logs and its coordinator."""

    def __init__(self, world: World, logs: LogManager, config: TransactionConfig) -> None:
        self.logs = logs
        self.client = world.cluster.running[-1][1]
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
        self.cluster: Any = made
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulationLoop)
        self.clock = SimulationClock(loop)
        vars(made)["clock"] = self.clock
        self.markers = NotedMarkers(self)
        self.nodes: list[Node] = []
        self.leaders: dict[TopicPartition, int | None] = {}
        """Of partitions that were assigned; all nodes believe to lead the others."""

    async def node(self, node_id: int = 1, **config: int) -> Node:
        logs = await self.cluster.node(node_id=node_id)
        settings = TransactionConfig(**{"state_partitions": 2, **config})
        node = Node(self, logs, settings)
        for partition, leader in self.leaders.items():
            await logs.leadership.assign(partition, leader)
        node.coordinator.open()
        self.nodes.append(node)
        return node

    async def crash(self) -> None:
        """Of all nodes."""
        for node in list(self.nodes):
            await self.kill(node)

    async def kill(self, node: Node) -> None:
        """As `kill -9`: what is not durable is lost."""
        self.nodes.remove(node)
        self.cluster.running.remove((node.logs, node.client))
        await node.client.kill()
        await node.coordinator.kill()
        await node.logs.kill()

    async def assign(self, partition: TopicPartition, node_id: int | None) -> None:
        """Makes a node the leader, for all nodes: the one that gives up comes first."""
        self.leaders[partition] = node_id
        for node in sorted(self.nodes, key=lambda one: one.logs.leadership.node_id == node_id):
            if node in self.nodes:
                await node.logs.leadership.assign(partition, node_id)

    def leader(self, partition: TopicPartition) -> Node:
        """Errors: NotLeader."""
        for node in self.nodes:
            if node.logs.leadership.is_led_here(partition):
                return node
        raise NotLeader(f"{partition} is led by no node")


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
            node = await one.node(**config)
            for topic in ("a", "b"):
                await node.logs.create_topic(topic, 2)
            await test(one, node)

    run_virtually(body)


RETRIED = (CoordinatorLoadInProgress, ConcurrentTransactions)


async def retried(
    call: Callable[[], Awaitable[T]], on: tuple[type[StreamlogError], ...] = RETRIED
) -> T:
    """As a client does that asks again."""
    for _ in range(1000):
        try:
            return await call()
        except on:
            await asyncio.sleep(0.01)
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
    for _ in range(1000):
        if await state_of(node, name) is state:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{name} never came to {state.name}")


async def check_replay(node: Node) -> None:
    """A replay of each partition's bytes comes to the state that is in force."""
    for partition in node.coordinator.hosted.loaded:
        live: dict[str, Transaction] | None = None
        while live != partition.table.transactions:
            live = dict(partition.table.transactions)
            await partition.settled()
        sizes, counts = dict(partition.table.sizes), dict(partition.table.counts)
        replayed = await replay(partition.log)
        assert replayed.table.transactions == live
        assert replayed.table.sizes == sizes
        assert replayed.table.counts == counts


async def seen(opened: AbstractLog) -> set[str]:
    """The transactions whose records a read_committed reader gets."""
    labels: list[str] = []
    offset = opened.log_start_offset
    while offset < opened.high_watermark:
        fetched = await opened.fetch(offset, 1 << 20, isolation=Isolation.READ_COMMITTED)
        aborted = [(one.first_offset, one.producer_id) for one in fetched.aborted]
        for _, view in committed(scan(b"".join(fetched.parts)), aborted):
            labels += [bytes(value or b"").decode() for _, _, _, value, _ in decode(view)]
        assert fetched.next_offset > offset, "something is still open"
        offset = fetched.next_offset
    assert len(labels) == len(set(labels)), "a record is there twice"
    return set(labels)
