"""`TransactionWorkload`: transactional ids, readers and an operator, over one topic.

1. Each transactional id has one instance after another. One that is replaced may go on for a while.
2. Readers of both isolation levels read in order over all leaders, and here and there.
3. The operator deletes records, rolls segments, shortens the coordinators' logs and asks for
   descriptions.
4. After healing everything must end by itself: the last stable offset reaches the log's end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from streamlog.codec.committed import committed
from streamlog.codec.control import decode_end_marker
from streamlog.codec.records import decode
from streamlog.coordinator.api import ProducerIdAndEpoch, TransactionFilter, TransactionState
from streamlog.coordinator.copy_forward import copy_forward
from streamlog.errors import (
    AlreadyExists,
    OffsetNotAvailable,
    OffsetOutOfRange,
    TransactionalIdNotFound,
)
from streamlog.log.api.abstract_log import AbstractLog, Isolation, LogFetch
from streamlog.model.partition import TopicPartition
from streamlog.testing.simulation.checker import Violation
from streamlog.testing.simulation.transaction_checker import (
    ObservedTransaction,
    TransactionsModel,
    TransactionValue,
)
from streamlog.testing.simulation.workloads.logs import TRIED_AGAIN, batches_of, log_at_last
from streamlog.testing.simulation.workloads.streams import take_over_holder
from streamlog.testing.simulation.workloads.transactions.instance import (
    Instance,
    SimulationCluster,
)
from streamlog.testing.simulation.workloads.transactions.leaders import (
    STATE,
    SimulationLeaders,
    WorldMarkers,
)
from streamlog.testing.simulation.workloads.transactions.network import Network, NoAnswer
from streamlog.testing.simulation.world.node import SimulationNode
from streamlog.testing.simulation.world.world import World

TOPIC = "transactional"
PARTITIONS = 3
NAMES = ("stock", "payments", "orders")
"""The transactional ids; not all of them have the same coordinator."""
SETTINGS = {"internal.segment.bytes": "1500", "index.interval.bytes": "300"}
WATCH_S = 0.15
ENDS_S_MAX = 120.0
"""Virtual seconds within which every transaction has ended, without faults."""
OPEN = {
    TransactionState.ONGOING,
    TransactionState.PREPARE_COMMIT,
    TransactionState.PREPARE_ABORT,
}


class TransactionWorkload:
    """Everything that happens to the topic of transactions."""

    def __init__(self, world: World, node_ids: Sequence[int]) -> None:
        self._world = world
        self._random = world.fork()
        self._tally = world.tally
        self._network = Network(world, world.fork())
        self.model = TransactionsModel(TOPIC, PARTITIONS)
        partitions = [TopicPartition(TOPIC, n) for n in range(PARTITIONS)]
        self._leaders = SimulationLeaders(
            world, self._network, world.fork(), node_ids, [*partitions, *STATE]
        )
        self._cluster = SimulationCluster(world, self._network, self._leaders, self.model)
        self._positions = [0] * PARTITIONS
        world.markers = WorldMarkers(self._leaders, self._network)
        self._zombies: list[asyncio.Task[None]] = []

    def works(self) -> list[Coroutine[Any, Any, None]]:
        """What the history runs until it ends."""
        works = [self._leaders.run(), self._operate(), self._watch()]
        works += [self._use(name) for name in NAMES]
        works += [self._read_all(number) for number in range(PARTITIONS)]
        return works

    async def settle(self) -> None:
        """After the works have ended: nothing that they began goes on."""
        for zombie in self._zombies:
            zombie.cancel()
        self._network.cancel()
        await self._leaders.settle()

    # instances

    async def _use(self, name: str) -> None:
        """One instance after another."""
        random = self._random.random
        while True:
            instance = await self._initialised(name)
            life = self._world.loop.create_task(instance.work())
            self._zombies = [task for task in self._zombies if not task.done()] + [life]
            await asyncio.wait([life], timeout=1 + 12 * random())
            if life.done():
                life.result()
            elif random() < 0.5:
                life.cancel()
            else:
                self._tally.count("zombie instance")
                life.add_done_callback(self._zombie_ended)

    def _zombie_ended(self, life: asyncio.Task[None]) -> None:
        error = None if life.cancelled() else life.exception()
        if error is not None:
            self._world.fail(error)

    async def _initialised(self, name: str) -> Instance:
        """The next instance, once it has its pair."""
        random = self._random.random
        version, timeout_ms = 1 + int(random() * 2), 1000 + int(4000 * random())
        while True:
            await asyncio.sleep(0.05 + 0.2 * random())
            node = self._leaders.coordinator_of(name)
            if node is None:
                continue
            try:
                pair = await self._network.call(
                    node,
                    f"initialisation of {name}",
                    lambda at: self._init(at, name, timeout_ms),
                    1 + 9 * random(),
                )
            except (NoAnswer, *TRIED_AGAIN) as error:
                self._world.trace.add("txn-init-failed", name, node.name, type(error).__name__)
                continue
            instance = Instance(self._cluster, self._world.fork(), name, pair, version, timeout_ms)
            self.model.initialised(name, instance, pair)
            self._tally.count("producer initialised")
            self._world.trace.add("txn-init", node.name, repr(instance))
            return instance

    async def _init(self, node: SimulationNode, name: str, timeout_ms: int) -> ProducerIdAndEpoch:
        await self._ensure_topic(node)
        return await node.engine.transactions.init_producer_id(name, timeout_ms)

    async def _ensure_topic(self, node: SimulationNode) -> None:
        logs = node.engine.logs
        if logs.topic(TOPIC) is None:
            with suppress(AlreadyExists):
                await logs.create_topic(TOPIC, PARTITIONS, SETTINGS)
                self._tally.count("create topic")

    # readers

    async def _read_all(self, number: int) -> None:
        """A reader in order, and one here and there."""
        random, partition = self._random.random, self._cluster.partitions[number]
        while True:
            await asyncio.sleep(0.6 * random())
            node = self._leaders.node_of(partition)
            if node is None or node.engine.logs.topic(TOPIC) is None:
                continue
            work = partial(self._read, number, random() < 0.5)
            with suppress(NoAnswer, *TRIED_AGAIN):
                await self._network.call(node, f"fetch of {partition}", work)

    async def _read(self, number: int, is_in_order: bool, node: SimulationNode) -> None:
        log = await node.engine.logs.log(self._cluster.partitions[number])
        random = self._random.random
        if is_in_order:
            start = self._positions[number] = max(self._positions[number], log.log_start_offset)
            if start >= log.last_stable_offset:
                self._bounds(number, log)
                return
            end = await self._fetch(log, number, start, Isolation.READ_COMMITTED)
            self._positions[number] = max(self._positions[number], end)
            return
        isolation = Isolation(int(2 * random()))
        low, high = log.log_start_offset, log.high_watermark
        await self._fetch(log, number, low + int(random() * (high - low + 1)), isolation)

    async def _watch(self) -> None:
        """Looks at every leader's offsets, as those who list offsets do."""
        while True:
            await asyncio.sleep(WATCH_S * self._random.random())
            for node in self._world.nodes[-4:]:
                if not node.is_up:
                    continue
                for number, partition in enumerate(self._cluster.partitions):
                    log = node.engine.logs.open_log(partition)
                    if log is not None:
                        self._bounds(number, log)

    def _bounds(self, number: int, log: AbstractLog) -> None:
        self.model.logs[number].bounds(
            log.leader_epoch, log.log_start_offset, log.last_stable_offset, log.high_watermark
        )

    async def _fetch(self, log: AbstractLog, number: int, start: int, isolation: Isolation) -> int:
        is_committed = isolation is Isolation.READ_COMMITTED
        self._tally.count("read committed" if is_committed else "consume")
        model = self.model.logs[number]
        try:
            fetched = await log.fetch(start, 4096, isolation=isolation)
        except OffsetOutOfRange:
            if start >= max(log.log_start_offset, model.start_asked):
                raise
            return start
        except OffsetNotAvailable:
            return start
        self._bounds(number, log)
        stable = fetched.last_stable_offset
        if is_committed and fetched.next_offset > max(stable, start):
            raise Violation(f"{model.name}: a fetch up to {fetched.next_offset} went past {stable}")
        batches = _batches(fetched, is_committed=is_committed)
        return self.model.read(number, batches, start, is_committed=is_committed)

    # the operator

    async def _operate(self) -> None:
        random = self._random.random
        works = (self._delete_some, self._roll, self._shorten, self._describe)
        while True:
            await asyncio.sleep(3 * random())
            serving = self._world.serving()
            if not serving:
                continue
            node = serving[int(random() * len(serving))]
            if node.engine.logs.topic(TOPIC) is None:
                continue
            work = works[int(random() * len(works))]
            with suppress(NoAnswer, *TRIED_AGAIN):
                await self._network.call(node, "operator", work)

    async def _some_log(self, node: SimulationNode) -> tuple[int, AbstractLog]:
        number = int(self._random.random() * PARTITIONS)
        return number, await node.engine.logs.log(self._cluster.partitions[number])

    async def _delete_some(self, node: SimulationNode) -> None:
        number, log = await self._some_log(node)
        model, low, high = self.model.logs[number], log.log_start_offset, log.high_watermark
        before = low + int(self._random.random() * (high - low) * 0.6)
        model.start_asked = max(model.start_asked, before)
        self._tally.count("delete records")
        start = await log.delete_records(before)
        model.start = max(model.start, start)

    async def _roll(self, node: SimulationNode) -> None:
        _, log = await self._some_log(node)
        self._tally.count("roll")
        await log.roll()

    async def _shorten(self, node: SimulationNode) -> None:
        """The coordinators' logs; they would do it by themselves once they are much longer."""
        self._tally.count("coordinator's log shortened")
        for hosted in node.engine.transactions.hosted.loaded:
            await copy_forward(hosted)

    async def _describe(self, node: SimulationNode) -> None:
        self._tally.count("transactions listed")
        for found in await node.engine.transactions.transactions(TransactionFilter()):
            if found.transactional_id not in NAMES:
                raise Violation(f"{TOPIC}: {found} was never begun")

    # the end

    async def check(self, node: SimulationNode) -> None:
        """After healing: everything ends, and everything is read."""
        if node.engine.logs.topic(TOPIC) is None:
            return
        self._leaders.lead_all(node)
        logs = [
            await log_at_last(node, lambda at, one=one: at.engine.logs.log(one))
            for one in self._cluster.partitions
        ]
        await self._await_ends(node, logs)
        starts = [log.log_start_offset for log in logs]
        for number, log in enumerate(logs):
            offset, end = log.log_start_offset, log.high_watermark
            while offset < end:
                following = await self._fetch(log, number, offset, Isolation.READ_COMMITTED)
                if following <= offset:
                    raise Violation(f"{TOPIC}-{number}: nothing at {offset} below {end}")
                offset = following
            self.model.logs[number].finish(starts[number], end)
        self.model.finish(starts)
        await self._shorten(node)  # The next node finds every id in what is left.

    async def check_deleted(self, node: SimulationNode) -> None:
        """The topic's streams are deleted with all others."""

    async def _await_ends(self, node: SimulationNode, logs: Sequence[AbstractLog]) -> None:
        """Every transaction is ended: by its client before, or by its coordinator."""
        ends_at = self._world.now + ENDS_S_MAX
        while held := await self._held(node, logs):
            if self._world.now >= ends_at:
                raise Violation(f"{TOPIC}: not ended after {ENDS_S_MAX:.0f} s: {held}")
            for row in node.engine.metadata.streams():
                await take_over_holder(node, row.stream_id)
            await asyncio.sleep(1.0)

    async def _held(self, node: SimulationNode, logs: Sequence[AbstractLog]) -> list[str]:
        """What is open, or prepared."""
        held = [
            f"{log.topic_partition} is stable up to {log.last_stable_offset} of "
            f"{log.high_watermark}"
            for log in logs
            if log.last_stable_offset < log.high_watermark
        ]
        for name in NAMES:
            try:
                found = await node.engine.transactions.describe(name)
            except TransactionalIdNotFound:
                if name in self.model.newest:
                    raise Violation(f"{TOPIC}: {name} was forgotten") from None
                continue
            except TRIED_AGAIN as error:
                held.append(f"{name}: {error}")
                continue
            if found.state in OPEN:
                held.append(f"{name} is {found.state.name}")
            newest = self.model.newest.get(name)
            if newest is not None and (found.producer_id, found.producer_epoch) < newest:
                raise Violation(f"{TOPIC}: {found}, after {newest} was given out")
        return held


def _batches(fetched: LogFetch, *, is_committed: bool) -> list[ObservedTransaction]:
    """Decodes every record; a `read_committed` reader's own rule says which are visible."""
    scanned = batches_of(fetched)
    aborted = [(one.first_offset, one.producer_id) for one in fetched.aborted]
    visible = {batch.header.base_offset for batch in committed(scanned, aborted)}
    batches: list[ObservedTransaction] = []
    for batch in scanned:
        header = batch.header
        producer = (header.producer_id, header.producer_epoch)
        if header.is_control:
            marker = decode_end_marker(batch.view)
            assert marker is not None
            batches.append(
                ObservedTransaction(header.base_offset, producer, (), marker.coordinator_epoch)
            )
            continue
        values = tuple(
            TransactionValue.parse(bytes(value or b"")) for _, _, _, value, _ in decode(batch.view)
        )
        is_visible = is_committed and header.base_offset in visible
        batches.append(ObservedTransaction(header.base_offset, producer, values, -1, is_visible))
    return batches
