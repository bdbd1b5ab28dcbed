"""Creations of streams and topics that their callers abandon, or that are refused.

Such a creation may leave unopened streams behind, and nothing else: no waiting call, and no object
id that is neither committed nor given up (64 of them stop all uploads of a node).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from streamlog.errors import AlreadyExists, Invalid, UnknownTopicOrPartition
from streamlog.model.batch import CreateStreamOptions, RecordBatch
from streamlog.testing.simulation.checker import Violation
from streamlog.testing.simulation.workloads.streams import PASSING, run_sessions
from streamlog.testing.simulation.world.node import SimulationNode
from streamlog.testing.simulation.world.world import World

GIVEN_UP_TAG = {"life": "given up"}
TAG_BYTES = 1000
STREAMS_TOO_MANY = 600
"""So many, with tags of TAG_BYTES, are too large for one commit record."""
TOPICS = 3
"""Names that topics share, so that a creation meets what an abandoned one left."""


class AbandonedCreates:
    """Creates streams with first batches, and topics, and cancels most creations midway."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.fork()

    def sessions(self) -> Coroutine[Any, Any, None]:
        return run_sessions(self._world, self._random, self._session, "creates")

    async def _session(self, node: SimulationNode) -> None:
        random = self._random.random
        while True:
            await asyncio.sleep(3 * random())
            draw = random()
            try:
                if draw < 0.5:
                    await self._give_up(self._streams(node))
                elif draw < 0.8:
                    await self._give_up(self._topic(node))
                else:
                    await self._refused(node, is_large=random() < 0.2)
            except PASSING as error:
                self._world.trace.add("create-failed", node.name, type(error).__name__)

    async def _give_up(self, work: Coroutine[Any, Any, None]) -> None:
        """Cancels the caller at a random moment, unless the work ends first."""
        self._world.tally.count("given up create")
        task = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.wait([task], timeout=0.2 * self._random.random())
        finally:
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _streams(self, node: SimulationNode) -> None:
        count = 1 + int(3 * self._random.random())
        await node.engine.streams.create_and_open_streams(
            [CreateStreamOptions(GIVEN_UP_TAG)] * count, _first_batches
        )

    async def _topic(self, node: SimulationNode) -> None:
        name = f"given-up{int(TOPICS * self._random.random())}"
        logs = node.engine.logs
        if logs.topic(name) is not None and self._random.random() < 0.5:
            work: Coroutine[Any, Any, object] = logs.delete_topic(name)
        else:
            work = logs.create_topic(name, 2, {})
        # Another node may have made it or deleted it, and this one's watch be late to tell.
        with suppress(AlreadyExists, UnknownTopicOrPartition):
            await work

    async def _refused(self, node: SimulationNode, *, is_large: bool) -> None:
        """Creates streams with a batch for another stream, or more streams than a commit holds."""
        self._world.tally.count("refused create")
        streams = node.engine.streams
        try:
            with self._world.waiting(node, "refused create"):
                if is_large:
                    tags = {"tag": "x" * TAG_BYTES}
                    await streams.create_and_open_streams(
                        [CreateStreamOptions(tags)] * STREAMS_TOO_MANY, _first_batches
                    )
                else:
                    await streams.create_and_open_streams(
                        [CreateStreamOptions(GIVEN_UP_TAG)],
                        lambda ids: [(ids[0] + 1, RecordBatch(1, 0, (b"x",)))],
                    )
        except Invalid:
            return
        raise Violation(f"{node} created streams that it should have refused")


def _first_batches(ids: Sequence[int]) -> list[tuple[int, RecordBatch]]:
    return [(stream_id, RecordBatch(1, 0, (b"first",))) for stream_id in ids]
