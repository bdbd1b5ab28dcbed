"""A machine with its disk, and the process lifetimes of a node on it."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from prometheus_client import CollectorRegistry

import streamlog
from streamlog.compaction.collect.collector import CollectorConfig
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.coordinator.config import TransactionConfig
from streamlog.engine.config import (
    MIB,
    AppendConfig,
    FlushConfig,
    ObjectConfig,
    ReadConfig,
    StagingConfig,
    StreamEngineConfig,
    UploadConfig,
)
from streamlog.errors import Fenced, LineageFenced, StreamlogError
from streamlog.log.api.config import LogConfig
from streamlog.log.manager import LogManager
from streamlog.metadata.config import MetadataConfig
from streamlog.metadata.interface import Tenure
from streamlog.metadata.session import MetadataSession
from streamlog.runtime.offload import Lane
from streamlog.testing.simulation.world.environment import Environment
from streamlog.testing.simulation.world.incarnation import Incarnation, SimulationClock
from streamlog.testing.simulation.world.kv import SimulationKV
from streamlog.testing.simulation.world.machine_disk import MachineDisk
from streamlog.testing.simulation.world.offload import SimulationOffload
from streamlog.testing.simulation.world.store import SimulationStore
from streamlog.wal.config import WalConfig
from streamlog.wiring import Components, OpenEngine

CLOCK_SKEW_MS = 2_000
WILD_CLOCK_SKEW_MS = 120_000
KIB = 1 << 10

NODE_CONFIG = StreamEngineConfig(
    append=AppendConfig(append_bytes_max=MIB, drain_timeout_ms=3_000),
    flush=FlushConfig(flush_bytes_target=64 * KIB),
    upload=UploadConfig(upload_bytes_target=64 * KIB, upload_interval_ms=300),
    object=ObjectConfig(block_target_bytes=4 * KIB),
    read=ReadConfig(
        tail_cache_bytes=32 * KIB,
        block_cache_bytes=64 * KIB,
        index_cache_bytes=64 * KIB,
        small_object_bytes=12 * KIB,
    ),
    collector=CollectorConfig(deletion_delay_ms=9_000, collect_interval_ms=700, probed_ids=8),
    compaction=CompactionConfig(
        compaction_process="inline",
        compaction_interval_ms=500,
        small_objects_min=4,
        large_objects_min=3,
        small_object_bytes=24 * KIB,
        compacted_part_bytes=12 * KIB,
        stream_object_bytes_min=16 * KIB,
        object_bytes_max=48 * KIB,
        block_target_bytes=2 * KIB,
        spec_bytes_max=64 * KIB,
    ),
    wal=WalConfig(wal_bytes_max=512 * KIB, file_bytes=64 * KIB),
    staging=StagingConfig(expiry_ms=40_000, sweep_interval_ms=1_000),
    metadata=MetadataConfig(
        put_window=8,
        checkpoint_interval_ms=1_500,
        checkpoint_records=12,
        delta_bytes_min=512,
        block_cache_bytes=64 * KIB,
        orphan_resweep_ms=40_000,
        file_sweep_interval_ms=1_000,
        lineage_check_interval_ms=700,
    ),
)
"""Bounds so small that checkpoints, merges, cache misses, deletions and WAL reuse all happen within
the seconds of one history. The deletion delay outlasts every late PUT and zombie: an object that
lands later stays for ever, in a real store too."""
CRAMPED_CONFIG = ReadConfig(
    tail_cache_bytes=16 * KIB,
    block_cache_bytes=16 * KIB,
    index_cache_bytes=4 * KIB,
    catch_up_bytes_per_s_min=16 * KIB,
    catch_up_piece_bytes=KIB,
    catch_up_wait_ms_max=400,
    small_object_bytes=2 * KIB,
    get_piece_bytes=2 * KIB,
)
"""Caches that hold next to nothing: fetches go to the store again and again, throttled and piece by
piece."""
DUEL_CONFIG = replace(
    NODE_CONFIG,
    compaction=replace(
        NODE_CONFIG.compaction,
        compaction_interval_ms=100,
        compaction_rate_max_bytes_per_s=64 * KIB,
        small_objects_min=2,
        large_objects_min=2,
    ),
)
"""Merges are frequent and slow, so that two nodes run the same merge."""
SPARE_APPEND_BYTES = 24 * KIB
SPARE_TAIL_BYTES = 64 * KIB
NODE_LOGS = LogConfig(
    checkpoint_interval_batches=7,
    meta_compaction_bytes=2 * KIB,
    retention_check_interval_ms=1_000,
    message_bytes_max=1_200,
    cleaner_backoff_ms=400,
)
"""The message limit is so small that a write to a meta stream often takes several appends."""
NODE_TRANSACTIONS = TransactionConfig(state_partitions=2, abort_interval_ms=400)


def with_spare_room(config: StreamEngineConfig) -> StreamEngineConfig:
    """A small append budget, part of which uploaded batches give back before their commit."""
    return replace(
        config,
        append=replace(config.append, append_bytes_max=SPARE_APPEND_BYTES),
        flush=replace(config.flush, flush_bytes_target=4 * KIB),
        read=replace(config.read, tail_cache_bytes=SPARE_TAIL_BYTES),
    )


class Machine:
    """A place for one node: its id and its disk outlive the processes."""

    def __init__(self, environment: Environment, node_id: int, config: StreamEngineConfig) -> None:
        self.environment = environment
        self.node_id = node_id
        self.config = config
        self.disk = MachineDisk(environment, node_id)
        self._nodes: list[SimulationNode] = []

    def start_node(self) -> SimulationNode:
        """A new process; earlier ones that still run are zombies from now on."""
        for node in self._nodes:
            node.is_replaced = True
        node = SimulationNode(self, f"n{self.node_id}.{len(self._nodes) + 1}")
        self._nodes.append(node)
        return node


class SimulationNode:
    """One process lifetime of a node."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine = machine
        self.environment = environment = machine.environment
        self.incarnation = Incarnation(
            name, environment.loop, environment.fork(), environment.trace
        )
        self.clock = SimulationClock(environment.loop)
        self._set_skew()
        self.offload = SimulationOffload(self.incarnation, self._stall_s, environment.wal_s)
        self.engine: OpenEngine
        self.is_replaced = False
        self.is_paused = False
        self.is_detached = False
        """It runs on metadata that a recovery replaces: its answers no longer count."""
        self._kv_at_start = environment.kv
        self._opened: AbstractAsyncContextManager[OpenEngine] | None = None
        self._is_closing = False
        self.take_overs = 0
        """Of other nodes' streams, so far."""

    def __repr__(self) -> str:
        return self.incarnation.name

    @property
    def name(self) -> str:
        return self.incarnation.name

    @property
    def is_up(self) -> bool:
        return self._opened is not None and self.incarnation.is_alive and not self._is_closing

    @property
    def is_serving(self) -> bool:
        """Up, and as far as clients know the process that runs as this node."""
        return self.is_up and not (self.is_replaced or self.is_paused or self.is_detached)

    @property
    def has_ended(self) -> bool:
        """By itself: its engine failed, or another process took its place."""
        return self.engine.engine.failure is not None or self.metadata.is_fenced

    @property
    def metadata(self) -> MetadataSession:
        metadata = self.engine.metadata
        assert isinstance(metadata, MetadataSession)
        return metadata

    @property
    def logs(self) -> LogManager:
        """Of a node that is up."""
        return self.engine.logs

    async def take_over(self, tenure: Tenure) -> None:
        """As MetadataSession.take_over."""
        try:
            await self.metadata.take_over(tenure)
        finally:
            self.take_overs += 1  # After an error, too: it may have been made.

    @property
    def tenure(self) -> Tenure | None:
        return self.engine.metadata.tenure if self._opened is not None else None

    def set_clock(self) -> None:
        """The nemesis sets the wall clock."""
        self._set_skew()
        self.environment.trace.add("clock-jump", self.name, self.clock.skew_ms)

    def _set_skew(self) -> None:
        width_ms = WILD_CLOCK_SKEW_MS if self.environment.has_wild_clocks else CLOCK_SKEW_MS
        if self.environment.faults.rates.clock_jump:
            self.clock.skew_ms = int((self.incarnation.random.random() - 0.5) * width_ms)

    def _stall_s(self, lane: Lane) -> float:
        return self.machine.disk.stall_s()

    async def open_until_up(self) -> OpenEngine:
        """Opens the engine; retries while store or metadata are away."""
        while True:
            kv = self.environment.kv
            opening = self._open()
            try:
                self.engine = await opening.__aenter__()
            except StreamlogError as error:
                self.environment.trace.add("open-failed", self.name, type(error).__name__)
                if isinstance(error, LineageFenced):
                    # A recovery is about to give it the newer metadata.
                    await asyncio.sleep(0.5)
                    continue
                if not error.is_retryable and error.has_no_side_effects:
                    if isinstance(error, Fenced) and self.is_replaced:
                        await asyncio.get_running_loop().create_future()
                    raise
                await asyncio.sleep(0.5 + self.incarnation.random.random())
                continue
            self._opened = opening
            if kv is not self._kv_at_start:
                # It opened on what a recovery made, which ended meanwhile.
                self.is_detached = False
            self.environment.trace.add("up", self.name, str(self.tenure))
            return self.engine

    def _open(self) -> AbstractAsyncContextManager[OpenEngine]:
        environment, node = self.environment, self.incarnation
        return streamlog.open(
            "memory://",
            wal=environment.wal,
            node_id=self.machine.node_id,
            config=self.machine.config,
            logs=NODE_LOGS,
            transactions=NODE_TRANSACTIONS,
            components=Components(
                clock=self.clock,
                random=node.random,
                offload=self.offload,
                registry=CollectorRegistry(),
                store=SimulationStore(environment.store, node, environment.faults),
                kv=SimulationKV(environment.kv, node, environment.faults),
                disk=self.machine.disk.disk if environment.wal == "disk" else None,
                markers=environment.markers,
            ),
        )

    def pause(self) -> None:
        """The process stands still; other nodes may take it for dead."""
        self.is_paused = True
        self.environment.trace.add("pause", self.name)
        self.environment.loop.pause(self.incarnation)

    def resume(self) -> None:
        self.is_paused = False
        self.environment.trace.add("resume", self.name)
        self.environment.loop.resume(self.incarnation)

    def crash(self, *, is_power_cut: bool = False) -> None:
        """Ends the process between two effects; a power cut also tears unsynced writes."""
        if self.incarnation.is_alive:
            self.incarnation.crash()
            if self.is_paused:
                self.resume()
            if is_power_cut:
                self.machine.disk.cut_power(self.offload)
                self.machine.disk.crash()
            else:
                self.machine.disk.disk.restart()

    async def close(self, timeout_s: float = 1e9) -> None:
        """Closes the node cleanly, or kills it when that takes too long."""
        if self._opened is not None and not self._is_closing:
            self._is_closing = True
            closing = self.incarnation.start(self._opened.__aexit__(None, None, None), name="close")
            done, _ = await asyncio.wait([closing], timeout=timeout_s)
            if done and not closing.cancelled():
                error = closing.exception()
                if error is not None and not isinstance(error, StreamlogError):
                    raise error
                self.environment.trace.add("closed", self.name)
                self.incarnation.end()
                self.machine.disk.disk.restart()
        self.crash()
