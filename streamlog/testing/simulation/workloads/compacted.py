"""A compacted shared topic: the cleaner runs on it while nodes die, stores fail and leaders move.

1. The clients are those of topics in local files: producers with and without an id, transactional
   ones, readers of both isolation levels; their records have keys, and some have no value.
2. A controller tells the nodes which of them leads the partition, and moves it, also from a node
   that cleans at that moment.
3. A reader of slices asks where the log's records lie in streams, and reads these past the log, for
   as long as a replaced slice has to stay.
4. After healing, a cleaning of all that is closed has to leave what was promised, twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from streamlog.errors import (
    AlreadyExists,
    Conflict,
    DeadlinePassed,
    LineageFenced,
    OffsetOutOfRange,
    OutcomeUnknown,
    StreamFenced,
    StreamNotFound,
    TenureFenced,
    Unavailable,
    UnknownTopicOrPartition,
    WalPending,
)
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.cleaning import CleanableLog
from streamlog.log.stream_slices import LiesOnStreams, LogSlice
from streamlog.model.batch import OpenStreamOptions
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer
from streamlog.testing.simulation.checker import Violation, few
from streamlog.testing.simulation.numbered.cleaned_reads import check_read
from streamlog.testing.simulation.numbered.clients import (
    Operation,
    PartitionClients,
    ServingNode,
    observed,
)
from streamlog.testing.simulation.numbered.model import NumberedBatch, NumberedLogModel
from streamlog.testing.simulation.workloads.logs import log_at_last
from streamlog.testing.simulation.workloads.streams import POLL_S, note_failure
from streamlog.testing.simulation.workloads.transactions.leaders import SimulationLeaders
from streamlog.testing.simulation.workloads.transactions.network import Network
from streamlog.testing.simulation.world.node import (
    CLOCK_SKEW_MS,
    WILD_CLOCK_SKEW_MS,
    SimulationNode,
)
from streamlog.testing.simulation.world.world import World

TOPIC = "compacted"
WITH_STATE = ("idempotent", "transactional")
"""Clients that wait for the end of a call, as a coordinator does, wherever it goes on."""
EAGER = {"min.cleanable.dirty.ratio": "0", "min.compaction.lag.ms": "0"}
"""With these settings all that is closed is cleaned, however little it is."""
CLEANED_S_MAX = 30.0
"""Virtual seconds within which a healed node has come further with it."""
TRIMMED_S_MAX = 10.0
"""Virtual seconds, beyond the delay, after which a replaced slice is gone."""
DELETED_S_MAX = 120.0
PASSING = (
    Unavailable,
    OutcomeUnknown,
    StreamFenced,
    TenureFenced,
    LineageFenced,
    Conflict,
    WalPending,
    DeadlinePassed,
)
"""Errors of a node that was replaced or is short of something. A fenced producer is not among them:
each producer here has one client."""


class SharedClients(PartitionClients):
    """Clients of a partition that several nodes lead, one after the other."""

    passing = PASSING
    epoch_max = 0
    """Of the logs that clients were given."""

    def note(self, log: AbstractLog) -> None:
        """A client was given the log."""
        self.epoch_max = max(self.epoch_max, log.leader_epoch)

    def is_current(self, node: ServingNode, log: AbstractLog) -> bool:
        is_newest = log.leader_epoch == self.epoch_max
        return is_newest and node.is_up and node.logs.open_log(self.partition) is log

    def check_forgotten(self, node: ServingNode, log: AbstractLog, batch: NumberedBatch) -> None:
        """Producers are remembered in streams of their own, whatever a cleaning takes."""
        if self.is_current(node, log):
            raise Violation(f"{self.model.name}: {batch} is out of order, and was sent in order")


class CompactedWorkload:
    """Everything that happens to the topic."""

    def __init__(self, world: World, node_ids: Sequence[int]) -> None:
        self._world = world
        self._random = world.fork()
        self._network = Network(world, world.fork())
        self._partition = TopicPartition(TOPIC, 0)
        self._leaders = SimulationLeaders(
            world, self._network, world.fork(), node_ids, [self._partition]
        )
        self._settings = self._draw_settings()
        self._delay_s = int(self._settings["file.delete.delay.ms"]) / 1000
        skew_ms = WILD_CLOCK_SKEW_MS if world.has_wild_clocks else CLOCK_SKEW_MS
        model = NumberedLogModel(
            str(self._partition),
            True,
            skew_ms + 1,
            int(self._settings["delete.retention.ms"]),
            int(self._settings["min.compaction.lag.ms"]),
        )
        self._clients = SharedClients(world, world.tally, self._partition, model)
        self._under_way: set[asyncio.Task[None]] = set()

    def _draw_settings(self) -> dict[str, str]:
        random = self._random.random
        return {
            "cleanup.policy": "compact",
            "internal.segment.bytes": "900",
            "index.interval.bytes": "200",
            "min.cleanable.dirty.ratio": ("0.01", "0.3", "0.5")[int(random() * 3)],
            "delete.retention.ms": ("0", "2500", "60000")[int(random() * 3)],
            "min.compaction.lag.ms": ("0", "0", "6000")[int(random() * 3)],
            "file.delete.delay.ms": ("0", "400", "3000")[int(random() * 3)],
        }

    def works(self) -> list[Coroutine[Any, Any, None]]:
        """What the history runs until it ends."""
        operations = {**self._clients.operations(), "slices": (0.8, self._read_slices)}
        works = [self._leaders.run(), self._make()]
        works += [
            self._use(name, pause_s, operation) for name, (pause_s, operation) in operations.items()
        ]
        return works

    async def settle(self) -> None:
        """After the works have ended: nothing that they began goes on."""
        for task in list(self._under_way):
            task.cancel()
        self._network.cancel()
        await self._leaders.settle()

    # Clients

    async def _use(self, name: str, pause_s: float, operation: Operation) -> None:
        """One operation after another, each where the leader is."""
        random = self._world.fork().random
        while True:
            await asyncio.sleep(pause_s * random())
            node = self._leaders.node_of(self._partition)
            if node is None or not self._clients.is_made:
                continue
            task = node.incarnation.start(self._once(node, name, operation), name=name)
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
            task.add_done_callback(partial(note_failure, self._world, node))
            while not task.done() and (node.is_serving or name.startswith(WITH_STATE)):
                await asyncio.wait([task], timeout=POLL_S)
            if not task.done():
                self._clients.give_up(name)

    async def _once(self, node: SimulationNode, name: str, operation: Operation) -> None:
        try:
            with self._world.waiting(node, f"{name} of {self._partition}"):
                log = await node.logs.log(self._partition)
                self._clients.note(log)
                await operation(node, log)
        except (*PASSING, UnknownTopicOrPartition) as error:
            self._world.trace.add("failed", repr(node), str(self._partition), type(error).__name__)
            await asyncio.sleep(0.05 + 0.2 * self._random.random())

    async def _make(self) -> None:
        """Creates the topic."""
        while not self._clients.is_made:
            await asyncio.sleep(0.1)
            node = self._leaders.node_of(self._partition)
            if node is not None:
                task = node.incarnation.start(self._create(node), name="create")
                task.add_done_callback(partial(note_failure, self._world, node))
                await asyncio.wait([task])
        await asyncio.get_running_loop().create_future()

    async def _create(self, node: SimulationNode) -> None:
        self._world.tally.count("create topic")
        try:
            with self._world.waiting(node, f"creation of {TOPIC}"):
                await node.logs.create_topic(TOPIC, 1, self._settings)
        except AlreadyExists:
            pass
        except PASSING as error:
            self._world.trace.add("create-failed", repr(node), type(error).__name__)
            return
        self._clients.is_made = True

    # Slices

    async def _read_slices(self, node: ServingNode, log: AbstractLog) -> None:
        """Reads the log from streams, as of a moment ago."""
        assert isinstance(log, LiesOnStreams)
        assert isinstance(node, SimulationNode)
        world, model, taken_at = self._world, self._clients.model, self._world.now
        start, end = log.log_start_offset, log.last_stable_offset
        if start == end:
            return
        view = log.slices_view()
        await asyncio.sleep(self._delay_s * self._random.random())
        world.tally.count("read slices")
        parts: list[Buffer] = []
        try:
            aborted = await view.aborted(start, end)
            for part in view.slices(start, end):
                parts += await self._read_slice(node, part)
        except (OffsetOutOfRange, StreamNotFound) as error:
            is_late = world.now >= taken_at + self._delay_s
            if not is_late and node.is_serving and self._clients.is_current(node, log):
                raise Violation(f"{model.name}: a slice went {self._delay_s} s early") from error
            return
        batches = observed(parts, [one[1::-1] for one in aborted])
        following = model.read(batches, start)
        if following < end:
            raise Violation(f"{model.name}: slices up to {end} have nothing from {following} on")
        check_read(model, batches, start, end, world.now_ms)

    async def _read_slice(self, node: SimulationNode, part: LogSlice) -> list[Buffer]:
        row = node.metadata.stream(part.stream_id)
        if row is None or row.holder != node.tenure:
            raise Unavailable(f"stream {part.stream_id} is held elsewhere")
        options = OpenStreamOptions(epoch=row.epoch)
        stream = await node.engine.streams.open_stream(part.stream_id, options)
        position, end = part.start + part.shift, part.end + part.shift
        parts: list[Buffer] = []
        while position < end:
            read = await stream.fetch(position, end, 1 << 16)
            parts += [piece for batch in read.batches for piece in batch.parts]
            position = read.batches[-1].end_offset
        return parts

    # The end

    async def check(self, node: SimulationNode) -> None:
        """After healing: nothing stays unanswered, all that is closed is cleaned, and everything
        is read."""
        if not self._clients.is_made and node.logs.topic(TOPIC) is None:
            return
        self._leaders.lead_all(node)
        while True:
            log = await log_at_last(node, lambda at: at.logs.log(self._partition))
            self._clients.note(log)
            try:
                await self._clients.end_all(node, log)
                await log.roll()
                await node.logs.alter_topic_configs(TOPIC, set=EAGER)
                break
            except PASSING:
                await asyncio.sleep(0.5)
        self._clients.model.lag_ms = 0
        await self._await_cleaned(node, log)
        await self._clients.check(node, log)
        await self._check_trimmed(node, log)

    async def _await_cleaned(self, node: SimulationNode, log: AbstractLog) -> None:
        """Of each key one record is left."""
        assert isinstance(log, CleanableLog)
        ends_at, reached = 0.0, (-1, -1)
        while left := await self._clients.superseded(node, log):
            if reached != (reached := (log.clean_end_offset, len(log.segments))):
                ends_at = self._world.now + CLEANED_S_MAX
            if self._world.now >= ends_at:
                raise Violation(f"{self._partition} is not cleaned: {few(left)}")
            await asyncio.sleep(0.5)

    async def _check_trimmed(self, node: SimulationNode, log: AbstractLog) -> None:
        """Streams begin where the log's slices do: replaced ones before them have gone."""
        assert isinstance(log, LiesOnStreams)
        ends_at = self._world.now + self._delay_s + TRIMMED_S_MAX
        while kept := self._kept(node, log):
            if self._world.now >= ends_at:
                raise Violation(f"{self._partition} keeps what it has replaced: {few(kept)}")
            await asyncio.sleep(0.5)

    def _kept(self, node: SimulationNode, log: LiesOnStreams) -> list[str]:
        starts: dict[int, int] = {}
        for segment in log.slices_view().segments:
            data = segment.data
            starts[data.stream_id] = min(starts.get(data.stream_id, 1 << 62), data.start_offset)
        rows = [(node.metadata.stream(stream_id), start) for stream_id, start in starts.items()]
        return [f"{row}, not {start}" for row, start in rows if row and row.start < start]

    async def check_deleted(self, node: SimulationNode) -> None:
        """After the topic's deletion none of its streams stays."""
        ends_at = self._world.now + DELETED_S_MAX
        while left := await self._streams_left(node):
            if self._world.now >= ends_at:
                raise Violation(f"{TOPIC} was deleted, and streams stay: {few(left)}")
            await asyncio.sleep(1.0)

    async def _streams_left(self, node: SimulationNode) -> list[str]:
        found = await node.engine.streams.list_streams()
        return [str(one) for one in found if one.tags.get("topic") == TOPIC]
