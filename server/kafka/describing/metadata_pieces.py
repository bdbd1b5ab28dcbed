"""Metadata answers put together from topics that were encoded before.

An answer of one version is

    head | count of topics | topics | tail        topic:  head | count of partitions | rows | tail

Each part is cut out of an answer that the generated code has encoded: there is no second
description of the format here but the sizes of the two tails.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from streamlog.kafka.messages.metadata_response import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
    encode,
)
from streamlog.kafka.protocol.apis import APIS, ApiKey
from streamlog.kafka.protocol.primitives import uvarint
from streamlog.runtime.buffers import Buffer
from streamlog.server.kafka.describing.partitions import PartitionLeadership

_int = Struct(">i").pack


class MetadataPieces:
    """Encodes and joins the parts of answers of one version."""

    def __init__(self, version: int) -> None:
        self._version = version
        self._is_flexible = version >= APIS[ApiKey.METADATA].flexible
        tags = int(self._is_flexible)
        # The answer ends with the cluster's operations (8 to 10), the error (13), and tags; a topic
        # with its operations and tags.
        self._tail = 4 * (8 <= version <= 10) + 2 * (version >= 13) + tags
        self._has_operations = version >= 8
        self._topic_tail = 4 * self._has_operations + tags
        none = len(self._count(0))
        self._topics_at = len(_joined(encode(MetadataResponse(), version))) - self._tail - none
        nameless = len(self._alone(MetadataResponseTopic()))
        self._rows_at = nameless - self._topic_tail - self._tail - none

    def _count(self, count: int) -> bytes:
        return uvarint(count + 1) if self._is_flexible else _int(count)

    def rows(self, states: Sequence[PartitionLeadership]) -> bytes:
        """The partitions of a topic, or some of them."""
        partitions = [
            MetadataResponsePartition(
                error_code=state.error_code,
                partition_index=state.partition,
                leader_id=state.leader,
                leader_epoch=state.leader_epoch,
                replica_nodes=state.replicas,
                isr_nodes=state.replicas,
                offline_replicas=state.offline,
            )
            for state in states
        ]
        answer = self._alone(MetadataResponseTopic(partitions=partitions))
        start = self._rows_at + len(self._count(len(states)))
        return answer[start : len(answer) - self._topic_tail - self._tail]

    def topic(self, topic: MetadataResponseTopic, rows: Sequence[bytes], partitions: int) -> bytes:
        """The topic, which has no partitions itself, with the rows of as many as `partitions`."""
        answer = self._alone(topic)
        start = self._topics_at + len(self._count(1))
        end = len(answer) - self._tail
        rows_at = end - self._topic_tail - len(self._count(0))
        return b"".join(
            (
                answer[start:rows_at],
                self._count(partitions),
                *rows,
                answer[end - self._topic_tail : end],
            )
        )

    def with_operations(self, topic: bytes, operations: int) -> bytes:
        """The encoded topic with other authorised operations, which version 8 began to have."""
        if not self._has_operations:
            return topic
        end = len(topic) - self._topic_tail
        return b"".join((topic[:end], _int(operations), topic[end + 4 :]))

    def answer(self, response: MetadataResponse, topics: bytes, count: int) -> list[Buffer]:
        """The whole answer: `response`, which has no topics itself, with `count` encoded ones."""
        answer = _joined(encode(response, self._version))
        end = len(answer) - self._tail
        head = answer[: end - len(self._count(0))] + self._count(count)
        return [piece for piece in (head, topics, answer[end:]) if piece]

    def _alone(self, topic: MetadataResponseTopic) -> bytes:
        return _joined(encode(MetadataResponse(topics=(topic,)), self._version))


def _joined(pieces: Sequence[Buffer]) -> bytes:
    return b"".join(pieces)
