"""Kafka's handlers over a real engine in memory; requests and answers go through their bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import streamlog
from streamlog.errors import StreamlogError, Unauthorized
from streamlog.kafka.protocol.apis import (
    ApiKey,
    decode_request,
    decode_response,
    request_codec,
    response_codec,
)
from streamlog.log.api.config import LogConfig
from streamlog.log.api.leadership import Leadership
from streamlog.log.manager import LogManager
from streamlog.server.composition import Services
from streamlog.server.context import (
    Authorize,
    Operation,
    RequestContext,
    Resource,
    ResourceType,
    allow_all,
)
from streamlog.server.kafka.call import Encoded, KafkaCall
from streamlog.server.kafka.handlers.table import handlers, join
from streamlog.settings import Settings
from tests.support.fake_coordinator import FakeCoordinator
from tests.support.log_insides import leadership_of
from tests.support.server_harness import running

NODE_ID = 1
ADVERTISED = ("broker.example", 9094)


@dataclass
class KafkaHandlers:
    logs: LogManager
    services: Services
    coordinator: FakeCoordinator

    def __post_init__(self) -> None:
        self._routes = join(handlers(self.services))

    @property
    def leadership(self) -> Leadership:
        return leadership_of(self.logs)

    async def ask(self, api: ApiKey, version: int, request: Any) -> Any:
        """The answer as a client reads it, to the request as the node reads it."""
        sent = memoryview(b"".join(request_codec(api).encode(request, version)))
        call = KafkaCall(RequestContext(), api, version, 1, "kafka", ADVERTISED, len(sent))
        route, message = self._routes[api], decode_request(api, version, sent, 0)
        try:
            answer = await route.handle(call, message)
        except StreamlogError as error:
            if route.error_response is None:
                raise
            answer = route.error_response(call, message, error)
        if isinstance(answer, Encoded):
            pieces = answer.pieces
        else:
            pieces = response_codec(api).encode(answer, version)
        return decode_response(api, version, memoryview(b"".join(pieces)), 0)

    def topic_id(self, name: str) -> bytes:
        topic = self.logs.topic(name)
        assert topic is not None
        return UUID(topic.topic_id).bytes

    async def until_made(self, name: str) -> None:
        """Waits for a creation that goes on in the background."""
        async with asyncio.timeout(10):
            while self.logs.topic(name) is None:  # noqa: ASYNC110 - a creation has no event
                await asyncio.sleep(0.001)


@asynccontextmanager
async def kafka_handlers(
    settings: Settings | None = None, authorize: Authorize = allow_all, *, num_partitions: int = 1
) -> AsyncIterator[KafkaHandlers]:
    """`num_partitions`: of a topic that is made without a count."""
    logs = LogConfig(num_partitions=num_partitions)
    coordinator = FakeCoordinator()
    async with (
        streamlog.open("memory://", meta="memory://", logs=logs) as engine,
        running(
            settings,
            logs=engine.logs,
            transactions=coordinator,
            authorize=authorize,
            cluster_id="cluster",
        ) as server,
    ):
        yield KafkaHandlers(engine.logs, server.service.services, coordinator)


def all_but(*refused: tuple[Operation, str]) -> Authorize:
    """Allows everything but these operations on topics and transactional ids; "": the cluster."""

    def authorize(context: RequestContext, operation: Operation, resource: Resource) -> None:
        name = "" if resource.kind is ResourceType.CLUSTER else resource.name
        if (operation, name) in refused:
            raise Unauthorized(f"no right to {operation.value} {name or 'the cluster'}")

    return authorize
