"""`Coordinator`: the transaction coordinator of a node, over its logs.

Calls go to the partition that has the transactional id. Background work, all of it ended by `close`
and `kill`: loads, markers, aborts past the time-out, expiry, shortening of logs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from prometheus_client import CollectorRegistry

from streamlog.coordinator.api import (
    TRANSACTION_STATE_TOPIC,
    ProducerIdAndEpoch,
    TransactionDescription,
    TransactionFilter,
    TransactionState,
)
from streamlog.coordinator.config import TransactionConfig
from streamlog.coordinator.hosting import HostedPartitions
from streamlog.coordinator.listing import Matcher
from streamlog.coordinator.local_markers import LocalMarkers
from streamlog.coordinator.markers import Markers, MarkerSender
from streamlog.coordinator.metrics import CoordinatorMetrics
from streamlog.coordinator.placement import check_id, partition_of
from streamlog.coordinator.timeouts import abort_overdue, forget_unused
from streamlog.coordinator.transactions.decisions import (
    Decision,
    Init,
    NeedsProducerId,
    abort,
    add_partitions,
    describe,
    unknown_id,
    verify_partitions,
)
from streamlog.coordinator.transactions.ends import End
from streamlog.coordinator.transactions.state import Transaction
from streamlog.errors import (
    Closed,
    ConcurrentTransactions,
    CoordinatorNotAvailable,
    Invalid,
    InvalidTransactionTimeout,
    NotLeader,
    StreamlogError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from streamlog.log.manager import LogManager
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.progress import ProgressWatch
from streamlog.runtime.rand import Random

T = TypeVar("T")

ANSWER_S_MAX = 30.0
"""A caller waits no longer for its answer to be durable, and has to ask again."""
ENDING_S_MAX = 0.1
"""A client's next transaction waits so long for the markers of the one before, which take some
milliseconds. Told to ask again, clients wait 20 ms and more each time."""
MAX_MESSAGE_BYTES = "max.message.bytes"
TOPIC_CONFIGS = {
    "cleanup.policy": "compact",
    MAX_MESSAGE_BYTES: "1048588",
    "message.timestamp.type": "CreateTime",
    "segment.bytes": str(100 << 20),
}


class Coordinator:
    """As TransactionCoordinator; made by `open`."""

    def __init__(
        self,
        logs: LogManager,
        *,
        clock: Clock,
        random: Random,
        registry: CollectorRegistry,
        config: TransactionConfig | None = None,
        sender: MarkerSender | None = None,
    ) -> None:
        self._logs = logs
        self._clock = clock
        self._config = config or TransactionConfig()
        self._background = Background("transaction coordinator", self._background_failed)
        self._metrics = CoordinatorMetrics(registry)
        self.markers = Markers(sender or LocalMarkers(logs), clock, random, self._background)
        self.hosted = HostedPartitions(
            logs, self.markers, self._metrics, clock, random, self._background
        )
        self._creating = asyncio.Lock()
        self._metrics.watch(self._count, lambda: self.markers.left)
        self.failure: BaseException | None = None
        """Why background work stopped; None while it runs."""
        self._failed = asyncio.Event()
        self._is_closed = False

    def open(self) -> None:
        """Loads all partitions that are led here, in the background, and follows their leaders."""
        self._logs.leadership.add_listener(self.hosted)
        self.hosted.host_all()
        abort_s = self._config.abort_interval_ms / 1000
        expiration_s = self._config.expiration_interval_ms / 1000
        self._background.every(lambda: abort_s, self.tick, name="timeouts")
        self._background.every(lambda: expiration_s, self.expire, name="expiration")

    def watch_progress(self, watch: ProgressWatch) -> None:
        watch.watch("transaction_coordinator", self.hosted.progress)
        watch.watch("transaction_markers", self.markers.progress)

    async def wait_failed(self) -> BaseException:
        """Returns when background work has stopped for good, with the reason."""
        await self._failed.wait()
        assert self.failure is not None
        return self.failure

    async def close(self) -> None:
        """Calls that wait get NotCoordinator; what they appended may be durable. Call it before the
        logs are closed."""
        if not self._is_closed:
            self._is_closed = True
            self.hosted.close()
            await self._background.close()

    async def kill(self) -> None:
        """As `close`: nothing is given up, and nothing is waited for, but the end of tasks."""
        await self.close()

    async def tick(self) -> None:
        """Aborts what is past its time-out, and looks after the partitions that are led here."""
        self.hosted.host_all()
        self.hosted.copy_what_is_due()
        for partition in self.hosted.loaded:
            self._metrics.timed_out.inc(await abort_overdue(partition))

    async def expire(self) -> None:
        """Forgets ids that are unused for too long."""
        for partition in self.hosted.loaded:
            forgotten = await forget_unused(partition, self._config.id_expiration_ms)
            self._metrics.expired.inc(forgotten)

    def partition_of(self, transactional_id: str) -> TopicPartition:
        check_id(transactional_id)
        count = self.hosted.count or self._config.state_partitions
        return TopicPartition(TRANSACTION_STATE_TOPIC, partition_of(transactional_id, count))

    async def ensure_topic(self) -> None:
        if not self.hosted.count:
            await self._bounded(self._create_topic(), "metadata and store")

    async def _create_topic(self) -> None:
        async with self._creating:
            if self.hosted.count:
                return
            try:
                await self._logs.create_internal_topic(
                    TRANSACTION_STATE_TOPIC, self._config.state_partitions, self._topic_configs()
                )
            except TopicAlreadyExists:
                pass  # Another node was faster: this one will hear of it.
            except Closed:
                raise
            except StreamlogError as error:
                raise _not_available(
                    f"{TRANSACTION_STATE_TOPIC} was not created: {error}"
                ) from error
            if not self.hosted.count:
                raise _not_available(f"{TRANSACTION_STATE_TOPIC} is being created by another node")
            self.hosted.host_all()

    def _topic_configs(self) -> dict[str, str]:
        """A topic may not have a larger bound for its batches than the node."""
        bound = min(int(TOPIC_CONFIGS[MAX_MESSAGE_BYTES]), self._logs.message_bytes_max)
        return {**TOPIC_CONFIGS, MAX_MESSAGE_BYTES: str(bound)}

    async def init_producer_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        expected: ProducerIdAndEpoch | None = None,
    ) -> ProducerIdAndEpoch:
        check_id(transactional_id)
        if not 0 < timeout_ms <= self._config.max_timeout_ms:
            raise InvalidTransactionTimeout(
                f"the transaction's time-out is {timeout_ms} ms, but must be 1 to "
                f"{self._config.max_timeout_ms} (transaction.max.timeout.ms)",
                max_ms=self._config.max_timeout_ms,
            )
        await self.ensure_topic()
        return await self._call(
            transactional_id,
            lambda known, now_ms, fresh_id: Init(
                transactional_id, timeout_ms, expected, fresh_id
            ).decide(known, now_ms),
        )

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
    ) -> None:
        ends_by = self._clock.monotonic() + ENDING_S_MAX
        while True:
            try:
                await self._call(
                    transactional_id,
                    lambda known, now_ms, _: add_partitions(known, producer, partitions, now_ms),
                )
                return
            except ConcurrentTransactions:
                if not await self._has_ended(transactional_id, ends_by):
                    raise

    async def _has_ended(self, transactional_id: str, by: float) -> bool:
        """Whether the transaction whose markers are being written ends before the time."""
        left_s = by - self._clock.monotonic()
        if left_s <= 0:
            return False
        partition = self.hosted.get(self.partition_of(transactional_id).partition)
        try:
            async with asyncio.timeout(left_s):
                await partition.until_ended(transactional_id)
        except TimeoutError:
            return False
        return True

    async def verify_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Sequence[TopicPartition],
    ) -> Mapping[TopicPartition, StreamlogError]:
        return await self._call(
            transactional_id,
            lambda known, _, __: verify_partitions(known, producer, partitions),
        )

    async def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        is_commit: bool,
        bumps_epoch: bool = False,
        application_epoch: int | None = None,
    ) -> ProducerIdAndEpoch:
        if application_epoch is not None and application_epoch < 0:
            raise Invalid(f"an application's epoch is at least 0, not {application_epoch}")
        return await self._call(
            transactional_id,
            lambda known, now_ms, fresh_id: End(
                producer, is_commit, bumps_epoch, fresh_id, application_epoch
            ).decide(known, now_ms),
        )

    async def _check_topic(self, transactional_id: str) -> None:
        """Without the topic no id is known, and nobody coordinates one. Errors:
        TransactionalIdNotFound."""
        partition = self.partition_of(transactional_id)
        if not self.hosted.count:
            try:
                # Another node may have made it just now.
                await self._bounded(self._logs.log(partition), "the metadata store")
            except UnknownTopicOrPartition:
                raise unknown_id(transactional_id) from None
            except NotLeader:
                pass  # The topic is there.

    async def describe(self, transactional_id: str) -> TransactionDescription:
        await self._check_topic(transactional_id)
        return await self._call(
            transactional_id, lambda known, _, __: describe(known, transactional_id)
        )

    async def abort(self, transactional_id: str) -> TransactionDescription:
        await self._check_topic(transactional_id)
        return await self._call(
            transactional_id,
            lambda known, now_ms, fresh_id: abort(known, transactional_id, fresh_id, now_ms),
        )

    async def transactions(self, wanted: TransactionFilter) -> Sequence[TransactionDescription]:
        matcher = Matcher(wanted, self._clock.now_ms())
        found: list[TransactionDescription] = []
        for partition in self.hosted.all_led_here():
            found += await matcher.of(partition)
            await self._bounded(partition.settled())
        return sorted(found, key=lambda one: one.transactional_id)

    async def _call(
        self,
        transactional_id: str,
        decide: Callable[[Transaction | None, int, int | None], Decision[T]],
    ) -> T:
        """`decide(state, now_ms, fresh_id)`; a fresh producer id is taken where it asks for one."""
        fresh_id: int | None = None
        while True:
            partition = self.hosted.get(self.partition_of(transactional_id).partition)
            deciding = partial(_with_fresh_id, decide, fresh_id)
            try:
                return await self._bounded(partition.call(transactional_id, deciding))
            except NeedsProducerId:
                taking = self._logs.init_producer_id()
                fresh_id, _ = await self._bounded(taking, "the metadata store")

    async def _bounded(self, answer: Awaitable[T], who: str = TRANSACTION_STATE_TOPIC) -> T:
        """Errors: CoordinatorNotAvailable, where `who` takes too long."""
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await answer
        except TimeoutError:
            raise _not_available(f"{who} did not answer within {ANSWER_S_MAX:.0f} s") from None

    def _count(self, state: TransactionState) -> int:
        return sum(partition.table.counts[state] for partition in self.hosted.loaded)

    def _background_failed(self, error: BaseException) -> None:
        self.failure = self.failure or error
        self._failed.set()


def _with_fresh_id(
    decide: Callable[[Transaction | None, int, int | None], Decision[T]],
    fresh_id: int | None,
    known: Transaction | None,
    now_ms: int,
) -> Decision[T]:
    return decide(known, now_ms, fresh_id)


def _not_available(what: str) -> CoordinatorNotAvailable:
    error = CoordinatorNotAvailable(f"{what}; retry with back-off")
    error.has_no_side_effects = False
    return error
