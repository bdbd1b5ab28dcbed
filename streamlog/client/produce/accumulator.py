"""Collects records into batches: one open batch per partition, memory within one bound.

Pure: no clock, no lock, no I/O. An open batch is charged with its size limit, a closed one with
its real size, until it is done.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from streamlog.client.produce.batches import PendingBatch
from streamlog.client.produce.partitioner import next_sticky
from streamlog.client.produce.splitting import split
from streamlog.client.produce.state import PartitionSequencer
from streamlog.client.produce.wire import topic_head
from streamlog.client.settings import (
    COMPRESSIONS,
    RECORD_BYTES_MAX_DEFAULT,
    ProducerSettings,
)
from streamlog.codec.batch import Compression
from streamlog.codec.records import Headers, record_bytes_max
from streamlog.errors import (
    MessageTooLarge,
    OutcomeUnknown,
    StreamlogError,
    UnknownTopicOrPartition,
)
from streamlog.runtime.buffers import Buffer

GROW_AT_BATCHES = 2
"""How many unanswered batches of a partition make the batch after a full one larger."""


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic as the server describes it."""

    partitions: int
    batch_bytes_max: int = RECORD_BYTES_MAX_DEFAULT
    topic_id: str = ""
    knows_limit: bool = True
    """False: batch_bytes_max is a guess."""


