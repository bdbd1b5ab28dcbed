"""Nodes alone write the topics of coordinators: whatever else were there, no load could read."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

import streamlog
from streamlog.errors import InvalidName, PolicyViolation
from streamlog.log.api.internal_topics import TRANSACTION_STATE
from streamlog.model.partition import TopicPartition
from streamlog.v1 import log_pb2
from streamlog.v1support.errors import from_proto, from_rpc_error
from tests.log.staging import encoded, staged_of
from tests.support.server_harness import batch, running


def test_records_of_clients_are_refused() -> None:
    async def main() -> None:
        async with running() as node:
            part = log_pb2.ProducePartition(partition=0, record_batches=batch(b"x"))
            topic = log_pb2.ProduceTopic(topic=TRANSACTION_STATE, partitions=[part])
            told = await node.log_stub.Produce(log_pb2.ProduceRequest(topics=[topic]))
            answer = told.topics[0].partitions[0]
            assert isinstance(from_proto(answer.error), InvalidName)

    asyncio.run(main())


def test_they_get_no_fencing_token() -> None:
    async def main() -> None:
        async with (
            streamlog.open("memory://", meta="memory://") as engine,
            running(logs=engine.logs) as node,
        ):
            await engine.transactions.ensure_topic()
            request = log_pb2.LogServiceSetFencingTokenRequest(
                topic=TRANSACTION_STATE, partition=0, fencing_token=b"token"
            )
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await node.log_stub.SetFencingToken(request)
            assert isinstance(from_rpc_error(refused.value, may_have_happened=False), InvalidName)

    asyncio.run(main())


def test_nothing_is_staged_for_them() -> None:
    async def main() -> None:
        async with streamlog.open("memory://", meta="memory://") as engine:
            await engine.transactions.ensure_topic()
            batches = {TopicPartition(TRANSACTION_STATE, 0): encoded([b"x"])}
            with pytest.raises(PolicyViolation, match="internal topic"):
                await staged_of(engine).stage("w", "attempt", batches)

    asyncio.run(main())
