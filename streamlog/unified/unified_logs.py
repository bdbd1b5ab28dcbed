"""UnifiedLogFactory: creates, opens and deletes partitions in a node's log folder.

A handle is made from the topic's id and the partition's number, so that it can be told from the
folder's own partition.metadata: nothing else has to agree with the folder.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence, Set
from uuid import UUID

from streamlog.errors import InvalidConfig, InvalidPartitions, StoreUnavailable, StreamlogError
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.log_factory import LogFailed, TopicIdentity
from streamlog.log.api.tiering import Tiers
from streamlog.log.api.topic_config import TopicConfig
from streamlog.model.partition import TopicPartition
from streamlog.unified.log_folder import LogFolder
from streamlog.unified.unified_log import UnifiedLog

_PARTITION_BITS = 20
_TOPIC_BITS = 43


def handle_of(topic_id: UUID, partition: int) -> int:
    """63 bits: of 10,000 topics two have the same with a chance of 1 in 170,000."""
    topic = topic_id.int & ((1 << _TOPIC_BITS) - 1)
    return topic << _PARTITION_BITS | partition


class UnifiedLogFactory:
    """The folder's owner closes it when the manager is closed."""

    def __init__(self, folder: LogFolder, tiers: Tiers | None = None) -> None:
        self._folder = folder
        self._tiers = tiers
        self._attempts: dict[int, str] = {}
        """Handles that this process created → the attempt."""

    def check(self, config: TopicConfig, before: TopicConfig | None) -> None:
        """As LogFactory.check."""
        was_tiered = before is not None and before.remote_storage_enable
        if config.remote_storage_enable and self._tiers is None and not was_tiered:
            raise InvalidConfig(
                "remote.storage.enable=true needs a node with tiered storage: start it with "
                "remote.log.storage.system.enable=true (--remote-storage)",
                name="remote.storage.enable",
            )
        if (
            was_tiered
            and not config.remote_storage_enable
            and not config.remote_log_delete_on_disable
        ):
            raise InvalidConfig(
                "remote.storage.enable=false deletes what is in the remote tier: set "
                "remote.log.delete.on.disable=true with it, or, to keep and read it, leave tiering "
                "on and set remote.log.copy.disable=true",
                name="remote.storage.enable",
            )

    async def create(
        self, topic: TopicIdentity, partitions: Sequence[int], config: TopicConfig
    ) -> list[int]:
        """As LogFactory.create."""
        if partitions and max(partitions) >= 1 << _PARTITION_BITS:
            raise InvalidPartitions(
                f"a unified topic has at most {1 << _PARTITION_BITS} partitions"
            )
        handles: list[int] = []
        made: dict[TopicPartition, int] = {}
        try:
            for number in partitions:
                partition = TopicPartition(topic.name, number)
                handle = handle_of(topic.topic_id, number)
                self._attempts[handle] = topic.attempt
                if await self._folder.create(partition, topic.topic_id):
                    made[partition] = handle
                handles.append(handle)
        except StreamlogError:
            # No tier has anything of them, and what was adopted is a copy. What was there before
            # stays.
            for partition, handle in made.items():
                await self._folder.remove(partition, topic.topic_id)
                self._attempts.pop(handle, None)
            raise
        return handles

    async def check_created(self, handles: Sequence[int]) -> None:
        """Nobody else has this folder."""
        return

    async def open(
        self, partition: TopicPartition, handle: int, config: TopicConfig, on_failure: LogFailed
    ) -> AbstractLog:
        """As LogFactory.open. A folder that is missing or another topic's is no NotFound, which
        would delete the topic: it may be put back. Errors: StoreUnavailable, Corrupt."""
        topic_id = self._folder.topic_id_of(partition)
        if topic_id is None or handle_of(topic_id, partition.partition) != handle:
            found = "has no folder" if topic_id is None else "has the folder of another topic id"
            raise StoreUnavailable(
                f"{partition} {found} in {self._folder}: a unified topic lives there alone. Put "
                "its folder back, or delete the topic",
                path=str(self._folder),
                waiting_helps=False,
            )
        folder, loaded = await self._folder.load(partition, config)
        log = UnifiedLog(partition, folder, loaded, config, on_failure)
        if self._tiers is not None:
            try:
                await self._tiers.attach(log, topic_id)
            except BaseException:
                await log.kill()
                raise
        return log

    async def is_there(self, handle: int) -> bool:
        """As LogFactory.is_there: a missing folder may come back."""
        return True

    async def claim(self, partition: TopicPartition, topic_id: UUID, handle: int) -> bool:
        """As LogFactory.claim."""
        return await self._folder.claim(partition, topic_id)

    async def release(self, handle: int) -> None:
        """Nobody else opens a partition of this folder."""
        return

    async def remove(self, handle: int) -> None:
        for partition, topic_id in self._folder.partitions():
            if handle_of(topic_id, partition.partition) == handle:
                if self._tiers is not None:
                    await self._tiers.delete_partition(partition, topic_id)
                await self._folder.remove(partition, topic_id)
        self._attempts.pop(handle, None)

    async def delete_orphans(
        self,
        attempts_under_way: Callable[[], Set[str]],
        registered: Callable[[], Awaitable[Set[int]]],
    ) -> int:
        """As LogFactory.delete_orphans. A topic with records is put aside, and not deleted: the
        metadata may be older than the folder."""
        listed = [
            (partition, topic_id, handle_of(topic_id, partition.partition))
            for partition, topic_id in self._folder.partitions()
        ]
        under_way = set(attempts_under_way())
        handles = await registered()
        orphans = [
            (partition, topic_id)
            for partition, topic_id, handle in listed
            if handle not in handles and self._attempts.get(handle) not in under_way
        ]
        known = {handle >> _PARTITION_BITS for handle in handles}
        empty = {orphan for orphan in orphans if await self._folder.is_empty(*orphan)}
        deleted = 0
        # An empty one last: it is put aside, too, where another one of its topic was.
        for orphan in sorted(orphans, key=empty.__contains__):
            is_known = handle_of(orphan[1], 0) >> _PARTITION_BITS in known
            deleted += await self._folder.discard(*orphan, is_topic_known=is_known)
        return deleted
