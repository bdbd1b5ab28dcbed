"""Handlers whose answers a test lets go, one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streamlog.errors import StreamlogError
from streamlog.kafka.messages.fetch_request import FetchRequest
from streamlog.kafka.messages.fetch_response import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from streamlog.kafka.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from streamlog.kafka.messages.list_offsets_response import ListOffsetsResponse
from streamlog.kafka.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from streamlog.kafka.messages.produce_response import ProduceResponse, TopicProduceResponse
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.server.kafka.call import CloseConnection, KafkaCall, Reply, Route
from tests.support.kafka_wire import request_bytes


def produce(correlation_id: int, records: bytes = b"x", *, acks: int = -1) -> bytes:
    """A produce request to partition 0 of topic t."""
    part = PartitionProduceData(index=0, records=records)
    topic = TopicProduceData(name="t", partition_data=[part])
    message = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])
    return request_bytes(ApiKey.PRODUCE, 9, correlation_id, message)


def fetch(correlation_id: int) -> bytes:
    return request_bytes(ApiKey.FETCH, 12, correlation_id, FetchRequest(max_wait_ms=1))


def list_offsets(correlation_id: int) -> bytes:
    topic = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0)])
    return request_bytes(ApiKey.LIST_OFFSETS, 6, correlation_id, ListOffsetsRequest(topics=[topic]))


class HeldReply(Reply):
    """A produce request's answer; `error` stands in its place."""

    def __init__(self, call: KafkaCall, request: ProduceRequest, padding_bytes: int) -> None:
        self._padding_bytes = padding_bytes
        self.correlation_id = call.correlation_id
        self.acks = request.acks
        self.done = asyncio.Event()
        self.error: BaseException | None = None
        self.is_abandoned = False

    async def wait(self) -> None:
        await self.done.wait()

    def response(self) -> ProduceResponse | None:
        if self.error is not None:
            raise self.error
        if not self.acks:
            return None
        padding = [TopicProduceResponse(name="x" * self._padding_bytes)]
        return ProduceResponse(responses=padding if self._padding_bytes else [])

    def is_ready(self) -> bool:
        return self.done.is_set()

    def abandon(self) -> None:
        self.is_abandoned = True

    def let_go(self, error: BaseException | None = None) -> None:
        self.error = error
        self.done.set()


class Scene:
    """Routes of produce, fetch and list offsets, and what was begun through them, in order."""

    def __init__(
        self, *, is_held: bool = True, records: Sequence[bytes] = (), padding_bytes: int = 0
    ) -> None:
        """`padding_bytes`: how much larger than needed answers to produce are."""
        self._padding_bytes = padding_bytes
        self.begun: list[HeldReply] = []
        self.groups: list[list[int]] = []
        """Correlation ids of produce requests, by call."""
        self.fetches: list[int] = []
        self.fetched = asyncio.Event()
        self.listed: list[int] = []
        self.cancelled: list[int] = []
        self.may_begin: asyncio.Event | None = None
        """Produce requests get their places once it is set; None: at once."""
        self.failure: BaseException | None = None
        """What the next handler raises."""
        self._is_held = is_held
        self._records = records

    def routes(self) -> dict[ApiKey, Route]:
        return {
            ApiKey.PRODUCE: Route(self._produce, is_pipelined=True, handle_many=self._produce_many),
            ApiKey.FETCH: Route(self._fetch),
            ApiKey.LIST_OFFSETS: Route(self._list_offsets),
        }

    def _begin(self, call: KafkaCall, request: ProduceRequest) -> HeldReply:
        reply = HeldReply(call, request, self._padding_bytes)
        self.begun.append(reply)
        if not self._is_held:
            reply.let_go()
        return reply

    async def _produce(self, call: KafkaCall, request: ProduceRequest) -> Reply | StreamlogError:
        [reply] = await self._produce_many([(call, request)])
        return reply

    async def _produce_many(
        self, calls: Sequence[tuple[KafkaCall, ProduceRequest]]
    ) -> list[Reply | StreamlogError]:
        self._fail()
        if self.may_begin is not None:
            await self.may_begin.wait()
        self.groups.append([call.correlation_id for call, _ in calls])
        return [self._begin(call, request) for call, request in calls]

    async def _fetch(self, call: KafkaCall, request: FetchRequest) -> FetchResponse:
        self._fail()
        self.fetches.append(call.correlation_id)
        if self._is_held:
            try:
                await self.fetched.wait()
            except asyncio.CancelledError:
                self.cancelled.append(call.correlation_id)
                raise
        data = PartitionData(partition_index=0, records=list(self._records))
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[data])])

    async def _list_offsets(
        self, call: KafkaCall, request: ListOffsetsRequest
    ) -> ListOffsetsResponse:
        self._fail()
        self.listed.append(call.correlation_id)
        return ListOffsetsResponse()

    def _fail(self) -> None:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure


def closing() -> CloseConnection:
    return CloseConnection("acks=0 failed")
