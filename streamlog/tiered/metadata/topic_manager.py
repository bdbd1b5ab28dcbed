"""TopicBasedRemoteLogMetadataManager: metadata of remote segments in a topic, Kafka's default.

Each change is a record of Kafka's bytes in the internal topic `__remote_log_metadata`. Partitions
of it that this node leads are read from their start when they are first asked for, and read on
before each answer, so that an answer has all that was durable when the call came, whoever wrote it.

The first record makes the topic be created. Its records never go by age or size (`retention.ms` and
`retention.bytes` are -1), and nothing compacts them: what is known stands in them alone, and a
segment has four small records in its life. A partition whose deletion has ended takes no memory,
but its records' room in the log, and their time in a load. That suffices for now.

A metadata partition that another node leads is neither read nor written here: calls get NotLeader.
On one node that never happens. When the log behind a partition fails or ends, calls under way get
Unavailable, and the next call reads the log that is opened in its place. Nothing waits longer than
`remote.log.metadata.consume.wait.ms`, but for the first load, which may go on as long as it reads
something in that time. Source: KIP-405, Kafka's TopicBasedRemoteLogMetadataManager.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from streamlog.errors import (
    Closed,
    Corrupt,
    NotLeader,
    StreamlogError,
    TopicAlreadyExists,
    Unavailable,
    UnknownTopicOrPartition,
)
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.internal_topics import REMOTE_LOG_METADATA
from streamlog.log.manager import LogManager
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import Clock
from streamlog.tiered.api import (
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)
from streamlog.tiered.metadata.cache import RemoteLogMetadataCache
from streamlog.tiered.metadata.metadata_partition import MetadataPartition
from streamlog.tiered.metadata.placement import metadata_partition_of
from streamlog.tiered.metadata.records import RemoteLogRecord, partition_of
from streamlog.tiered.metadata.settings import RemoteMetadataTopicConfig, parse
from streamlog.tiered.metadata.state import RemoteMetadataState

log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = "max.message.bytes"
TOPIC_CONFIGS = {
    "cleanup.policy": "delete",
    MAX_MESSAGE_BYTES: "1048588",
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}


class TopicBasedRemoteLogMetadataManager(RemoteLogMetadataManager):
    """Over the logs of a node; close it before them. It has no tasks of its own.

    A call that is cancelled leaves an append under way at most, which later calls see, or nobody.
    Errors of every call: Unavailable, Corrupt, UnsupportedVersion (records of a newer program).
    """

    def __init__(self, logs: LogManager | None, clock: Clock) -> None:
        """`logs` None: they are opened later than this, and given by `take_logs`."""
        self._given_logs = logs
        self._clock = clock
        self._config = RemoteMetadataTopicConfig()
        self._partitions: dict[int, MetadataPartition] = {}
        self._held: set[TopicIdPartition] = set()
        """Partitions that the node answers for."""
        self._creating = asyncio.Lock()
        self._is_closed = False

    def take_logs(self, logs: LogManager) -> None:
        """Calls before it get Unavailable: the topic cannot be read yet."""
        self._given_logs = logs

    @property
    def _logs(self) -> LogManager:
        if self._given_logs is None:
            raise Unavailable("the logs of this node are not open yet; retry")
        return self._given_logs

    @property
    def metadata_partitions(self) -> set[int]:
        """Partitions of the topic that are in memory."""
        return set(self._partitions)

    def configure(self, configs: Mapping[str, str]) -> None:
        self._config = parse(configs)

    async def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> None:
        await self._write(metadata)

    async def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> None:
        await self._write(update)

    async def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata
    ) -> None:
        await self._write(metadata)

    async def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return (await self._cache(partition)).segment(epoch, offset)

    async def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        return (await self._cache(partition)).highest_offset(epoch)

    async def next_segment_with_txn_index(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        return (await self._cache(partition)).next_with_txn_index(epoch, offset)

    async def list_remote_log_segments(
        self, partition: TopicIdPartition, epoch: int | None = None
    ) -> Sequence[RemoteLogSegmentMetadata]:
        """Also what a writer before it gave up, and what was stored all the same."""
        return (await self._cache(partition, is_settled=True)).list(epoch)

    async def deleted_partitions(self) -> Sequence[RemotePartitionDeleteMetadata]:
        """Those of metadata partitions that this node leads: each node goes on with its own."""
        async with self._bounded():
            count = await self._count()
        found: list[RemotePartitionDeleteMetadata] = []
        for number in range(count):
            if self._logs.leadership.is_led_here(TopicPartition(REMOTE_LOG_METADATA, number)):
                found += (await self._replayed(number)).deletions
        return found

    async def _replayed(self, number: int) -> RemoteMetadataState:
        """The time is that of a step: a node cannot start without all records, and years of them
        take minutes. Errors: Unavailable, where a step read nothing."""
        reached = 0
        while True:
            try:
                async with self._bounded():
                    return await (await self._hosted(number)).state()
            except Unavailable as error:
                hosted = self._partitions.get(number)
                if hosted is None or hosted.next_offset <= reached:
                    raise
                reached = hosted.next_offset
                end = hosted.log.high_watermark
                log.info(
                    "%s-%d is read up to offset %d of %d, and on: %s",
                    REMOTE_LOG_METADATA,
                    number,
                    reached,
                    end,
                    error,
                )

    async def on_partition_leadership_changes(
        self, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition]
    ) -> None:
        """Followers are loaded as well, as in Kafka: they may lead next."""
        partitions = {*leaders, *followers}
        async with self._bounded():
            count = await self._count()
            if count:
                for number in sorted({metadata_partition_of(one, count) for one in partitions}):
                    await (await self._hosted(number)).state()
        self._held |= partitions

    async def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        """Frees the metadata partitions that no partition of this node is in any more. Who asks for
        one of them nevertheless has it loaded again."""
        self._held.difference_update(partitions)
        topic = self._logs.topic(REMOTE_LOG_METADATA)
        if topic is not None:
            needed = {metadata_partition_of(one, topic.partitions) for one in self._held}
            for number in self._partitions.keys() - needed:
                # One that is still appended to knows what the next look has to wait for.
                if not self._partitions[number].is_appending:
                    del self._partitions[number]

    async def close(self) -> None:
        """Later calls get Closed; those under way end with the logs, or in their time."""
        self._is_closed = True
        self._partitions.clear()

    async def _write(self, record: RemoteLogRecord) -> None:
        async with self._bounded():
            count = await self._count() or await self._created()
            number = metadata_partition_of(partition_of(record), count)
            await (await self._hosted(number)).write(record)

    async def _cache(
        self, partition: TopicIdPartition, *, is_settled: bool = False
    ) -> RemoteLogMetadataCache:
        async with self._bounded():
            count = await self._count()
            if not count:
                return RemoteLogMetadataCache()
            hosted = await self._hosted(metadata_partition_of(partition, count))
            state = await (hosted.settled(partition) if is_settled else hosted.state())
            return state.cache(partition)

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        """Errors: Closed; Unavailable, where what is done within takes too long."""
        if self._is_closed:
            raise Closed("the manager of remote segments' metadata was closed")
        wait_s = self._config.wait_ms / 1000
        try:
            async with asyncio.timeout(wait_s):
                yield
        except TimeoutError:
            late = Unavailable(
                f"{REMOTE_LOG_METADATA} did not answer within {wait_s:g} s; retry with back-off"
            )
            late.has_no_side_effects = False
            raise late from None

    async def _count(self) -> int:
        """Partitions of the topic; 0 where no node has made it."""
        if self._logs.topic(REMOTE_LOG_METADATA) is None:
            # It asks the metadata store: another node may have made the topic just now.
            with suppress(UnknownTopicOrPartition, NotLeader):
                await self._log(0)
        topic = self._logs.topic(REMOTE_LOG_METADATA)
        return 0 if topic is None else topic.partitions

    async def _created(self) -> int:
        """Makes the topic; its partitions. Errors: Unavailable."""
        async with self._creating:
            topic = self._logs.topic(REMOTE_LOG_METADATA)
            if topic is not None:
                return topic.partitions
            bound = min(int(TOPIC_CONFIGS[MAX_MESSAGE_BYTES]), self._logs.message_bytes_max)
            configs = {**TOPIC_CONFIGS, MAX_MESSAGE_BYTES: str(bound)}
            try:
                made = await self._logs.create_internal_topic(
                    REMOTE_LOG_METADATA, self._config.partitions, configs
                )
            except TopicAlreadyExists as error:
                count = await self._count()
                if not count:
                    raise Unavailable(
                        f"{REMOTE_LOG_METADATA} is being created by another node; retry"
                    ) from error
                return count
            except Unavailable:
                raise
            except StreamlogError as error:
                raise Unavailable(f"{REMOTE_LOG_METADATA} was not created: {error}") from error
            return made.partitions

    async def _hosted(self, number: int) -> MetadataPartition:
        """Of the log that is open now. Errors: Unavailable, Corrupt."""
        try:
            opened = await self._log(number)
        except UnknownTopicOrPartition as error:
            raise Unavailable(f"{REMOTE_LOG_METADATA}-{number} is gone: {error}") from error
        hosted = self._partitions.get(number)
        if hosted is None or hosted.log is not opened:
            hosted = self._partitions[number] = MetadataPartition(opened, self._clock)
        return hosted

    async def _log(self, number: int) -> AbstractLog:
        """Errors: UnknownTopicOrPartition, Unavailable, Corrupt."""
        partition = TopicPartition(REMOTE_LOG_METADATA, number)
        opened = self._logs.open_log(partition)
        if opened is not None:
            return opened
        try:
            return await self._logs.log(partition)
        except (UnknownTopicOrPartition, Unavailable, Corrupt):
            raise
        except StreamlogError as error:
            raise Unavailable(f"{partition} cannot be opened: {error}; retry") from error
