"""A recovery: the metadata is rebuilt from the bucket while nodes still run on the old metadata.

Nodes on the old metadata go on for a while: they append, merge, checkpoint and delete, until they
notice the newer lineage. Records that they acknowledged before the recovery listed the bucket for
the last time must be there afterwards, and they must not delete objects of the new metadata.
Acknowledgements after that listing count as unknown: a node that was paused, or whose look at the
lineage takes long, may acknowledge records that the new metadata never sees.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from streamlog.errors import Conflict, Corrupt
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.objectstore.interface import ListPage, ObjectInfo, ObjectStore
from streamlog.objectstore.keys import CLUSTER_KEY
from streamlog.repair.recover.recover import RecoverOptions, recover
from streamlog.runtime.buffers import Buffer
from streamlog.testing.simulation.world.incarnation import SimulationClock
from streamlog.testing.simulation.world.offload import InlineOffload
from streamlog.testing.simulation.world.world import World

GRACE_MS = 3_000
"""Several times as long as a node's look at the lineage takes, unless the store is away."""
OLD_NODES_LIVE_S = 25.0
"""Longer than the deletion delay, within which an old node deletes what it takes for dead."""


class MetadataLoss:
    """One recovery in the middle of a history with `wal=object`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.fork()

    async def run(self, has_data: Callable[[], bool], replaced: Callable[[], None]) -> None:
        """Recovers once `has_data()`, and calls `replaced` at the moment of the change."""
        world = self._world
        while True:
            await asyncio.sleep(5 * self._random.random())
            if has_data():
                break
        while True:
            kv = MemoryKVStore(SimulationClock(world.loop))
            world.trace.add("recovery")
            has_checkpoint = bool((await world.store.list("checkpoint/")).objects)
            try:
                await recover(
                    kv,
                    _Watched(world.store, self._detach),
                    clock=SimulationClock(world.loop),
                    random=world.fork(),
                    offload=InlineOffload(),
                    options=RecoverOptions(grace_ms=GRACE_MS),
                )
            except Conflict as error:
                # A node stored something meanwhile.
                world.trace.add("recovery-refused", str(error))
                await asyncio.sleep(1.0)
            except Corrupt as error:
                if has_checkpoint:
                    raise
                # Before the first checkpoint a gap may be a trim: a person has to decide.
                world.trace.add("recovery-refused", str(error))
                await asyncio.sleep(1.0)
            else:
                break
        world.tally.count("recover")
        world.replace_metadata(kv)
        replaced()

    def _detach(self) -> None:
        """Called when the recovery lists the bucket for the last time."""
        for node in self._world.nodes:
            node.is_detached = True


class _Watched:
    """The bucket; calls `listed` when it is listed after its lineage was raised."""

    def __init__(self, store: ObjectStore, listed: Callable[[], None]) -> None:
        self._store = store
        self._listed = listed
        self._is_raised = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put_if_match(self, key: str, parts: Sequence[Buffer], etag: str) -> ObjectInfo:
        self._is_raised |= key == CLUSTER_KEY
        return await self._store.put_if_match(key, parts, etag)

    async def list(self, *arguments: Any, **options: Any) -> ListPage:
        if self._is_raised:
            self._listed()
        return await self._store.list(*arguments, **options)
