"""A node of a machine with a log folder that has a whole engine, too.

Its shared logs lie in the object store, and with them `__remote_log_metadata`: so a node that lives
on without its disk still reads the metadata of remote segments, and is refused when it writes.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace

from prometheus_client import CollectorRegistry

import streamlog
from streamlog.errors import StreamlogError
from streamlog.testing.simulation.local.node import (
    LOCAL_LOGS,
    NODE_ID,
    LogMachine,
    LogNode,
    OpenNode,
)
from streamlog.testing.simulation.world.kv import SimulationKV
from streamlog.testing.simulation.world.node import NODE_CONFIG, NODE_LOGS
from streamlog.testing.simulation.world.store import SimulationStore
from streamlog.wiring import Components, OpenEngine

ENGINE_LOGS = replace(
    NODE_LOGS,
    retention_check_interval_ms=LOCAL_LOGS.retention_check_interval_ms,
    message_bytes_max=4 << 10,
)


class EngineMachine(LogMachine):
    """Its nodes keep the metadata of remote segments in a topic."""

    def start_node(self) -> LogNode:
        self._lives += 1
        return EngineNode(self, f"n{NODE_ID}.{self._lives}")


class EngineNode(LogNode):
    _opened: AbstractAsyncContextManager[OpenEngine] | None = None

    async def _open(self) -> OpenNode:
        world, process = self.environment, self.incarnation
        opening = streamlog.open(
            "memory://",
            wal="object",
            node_id=NODE_ID,
            config=NODE_CONFIG,
            logs=ENGINE_LOGS,
            tiers=self.machine.tiers,
            components=Components(
                clock=self.clock,
                random=process.random,
                offload=self._offload,
                registry=CollectorRegistry(),
                store=SimulationStore(world.store, process, world.faults),
                kv=SimulationKV(world.kv, process, world.faults),
                log_tree=self._tree,
            ),
        )
        engine = await opening.__aenter__()
        self._opened = opening
        assert engine.log_folder is not None
        return OpenNode(engine.log_folder, engine.logs, engine.tiers)

    async def _close(self) -> None:
        assert self._opened is not None
        # What cannot be written is read again by the next open.
        with suppress(StreamlogError):
            await self._opened.__aexit__(None, None, None)
