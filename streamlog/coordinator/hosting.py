"""The partitions of `__transaction_state` that this node leads: loaded, dropped, loaded again.

1. A partition is loaded by one task; until it is there, calls get CoordinatorLoadInProgress. A load
   that fails is tried again with back-off, for as long as this node leads the partition.
2. A partition whose append failed, or whose log is another one by now, is dropped and loaded again.
   The load begins when the former has ended, so that nobody appends behind its back.
3. A partition that another node leads is dropped; the manager of leaders waits for that.
"""

from __future__ import annotations

import asyncio
import logging

from streamlog.codec.batch import HEADER_BYTES
from streamlog.codec.records import RECORD_OVERHEAD_BYTES_MAX
from streamlog.coordinator.api import TRANSACTION_STATE_TOPIC
from streamlog.coordinator.copy_forward import copy_forward, is_due
from streamlog.coordinator.markers import Markers
from streamlog.coordinator.metrics import CoordinatorMetrics
from streamlog.coordinator.partition import CoordinatorPartition
from streamlog.coordinator.replay import replay
from streamlog.errors import (
    CoordinatorLoadInProgress,
    NotCoordinator,
    StreamlogError,
    UnknownTopicOrPartition,
)
from streamlog.log.manager import LogManager
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.backoff import Backoff
from streamlog.runtime.progress import Due
from streamlog.runtime.rand import Random

log = logging.getLogger(__name__)

RETRY_MS, RETRY_MS_MAX = 20, 5_000
BATCH_BYTES_MAX = 1_000_000
"""Below the topic's max.message.bytes."""
_OVERHEAD_BYTES = HEADER_BYTES + RECORD_OVERHEAD_BYTES_MAX + 10


