"""The handlers that read partitions, over an engine in memory; messages go through their bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast
from uuid import UUID

from prometheus_client import CollectorRegistry

import streamlog
from streamlog.codec.batch import Compression, scan
from streamlog.codec.records import encode_values
from streamlog.kafka.messages.fetch_request import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from streamlog.kafka.messages.fetch_response import FetchResponse, PartitionData
from streamlog.kafka.protocol.apis import (
    ApiKey,
    decode_request,
    decode_response,
    request_codec,
    response_codec,
)
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import Clock, SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SeededRandom
from streamlog.server.composition import Services
from streamlog.server.context import Authorize, RequestContext, allow_all
from streamlog.server.kafka.call import KafkaCall
from streamlog.server.kafka.handlers.delete_records import DeleteRecordsHandler
from streamlog.server.kafka.handlers.fetch import FetchHandler
from streamlog.server.kafka.handlers.leader_epochs import LeaderEpochHandler
from streamlog.server.kafka.handlers.list_offsets import ListOffsetsHandler
from streamlog.server.kafka.sessions.cache import FetchSessions
from streamlog.server.metrics import ClientMetrics, ServerMetrics, TopicTraffic
from streamlog.server.services.log import LogService
from streamlog.server.services.records.fetch import FetchService
from streamlog.server.services.records.long_polls import LongPolls
from streamlog.server.services.records.parts import RecordParts
from streamlog.settings.limits import LimitsConfig
from tests.support.fake_coordinator import FakeCoordinator

NEWEST = 18
WITH_NAMES = 12
"""The last version of Fetch whose requests carry names of topics."""
NODE_ID = 7


class _Node(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class OneNode:
    """This node leads every partition, unless `leads` says otherwise."""

    def __init__(self) -> None:
        self.leads: dict[TopicPartition, int] = {}

    def leader_of(self, partition: TopicPartition) -> int | None:
        return self.leads.get(partition, NODE_ID)

    def nodes(self, call: KafkaCall) -> Iterable[_Node]:
        return [_Node(NODE_ID, *call.advertised)]


class _Resources(NamedTuple):
    limits: LimitsConfig


class _Services(NamedTuple):
    fetch: FetchService
    log: LogService
    resources: _Resources


@dataclass
class FetchWorld:
    logs: Any
    registry: CollectorRegistry
    polls: LongPolls
    service: FetchService
    sessions: FetchSessions
    leaders: OneNode
    handlers: dict[ApiKey, Callable[[KafkaCall, Any], Awaitable[Any]]]

    async def ask(self, api: ApiKey, version: int, request: Any) -> Any:
        """The answer, both as the other side decodes them out of their bytes."""
        pieces = request_codec(api).encode(request, version)
        sent = decode_request(api, version, memoryview(b"".join(pieces)), 0)
        answer = await self.handlers[api](call(api, version), sent)
        pieces = response_codec(api).encode(answer, version)
        return decode_response(api, version, memoryview(b"".join(pieces)), 0)

    async def fetch(self, version: int = WITH_NAMES, **fields: Any) -> FetchResponse:
        response = await self.ask(ApiKey.FETCH, version, fetch_request(**fields))
        assert isinstance(response, FetchResponse)
        return response

    async def log(self, partition: int = 0, topic: str = "t") -> AbstractLog:
        opened = await self.logs.log(TopicPartition(topic, partition))
        assert isinstance(opened, AbstractLog)
        return opened

    async def append(self, *values: bytes, partition: int = 0, topic: str = "t") -> int:
        """Durable on return; the size of the batch."""
        data = batch(*values)
        await (await (await self.log(partition, topic)).append(data))
        return len(data)

    async def waits(self, polls: int = 1) -> None:
        """Returns when this many fetches wait for records."""
        async with asyncio.timeout(60):
            while self.polls.waiting != polls:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.001)

    def topic_id(self, topic: str = "t") -> bytes:
        return UUID(self.logs.topic(topic).topic_id).bytes

    def metric(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0


def world_over(
    logs: Any,
    *,
    authorize: Authorize = allow_all,
    limits: LimitsConfig | None = None,
    clock: Clock | None = None,
) -> FetchWorld:
    limits, clock = limits or LimitsConfig(), clock or SystemClock()
    registry = CollectorRegistry()
    metrics = ServerMetrics(registry)
    parts = RecordParts(
        logs=logs,
        coordinator=FakeCoordinator(),
        clock=clock,
        authorize=authorize,
        limits=limits,
        topics=TopicTraffic(registry, lambda _: True),
        clients=ClientMetrics(registry, 10),
        metrics=metrics,
        offload=ThreadOffload(),
    )
    polls = LongPolls()
    service = FetchService(parts, polls, record_bytes_max=1 << 20)
    services = cast(
        Services,
        _Services(
            fetch=service,
            log=LogService(logs, clock=clock, authorize=authorize, limits=limits),
            resources=_Resources(limits),
        ),
    )
    sessions = FetchSessions(clock, SeededRandom(1), limits, metrics.fetch_sessions)
    leaders = OneNode()
    handlers = {
        **FetchHandler(services, leaders, sessions).routes(),
        **ListOffsetsHandler(services).routes(),
        **LeaderEpochHandler(services).routes(),
        **DeleteRecordsHandler(services).routes(),
    }
    return FetchWorld(logs, registry, polls, service, sessions, leaders, handlers)


@asynccontextmanager
async def fetch_world(
    *,
    partitions: int = 3,
    authorize: Authorize = allow_all,
    **limits: int,
) -> AsyncIterator[FetchWorld]:
    """With topic t."""
    async with streamlog.open("memory://", meta="memory://") as engine:
        await engine.logs.create_topic("t", partitions)
        yield world_over(engine.logs, authorize=authorize, limits=replace(LimitsConfig(), **limits))


def call(api: ApiKey, version: int) -> KafkaCall:
    return KafkaCall(
        context=RequestContext(client_id="test"),
        api=api,
        version=version,
        correlation_id=1,
        listener="kafka",
        advertised=("127.0.0.1", 9092),
        frame_bytes=0,
    )


def wanted(
    partition: int = 0,
    offset: int = 0,
    *,
    max_bytes: int = 1 << 20,
    epoch: int = -1,
    last_epoch: int = -1,
) -> FetchPartition:
    return FetchPartition(
        partition=partition,
        fetch_offset=offset,
        partition_max_bytes=max_bytes,
        current_leader_epoch=epoch,
        last_fetched_epoch=last_epoch,
    )


def fetch_request(
    *partitions: FetchPartition,
    topic: str | bytes = "t",
    forget: Sequence[int] = (),
    session: tuple[int, int] = (0, -1),
    wait_ms: int = 0,
    min_bytes: int = 1,
    parts: Sequence[FetchPartition] = (),
    more: Sequence[FetchTopic] = (),
    **fields: Any,
) -> FetchRequest:
    """`topic`: a name, or the bytes of an id."""
    named: dict[str, Any] = {"topic_id": topic} if isinstance(topic, bytes) else {"topic": topic}
    wanted_parts = [*partitions, *parts]
    topics = [FetchTopic(**named, partitions=wanted_parts)] if wanted_parts else []
    forgotten = [ForgottenTopic(**named, partitions=list(forget))] if forget else []
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        session_id=session[0],
        session_epoch=session[1],
        topics=[*topics, *more],
        forgotten_topics_data=forgotten,
        **fields,
    )


def only(response: FetchResponse) -> PartitionData:
    assert response.error_code == 0
    [topic] = response.responses
    [part] = topic.partitions
    return part


def answered(response: FetchResponse) -> dict[int, PartitionData]:
    """The partitions of an answer, which are of one topic."""
    return {part.partition_index: part for topic in response.responses for part in topic.partitions}


def offsets(part: PartitionData) -> list[int]:
    """Of every record of the answer."""
    assert part.records is not None
    records = part.records
    data = records if isinstance(records, bytes | bytearray | memoryview) else b"".join(records)
    found: list[int] = []
    for one in scan(data):
        found += range(one.header.base_offset, one.header.next_offset)
    return found


def batch(*values: bytes, compression: Compression = Compression.NONE) -> bytes:
    return bytes(encode_values(values or (b"v",), timestamp_ms=1000, compression=compression).data)
