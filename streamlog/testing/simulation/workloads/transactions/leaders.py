"""Who leads the partitions of transactions and of their coordinators: as a controller would say.

1. One machine leads a partition. Nodes are told one after the other, so for a while two of them, or
   none, take themselves for its leader; only one of them holds its streams.
2. Leaders move: from a node that lives, which gives the partition up, or from a dead one.
3. A node that has taken over the streams of a dead one is told again who leads what: it gives up
   those of partitions that it does not lead, which no other node could open else.
4. Markers and verifications go to the node that leads by what the controller knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from streamlog.coordinator.api import (
    TRANSACTION_STATE_TOPIC,
    ProducerIdAndEpoch,
)
from streamlog.coordinator.local_markers import LocalMarkers
from streamlog.coordinator.markers import Outcome
from streamlog.coordinator.placement import partition_of
from streamlog.errors import CoordinatorNotAvailable, StreamlogError, Unavailable
from streamlog.log.api.abstract_log import TransactionMarker
from streamlog.metadata.interface import Tenure
from streamlog.model.partition import TopicPartition
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.simulation.checker import Violation
from streamlog.testing.simulation.workloads.streams import PASSING
from streamlog.testing.simulation.workloads.transactions.network import Network, NoAnswer
from streamlog.testing.simulation.world.node import NODE_TRANSACTIONS, SimulationNode
from streamlog.testing.simulation.world.world import World

T = TypeVar("T")

TELL_S = 0.2
MOVE_S = 4.0
"""Between two moves, mostly."""
TELL_S_MAX = 60.0
LAST_MOVES_S = 30.0
STATE = [
    TopicPartition(TRANSACTION_STATE_TOPIC, n) for n in range(NODE_TRANSACTIONS.state_partitions)
]
"""The partitions of the coordinators' log."""


class SimulationLeaders:
    """The controller of a history."""

    def __init__(
        self,
        world: World,
        network: Network,
        random: SeededRandom,
        node_ids: Sequence[int],
        partitions: Sequence[TopicPartition],
    ) -> None:
        self._world = world
        self._network = network
        self._random = random
        self._node_ids = node_ids
        self._leaders = dict.fromkeys(partitions, node_ids[0])
        self._told: dict[tuple[SimulationNode, TopicPartition], tuple[int, int]] = {}
        """Who leads, and how many take-overs the node had begun."""
        self._telling: dict[tuple[SimulationNode, TopicPartition], asyncio.Task[None]] = {}
        self._is_owed = False
        """The last leader that was named may lack streams of those that have ended."""

    async def run(self) -> None:
        """Tells nodes and moves leaders, until cancelled."""
        next_move = self._world.now + MOVE_S
        while True:
            await asyncio.sleep(TELL_S)
            if len(self._node_ids) > 1 and self._world.now >= next_move:
                next_move = self._world.now + MOVE_S * 2 * self._random.random()
                await self._move()
            self._tell()

    async def settle(self) -> None:
        """Returns when every serving node knows every leader. What a machine leads whose node ended
        last goes to another one, if that can have its streams; so does what such a node had led
        before, and not given up yet."""
        if self._is_owed or any(self.node_of(partition) is None for partition in self._leaders):
            moves_until = self._world.now + LAST_MOVES_S
            while self._world.now < moves_until:
                if await self._move():
                    break
                await asyncio.sleep(TELL_S)
        ends_at = self._world.now + TELL_S_MAX
        while self._tell():
            if self._world.now >= ends_at:
                raise Violation(f"a node was not told its leaders within {TELL_S_MAX:.0f} s")
            await asyncio.sleep(TELL_S)

    def lead_all(self, node: SimulationNode) -> None:
        """The node is the only one that runs."""
        self._leaders = dict.fromkeys(self._leaders, node.machine.node_id)

    def node_of(self, partition: TopicPartition) -> SimulationNode | None:
        """The node that leads the partition, if it serves."""
        leader = self._leaders[partition]
        for node in reversed(self._world.nodes):
            if node.is_serving and node.machine.node_id == leader:
                return node
        return None

    def coordinator_of(self, transactional_id: str) -> SimulationNode | None:
        return self.node_of(STATE[partition_of(transactional_id, len(STATE))])

    async def _move(self) -> bool:
        """Moves one partition, or all that a machine leads which has no node. Whether the new
        leader has the streams of those that have ended."""
        random = self._random.random
        serving = self._world.serving()
        if not serving:
            return False
        heir = serving[int(random() * len(serving))]
        to, partitions = heir.machine.node_id, list(self._leaders)
        served = {node.machine.node_id for node in serving}
        moved = [one for one in partitions if self._leaders[one] not in served]
        if not moved:
            moved = [partitions[int(random() * len(partitions))]]
        for partition in moved:
            self._leaders[partition] = to
        self._world.trace.add("leads", heir.name, len(moved))
        self._is_owed = not await self._take_over_dead(heir)
        return not self._is_owed

    async def _take_over_dead(self, heir: SimulationNode) -> bool:
        for node in self._world.nodes[-4:]:
            tenure = node.tenure
            if node.incarnation.is_alive or tenure is None or node.machine is heir.machine:
                continue
            try:
                await self._network.call(heir, "take over", partial(_take_over, tenure), 10.0)
            except (NoAnswer, *PASSING):
                return False
        return True

    def _tell(self) -> bool:
        """Begins to tell nodes what they do not know; whether there is anything."""
        is_any = False
        for node in self._world.serving():
            if node.has_ended:
                continue  # It refuses everything from now on.
            for partition, leader in self._leaders.items():
                key, known = (node, partition), (leader, node.take_overs)
                if self._told.get(key) == known:
                    continue
                is_any = True
                task = self._telling.get(key)
                if task is None or task.done():
                    work = self._assign(node, partition, known)
                    self._telling[key] = node.incarnation.start(work, name="assign")
        return is_any

    async def _assign(
        self, node: SimulationNode, partition: TopicPartition, known: tuple[int, int]
    ) -> None:
        try:
            await node.engine.logs.leadership.assign(partition, known[0])
        except PASSING:
            return
        self._told[node, partition] = known


