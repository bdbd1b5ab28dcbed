"""What deleted topics left in the remote storage, until nothing is left.

A deletion is announced in the metadata before it begins and when it has ended, so that one that a
crash interrupts is taken up at the next start. One that fails is tried again, beside the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from streamlog.errors import Corrupt, Invalid, StreamlogError
from streamlog.model.partition import TopicPartition
from streamlog.tiered.api.segments import RemotePartitionDeleteState, TopicIdPartition
from streamlog.tiered.copying.removal import SegmentRemoval
from streamlog.tiered.metrics import RemoteLogMetrics

log = logging.getLogger(__name__)

_MARKED = RemotePartitionDeleteState.DELETE_PARTITION_MARKED


class PartitionDeletions:
    """`run` deletes, `begin` says what; `load` first.

    `may_begin`: whether nothing of the partition is copied any more here; `looks_again` says that
    this has changed. `unexpected` takes failures that nothing was prepared for.
    """

    def __init__(
        self,
        removal: SegmentRemoval,
        metrics: RemoteLogMetrics,
        unexpected: list[BaseException],
        may_begin: Callable[[TopicPartition], bool],
        *,
        retry_s: float,
    ) -> None:
        self._removal = removal
        self._metrics = metrics
        self._unexpected = unexpected
        self._may_begin = may_begin
        self._retry_s = retry_s
        self._states: dict[TopicIdPartition, RemotePartitionDeleteState] = {}
        self._is_due = asyncio.Event()
        self._round_ended = asyncio.Condition()

    @property
    def partitions(self) -> Collection[TopicIdPartition]:
        """Those that are not deleted yet."""
        return self._states.keys()

    async def load(self) -> None:
        """Takes up what a crash interrupted. Errors: Unavailable, Corrupt."""
        for one in await self._removal.metadata.deleted_partitions():
            self._states[one.topic_id_partition] = one.state

    async def begin(self, partition: TopicIdPartition, *, is_copied: bool) -> None:
        """It goes on by itself, also if this process ends. `is_copied`: a copy is under way, or is
        being cut off, and may still be announced. Errors: those of the metadata."""
        if partition in self._states:
            return
        # Most partitions have nothing there, and then nothing has to be remembered.
        if is_copied or await self._has_segments(partition):
            await self._removal.announce(partition, _MARKED)
            self._states[partition] = _MARKED
            self._is_due.set()
        else:
            await self._removal.metadata.on_stop_partitions([partition])

    async def _has_segments(self, partition: TopicIdPartition) -> bool:
        try:
            return bool(await self._removal.metadata.list_remote_log_segments(partition))
        except Corrupt as error:
            # There are some, and a topic that cannot be opened has to be deletable.
            log.warning("the metadata of %s, which is deleted, is damaged: %s", partition, error)
            return True

    def looks_again(self, partition: TopicPartition) -> None:
        if any(one.topic_partition == partition for one in self._states):
            self._is_due.set()

    async def run(self) -> None:
        """Without end."""
        while True:
            self._is_due.clear()
            for partition, state in tuple(self._states.items()):
                # Others do not wait for a copy that does not end: a call of a plug-in may hang.
                if self._may_begin(partition.topic_partition):
                    await self._try(partition, state)
            async with self._round_ended:
                self._round_ended.notify_all()
            try:
                async with asyncio.timeout(self._retry_s if self._states else None):
                    await self._is_due.wait()
            except TimeoutError:
                continue

    async def _try(self, partition: TopicIdPartition, state: RemotePartitionDeleteState) -> None:
        try:
            await self._remove(partition, state)
        except StreamlogError as error:
            # It may have begun. To begin it again is taken, too.
            self._states[partition] = _MARKED
            self._metrics.failed("delete", partition.topic)
            log.warning("the remote data of %s is deleted later: %s", partition, error)
        except Exception as error:
            # Nothing may end the rounds: other partitions would never be deleted.
            log.exception("a deletion failed")
            self._unexpected.append(error)
        else:
            del self._states[partition]

    async def _remove(self, partition: TopicIdPartition, state: RemotePartitionDeleteState) -> None:
        metadata = self._removal.metadata
        try:
            await self._removal.remove_partition(partition, state)
        except Invalid:
            # So is one that has ended, by a try without an answer or by another node.
            if any(
                one.topic_id_partition == partition for one in await metadata.deleted_partitions()
            ):
                raise
            await metadata.on_stop_partitions([partition])

    async def done(self) -> None:
        """Returns when nothing of deleted topics is left."""
        async with self._round_ended:
            await self._round_ended.wait_for(lambda: not self._states)
