"""RemoteLogManager: the remote tiers of a node's logs, and the tasks that keep them.

Each log that this node leads gets a tier when it is opened. Every `task_interval_ms` the partitions
with something to do get a copy task and an expiration task, so many at a time; a partition has one
of each at most. One that this node follows gets a task that looks how far its leader has copied, so
that its own files may go; no node follows one yet. A task that fails is logged, counted and shown
in the node's status, and tried again at the next interval: no failure of a plug-in ends the
manager, or a log.

Only the copy task of a partition deletes copies that were begun and not finished, and only when the
one before it has ended: a copy that is cut off may still be writing for a while. One that does not
end at all is left behind, and deleted when it does (`reading/plugin_calls.py`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol
from uuid import UUID

from streamlog.errors import NotLeader, StreamlogError
from streamlog.log.api.abstract_log import AbstractLogSegment
from streamlog.log.api.batch_reader import BatchRun
from streamlog.log.api.tiering import TierableLog
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.cancellation import is_being_cancelled
from streamlog.runtime.concurrency.keyed_lock import KeyedLock
from streamlog.tiered.api.metadata_manager import RemoteLogMetadataManager
from streamlog.tiered.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from streamlog.tiered.api.storage_manager import RemoteStorageManager
from streamlog.tiered.copying.backoff import TaskBackoff
from streamlog.tiered.copying.copier import Copier, CopyQuota
from streamlog.tiered.copying.expiration import expired_segments
from streamlog.tiered.copying.pace import CopyPace
from streamlog.tiered.copying.partition_deletions import PartitionDeletions
from streamlog.tiered.copying.removal import SegmentRemoval
from streamlog.tiered.copying.stranger_purge import StrangerPurge, TopicNames
from streamlog.tiered.led_partition import LedPartition
from streamlog.tiered.lineage import check_start, highest_copied, lost_offsets, restore_epochs
from streamlog.tiered.metrics import RemoteLogMetrics
from streamlog.tiered.reading.failures import RemoteFailures
from streamlog.tiered.reading.partition_tier import FetchQuota, PartitionTier, TierReads

log = logging.getLogger(__name__)

FIRST_PURGE_S = 3600
"""A node that is started again and again within the hour lists nothing."""
CLOSE_S = 10
"""How long a plug-in may take to end its calls, and to close."""
CLEAN_UP = "clean up"
_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_DELETING = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


class AdjustableCopyQuota(CopyQuota, Protocol):
    def set_rate(self, rate: int) -> None:
        """Bytes a second, from now on."""
        ...


class AdjustableFetchQuota(FetchQuota, Protocol):
    def set_rate(self, rate: int) -> None:
        """Bytes a second, from now on."""
        ...


@dataclass(frozen=True, slots=True)
class TierQuotas:
    copy: AdjustableCopyQuota
    fetch: AdjustableFetchQuota


@dataclass(frozen=True, slots=True)
class RemoteLogParts:
    """What a manager is made of."""

    storage: RemoteStorageManager
    metadata: RemoteLogMetadataManager
    reads: TierReads
    copier: Copier
    pace: CopyPace
    removal: SegmentRemoval
    purge: StrangerPurge
    failures: RemoteFailures
    metrics: RemoteLogMetrics
    clock: Clock
    background: Background
    unexpected: list[BaseException]
    """Failures of background work that nothing was prepared for."""
    quotas: TierQuotas
    backoff: TaskBackoff
    task_interval_ms: int = 30_000
    copier_tasks: int = 10
    expiration_tasks: int = 10
    follower_tasks: int = 2


class RemoteLogManager:
    """Made by the wiring; `start` it once the logs may be opened, `close` it when they are closed.

    Logs may be attached before the start.
    """

    def __init__(self, parts: RemoteLogParts) -> None:
        self._parts = parts
        self._led: dict[TopicPartition, LedPartition] = {}
        self._copying = asyncio.Semaphore(parts.copier_tasks)
        self._expiring = asyncio.Semaphore(parts.expiration_tasks)
        self._following = asyncio.Semaphore(parts.follower_tasks)
        self._changing: KeyedLock[TopicPartition] = KeyedLock()
        """Of partitions whose role changes."""
        self._ending: dict[TopicPartition, set[asyncio.Task[None]]] = {}
        """Tasks of logs that have ended, while they end."""
        self._suspicion: str | None = None
        """Why the last purge deleted nothing."""
        self._is_started = asyncio.Event()
        self._deletions = PartitionDeletions(
            parts.removal,
            parts.metrics,
            parts.unexpected,
            lambda partition: not self._ending.get(partition),
            retry_s=parts.task_interval_ms / 1000,
        )

    async def start(self, names: TopicNames | None = None) -> None:
        """Takes up deletions that a crash interrupted. `names`: of topics, for the purge of what
        no metadata names; None: there is no purge. Errors: Unavailable, Corrupt."""
        await self._deletions.load()
        self._is_started.set()
        self._parts.background.spawn(self._ticks(), name="tasks")
        self._parts.background.spawn(self._deletions.run(), name="deletions")
        if names is not None and self._parts.purge.config.interval_ms:
            self._parts.background.spawn(self._purges(names), name="purges")

    async def _purges(self, names: TopicNames) -> None:
        interval_s = self._parts.purge.config.interval_ms / 1000
        await asyncio.sleep(min(FIRST_PURGE_S, interval_s))
        while True:
            try:
                await self.purge(names)
            except Exception as error:  # noqa: BLE001 - a plug-in may raise anything
                self._purge_failed(error)
            await asyncio.sleep(interval_s)

    async def purge(self, names: TopicNames) -> None:
        """Deletes files of the remote storage that no metadata names. Errors: what the plug-ins
        raise; a clean-up that fails keeps nothing else from being done before."""
        deleting = {one.topic_id: one.topic for one in self._deletions.partitions}
        errors: list[Exception] = []
        for one in [led for led in self._led.values() if led.is_loaded]:
            is_led = one.is_leader and self._led.get(one.log.topic_partition) is one
            if not is_led or CLEAN_UP in one.tasks:
                continue
            if one.turn.locked():
                # It is copied, and may be for long: it is cleaned up before its next copies.
                self._parts.background.spawn(self._clean_up_later(one), name=CLEAN_UP)
            else:
                errors += await self._clean_up(one)
        self._suspicion = await self._parts.purge.run(
            lambda topic_id: deleting.get(topic_id) or names(topic_id), self
        )
        if errors:
            raise errors[0]

    def _purge_failed(self, error: Exception) -> None:
        """What stays is purged the next time."""
        self._parts.metrics.failed("purge", "")
        log.warning("the purge of the remote storage failed, and is tried again: %r", error)

    async def _clean_up_later(self, led: LedPartition) -> None:
        if self._led.get(led.log.topic_partition) is not led:
            return
        for error in await self._clean_up(led):
            self._purge_failed(error)

    def log_of(self, partition: TopicIdPartition) -> TierableLog | None:
        """As Led.log_of."""
        led = self._led_as(partition)
        return None if led is None else led.log

    def is_loaded(self, partition: TopicIdPartition) -> bool:
        """As Led.is_loaded."""
        led = self._led_as(partition)
        return led is not None and led.is_loaded

    def is_led(self, partition: TopicIdPartition) -> bool:
        """As Led.is_led."""
        is_changing = partition.topic_partition in self._changing
        return is_changing or self._led_as(partition) is not None

    def _led_as(self, partition: TopicIdPartition) -> LedPartition | None:
        led = self._led.get(partition.topic_partition)
        return led if led is not None and led.partition == partition else None

    async def _clean_up(self, led: LedPartition) -> list[Exception]:
        """A task of the partition: who takes it over waits for its end, as for that of a copy.

        Returns what the plug-ins raised.
        """
        errors: list[Exception] = []

        async def run() -> None:
            async with led.turn:
                try:
                    led.missing = await self._parts.purge.clean_up(led.partition, led.log)
                except Exception as error:  # noqa: BLE001 - a plug-in may raise anything
                    errors.append(error)

        task = self._spawn(led, CLEAN_UP, run())
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
        return errors if self._led.get(led.log.topic_partition) is led else []

    async def _ticks(self) -> None:
        while True:
            await asyncio.sleep(self._parts.task_interval_ms / 1000)
            try:
                await self.tick()
            except Exception as error:
                # Nothing may end the rounds: partitions would never be copied again.
                log.exception("a round of remote log tasks failed")
                self._parts.unexpected.append(error)

    def set_quotas(self, copy_rate: int, fetch_rate: int) -> None:
        """Bytes a second, from now on, also for those who wait."""
        self._parts.quotas.copy.set_rate(copy_rate)
        self._parts.pace.set_quota(copy_rate)
        self._parts.quotas.fetch.set_rate(fetch_rate)

    # What logs ask for

    async def attach(self, log: TierableLog, topic_id: UUID) -> None:
        """As Tiers.attach. A topic without tiering costs nothing until it has it."""
        await self.on_leadership_change([log], [], {log.topic_partition.topic: topic_id})

    async def on_leadership_change(
        self,
        leaders: Collection[TierableLog],
        followers: Collection[TierableLog],
        topic_ids: Mapping[str, UUID],
    ) -> None:
        """This node leads, or follows, the logs from now on; those that it did not know get their
        tiers. What it copied of one that it follows now has been cut off on return: the next
        leader deletes what it left.

        Errors: Unavailable, Corrupt, those of a log that has ended; the logs before the one with
        the error have changed.
        """
        for is_leader, logs in ((False, followers), (True, leaders)):
            for log in logs:
                topic, number = log.topic_partition
                partition = TopicIdPartition(topic_ids[topic], topic, number)
                async with self._changing.holding(log.topic_partition):
                    await self._take_role(log, partition, is_leader=is_leader)

    async def _take_role(
        self, log: TierableLog, partition: TopicIdPartition, *, is_leader: bool
    ) -> None:
        key, parts = log.topic_partition, self._parts
        known = self._led.get(key)
        if known is not None and known.log is not log:
            # It has ended, and nobody said so.
            self.detached(known.tier)
            known = None
        if known is None:
            tier = PartitionTier(partition, log, parts.reads, self)
            led = LedPartition(tier, parts.metrics, is_leader=is_leader)
            if log.topic_config.remote_storage_enable:
                await self._load(led)
                if self._ending.get(key):
                    # What is still done for the log before this one may change what was read: local
                    # segments stay until the first task has read it again.
                    led.is_loaded, tier.highest_offset = False, -1
            log.attach_tier(tier)
            self._led[key] = led
        elif known.is_leader is not is_leader:
            self.detached(known.tier)
            # Its first task loads what the metadata has. It is known while the tasks before it end,
            # so that the end of its log is heard.
            led = self._led[key] = LedPartition(known.tier, parts.metrics, is_leader=is_leader)
            await self._until_ended(key)
        else:
            return
        if self._is_started.is_set() and self._led.get(key) is led:
            # Its copies may be behind: it is due at once, and not at the next round.
            self._begin_tasks(led)

    async def stop_partitions(
        self, partitions: Collection[TopicPartition], *, deletes: bool = False
    ) -> None:
        """On return nothing of them is copied or deleted here any more. Their logs read on until
        they are closed.

        `deletes`: all that is remote goes, also if this process ends before. Errors: Unavailable.
        """
        for key in partitions:
            async with self._changing.holding(key):
                led = self._led.get(key)
                if led is not None:
                    self.detached(led.tier)
            # Of a log that has ended, too.
            await self._until_ended(key)
            if led is None:
                continue
            if deletes:
                await self.delete_partition(key, led.partition.topic_id)
            else:
                await self._parts.metadata.on_stop_partitions([led.partition])

    async def read(
        self, partition: TopicPartition, offset: int, max_bytes: int, deadline: float | None = None
    ) -> BatchRun:
        """Batches of the remote tier from the one with the offset on, as RemoteTier.reader says.

        Errors: NotLeader (its log is not open here); as of RemoteTier.reader.
        """
        led = self._led.get(partition)
        if led is None:
            raise NotLeader(f"{partition} is not open on this node; look for its leader")
        end_offset = led.tier.highest_offset + 1
        return await led.tier.reader(deadline).read(offset, end_offset, max_bytes, is_required=True)

    def async_read(
        self,
        partition: TopicPartition,
        offset: int,
        max_bytes: int,
        hears: Callable[[BatchRun | StreamlogError], None],
    ) -> asyncio.Task[None]:
        """As `read`, beside the caller: `hears` is called once, unless the task is cancelled."""

        async def run() -> None:
            try:
                found: BatchRun | StreamlogError = await self.read(partition, offset, max_bytes)
            except StreamlogError as error:
                found = error
            hears(found)

        return self._parts.background.spawn(run(), name="read")

    async def _load(self, led: LedPartition) -> None:
        """What the metadata says of the partition, which this node answers for from now on.

        Errors: Unavailable, Corrupt (local records that were copied are lost).
        """
        log, metadata = led.log, self._parts.metadata
        roles = ([led.partition], []) if led.is_leader else ([], [led.partition])
        await metadata.on_partition_leadership_changes(*roles)
        found = await metadata.list_remote_log_segments(led.partition)
        finished = [one for one in found if one.state is _FINISHED]
        restore_epochs(log, finished)
        highest = highest_copied(log, finished)
        if led.is_leader:
            await check_start(log, led.partition, finished)
            led.missing = lost_offsets(log, finished)
        led.tier.highest_offset = highest
        led.is_loaded = True

    def detached(self, tier: PartitionTier) -> None:
        """A copy under way is cut off: the next leader deletes what it left."""
        led = self._led.get(tier.log.topic_partition)
        if led is None or led.tier is not tier:
            return
        key = tier.log.topic_partition
        del self._led[key]
        for task in led.cut_off():
            ending = self._ending.setdefault(key, set())
            ending.add(task)
            task.add_done_callback(lambda done: self._ended(key, done))

    def _ended(self, partition: TopicPartition, task: asyncio.Task[None]) -> None:
        ending = self._ending.get(partition, set())
        ending.discard(task)
        if not ending:
            self._ending.pop(partition, None)
            self._deletions.looks_again(partition)

    async def _until_ended(self, partition: TopicPartition) -> None:
        """Returns when nothing of an earlier log of the partition is written any more."""
        while ending := self._ending.get(partition):
            await asyncio.wait(set(ending))

    async def delete_partition(self, partition: TopicPartition, topic_id: UUID) -> None:
        """As Tiers.delete_partition. It waits for the start, which says what is deleted already."""
        await self._is_started.wait()
        led = self._led.get(partition)
        is_copied = partition in self._ending or (led is not None and bool(led.tasks))
        await self._deletions.begin(TopicIdPartition(topic_id, *partition), is_copied=is_copied)

    async def deletions_done(self) -> None:
        """Returns when nothing of deleted topics is left in the tier."""
        await self._deletions.done()

    # Tasks

    async def tick(self) -> None:
        """Gives every partition with something to do its tasks."""
        for led in tuple(self._led.values()):
            self._begin_tasks(led)
        metrics, reads = self._parts.metrics, self._parts.reads
        self._parts.pace.note_waiting(
            chain.from_iterable(map(self._waiting_of, self._led.values()))
        )
        metrics.lag(self._by_topic(self._lag_of))
        metrics.size(self._by_topic(lambda led: led.remote))
        metrics.reads_pending.set(reads.chunks.pending)
        metrics.reads_pending_bound.set(reads.chunks.pending_max)
        metrics.chunk_bytes.set(reads.chunks.size_bytes)
        metrics.late_index_bytes.set(reads.late.size_bytes)
        metrics.read_memory_bound.set(reads.chunks.size_bytes_max + reads.late.size_bytes_max)
        metrics.index_bytes.set(reads.indexes.size_bytes)

    def _begin_tasks(self, led: LedPartition) -> None:
        if not self._has_tier(led):
            return
        if not led.is_leader:
            if led.log.topic_partition not in self._ending:
                # What this node still does as the leader ends first.
                self._begin(led, "follow", self._following)
        else:
            self._begin(led, "copy", self._copying)
            self._begin(led, "expire", self._expiring)

    def _begin(self, led: LedPartition, name: str, room: asyncio.Semaphore) -> None:
        if name in led.tasks:
            return
        if name == "copy" and led.is_loaded and not (led.has_left_overs or self._has_copies(led)):
            return
        self._spawn(led, name, self._task(led, name, room))

    def _spawn(
        self, led: LedPartition, name: str, work: Coroutine[Any, Any, None]
    ) -> asyncio.Task[None]:
        """A task that is cut off when the log ends, or its role."""
        task = led.tasks[name] = self._parts.background.spawn(work, name=name)
        task.add_done_callback(lambda _: led.tasks.pop(name, None))
        return task

    @staticmethod
    def _has_tier(led: LedPartition) -> bool:
        """Also of a topic that has turned it off and whose data there may not be deleted yet."""
        config = led.log.topic_config
        if config.remote_storage_enable or led.tier.highest_offset >= 0:
            return True
        return config.remote_log_delete_on_disable and not led.is_given_up

    def _has_copies(self, led: LedPartition) -> bool:
        is_copied = led.log.topic_config.is_copied
        return is_copied and self._parts.copier.has_work(led.log, led.tier.highest_offset)

    async def _task(self, led: LedPartition, name: str, room: asyncio.Semaphore) -> None:
        """One run; copies that left for lack of room in the quota go on behind all that wait."""
        is_over = False
        while not is_over:
            async with room:
                is_over = await self._run(led, name, room)

    async def _run(self, led: LedPartition, name: str, room: asyncio.Semaphore) -> bool:
        """Whether there is no more to do by now. An error is told, and ends nothing."""
        is_over = True
        try:
            if not led.is_loaded:
                await self._until_ended(led.log.topic_partition)
                async with led.turn:
                    if not led.is_loaded:
                        await self._load(led)
            if name == "follow":
                # What the metadata has is read anew: the leader writes it.
                await self._load(led)
            elif name == "copy":
                async with led.turn:
                    is_over = await self._copy(led)
            else:
                await self._expire(led)
        except StreamlogError as error:
            self._parts.metrics.failed(name, led.partition.topic)
            log.warning("%s of %s failed, and is tried again: %s", name, led.partition, error)
            if led.failure is None:
                led.failed_since = self._parts.clock.monotonic()
            led.failure = f"{name} of {led.log.topic_partition}: {error}"
            self._retry(led, name, room)
        else:
            led.failures.pop(name, None)
            if led.failure is not None and led.failure.startswith(name):
                led.failure = None
        return is_over

    def _retry(self, led: LedPartition, name: str, room: asyncio.Semaphore) -> None:
        """Begins the task again after a pause, unless a round has done so."""
        if self._led.get(led.log.topic_partition) is not led:
            # A plug-in made an error of the cancellation: the log has ended, and the task with it.
            return
        failures = led.failures[name] = led.failures.get(name, 0) + 1
        if name in led.retries:
            return

        async def again() -> None:
            await asyncio.sleep(self._parts.backoff.delay_s(failures))
            self._begin(led, name, room)

        retry = self._parts.background.spawn(again(), name=f"{name} again")
        led.retries[name] = retry
        retry.add_done_callback(lambda _: led.retries.pop(name, None))

    async def _copy(self, led: LedPartition) -> bool:
        """As Copier.run."""
        has_looked = led.has_left_overs
        if has_looked:
            await self._until_ended(led.log.topic_partition)
            found = await self._parts.metadata.list_remote_log_segments(led.partition)
            # All of them go before the next copy begins: each try of an outage would leave one.
            left = [one for one in found if one.state in (_STARTED, _DELETING)]
            removed = await self._parts.removal.remove_all(left)
            copied = max((one.end_offset for one in found if one.state is _FINISHED), default=-1)
            if left or copied > led.tier.highest_offset:
                # Of another leader's copy nobody knows that it has ended: what it finished behind
                # this look is gone by now, too, and the local segment is all that there is. And one
                # of this node's may be finished that ended without an answer.
                await self._load(led)
            # Those that a call which does not end may still write hold nothing up.
            led.has_left_overs = removed < len(left)
        if not self._has_copies(led):
            return True
        has_left_overs, led.has_left_overs = led.has_left_overs, True
        copier, offset = self._parts.copier, led.tier.highest_offset
        is_over = await copier.run(led.partition, led.log, offset, led)
        # The next run looks once more: what a try before this one announced without an answer may
        # have come behind the look, but not behind what this one has written.
        led.has_left_overs = has_left_overs or has_looked
        return is_over

    async def _expire(self, led: LedPartition) -> None:
        parts = self._parts
        segments = await parts.metadata.list_remote_log_segments(led.partition)
        if not led.log.topic_config.remote_storage_enable:
            copying = led.tasks.get("copy")
            if copying is None:
                async with led.turn:
                    await self._give_up_tier(led, segments)
            elif led.waits_for_quota:
                # It could wait for hours, and this task with it, in a place that others need.
                copying.cancel()
            return
        led.is_given_up = False
        expiry = expired_segments(led.log, segments, led.tier.highest_offset, parts.clock.now_ms())
        if expiry.log_start_offset > led.log.log_start_offset:
            # Readers hear first that the records are gone.
            await led.log.raise_start(min(expiry.log_start_offset, led.log.high_watermark))
        removed = await parts.removal.remove_all(expiry.segments)
        parts.metrics.deleted(led.partition.topic, removed)
        kept = await parts.metadata.list_remote_log_segments(led.partition)
        finished = [one.segment_size_bytes for one in kept if one.state is _FINISHED]
        led.remote = (len(finished), sum(finished))

    async def _give_up_tier(
        self, led: LedPartition, segments: Sequence[RemoteLogSegmentMetadata]
    ) -> None:
        """Tiering was turned off: what is remote goes, if the topic says so."""
        if not led.log.topic_config.remote_log_delete_on_disable or "copy" in led.tasks:
            return
        while led.log.log_start_offset < led.log.local_log_start_offset:
            # A round of local retention that was under way has ended before: the local part may
            # begin later by now.
            await led.log.raise_start(led.log.local_log_start_offset)
        # No local segment counts as copied any more, also where the tier is turned on again before
        # all is deleted. The newest are announced first, and none behind one that fails: what that
        # or a crash leaves has no gap below it, and is not copied twice.
        led.tier.highest_offset = -1
        led.has_left_overs = True
        removal = self._parts.removal
        await removal.remove_all(await removal.begin_all(reversed(segments)))
        led.is_given_up = True

    async def run_tasks(self) -> None:
        """One round of tasks, to their end: for those who do not want to wait for the interval."""
        await self.tick()
        while under_way := [task for led in self._led.values() for task in led.tasks.values()]:
            await asyncio.wait(under_way)

    # For operators

    def _lag_of(self, led: LedPartition) -> tuple[int, int]:
        if not led.is_leader or not led.log.topic_config.is_copied:
            return 0, 0
        return self._parts.copier.lag(led.log, led.tier.highest_offset)

    def _waiting_of(self, led: LedPartition) -> Sequence[AbstractLogSegment]:
        if "copy" not in led.tasks or not led.log.topic_config.is_copied:
            return ()
        return self._parts.copier.waiting(led.log, led.tier.highest_offset)

    def _by_topic(
        self, of: Callable[[LedPartition], tuple[int, int]]
    ) -> dict[str, tuple[int, int]]:
        """Sums over the partitions of each topic that has a tier."""
        found: dict[str, tuple[int, int]] = {}
        for led in self._led.values():
            if led.is_loaded:
                segments, size = of(led)
                known = found.get(led.partition.topic, (0, 0))
                found[led.partition.topic] = (known[0] + segments, known[1] + size)
        return found

    def alarms(self) -> list[str]:
        """What does not work, and since when."""
        failing = [led for led in self._led.values() if led.failure is not None]
        found = []
        if self._parts.unexpected:
            found.append(
                f"remote_storage: a task failed by a bug, the last time by "
                f"{self._parts.unexpected[-1]!r}: look at the log, and report it"
            )
        if failing:
            first = min(failing, key=lambda led: led.failed_since)
            for_s = self._parts.clock.monotonic() - first.failed_since
            found.append(
                f"remote_storage: {len(failing)} partitions are not copied or expired for "
                f"{for_s:.0f} s; local disks grow meanwhile: {first.failure}"
            )
        hanging, doing, for_s = self._parts.failures.hanging()
        if hanging:
            found.append(
                f"remote_storage: {hanging} calls do not end, the first one for {for_s:.0f} s "
                f"beyond its time ({doing}). Others go on, one such call a partition may be left "
                "behind; look at what the storage stands on, and end this process if they still do "
                "not end: the next one deletes what they left"
            )
        lost = [led for led in self._led.values() if led.has_lost]
        if lost:
            found.append(
                f"remote_storage: {len(lost)} partitions have offsets that no metadata of remote "
                f"segments names (the first: {lost[0].log.topic_partition}, {lost[0].missing}). "
                "If metadata was lost, put it back and start the node again"
            )
        if self._suspicion is not None:
            found.append(f"remote_storage: {self._suspicion}")
        damage = self._parts.metadata.damage()
        if damage is not None:
            found.append(
                f"remote_storage: {damage}: what this partition has in the tier is not deleted. "
                "Put the record back and start the node again"
            )
        deleting = len(self._deletions.partitions)
        if deleting and self._parts.failures.is_lasting:
            found.append(
                f"remote_storage: the remote data of {deleting} deleted partitions is still there"
            )
        return found

    def highest_offset(self, partition: TopicPartition) -> int:
        """The last offset (inclusive) in the remote tier; -1: none is, or this node does not lead
        the partition."""
        led = self._led.get(partition)
        return -1 if led is None else led.tier.highest_offset

    async def close(self) -> None:
        """Cuts off what is under way; call it when the logs are closed.

        A plug-in's call that does not end within 10 s is left behind.
        """
        tasks = asyncio.ensure_future(self._parts.background.close())
        ended, _ = await asyncio.wait({tasks}, timeout=CLOSE_S)
        if not ended:
            log.warning("a call of the remote storage does not end: the node ends without it")
            # Cancels them again, which a wait for a thread takes as its end.
            tasks.cancel()
            await asyncio.wait({tasks}, timeout=CLOSE_S)
        for plugin in (self._parts.metadata, self._parts.storage):
            try:
                async with asyncio.timeout(CLOSE_S):
                    await plugin.close()
            except (Exception, asyncio.CancelledError):
                # A plug-in may raise anything, or hang: the node ends all the same.
                if is_being_cancelled():
                    raise
                log.exception("closing %s failed", type(plugin).__name__)
