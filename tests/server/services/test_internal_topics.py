"""Nodes alone write the topics of coordinators: whatever else were there, no load could read."""

from __future__ import annotations

import asyncio

import pytest

import streamlog
from streamlog.errors import PolicyViolation
from streamlog.log.api.internal_topics import TRANSACTION_STATE
from streamlog.model.partition import TopicPartition
from streamlog.v1support.errors import from_proto
from tests.log.staging import encoded, staged_of
from tests.server.services.test_log_service import only, produce_request
from tests.support.server_harness import batch, running


def test_records_of_clients_are_refused() -> None:
    async def main() -> None:
        async with running() as node:
            request = produce_request(batch(b"x"), topic=TRANSACTION_STATE)
            answer = only(await node.log_stub.Produce(request))
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
