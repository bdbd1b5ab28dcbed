"""Nodes alone write the topics of coordinators: whatever else were there, no load could read."""

from __future__ import annotations

import asyncio

import pytest

import streamlog
from streamlog.errors import PolicyViolation
from streamlog.log.api.internal_topics import TRANSACTION_STATE
from streamlog.model.partition import TopicPartition
from streamlog.v1 import log_pb2
from streamlog.v1support.errors import from_proto
from tests.log.staging import encoded, staged_of
from tests.support.server_harness import batch, running


def test_records_of_clients_are_refused() -> None:
    async def main() -> None:
        async with running() as node:
            part = log_pb2.ProducePartition(partition=0, record_batches=batch(b"x"))
            topic = log_pb2.ProduceTopic(topic=TRANSACTION_STATE, partitions=[part])
            told = await node.log_stub.Produce(log_pb2.ProduceRequest(topics=[topic]))
            answer = told.topics[0].partitions[0]
            assert isinstance(from_proto(answer.error), PolicyViolation)

    asyncio.run(main())


def test_nothing_is_staged_for_them() -> None:
    async def main() -> None:
        async with streamlog.open("memory://", meta="memory://") as engine:
            await engine.transactions.ensure_topic()
            batches = {TopicPartition(TRANSACTION_STATE, 0): encoded([b"x"])}
            with pytest.raises(PolicyViolation, match="internal topic"):
                await staged_of(engine).stage("w", "attempt", batches)

    asyncio.run(main())
