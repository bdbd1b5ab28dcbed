"""A machine with a log folder, and the process lifetimes of a node on it.

The node is LogFolder, UnifiedLogFactory, LogManager and, with tiers, RemoteLogManager, connected as
`streamlog.wiring` does; the KV store, the object store, the disk, the clock, randomness and threads
are the simulated world's.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from streamlog.engine.kv_client import EngineKVClient
from streamlog.errors import StreamlogError
from streamlog.log.api.config import LogConfig
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.leadership import Leadership
from streamlog.log.api.log_factory import LogFactories, LogKind
from streamlog.log.api.metrics import LogMetrics
from streamlog.log.manager import LogManager
from streamlog.runtime.offload import Lane
from streamlog.testing.simulation.local.folder import MachineFolder
from streamlog.testing.simulation.local.remote import RemoteSimulationStore
from streamlog.testing.simulation.world.environment import Environment
from streamlog.testing.simulation.world.incarnation import Incarnation, SimulationClock
from streamlog.testing.simulation.world.kv import SimulationKV
from streamlog.testing.simulation.world.offload import SimulationOffload
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.opening import TierRuntime
from streamlog.tiered.remote_log_manager import RemoteLogManager
from streamlog.unified.log_folder import FolderOwner, LogFolder
from streamlog.unified.unified_logs import UnifiedLogFactory
from streamlog.wiring.tiers import OpenedTiers, open_tiers

NODE_ID = 1
OWNER = FolderOwner("simulated", NODE_ID)
PREFIX = b"/sl/simulated/"
CLOCK_SKEW_MS = 2_000
"""Clocks are wrong by up to half of it."""
DISK_ACCESS_POLLS, DISK_ACCESS_POLL_S = 60, 0.0007
LOCAL_LOGS = LogConfig(retention_check_interval_ms=500, cleaner_backoff_ms=400)


class LogMachine:
    """A place for one node: its log folder outlives the processes."""

    def __init__(self, environment: Environment, tiers: RemoteLogConfig | None = None) -> None:
        """`tiers`: how its nodes keep remote tiers; None: they keep none."""
        self.environment = environment
        self.tiers = tiers
        self.folder = MachineFolder(environment, f"m{NODE_ID}")
        self._lives = 0

    def start_node(self) -> LogNode:
        self._lives += 1
        return LogNode(self, f"n{NODE_ID}.{self._lives}")


@dataclass(frozen=True, slots=True)
class OpenNode:
    """What runs in a process that is up."""

    folder: LogFolder
    logs: LogManager
    tiers: RemoteLogManager | None


class LogNode:
    """One process lifetime of a node."""

    def __init__(self, machine: LogMachine, name: str) -> None:
        self.machine = machine
        self.environment = environment = machine.environment
        self.incarnation = Incarnation(
            name, environment.loop, environment.fork(), environment.trace
        )
        self.clock = SimulationClock(environment.loop)
        self.set_clock()
        self._tree = machine.folder.attach()
        self._offload = SimulationOffload(self.incarnation, self._stall_s)
        self._parts: OpenNode | None = None
        self.is_paused = False
        self.is_closing = False

    def __repr__(self) -> str:
        return self.incarnation.name

    @property
    def is_up(self) -> bool:
        return self._parts is not None and self.incarnation.is_alive and not self.is_closing

    @property
    def is_replaced(self) -> bool:
        """Another process has the folder: its volume is attached there."""
        return not self._tree.is_attached

    @property
    def parts(self) -> OpenNode:
        """Of a node that is up."""
        assert self._parts is not None
        return self._parts

    @property
    def logs(self) -> LogManager:
        return self.parts.logs

    def set_clock(self) -> None:
        """Sets the wall clock to a time that is somewhat wrong."""
        if self.environment.faults.rates.clock_jump:
            self.clock.skew_ms = int((self.incarnation.random.random() - 0.5) * CLOCK_SKEW_MS)

    def _stall_s(self, _lane: Lane) -> float:
        return self.machine.folder.stall_s()

    async def open_until_up(self) -> None:
        """Opens the node; retries while disk or metadata fail."""
        while True:
            try:
                self._parts = await self._open()
            except StreamlogError as error:
                self.environment.trace.add("open-failed", repr(self), type(error).__name__)
                if not error.is_retryable and error.has_no_side_effects:
                    raise
                await asyncio.sleep(0.3 + self.incarnation.random.random())
                continue
            self.environment.trace.add("up", repr(self))
            return

    async def _open(self) -> OpenNode:
        world, process = self.environment, self.incarnation
        kv = EngineKVClient(SimulationKV(world.kv, process, world.faults), PREFIX)
        registry = CollectorRegistry()
        environment = LogEnvironment(
            self.clock, process.random, LOCAL_LOGS, LogMetrics(registry), self._offload
        )
        folder = await LogFolder.open(self._tree, OWNER, environment, self._offload, kv=kv)
        opened, tiers = None, None
        try:
            opened = await self._open_tiers(kv, registry)
            tiers = None if opened is None else opened.manager
            factories = LogFactories({LogKind.UNIFIED: UnifiedLogFactory(folder, tiers)})
            logs = await LogManager.open(factories, kv, environment, Leadership(NODE_ID))
        except BaseException:
            await folder.kill()
            if tiers is not None:
                await tiers.close()
            raise
        try:
            if opened is not None:
                await opened.start(logs)
        except BaseException:
            await logs.kill()
            await folder.kill()
            if tiers is not None:
                await tiers.close()
            raise
        return OpenNode(folder, logs, tiers)

    async def _open_tiers(
        self, kv: EngineKVClient, registry: CollectorRegistry
    ) -> OpenedTiers | None:
        config, world = self.machine.tiers, self.environment
        if config is None:
            return None
        store = RemoteSimulationStore(world.store, self.incarnation, world.faults)
        runtime = TierRuntime(
            self.clock, self.incarnation.random, self._offload, registry, self._tree, NODE_ID
        )
        return await open_tiers(store, kv, config, runtime)

    def pause(self) -> None:
        """The process stands still."""
        self.is_paused = True
        self.environment.trace.add("pause", repr(self))
        self.environment.loop.pause(self.incarnation)

    def resume(self) -> None:
        self.is_paused = False
        self.environment.trace.add("resume", repr(self))
        self.environment.loop.resume(self.incarnation)

    def crash(self, *, is_power_cut: bool = False) -> None:
        """Ends the process between two effects, or within its disk accesses; a power cut also tears
        what was not synced."""
        if self.incarnation.is_alive:
            self.incarnation.crash()
            if self.is_paused:
                self.resume()
            if not self.is_replaced:
                self.machine.folder.end(self._offload, is_power_cut=is_power_cut)

    async def crash_soon(self, *, is_power_cut: bool) -> None:
        """As `crash`, in a disk access if there is one before long."""
        for _ in range(DISK_ACCESS_POLLS):
            if self._offload.is_in_disk_access or not self.incarnation.is_alive:
                break
            await asyncio.sleep(DISK_ACCESS_POLL_S)
        self.crash(is_power_cut=is_power_cut)

    async def close(self, timeout_s: float) -> None:
        """Closes the node cleanly, or kills it when that takes too long."""
        if self.is_up:
            self.is_closing = True
            closing = self.incarnation.start(self._close(), name="close")
            done, _ = await asyncio.wait([closing], timeout=timeout_s)
            if done and not closing.cancelled():
                closing.result()
                self.environment.trace.add("closed", repr(self))
        self.crash()

    async def _close(self) -> None:
        parts = self.parts
        # What cannot be written is read again by the next open.
        with suppress(StreamlogError):
            await parts.logs.stop()
        with suppress(StreamlogError):
            await parts.folder.close()
        if parts.tiers is not None:
            await parts.tiers.close()
