"""The checks right after healing, while the last nodes of a history still run.

1. A node serves: nodes that were down come up within a while, because nothing fails any more.
2. Every call that waits at a serving node is answered.
3. After the workloads have ended, a serving node reports that it is ready, its open logs belong to
   topics that exist, and it holds nothing for calls that have ended: no open object id that is
   neither committed nor swept in time, no append budget, no memory.

A node that never answers, or leaks, looks healthy as long as crashes end it now and then. So these
checks come before the last nodes are stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from streamlog.log.manager import LogManager
from streamlog.model.partition import TopicPartition
from streamlog.testing.simulation.checker import Violation, few
from streamlog.testing.simulation.workloads.observers import DELETED_WHILE_OPENED
from streamlog.testing.simulation.world.node import SimulationNode
from streamlog.testing.simulation.world.world import World

ANSWER_S_MAX = 150.0
"""Virtual seconds: an answer under way may take a minute, and so may the one after it."""
POLL_S = 0.5


async def await_all_answers(world: World) -> None:
    """Heals the world and waits for every pending answer.

    Errors: Violation, which names the calls that no node answers.
    """
    world.heal()
    world.is_ending = True
    await _until_a_node_serves(world)
    pending = world.calls.at_serving_nodes()
    ends_at = world.now + ANSWER_S_MAX
    while unanswered := world.calls.still_waiting(pending):
        if world.now >= ends_at:
            raise Violation(f"no answer to: {few([str(call) for call in unanswered])}")
        world.raise_failures()
        await asyncio.sleep(POLL_S)


async def _until_a_node_serves(world: World) -> None:
    """Without a serving node the checks that follow would look at nothing."""
    ends_at = world.now + ANSWER_S_MAX
    while not world.serving():
        if world.now >= ends_at:
            raise Violation(f"no node comes up: {few([str(node) for node in world.nodes[-2:]])}")
        world.raise_failures()
        await asyncio.sleep(POLL_S)


async def check_nothing_leaks(world: World) -> None:
    """Errors: Violation, which names the resource that a node still holds."""
    for node in world.serving():
        # Compaction and checkpoints keep taking ids: those that are open now must close.
        open_ids = node.metadata.open_object_ids
        await _until_released(node, "object ids", partial(_still_open, open_ids))
        for name, held in _HELD.items():
            await _until_released(node, name, held)


def _still_open(object_ids: frozenset[int], node: SimulationNode) -> list[int]:
    return sorted(object_ids & node.metadata.open_object_ids)


_HELD: dict[str, Callable[[SimulationNode], object]] = {
    "bytes of append budget": lambda node: node.engine.engine.budget.used_bytes,
    "appends that wait for budget": lambda node: node.engine.engine.budget.waiters,
    "upload credit": lambda node: node.engine.engine.upload_credit.used_bytes,
    "bytes in tails": lambda node: node.engine.engine.tails.held_bytes,
    "streams with appends that wait": lambda node: [
        core.stream_id for core in node.engine.engine.cores.values() if core.queued
    ],
    "an alarm": lambda node: node.engine.not_ready_reason(),
    "open logs of deleted topics": lambda node: _logs_without_topic(node.engine.logs),
}


def _logs_without_topic(logs: LogManager) -> list[TopicPartition]:
    """Open logs of deleted topics, among those that clients open while they are deleted."""
    return [
        partition
        for partition in DELETED_WHILE_OPENED
        if logs.topic(partition.topic) is None and logs.open_log(partition) is not None
    ]


async def _until_released(
    node: SimulationNode, name: str, held: Callable[[SimulationNode], object]
) -> None:
    """Returns when `held(node)` is empty or 0, or when the node has ended by itself."""
    ends_at = node.environment.now + ANSWER_S_MAX
    while node.is_serving and not node.has_ended and (amount := held(node)):
        if node.environment.now >= ends_at:
            raise Violation(f"{node} holds {name} for calls that have ended: {amount}")
        node.engine.engine.request_flush()
        await asyncio.sleep(POLL_S)