class HostedPartitions:
    """Also a LeadershipListener."""

    def __init__(
        self,
        logs: LogManager,
        markers: Markers,
        metrics: CoordinatorMetrics,
        clock: Clock,
        random: Random,
        background: Background,
    ) -> None:
        self._logs = logs
        self._markers = markers
        self._metrics = metrics
        self._clock = clock
        self._random = random
        self._background = background
        self._partitions: dict[int, CoordinatorPartition] = {}
        self._loading: dict[int, asyncio.Task[None]] = {}
        self._errors: dict[int, StreamlogError] = {}
        """Why the last try of a load failed."""
        self._copying: set[int] = set()
        self._is_closed = False

    @property
    def count(self) -> int:
        """Partitions of the topic; 0 while there is none."""
        topic = self._logs.topic(TRANSACTION_STATE_TOPIC)
        return 0 if topic is None else topic.partitions

    @property
    def loaded(self) -> list[CoordinatorPartition]:
        return [one for one in self._partitions.values() if not one.is_ended]

    def get(self, number: int) -> CoordinatorPartition:
        """Never waits. Errors: NotCoordinator, CoordinatorLoadInProgress (it starts the load)."""
        partition = _partition(number)
        if self._is_closed or number >= self.count or not self._is_led_here(partition):
            raise NotCoordinator(
                f"{partition} is not coordinated here; look the coordinator up again"
            )
        hosted = self._partitions.get(number)
        is_current = hosted is not None and self._logs.open_log(partition) is hosted.log
        if hosted is not None and is_current and not hosted.is_ended:
            return hosted
        self._load_again(number)
        raise CoordinatorLoadInProgress(f"{partition} is being loaded; retry with back-off")

    def all_led_here(self) -> list[CoordinatorPartition]:
        """Errors: CoordinatorLoadInProgress, where one of them is being loaded."""
        numbers = range(self.count)
        return [self.get(number) for number in numbers if self._is_led_here(_partition(number))]

    def host_all(self) -> None:
        """Loads what this node leads and does not have."""
        for number in range(self.count):
            if number not in self._partitions and self._is_led_here(_partition(number)):
                self._load_again(number)

    def copy_what_is_due(self) -> None:
        """Shortens logs that are long for what they keep."""
        for number, hosted in self._partitions.items():
            if number not in self._copying and not hosted.is_ended and is_due(hosted):
                self._copying.add(number)
                self._background.spawn(self._copy(number, hosted), name="copy_forward")

    async def on_leadership_change(
        self, partition: TopicPartition, leader_node: int | None
    ) -> None:
        """As LeadershipListener."""
        if partition.topic != TRANSACTION_STATE_TOPIC or self._is_closed:
            return
        number = partition.partition
        if self._is_led_here(partition):
            if number < self.count and number not in self._partitions:
                self._load_again(number)
            return
        loading = self._loading.get(number)
        if loading is not None:
            loading.cancel()
            await asyncio.wait({loading})
        hosted = self._partitions.get(number)
        if hosted is not None:
            self._markers.forget(hosted)
            await hosted.stop()
            if self._partitions.get(number) is hosted:
                del self._partitions[number]

    def progress(self) -> Due | None:
        """A check: the partition that has been loading for longest."""
        for number, task in self._loading.items():
            error = self._errors.get(number)
            reason = "" if error is None else f"; the last try failed: {error}"
            return Due(task, f"{_partition(number)} to load for the coordinator{reason}")
        return None

    def close(self) -> None:
        """Every call is refused from now on, and those that wait for an end are told. The caller
        ends the background."""
        self._is_closed = True
        for partition in self._partitions.values():
            partition.wake_all()

    def _is_led_here(self, partition: TopicPartition) -> bool:
        return self._logs.leadership.is_led_here(partition)

    def _load_again(self, number: int) -> None:
        if number in self._loading:
            return
        former = self._partitions.pop(number, None)
        if former is not None:
            self._markers.forget(former)
        work = self._load(number, former)
        task = self._loading[number] = self._background.spawn(work, name=f"load {number}")
        # One that is cancelled before its first step takes nothing back by itself.
        task.add_done_callback(lambda _: self._load_ended(number, task))

    def _load_ended(self, number: int, task: asyncio.Task[None] | None) -> None:
        if task is not None and self._loading.get(number) is task:
            del self._loading[number]
            self._errors.pop(number, None)

    async def _load(self, number: int, former: CoordinatorPartition | None) -> None:
        began = self._clock.monotonic()
        backoff = Backoff(RETRY_MS, RETRY_MS_MAX, self._random)
        try:
            if former is not None:
                await former.stop()
            while self._is_led_here(_partition(number)):
                try:
                    hosted = await self._loaded(_partition(number))
                except UnknownTopicOrPartition:
                    return
                except StreamlogError as error:
                    self._load_failed(number, error)
                    await backoff.sleep()
                    continue
                if self._logs.open_log(_partition(number)) is hosted.log:
                    self._partitions[number] = hosted
                    self._metrics.loads.observe(self._clock.monotonic() - began)
                    hosted.resume()
                    return
        finally:
            self._load_ended(number, asyncio.current_task())

    async def _loaded(self, partition: TopicPartition) -> CoordinatorPartition:
        opened = await self._logs.log(partition)
        replayed = await replay(opened)
        self._metrics.replayed_bytes.inc(replayed.size_bytes)
        log.info(
            "%s is loaded: %d transactional ids of %d records",
            partition,
            len(replayed.table.transactions),
            replayed.records,
        )
        return CoordinatorPartition(
            opened,
            replayed,
            min(BATCH_BYTES_MAX, self._logs.message_bytes_max) - _OVERHEAD_BYTES,
            self._clock,
            self._background,
            self._markers.begin,
            self._failed,
        )

    def _load_failed(self, number: int, error: StreamlogError) -> None:
        self._errors[number] = error
        self._metrics.failed.inc()
        log.warning("%s could not be loaded, and is tried again: %s", _partition(number), error)

    def _failed(self, hosted: CoordinatorPartition, error: StreamlogError) -> None:
        partition = hosted.topic_partition
        self._metrics.failed.inc()
        log.warning("%s is given up, and loaded again if it is led here: %s", partition, error)
        if self._partitions.get(partition.partition) is not hosted or self._is_closed:
            return
        self._load_again(partition.partition)

    async def _copy(self, number: int, hosted: CoordinatorPartition) -> None:
        try:
            await copy_forward(hosted)
        finally:
            self._copying.discard(number)


def _partition(number: int) -> TopicPartition:
    return TopicPartition(TRANSACTION_STATE_TOPIC, number)
