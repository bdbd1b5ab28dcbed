"""Observers: workloads beside the owners of streams. Short-lived streams and topics, readers that
go to the store themselves under a pin, and takeovers from dead nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from streamlog.errors import (
    AlreadyExists,
    ObjectNotFound,
    StreamlogError,
    StreamNotFound,
    UnknownTopicOrPartition,
)
from streamlog.kvstore.interface import Put
from streamlog.metadata.keys import pin
from streamlog.metadata.keys.space import prefix_of
from streamlog.model.batch import CreateStreamOptions, RecordBatch
from streamlog.model.partition import TopicPartition
from streamlog.objectstore.keys import data_key
from streamlog.testing.simulation.checker import Violation
from streamlog.testing.simulation.workloads.streams import PASSING, note_failure, run_sessions
from streamlog.testing.simulation.world.node import SimulationNode
from streamlog.testing.simulation.world.world import World

SHORT_TOPIC = "short"
SHORT_TAG = {"life": "short"}
DELETED_WHILE_OPENED = (TopicPartition(SHORT_TOPIC, 0),)
PIN_TTL_MS = 60_000
PINNED_S_MAX = 25.0


class ShortLivedWorkload:
    """Creates streams and topics, uses them a little, and deletes them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.fork()
        self._topics = 0

    def sessions(self) -> Coroutine[Any, Any, None]:
        return run_sessions(self._world, self._random, self._session, "short-lives")

    async def _session(self, node: SimulationNode) -> None:
        while True:
            await asyncio.sleep(2 * self._random.random())
            try:
                if self._random.random() < 0.7:
                    await self._stream(node)
                else:
                    await self._topic(node)
            except PASSING as error:
                self._world.trace.add("short-life-failed", node.name, type(error).__name__)
                await asyncio.sleep(0.5)

    async def _stream(self, node: SimulationNode) -> None:
        tally, streams = self._world.tally, node.engine.streams
        payload = self._random.bytes(8)
        tally.count("create")
        first = RecordBatch(1, 0, (payload,))
        with self._world.waiting(node, "creation of a short-lived stream"):
            (stream,) = await streams.create_and_open_streams(
                [CreateStreamOptions(SHORT_TAG)], lambda ids: [(ids[0], first)]
            )
        tally.count("append")
        with self._world.waiting(node, f"append to {stream}"):
            await stream.append(first)
        for offset in (0, 1):
            tally.count("fetch")
            with self._world.waiting(node, f"fetch of {stream}"):
                batch = (await stream.fetch(offset, 2, 1 << 16)).batches[0]
            if batch.base_offset != offset or bytes(b"".join(batch.parts)) != payload:
                raise Violation(f"{stream}: two batches were stored, {batch} is at {offset}")
        tally.count("delete")
        with self._world.waiting(node, f"deletion of {stream}"):
            await streams.delete_stream(stream.stream_id)
        try:
            await streams.open_stream(stream.stream_id)
        except StreamNotFound:
            return
        raise Violation(f"{stream} was deleted and still exists")

    async def _topic(self, node: SimulationNode) -> None:
        tally, logs = self._world.tally, node.engine.logs
        # Every other topic has the same name, so that late requests meet the next topic.
        is_next = self._topics % 2 == 1
        name = SHORT_TOPIC if is_next else f"{SHORT_TOPIC}{self._topics}"
        self._topics += 1
        tally.count("create topic")
        try:
            with self._world.waiting(node, f"creation of topic {name}"):
                await logs.create_topic(name, 1, {})
        except AlreadyExists:
            if not is_next:
                return  # created by an attempt whose answer was lost
        await asyncio.sleep(0.5 * self._random.random())
        if is_next and self._random.random() < 0.5:
            self._open_beside(node, TopicPartition(name, 0))
            await asyncio.sleep(0.05 * self._random.random())
        tally.count("delete topic")
        try:
            with self._world.waiting(node, f"deletion of topic {name}"):
                await logs.delete_topic(name)
        except UnknownTopicOrPartition as error:
            if not is_next:
                raise Violation(f"topic {name} was created and does not exist") from error

    def _open_beside(self, node: SimulationNode, partition: TopicPartition) -> None:
        """A client opens the partition while its topic is deleted."""

        async def ask() -> None:
            try:
                with self._world.waiting(node, f"open of {partition}"):
                    await node.engine.logs.log(partition)
            except (*PASSING, UnknownTopicOrPartition) as error:
                self._world.trace.add("short-open-failed", node.name, type(error).__name__)

        task = asyncio.get_running_loop().create_task(ask())
        task.add_done_callback(partial(note_failure, self._world, node))
        self._world.sessions.append(task)


