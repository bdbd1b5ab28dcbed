"""The first part of a history's end: faults have ceased, and what is due to users is given.

1. Some node serves: nodes that were down come up within a while, for nothing fails any more.
2. Every call that waits at a node which serves is answered.
3. Once the users are gone, a node that serves says that it is ready, its open logs are of topics
   that exist, and it holds nothing for calls that have ended: no object id that is open and neither
   committed nor swept by and by, no room for appends, no memory.

A node that never answers, or keeps what nobody needs, looks healthy for as long as it is killed
now and then: so this is looked at before the last nodes of a history are stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from streamlog.log.api.abstract_log import TopicPartition
from streamlog.log.manager import LogManager
from streamlog.testing.simulation.checker import Violation, few
from streamlog.testing.simulation.workloads.observers import DELETED_WHILE_OPENED
from streamlog.testing.simulation.world.node import Node
from streamlog.testing.simulation.world.world import World

ANSWER_S_MAX = 150.0
"""Virtual seconds: an answer that is on its way may take a minute, and so may the next one."""
POLL_S = 0.5


async def answer_everybody(world: World) -> None:
    """Errors: Violation, which names the calls that no node answers."""
    world.calm()
    world.is_ending = True
    await _until_some_node_serves(world)
    asked = world.calls.at_serving_nodes()
    ends_at = world.now + ANSWER_S_MAX
    while still := world.calls.still(asked):
        if world.now >= ends_at:
            raise Violation(f"nobody answers: {few([str(call) for call in still])}")
        world.raise_failures()
        await asyncio.sleep(POLL_S)


async def _until_some_node_serves(world: World) -> None:
    """Without a node that serves, all that follows would look at nothing."""
    ends_at = world.now + ANSWER_S_MAX
    while not world.serving():
        if world.now >= ends_at:
            raise Violation(f"no node comes up: {few([str(node) for node in world.nodes[-2:]])}")
        world.raise_failures()
        await asyncio.sleep(POLL_S)


async def check_nothing_is_held(world: World) -> None:
    """Errors: Violation, which names what a node still holds."""
    for node in world.serving():
        # Compaction and checkpoints go on and take ids: those that are open now must close.
        opened = node.metadata.open_object_ids
        await _until_none(node, "object ids", partial(_still_open, opened))
        for what, held in _HELD.items():
            await _until_none(node, what, held)


def _still_open(opened: frozenset[int], node: Node) -> list[int]:
    return sorted(opened & node.metadata.open_object_ids)


_HELD: dict[str, Callable[[Node], object]] = {
    "bytes of room for appends": lambda node: node.engine.engine.budget.used_bytes,
    "appends that wait for room": lambda node: node.engine.engine.budget.waiters,
    "room given back early": lambda node: node.engine.engine.early_room.used_bytes,
    "bytes in tails": lambda node: node.engine.engine.tails.held_bytes,
    "streams with appends that wait": lambda node: [
        core.stream_id for core in node.engine.engine.cores.values() if core.queued
    ],
    "an alarm": lambda node: node.engine.not_ready_reason(),
    "open logs of topics that are gone": lambda node: _logs_without_topic(node.engine.logs),
}


def _logs_without_topic(logs: LogManager) -> list[TopicPartition]:
    """Of the topics whose partitions users open while others delete them."""
    return [
        partition
        for partition in DELETED_WHILE_OPENED
        if logs.topic(partition.topic) is None and logs.open_log(partition) is not None
    ]


async def _until_none(node: Node, what: str, held: Callable[[Node], object]) -> None:
    """Returns when `held(node)` is empty or 0, or the node has ended by itself."""
    ends_at = node.world.now + ANSWER_S_MAX
    while node.is_serving and not _has_ended(node) and (found := held(node)):
        if node.world.now >= ends_at:
            raise Violation(f"{node} holds {what} for calls that have ended: {found}")
        node.engine.engine.press()
        await asyncio.sleep(POLL_S)


def _has_ended(node: Node) -> bool:
    return node.engine.engine.failure is not None or node.metadata.is_fenced
