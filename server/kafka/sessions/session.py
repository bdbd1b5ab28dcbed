"""A consumer's partitions, and what its last answer said of each.

A fetch of a session names only what is new in it, and is answered with only what is new for it. The
partitions that have not changed since the last answer cost nothing (`services/records/positions`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from streamlog.log.api.abstract_log import Isolation
from streamlog.model.partition import TopicPartition
from streamlog.server.services.records.partition_read import PartitionRead
from streamlog.server.services.records.positions import ConsumerPositions, ReadPosition

Key: TypeAlias = tuple[str, int]
"""The topic's name, or its id in a session that names topics by ids; and the partition."""

EPOCH_MAX = 0x7FFFFFFF


class WantedPartition(NamedTuple):
    """A partition as a request names it; None: no epoch was given."""

    partition: int
    offset: int
    max_bytes: int
    current_leader_epoch: int | None
    last_fetched_epoch: int | None


class WantedTopic(NamedTuple):
    """`name` is the topic's id where requests carry ids."""

    name: str
    partitions: Sequence[WantedPartition]


class SessionPartition(ReadPosition):
    __slots__ = ("_told_high_watermark", "_told_log_start_offset")

    def __init__(
        self,
        consumer: ConsumerPositions,
        key: TopicPartition,
        topic_id: str,
        wanted: WantedPartition,
    ) -> None:
        super().__init__(
            consumer,
            key,
            topic_id,
            wanted.offset,
            wanted.max_bytes,
            wanted.current_leader_epoch,
            wanted.last_fetched_epoch,
        )
        self._told_high_watermark = -1
        self._told_log_start_offset = -1

    def update(self, wanted: WantedPartition) -> None:
        self.offset = wanted.offset
        self.max_bytes = wanted.max_bytes
        self.current_leader_epoch = wanted.current_leader_epoch
        self.last_fetched_epoch = wanted.last_fetched_epoch

    def has_news(self, read: PartitionRead) -> bool:
        """Whether an answer must hold this partition: Kafka's CachedPartition."""
        result = read.result
        if result.size_bytes or result.error is not None or result.diverging is not None:
            return True
        return (
            read.offsets.high_watermark != self._told_high_watermark
            or read.offsets.log_start_offset != self._told_log_start_offset
        )

    def tell(self, read: PartitionRead) -> None:
        """The client is answered with this. After an error it hears of the partition again."""
        has_failed = read.result.error is not None
        self._told_high_watermark = -1 if has_failed else read.offsets.high_watermark
        self._told_log_start_offset = -1 if has_failed else read.offsets.log_start_offset


class FetchSession:
    """`epoch`: the one that its next fetch has to carry. `session_id` 0: it is kept nowhere."""

    __slots__ = (
        "_isolation",
        "consumer",
        "created_s",
        "epoch",
        "partitions",
        "ranked_size",
        "session_id",
        "used_s",
        "uses_topic_ids",
    )

    def __init__(self, *, uses_topic_ids: bool, isolation: Isolation) -> None:
        self.session_id = 0
        self.epoch = 1
        self.uses_topic_ids = uses_topic_ids
        self.consumer = ConsumerPositions()
        self.partitions: dict[Key, SessionPartition] = {}
        self.created_s = 0.0
        self.used_s = 0.0
        self.ranked_size: int | None = None
        """The size by which the cache has ranked it for eviction; None while it is too young."""
        self._isolation = isolation

    def update(self, topics: Iterable[WantedTopic]) -> None:
        """Adds partitions, or moves those that it has; the next fetch looks at each of them."""
        partitions, consumer = self.partitions, self.consumer
        for topic in topics:
            name = topic.name
            for wanted in topic.partitions:
                key = (name, wanted.partition)
                position = partitions.get(key)
                if position is not None:
                    position.update(wanted)
                    consumer.add(position)
                elif self.uses_topic_ids:
                    unnamed = TopicPartition("", wanted.partition)
                    partitions[key] = SessionPartition(consumer, unnamed, name, wanted)
                else:
                    named = TopicPartition(name, wanted.partition)
                    partitions[key] = SessionPartition(consumer, named, "", wanted)

    def forget(self, keys: Iterable[Key]) -> None:
        for key in keys:
            position = self.partitions.pop(key, None)
            if position is not None:
                self.consumer.remove(position)

    def read_at(self, isolation: Isolation) -> None:
        """Sets the isolation of the fetches to come: it may differ from that of the last one, and
        then other records are visible."""
        if isolation is not self._isolation:
            self._isolation = isolation
            for position in self.partitions.values():
                self.consumer.add(position)

    def advance(self) -> None:
        self.epoch = 1 if self.epoch == EPOCH_MAX else self.epoch + 1

    def finish(self, turn: int, reads: Iterable[PartitionRead]) -> None:
        """The fetch is answered: partitions that the reader has to the end are watched, the next
        fetch looks at the others again. Errors: Superseded."""
        unserved, served = [], []
        for read in reads:
            if read.is_done and read.log is not None:
                self.consumer.watch(turn, read.position, read.log, read.offsets)
            elif read.result.size_bytes or read.result.error is not None:
                served.append(read.position)
            else:
                unserved.append(read.position)
        self.consumer.finish(turn, unserved, served)

    def close(self) -> None:
        self.consumer.close(self.partitions.values())
