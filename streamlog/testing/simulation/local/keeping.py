"""The loop of one client at one node: what it does again and again, and which errors it expects."""

from __future__ import annotations

import asyncio

from streamlog.errors import Closed, Corrupt, UnknownTopicOrPartition
from streamlog.testing.simulation.local.node import LogNode
from streamlog.testing.simulation.local.world import LocalWorld
from streamlog.testing.simulation.numbered.clients import PASSING, Operation, PartitionClients


async def keep(
    world: LocalWorld, node: LogNode, clients: PartitionClients, pause_s: float, work: Operation
) -> None:
    """Does the operation again and again at this node, until the history ends."""
    random = world.fork()
    while not world.is_ending:
        await asyncio.sleep(pause_s * random.random())
        try:
            await work(node, await node.logs.log(clients.partition))
        except (*PASSING, UnknownTopicOrPartition, Corrupt) as error:
            if isinstance(error, UnknownTopicOrPartition) and clients.is_made:
                raise
            if isinstance(error, Corrupt) and not world.is_remote_read(error):
                raise
            world.trace.add("failed", repr(node), clients.model.name, type(error).__name__)
            await asyncio.sleep(0.05 + 0.2 * random.random())
            if isinstance(error, Closed) and not node.is_up:
                return
