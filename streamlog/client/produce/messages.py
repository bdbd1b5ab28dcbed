"""Messages of a produce stream: what one request carries, and how its answer is read. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from streamlog.client.produce.accumulator import PartitionQueue
from streamlog.client.produce.batches import PendingBatch
from streamlog.client.produce.wire import encode_produce
from streamlog.errors import Internal, MessageTooLarge, StreamlogError
from streamlog.runtime.buffers import Buffer

MESSAGE_OVERHEAD = 1024
"""Bytes of a message beside its batches: a rough upper bound."""
_SIZES = re.compile(r"\((\d+) vs\. (\d+)\)")
"""gRPC's words for a message's size and the largest that the server takes."""


@dataclass(slots=True)
class Message:
    """One request under way. `parts`: partition, batch, attempt; in the order of the answer.

    `pieces` are the bytes to send of each part: the fields of the topic as the batch was numbered
    for it, the partition, the batch's bytes. They are taken when the message is made, because
    `encode` runs without the lock. Meanwhile the topic may be made anew, and a batch may go to the
    new topic only behind those that the old one refuses; or a batch may expire and drop its bytes.
    """

    correlation_id: int
    parts: list[tuple[PartitionQueue, PendingBatch, int]]
    pieces: list[tuple[bytes, int, Buffer]]
    size_bytes: int
    sent_at: float

    def encode(self, acks: int, timeout_ms: int, transactional_id: bytes = b"") -> bytes:
        """Called once, without the lock: drops the pieces, so that an answered batch is freed."""
        pieces, self.pieces = self.pieces, []
        return encode_produce(self.correlation_id, acks, timeout_ms, pieces, transactional_id)


def results_of(message: Message, response: Any) -> list[Any]:
    """The answer's result of each part of the message. Errors: Internal where one is missing.

    Called before anything changes: after a wrong answer the whole message is still under way, and
    is lost and sent again with its connection.
    """
    if response.HasField("error"):
        return []
    by_partition = {
        (topic.topic, result.partition): result
        for topic in response.response.topics
        for result in topic.partitions
    }
    results = [
        by_partition.get((queue.topic.name, queue.partition)) for queue, _, _ in message.parts
    ]
    for (queue, _, _), result in zip(message.parts, results, strict=True):
        if result is None:
            raise Internal(f"the answer leaves out {queue.topic.name}-{queue.partition}")
    return results


def message_limit(error: StreamlogError, messages: Iterable[Message]) -> int | None:
    """The largest message that the server takes, where a larger one broke the stream."""
    if not isinstance(error, MessageTooLarge):
        return None
    sizes = _SIZES.search(error.message)
    if sizes is not None:
        return int(sizes[2])
    return max((message.size_bytes for message in messages), default=1) - 1


def more_than_a_message(size_bytes: int, limit: int) -> MessageTooLarge:
    most = max(1, limit - MESSAGE_OVERHEAD)
    return MessageTooLarge(
        f"a batch of {size_bytes} bytes is more than a message to the server carries, {limit} "
        "bytes (limits.message_bytes_max); send smaller records, or raise that setting",
        size_bytes=size_bytes,
        max_bytes=most,
    )