class PartitionQueue:
    """The batches of one partition: open, ready to be sent, sent."""

    __slots__ = ("open", "partition", "ready", "sequencer", "size_limit_bytes", "topic")

    def __init__(
        self, topic: TopicQueues, partition: int, sequencer: PartitionSequencer, size: int
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.open: PendingBatch | None = None
        self.ready: deque[PendingBatch] = deque()
        self.sequencer = sequencer
        self.size_limit_bytes = size

    @property
    def next_bytes(self) -> int:
        """About how large the next batch to send is."""
        resent = self.sequencer.to_resend()
        batch = resent or (self.ready[0] if self.ready else self.open)
        return 0 if batch is None else batch.charged_bytes

    @property
    def is_idle(self) -> bool:
        return self.open is None and not self.ready and not self.sequencer.unanswered

    def drop_all(self) -> list[PendingBatch]:
        """Forgets the batches that are not done, and returns them."""
        batches = self.batches()
        if self.open is not None and self.open.builder is not None:
            self.open.record_count = self.open.builder.record_count
        self.open = None
        self.ready.clear()
        self.sequencer.drop_all()
        return batches

    def batches(self) -> list[PendingBatch]:
        """The batches that are not done."""
        batches = [*self.sequencer.unanswered, *self.ready]
        if self.open is not None:
            batches.append(self.open)
        return batches


class TopicQueues:
    """The partitions of a topic; `sticky` takes the records without a key."""

    __slots__ = (
        "batch_bytes_max",
        "head",
        "knows_limit",
        "loaded_at",
        "name",
        "queues",
        "sticky",
        "topic_id",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.topic_id = ""
        self.head = topic_head(name, "")
        """The topic's part of a message."""
        self.knows_limit = True
        self.queues: list[PartitionQueue] = []
        self.sticky: PartitionQueue
        self.batch_bytes_max = RECORD_BYTES_MAX_DEFAULT
        self.loaded_at = 0.0

    def limit_batches(self, batch_bytes_max: int) -> None:
        """The server takes no larger batches; those open or ready stay as they are."""
        self.batch_bytes_max = batch_bytes_max
        for queue in self.queues:
            queue.size_limit_bytes = min(queue.size_limit_bytes, batch_bytes_max)

    def move_sticky(self) -> PartitionQueue:
        self.sticky = self.queues[next_sticky(self.sticky.partition, len(self.queues))]
        return self.sticky


class Accumulator:
    def __init__(self, settings: ProducerSettings) -> None:
        self._settings = settings
        self._compression: Compression = COMPRESSIONS[settings.compression]
        # A batch that lingered until its delivery timeout would be given up unsent.
        self._linger_s = min(settings.linger_ms, settings.delivery_timeout_ms / 2) / 1000
        self.topics: dict[str, TopicQueues] = {}
        self.active: dict[PartitionQueue, None] = {}
        """Partitions with a batch that is not done; the first is sent first."""
        self.done: list[PendingBatch] = []
        """Ended batches whose waiters are not notified yet."""
        self.charged_bytes = 0
        self.is_short_of_room = False
        """A caller waits for room: open batches are sent at once."""

    def update_topic(self, name: str, metadata: TopicMetadata, now: float) -> TopicQueues:
        """Takes over a topic's metadata.

        Fewer partitions of another topic id: the topic was made anew, and batches for the missing
        ones fail. Fewer partitions of the same id: the answer is an old one, and none goes.
        """
        topic = self.topics.get(name) or TopicQueues(name)
        is_same = metadata.topic_id and metadata.topic_id == topic.topic_id
        count = max(metadata.partitions, len(topic.queues) if is_same else 0)
        if metadata.topic_id != topic.topic_id and metadata.topic_id:
            is_another = bool(topic.topic_id)
            topic.topic_id, topic.head = metadata.topic_id, topic_head(name, metadata.topic_id)
            for queue in topic.queues if is_another else ():
                queue.sequencer.topic_made_anew()
        self._drop_partitions(topic, count)
        for partition in range(len(topic.queues), count):
            sequencer = PartitionSequencer(self._settings, self.done)
            size = min(self._settings.batch_size_bytes, metadata.batch_bytes_max)
            topic.queues.append(PartitionQueue(topic, partition, sequencer, size))
        if name not in self.topics:
            topic.sticky = topic.queues[next_sticky(-1, metadata.partitions + 1) - 1]
        topic.loaded_at = now
        topic.knows_limit = metadata.knows_limit
        topic.limit_batches(metadata.batch_bytes_max)
        self.topics[name] = topic
        return topic

    def _drop_partitions(self, topic: TopicQueues, count: int) -> None:
        gone = topic.queues[count:]
        if not gone:
            return
        del topic.queues[count:]
        for queue in gone:
            self.active.pop(queue, None)
            for batch in queue.drop_all():
                batch.fail(_partition_gone(batch, count))
                self.done.append(batch)
        if topic.sticky.partition >= count:
            topic.sticky = topic.queues[next_sticky(-1, count + 1) - 1]

    def record_limit(
        self, topic: TopicQueues, key: Buffer | None, value: Buffer | None, headers: Headers
    ) -> int:
        """Upper bound on the bytes of a batch of this record alone. Errors: MessageTooLarge."""
        size = record_bytes_max(key, value, headers)
        limit = self._settings.buffer_memory_bytes
        if self._compression is Compression.NONE:
            limit = min(limit, topic.batch_bytes_max)
        if size > limit:
            raise MessageTooLarge(
                f"a record of {size} bytes does not fit into {topic.name}'s max.message.bytes or "
                f"segment.bytes = {topic.batch_bytes_max} (buffer_memory_bytes = "
                f"{self._settings.buffer_memory_bytes}); raise the limit or send less",
                size_bytes=size,
                max_bytes=limit,
            )
        return size

    def new_batch(
        self, queue: PartitionQueue, record_bytes: int, now: float
    ) -> PendingBatch | None:
        """An empty batch for a record of `record_bytes` bytes; None while there is no room.

        `open_batch` gives it to the partition once a record is in it. So a record that cannot be
        encoded leaves no empty batch behind.
        """
        size = max(queue.size_limit_bytes, record_bytes)
        free = self._settings.buffer_memory_bytes - self.charged_bytes
        if size > free:
            if self.charged_bytes:
                return None
            size = free
        return PendingBatch(
            queue.topic.name,
            queue.partition,
            size_limit_bytes=size,
            compression=self._compression,
            opened_at=now,
            deadline=now + self._settings.delivery_timeout_ms / 1000,
            is_transactional=bool(self._settings.transactional_id),
        )

    def open_batch(self, queue: PartitionQueue, batch: PendingBatch) -> None:
        """Makes a batch, which holds a record already, the partition's open batch."""
        # First, because an open batch is sent only where its partition is active.
        self.active.setdefault(queue)
        queue.open = batch
        self.charged_bytes += batch.charged_bytes

    def close_open(self, queue: PartitionQueue, *, is_full: bool) -> None:
        """Closes the open batch; the next one may be larger, or smaller again."""
        batch = queue.open
        if batch is None or batch.builder is None:
            return
        queue.open = None
        batch.record_count = batch.builder.record_count
        if batch.record_count == 0:
            self.charged_bytes -= batch.charged_bytes
            return
        size = batch.builder.size_bytes
        self.charged_bytes -= batch.charged_bytes - size
        batch.charged_bytes = size
        queue.ready.append(batch)
        if queue is queue.topic.sticky:
            queue.topic.move_sticky()
        waiting = len(queue.ready) + len(queue.sequencer.unanswered)
        queue.size_limit_bytes = min(
            self._next_size(queue.size_limit_bytes, is_full, waiting),
            queue.topic.batch_bytes_max,
        )

    def _next_size(self, size: int, is_full: bool, waiting: int) -> int:
        least, most = self._settings.batch_size_bytes, self._settings.batch_size_max_bytes
        if is_full and waiting >= GROW_AT_BATCHES:
            return max(least, min(size * 2, most))
        return size if is_full else max(least, size // 2)

    def is_due(self, queue: PartitionQueue, now: float) -> bool:
        """Whether the open batch has lingered long enough to be sent."""
        batch = queue.open
        return batch is not None and (
            self.is_short_of_room or now >= batch.opened_at + self._linger_s
        )

    def close_all(self) -> list[PendingBatch]:
        """Closes every open batch; returns all batches that are not done."""
        batches: list[PendingBatch] = []
        for queue in self.active:
            self.close_open(queue, is_full=False)
            batches += queue.batches()
        return batches

    def take_done(self) -> list[PendingBatch]:
        """Batches that ended since the last call; their room is free again."""
        ended = self.done[:]
        self.done.clear()
        for batch in ended:
            self.charged_bytes -= batch.charged_bytes
        if any(batch.parent is not None for batch in ended):
            ended += _whole(ended)
        return ended

    def split(self, batch: PendingBatch, bytes_max: int | None) -> list[PendingBatch]:
        """Parts to send instead of the batch; their bytes are charged instead of its own."""
        charged = batch.charged_bytes
        parts = split(batch, bytes_max, self._compression)
        batch.split(parts)
        self.charged_bytes += sum(part.charged_bytes for part in parts) - charged
        return parts

    def linger_ends_at(self, queue: PartitionQueue) -> float:
        batch = queue.open
        return float("inf") if batch is None else batch.opened_at + self._linger_s


def _partition_gone(batch: PendingBatch, count: int) -> StreamlogError:
    place = f"{batch.topic}-{batch.partition}"
    if batch.in_flight or batch.may_be_stored:
        return OutcomeUnknown(f"{place}: the topic was made anew before the answer came")
    return UnknownTopicOrPartition(
        f"{place}: the topic was made anew with the partitions 0 to {count - 1}",
        topic=batch.topic,
        partition=batch.partition,
    )


def _whole(parts: list[PendingBatch]) -> list[PendingBatch]:
    """The split batches that are done with these parts, each once."""
    wholes: dict[PendingBatch, None] = {}
    for part in parts:
        batch = part.parent
        while batch is not None and batch.done:
            wholes[batch] = None
            batch = batch.parent
    return list(wholes)
