"""LogService over gRPC. Produce and Fetch work on raw bytes; see envelope and fetch_encoding.

A client above its quota is told so in the answer, which comes at once; its next request of the kind
waits before it begins: that of its stream, or the next call of its client id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, TypeVar

import grpc
import grpc.aio

from streamlog.errors import Invalid, StreamlogError
from streamlog.model.append_condition import ANY
from streamlog.runtime.concurrency.loop_time import LoopTime
from streamlog.runtime.offload import Lane
from streamlog.server.context import RequestContext
from streamlog.server.grpc.calls import Calls, Handlers, Rpc, deserializer, parse
from streamlog.server.grpc.conversion import (
    append_condition,
    fetch_call,
    isolation,
    produce_call,
    produce_response,
    refuse_replica_id,
)
from streamlog.server.grpc.envelope import parse_request, parse_stream_request
from streamlog.server.grpc.fetch_encoding import encode_fetch_response, with_throttle
from streamlog.server.grpc.transactions import producer_of
from streamlog.server.limits.pipeline import Answer, Pipeline
from streamlog.server.limits.quotas.quota_values import QuotaKind
from streamlog.server.limits.shared import ListenerResources
from streamlog.server.services.log import LogService, PartitionQuestion
from streamlog.server.services.records.fetch import FetchService
from streamlog.server.services.records.produce import ProduceService, SequencedProduce
from streamlog.server.services.records.requests import FetchCall
from streamlog.server.services.transactions import TransactionService
from streamlog.v1 import log_pb2
from streamlog.v1support.errors import to_proto

SERVICE = "streamlog.v1.LogService"
TRANSACTION_TIMEOUT_MS_DEFAULT = 60_000
"""Kafka's clients' default."""

T = TypeVar("T")


class _ProduceAnswer:
    """The answer to one message of a ProduceStream."""

    __slots__ = ("_correlation_id", "_sequenced", "_throttle_ms")

    def __init__(
        self, correlation_id: int, sequenced: SequencedProduce, throttle_ms: int = 0
    ) -> None:
        self._correlation_id = correlation_id
        self._sequenced = sequenced
        self._throttle_ms = throttle_ms

    async def message(self) -> bytes:
        await self._sequenced.settle()
        response = produce_response(self._sequenced.results(), self._throttle_ms)
        return _response(correlation_id=self._correlation_id, response=response)

    def is_ready(self) -> bool:
        return self._sequenced.is_done()

    def abandon(self) -> None:
        self._sequenced.abandon()


class Refusal:
    """The answer to a request that was refused as a whole; the pipeline goes on."""

    __slots__ = ("_message",)

    def __init__(self, message: bytes) -> None:
        self._message = message

    async def message(self) -> bytes:
        return self._message

    def is_ready(self) -> bool:
        return True

    def abandon(self) -> None:
        """Nothing is under way."""


class GrpcLog:
    def __init__(
        self,
        produce: ProduceService,
        fetch: FetchService,
        logs: LogService,
        transactions: TransactionService,
        *,
        calls: Calls,
        resources: ListenerResources,
    ) -> None:
        self._offload = resources.offload
        self._quotas = resources.quotas
        self._clock = resources.clock
        self._produce = produce
        self._fetch = fetch
        self._logs = logs
        self._transactions = transactions
        self._calls = calls
        self._budgets = resources.budgets
        self._drain = resources.drain

    def handlers(self) -> Handlers:
        calls = self._calls
        raw: dict[str, Any] = {
            "Produce": grpc.unary_unary_rpc_method_handler(
                calls.unary("LogService/Produce", self._on_produce)
            ),
            "ProduceStream": grpc.stream_stream_rpc_method_handler(
                calls.streaming("LogService/ProduceStream", self._on_produce_stream)
            ),
            "Fetch": grpc.unary_unary_rpc_method_handler(
                calls.unary("LogService/Fetch", self._on_fetch),
                request_deserializer=deserializer(log_pb2.FetchRequest),
            ),
        }
        for name, handle, request, response in (
            (
                "ListOffsets",
                self._on_list_offsets,
                log_pb2.ListOffsetsRequest,
                log_pb2.ListOffsetsResponse,
            ),
            (
                "OffsetsForLeaderEpoch",
                self._on_offsets_for_leader_epoch,
                log_pb2.OffsetsForLeaderEpochRequest,
                log_pb2.OffsetsForLeaderEpochResponse,
            ),
            (
                "InitProducerId",
                self._on_init_producer_id,
                log_pb2.InitProducerIdRequest,
                log_pb2.InitProducerIdResponse,
            ),
            (
                "DeleteRecords",
                self._on_delete_records,
                log_pb2.DeleteRecordsRequest,
                log_pb2.DeleteRecordsResponse,
            ),
            (
                "SetFencingToken",
                self._on_set_fencing_token,
                log_pb2.LogServiceSetFencingTokenRequest,
                log_pb2.LogServiceSetFencingTokenResponse,
            ),
        ):
            raw[name] = grpc.unary_unary_rpc_method_handler(
                calls.unary(f"LogService/{name}", handle),
                request_deserializer=deserializer(request),
                response_serializer=response.SerializeToString,
            )
        return grpc.method_handlers_generic_handler(SERVICE, raw)

    async def _on_produce(self, context: RequestContext, message: bytes, _: Rpc) -> bytes:
        call = parse_request(message)
        if call is None:
            call = produce_call(parse(log_pb2.ProduceRequest, message))
        limited, throttle_ms = self._quotas.of(context.client_id), 0
        if limited is not None:
            throttle_ms = await limited.produce_turn(len(message))
        with self._budgets.of(context.peer) as budget:
            await budget.take(len(message))
            try:
                sequenced = await self._produce.sequence(context, call)
                await sequenced.settle()
                return produce_response(sequenced.results(), throttle_ms).SerializeToString()
            finally:
                budget.release(len(message))

    async def _on_produce_stream(self, context: RequestContext, _: object, rpc: Rpc) -> None:
        async def start(message: bytes) -> Answer:
            parsed = parse_stream_request(message)
            correlation_id = 0
            try:
                if parsed is None:
                    request = parse(log_pb2.ProduceStreamRequest, message)
                    correlation_id = request.correlation_id
                    parsed = correlation_id, produce_call(request.request)
                correlation_id, call = parsed
                limited = self._quotas.of(context.client_id)
                if limited is None:
                    sequenced = await self._produce.sequence(context, call)
                    return _ProduceAnswer(correlation_id, sequenced)
                throttle_ms = await limited.produce_turn(len(message))
                work = LoopTime(self._produce.sequence(context, call), self._clock)
                try:
                    sequenced = await work
                finally:
                    throttle_ms = max(throttle_ms, limited.worked(work.seconds))
                return _ProduceAnswer(correlation_id, sequenced, throttle_ms)
            except StreamlogError as error:
                return Refusal(_response(correlation_id=correlation_id, error=to_proto(error)))

        with self._budgets.of(context.peer) as budget:
            await Pipeline(reader(rpc), rpc.write, start, budget, self._drain, is_joined=True).run()

    async def _on_fetch(
        self, context: RequestContext, request: log_pb2.FetchRequest, _: Rpc
    ) -> bytes:
        call = fetch_call(request)
        limited = self._quotas.of(context.client_id)
        if limited is None:
            return await self._fetched(context, call)
        await limited.turn(QuotaKind.FETCH)
        with limited.fetching() as room:
            response = await self._fetched(context, call._replace(room=room))
        return with_throttle(response, limited.fetched(len(response)))

    async def _fetched(self, context: RequestContext, call: FetchCall) -> bytes:
        topics = await self._fetch.fetch(context, call)
        if call.as_records:  # One message for each record: some ms of CPU.
            return await self._offload.run(Lane.CPU, encode_fetch_response, topics)
        return encode_fetch_response(topics)

    async def _on_list_offsets(
        self, context: RequestContext, request: log_pb2.ListOffsetsRequest, _: Rpc
    ) -> log_pb2.ListOffsetsResponse:
        refuse_replica_id(request)
        questions = [
            PartitionQuestion(t.topic, p.partition, p.timestamp_ms, _current_epoch(p), t.topic_id)
            for t in request.topics
            for p in t.partitions
        ]
        answers = await self._logs.list_offsets(
            context, questions, isolation(request.isolation_level)
        )
        response = log_pb2.ListOffsetsResponse()
        for out, answer in _answered(response, questions, answers):
            if answer.offset >= 0:
                out.offset = answer.offset
                if answer.timestamp_ms >= 0:
                    out.timestamp_ms = answer.timestamp_ms
                if answer.leader_epoch >= 0:
                    out.leader_epoch = answer.leader_epoch
        return response

    async def _on_offsets_for_leader_epoch(
        self, context: RequestContext, request: log_pb2.OffsetsForLeaderEpochRequest, _: Rpc
    ) -> log_pb2.OffsetsForLeaderEpochResponse:
        refuse_replica_id(request)
        questions = [
            PartitionQuestion(t.topic, p.partition, p.leader_epoch, _current_epoch(p))
            for t in request.topics
            for p in t.partitions
        ]
        answers = await self._logs.offsets_for_leader_epoch(context, questions)
        response = log_pb2.OffsetsForLeaderEpochResponse()
        for out, answer in _answered(response, questions, answers):
            if answer.end_offset >= 0:
                out.leader_epoch = answer.leader_epoch
                out.end_offset = answer.end_offset
        return response

    async def _on_init_producer_id(
        self, context: RequestContext, request: log_pb2.InitProducerIdRequest, _: Rpc
    ) -> log_pb2.InitProducerIdResponse:
        if request.HasField("transactional_id"):
            return await self._init_transactional(context, request)
        if request.transaction_timeout_ms:
            raise Invalid("transaction_timeout_ms needs a transactional_id; leave it unset")
        producer_id, producer_epoch = await self._logs.init_producer_id(
            context,
            request.producer_id if request.HasField("producer_id") else None,
            request.producer_epoch if request.HasField("producer_epoch") else None,
        )
        return log_pb2.InitProducerIdResponse(
            producer_id=producer_id, producer_epoch=producer_epoch
        )

    async def _init_transactional(
        self, context: RequestContext, request: log_pb2.InitProducerIdRequest
    ) -> log_pb2.InitProducerIdResponse:
        has_producer = request.HasField("producer_id") or request.HasField("producer_epoch")
        producer_id, producer_epoch = await self._transactions.init_producer_id(
            context,
            request.transactional_id,
            request.transaction_timeout_ms or TRANSACTION_TIMEOUT_MS_DEFAULT,
            producer_of(request) if has_producer else None,
        )
        return log_pb2.InitProducerIdResponse(
            producer_id=producer_id, producer_epoch=producer_epoch
        )

    async def _on_delete_records(
        self, context: RequestContext, request: log_pb2.DeleteRecordsRequest, _: Rpc
    ) -> log_pb2.DeleteRecordsResponse:
        questions = [
            PartitionQuestion(
                t.topic,
                p.partition,
                p.offset if p.HasField("offset") else None,
                topic_id=t.topic_id,
            )
            for t in request.topics
            for p in t.partitions
        ]
        if request.timeout_ms < 0:
            raise Invalid(f"timeout_ms is {request.timeout_ms}; give 0 (the default) or more")
        answers = await self._logs.delete_records(context, questions, request.timeout_ms)
        response = log_pb2.DeleteRecordsResponse()
        for out, log_start_offset in _answered(response, questions, answers):
            out.log_start_offset = log_start_offset
        return response

    async def _on_set_fencing_token(
        self, context: RequestContext, request: log_pb2.LogServiceSetFencingTokenRequest, _: Rpc
    ) -> log_pb2.LogServiceSetFencingTokenResponse:
        if request.timeout_ms < 0:
            raise Invalid(f"timeout_ms is {request.timeout_ms}; give 0 (the default) or more")
        await self._logs.set_fencing_token(
            context,
            PartitionQuestion(request.topic, request.partition, None, topic_id=request.topic_id),
            request.fencing_token,
            append_condition(request, "expected_fencing_token") or ANY,
            request.timeout_ms,
        )
        return log_pb2.LogServiceSetFencingTokenResponse()


def _response(**answer: Any) -> bytes:
    """A ProduceStreamResponse with one answer; several, concatenated, parse as one with all."""
    return log_pb2.ProduceStreamResponse(
        answers=[log_pb2.ProduceStreamAnswer(**answer)]
    ).SerializeToString()


def reader(rpc: Rpc) -> Callable[[], Awaitable[bytes | None]]:
    """Reads a bidirectional call's next request; None after the last."""

    async def read() -> bytes | None:
        message = await rpc.read()
        return message if isinstance(message, bytes) else None

    return read


def _current_epoch(part: Any) -> int | None:
    if part.HasField("current_leader_epoch") and part.current_leader_epoch >= 0:
        return int(part.current_leader_epoch)
    return None


def _answered(
    response: Any, questions: Sequence[PartitionQuestion], answers: Sequence[T | StreamlogError]
) -> Iterator[tuple[Any, T]]:
    """Adds all partitions to the response; yields those without an error, to be filled."""
    pairs = zip(questions, answers, strict=True)
    for topic, topic_pairs in groupby(pairs, key=lambda pair: pair[0].topic):
        topic_out = response.topics.add(topic=topic)
        for question, answer in topic_pairs:
            out = topic_out.partitions.add(partition=question.partition)
            if isinstance(answer, StreamlogError):
                out.error.CopyFrom(to_proto(answer))
            else:
                yield out, answer