class WorldMarkers:
    """As MarkerSender: to the node that leads the partition, over the network."""

    def __init__(self, leaders: SimulationLeaders, network: Network) -> None:
        self._leaders = leaders
        self._network = network

    async def send(
        self, partition: TopicPartition, markers: Sequence[TransactionMarker]
    ) -> Sequence[Outcome]:
        node = self._leaders.node_of(partition)
        if node is None:
            raise Unavailable(f"{partition} has no leader")
        try:
            return await self._network.call(
                node, f"markers to {partition}",
                lambda at: LocalMarkers(at.engine.logs).send(partition, markers),
            )  # fmt: skip
        except NoAnswer:
            raise Unavailable(f"{partition} did not answer") from None


class WorldCoordinator:
    """What a log's node asks the coordinator of another node."""

    def __init__(self, leaders: SimulationLeaders, network: Network) -> None:
        self._leaders = leaders
        self._network = network

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
    ) -> None:
        await self._ask(
            transactional_id,
            lambda at: at.engine.transactions.add_partitions(
                transactional_id, producer, partitions
            ),
        )

    async def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
    ) -> Mapping[TopicPartition, StreamlogError]:
        return await self._ask(
            transactional_id,
            lambda at: at.engine.transactions.verify_partitions(
                transactional_id, producer, partitions
            ),
        )

    async def _ask(
        self, transactional_id: str, work: Callable[[SimulationNode], Awaitable[T]]
    ) -> T:
        node = self._leaders.coordinator_of(transactional_id)
        if node is None:
            raise CoordinatorNotAvailable(f"{transactional_id} has no coordinator")
        try:
            return await self._network.call(node, f"question about {transactional_id}", work)
        except NoAnswer:
            raise CoordinatorNotAvailable("the coordinator did not answer") from None


async def _take_over(tenure: Tenure, heir: SimulationNode) -> None:
    await heir.take_over(tenure)
