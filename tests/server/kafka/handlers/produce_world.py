"""The produce handlers over a real engine in memory, or over logs that a test holds back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import CollectorRegistry

import streamlog
from streamlog.codec.records import encode_values
from streamlog.kafka.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from streamlog.kafka.messages.produce_response import PartitionProduceResponse, ProduceResponse
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.runtime.clock import Clock, SystemClock
from streamlog.runtime.offload import Offload, ThreadOffload
from streamlog.server.composition import Services
from streamlog.server.context import Authorize, RequestContext, allow_all
from streamlog.server.kafka.call import KafkaCall, Reply
from streamlog.server.kafka.handlers.describe_producers import DescribeProducersHandler
from streamlog.server.kafka.handlers.init_producer_id import ProducerIdHandler
from streamlog.server.kafka.handlers.produce import ProduceHandler
from streamlog.server.metrics import ClientMetrics, ServerMetrics, TopicTraffic
from streamlog.server.services.log import LogService
from streamlog.server.services.records.parts import RecordParts
from streamlog.server.services.records.produce import ProduceService
from streamlog.server.services.transactions import TransactionService
from streamlog.settings.limits import LimitsConfig
from tests.support.fake_coordinator import FakeCoordinator

NEWEST_WITH_NAMES = 12
NEWEST = 13


@dataclass
class ProduceWorld:
    logs: Any
    produce: ProduceHandler
    producer_ids: ProducerIdHandler
    describe_producers: DescribeProducersHandler
    registry: CollectorRegistry
    service: ProduceService
    coordinator: FakeCoordinator

    async def reply(self, request: ProduceRequest, version: int = NEWEST_WITH_NAMES) -> Reply:
        return await self.produce.produce(call(version), request)

    async def send(
        self, request: ProduceRequest, version: int = NEWEST_WITH_NAMES
    ) -> ProduceResponse:
        response = await response_of(await self.reply(request, version))
        assert isinstance(response, ProduceResponse)
        return response

    async def send_one(
        self, records: bytes | None, version: int = NEWEST_WITH_NAMES, **fields: Any
    ) -> PartitionProduceResponse:
        """The partition's answer to records for partition 0 of topic t."""
        return only(await self.send(produce_request(records, **fields), version))


async def response_of(reply: Reply) -> Any:
    await reply.wait()
    return reply.response()


def world_over(
    logs: Any,
    authorize: Authorize = allow_all,
    limits: LimitsConfig | None = None,
    clock: Clock | None = None,
    coordinator: FakeCoordinator | None = None,
    offload: Offload | None = None,
) -> ProduceWorld:
    limits, clock = limits or LimitsConfig(), clock or SystemClock()
    coordinator = coordinator or FakeCoordinator()
    registry = CollectorRegistry()
    parts = RecordParts(
        logs=logs,
        coordinator=coordinator,
        clock=clock,
        authorize=authorize,
        limits=limits,
        topics=TopicTraffic(registry, lambda _: True),
        clients=ClientMetrics(registry, 10),
        metrics=ServerMetrics(registry),
        offload=offload or ThreadOffload(),
    )
    service = ProduceService(parts, auto_create=lambda: True)
    services = cast(Services, _Services(parts, service))
    return ProduceWorld(
        logs,
        ProduceHandler(services),
        ProducerIdHandler(services),
        DescribeProducersHandler(services),
        registry,
        service,
        coordinator,
    )


class _Services:
    """What these handlers use of a node's services."""

    node_id = 1
    cluster_id = "test"
    rack = None
    topic_views = None

    def __init__(self, parts: RecordParts, produce: ProduceService) -> None:
        self.resources = SimpleNamespace(limits=parts.limits)
        self.produce = produce
        self.transactions = TransactionService(
            parts.coordinator,
            parts.logs,
            node_id=self.node_id,
            clock=parts.clock,
            authorize=parts.authorize,
            limits=parts.limits,
        )
        self.log = LogService(
            parts.logs, clock=parts.clock, authorize=parts.authorize, limits=parts.limits
        )


@asynccontextmanager
async def produce_world(
    authorize: Authorize = allow_all,
    limits: LimitsConfig | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[ProduceWorld]:
    """With topic t of two partitions. `clock`: of the handlers, not of the engine."""
    async with streamlog.open("memory://", meta="memory://") as engine:
        await engine.logs.create_topic("t", 2)
        yield world_over(engine.logs, authorize, limits, clock)


def call(version: int, frame_bytes: int = 0) -> KafkaCall:
    return KafkaCall(
        context=RequestContext(client_id="test"),
        api=ApiKey.PRODUCE,
        version=version,
        correlation_id=1,
        listener="kafka",
        advertised=("127.0.0.1", 9092),
        frame_bytes=frame_bytes,
    )


def produce_request(
    records: bytes | memoryview | None,
    *,
    topic: str = "t",
    topic_id: bytes = bytes(16),
    partition: int = 0,
    acks: int = -1,
    timeout_ms: int = 30_000,
    transactional_id: str | None = None,
) -> ProduceRequest:
    view = None if records is None else memoryview(records)
    part = PartitionProduceData(index=partition, records=view)
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(name=topic, topic_id=topic_id, partition_data=[part])],
    )


def only(response: ProduceResponse | None) -> PartitionProduceResponse:
    assert response is not None
    [topic] = response.responses
    [part] = topic.partition_responses
    return part


def batch(*values: bytes, timestamp_ms: int = 1000) -> bytes:
    return bytes(encode_values(values or (b"v",), timestamp_ms=timestamp_ms).data)