class PinnedReadWorkload:
    """Plans a read under a pin, then goes to the store itself: planned objects must stay."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.fork()
        self._pins = 0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.5 + 3 * self._random.random())
            serving = self._world.serving()
            if serving:
                await self._read(serving[int(self._random.random() * len(serving))])

    async def _read(self, node: SimulationNode) -> None:
        kv, world = self._world.kv, self._world
        prefix = prefix_of(node.engine.metadata.cluster_id)
        lease_id = await kv.grant_lease(PIN_TTL_MS)
        self._pins += 1
        revision = node.engine.metadata.revision
        name = b"reader%d" % self._pins
        value = pin.encode(pin.Pin(revision, "reader"))
        put = await kv.txn((), (Put(pin.key(prefix, name), value, lease_id),))
        # A plan from before the pin may name objects that were dead already. So the plan is made by
        # a node that has folded up to the pin.
        planning = node.incarnation.start(self._plan(node), name="plan")
        await asyncio.wait([planning], timeout=10.0)
        if not planning.done() or planning.cancelled() or put.revision < revision:
            planning.cancel()
        elif planning.exception() is None:
            world.trace.add("pinned", node.name, revision, str(planning.result()))
            world.tally.count("pinned read")
            await asyncio.sleep(PINNED_S_MAX * self._random.random())
            await self._get(planning.result(), revision)
        elif not isinstance(planning.exception(), StreamlogError):
            planning.result()
        await kv.revoke_lease(lease_id)

    async def _plan(self, node: SimulationNode) -> list[int]:
        metadata = node.metadata
        await metadata.catch_up()
        object_ids: set[int] = set()
        for row in metadata.streams():
            if row.end > row.start:
                ranges = await metadata.locate(row.stream_id, row.start, row.end)
                object_ids.update(live.object.object_id for live in ranges)
        return sorted(object_ids)

    async def _get(self, object_ids: list[int], revision: int) -> None:
        for object_id in object_ids:
            try:
                await self._world.store.head(data_key(object_id))
            except ObjectNotFound as error:
                raise Violation(
                    f"object {object_id} was deleted under a pin at revision {revision}"
                ) from error


class FailoverWorkload:
    """Takes over all streams of nodes that are dead or paused."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.fork()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(1 + 4 * self._random.random())
            serving = self._world.serving()
            lost = [
                node
                for node in self._world.nodes
                if node.tenure is not None and (not node.incarnation.is_alive or node.is_paused)
            ]
            if serving and lost:
                heir = serving[int(self._random.random() * len(serving))]
                dead = lost[-1 - int(self._random.random() * min(3, len(lost)))]
                if dead.machine is not heir.machine:
                    task = heir.incarnation.start(self._take_over(heir, dead), name="take-over")
                    await asyncio.wait([task], timeout=20)
                    if task.done() and not task.cancelled():
                        task.result()

    async def _take_over(self, heir: SimulationNode, dead: SimulationNode) -> None:
        tenure = dead.tenure
        assert tenure is not None
        self._world.tally.count("take over")
        try:
            await heir.take_over(tenure)
        except PASSING as error:
            self._world.trace.add("take-over-failed", heir.name, dead.name, type(error).__name__)
        else:
            self._world.trace.add("took-over", heir.name, dead.name)
