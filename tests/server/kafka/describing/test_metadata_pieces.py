"""Answers that are put together have the bytes of answers that are encoded at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from streamlog.kafka.messages.metadata_response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    encode,
)
from streamlog.kafka.protocol.apis import APIS, ApiKey
from streamlog.server.kafka.describing.metadata_pieces import MetadataPieces
from streamlog.server.kafka.describing.partitions import PartitionLeadership

METADATA = APIS[ApiKey.METADATA]
NOT_ASKED = -(1 << 31)
OPERATIONS_FROM = 8
AROUND_VARINT = (0, 1, 3, 126, 127, 128)
"""Counts around the one whose varint has a second byte."""


def states(count: int) -> list[PartitionLeadership]:
    return [
        PartitionLeadership(5, number, -1, number - 1, (1, 2), (2,))
        if number % 7 == 3
        else PartitionLeadership(0, number, 1, number - 1, (1,), ())
        for number in range(count)
    ]


def topic(partitions: Sequence[PartitionLeadership], operations: int = NOT_ASKED) -> Any:
    return MetadataResponseTopic(
        name="t" * 200,
        topic_id=b"0123456789abcdef",
        is_internal=True,
        topic_authorized_operations=operations,
        partitions=[
            MetadataResponsePartition(
                error_code=one.error_code,
                partition_index=one.partition,
                leader_id=one.leader,
                leader_epoch=one.leader_epoch,
                replica_nodes=one.replicas,
                isr_nodes=one.replicas,
                offline_replicas=one.offline,
            )
            for one in partitions
        ],
    )


def response(version: int, topics: Sequence[Any] = ()) -> MetadataResponse:
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="host", port=9092, rack=None)],
        cluster_id="cluster",
        controller_id=1,
        cluster_authorized_operations=5 if 8 <= version <= 10 else NOT_ASKED,
        topics=topics,
    )


@pytest.mark.parametrize("version", range(METADATA.first, METADATA.last + 1))
def test_an_answer_of_pieces_has_the_bytes_of_the_whole(version: int) -> None:
    pieces = MetadataPieces(version)
    for partitions in AROUND_VARINT:
        rows = states(partitions)
        half = partitions // 2
        halves = [pieces.rows(rows[:half]), pieces.rows(rows[half:])]
        encoded = pieces.topic(topic(()), halves, partitions)
        for count in AROUND_VARINT if partitions <= 3 else (1,):
            whole = b"".join(encode(response(version, [topic(rows)] * count), version))
            assert b"".join(pieces.answer(response(version), encoded * count, count)) == whole
            described = pieces.with_operations(encoded, 3576) * count
            bits = 3576 if version >= OPERATIONS_FROM else NOT_ASKED
            whole = b"".join(encode(response(version, [topic(rows, bits)] * count), version))
            assert b"".join(pieces.answer(response(version), described, count)) == whole
