"""The checker of a tier whose metadata are in `__remote_log_metadata`.

It reads the topic's records through the newest node, once each, and keeps what they make of each
segment by the table of states: of two writers the first is right, whatever either of them believes.
"""

from __future__ import annotations

import asyncio

from streamlog.codec.batch import scan
from streamlog.codec.records import iterate
from streamlog.errors import Invalid, Unavailable, UnknownTopicOrPartition
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.internal_topics import REMOTE_LOG_METADATA
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer
from streamlog.testing.simulation.checker import Violation
from streamlog.testing.simulation.local.node import LogNode
from streamlog.testing.simulation.local.tier_checker import TierChecker
from streamlog.testing.simulation.local.world import LocalWorld
from streamlog.tiered.api.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteState,
)
from streamlog.tiered.metadata.records import RemoteLogRecord, decode

_GONE = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
_DELETED = RemotePartitionDeleteState.DELETE_PARTITION_FINISHED
FETCH_BYTES = 1 << 16


class TopicTierChecker(TierChecker):
    def __init__(self, world: LocalWorld) -> None:
        super().__init__(world)
        self._world = world
        self._positions: dict[int, int] = {}
        """By partition of the topic: the offset behind the last record that was taken."""
        self._known: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}

    async def segments(self) -> list[RemoteLogSegmentMetadata]:
        """As TierChecker.segments, with all that is durable when it returns.

        Errors: Unavailable (the node has ended meanwhile); Violation.
        """
        node = self._world.node
        if node is None or not node.is_up:
            raise Unavailable("no node is up")
        while True:
            reading = node.incarnation.start(self._read_on(node), name="metadata topic")
            await asyncio.wait([reading])
            if reading.cancelled():
                raise Unavailable(f"{node} has ended")
            logs = reading.result()
            if all(self._positions[n] == one.high_watermark for n, one in enumerate(logs)):
                return sorted(self._known.values(), key=lambda one: one.start_offset)

    async def _read_on(self, node: LogNode) -> list[AbstractLog]:
        """The logs of the topic, after all that they had was taken."""
        logs: list[AbstractLog] = []
        try:
            logs.append(await node.logs.log(TopicPartition(REMOTE_LOG_METADATA, 0)))
        except UnknownTopicOrPartition:
            return []
        topic = node.logs.topic(REMOTE_LOG_METADATA)
        for number in range(1, 0 if topic is None else topic.partitions):
            logs.append(await node.logs.log(TopicPartition(REMOTE_LOG_METADATA, number)))
        for number, log in enumerate(logs):
            position = self._positions.setdefault(number, 0)
            if log.high_watermark < position:
                raise Violation(f"{log.topic_partition} ends before {position}, which was durable")
            while position < log.high_watermark:
                fetched = await log.fetch(position, FETCH_BYTES)
                if self._positions[number] == position:
                    self._take(fetched.parts)
                    self._positions[number] = fetched.next_offset
                position = self._positions[number]
        return logs

    def _take(self, parts: tuple[Buffer, ...]) -> None:
        for batch in scan(b"".join(parts)):
            for _, _, _, value, _ in iterate(batch.view):
                self._apply(decode(value))

    def _apply(self, record: RemoteLogRecord) -> None:
        if isinstance(record, RemoteLogSegmentMetadata):
            self._known.setdefault(record.remote_log_segment_id, record)
        elif isinstance(record, RemoteLogSegmentMetadataUpdate):
            known = self._known.get(record.remote_log_segment_id)
            if known is None:
                return
            try:
                updated = known.updated(record)
            except Invalid:
                return  # Another writer was first.
            self._known[record.remote_log_segment_id] = updated
            if updated.state is _GONE:
                del self._known[record.remote_log_segment_id]
        elif record.state is _DELETED:
            self._known = {
                segment_id: one
                for segment_id, one in self._known.items()
                if one.topic_id_partition != record.topic_id_partition
            }
