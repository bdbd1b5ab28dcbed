"""StreamService over gRPC."""

from __future__ import annotations

from typing import Any

import grpc

from streamlog.errors import Closed, Invalid, StreamlogError
from streamlog.model.batch import OpenStreamOptions, RecordBatch, StoredBatch
from streamlog.runtime.buffers import join, parts_size
from streamlog.server.context import RequestContext
from streamlog.server.grpc.calls import Calls, Handlers, Rpc, deserializer, parse
from streamlog.server.grpc.log import Refusal, reader
from streamlog.server.limits.in_flight import Budgets
from streamlog.server.limits.pipeline import Answer, Drain, Pipeline
from streamlog.server.metrics import ServerMetrics
from streamlog.server.services.kv import checked_limit
from streamlog.server.services.stream import (
    AppendCall,
    DescribedStream,
    SequencedAppend,
    StreamService,
)
from streamlog.v1 import stream_pb2
from streamlog.v1support.errors import to_proto

SERVICE = "streamlog.v1.StreamService"


class _AppendAnswer:
    """The answer to one message of an Append call."""

    __slots__ = ("_correlation_id", "_metrics", "_sequenced")

    def __init__(
        self, correlation_id: int, sequenced: SequencedAppend, metrics: ServerMetrics
    ) -> None:
        self._correlation_id = correlation_id
        self._sequenced = sequenced
        self._metrics = metrics

    async def message(self) -> bytes:
        response = stream_pb2.AppendResponse(correlation_id=self._correlation_id)
        try:
            result = await self._sequenced.result()
        except StreamlogError as error:
            self._metrics.append_failed(error)
            response.error.CopyFrom(to_proto(error))
        else:
            response.base_offset = result.base_offset
            response.end_offset = result.end_offset
        return response.SerializeToString()

    def is_ready(self) -> bool:
        return False

    def abandon(self) -> None:
        self._sequenced.abandon()


class GrpcStream:
    def __init__(
        self,
        streams: StreamService,
        *,
        calls: Calls,
        budgets: Budgets,
        drain: Drain,
        metrics: ServerMetrics,
    ) -> None:
        self._streams = streams
        self._calls = calls
        self._budgets = budgets
        self._drain = drain
        self._metrics = metrics

    def handlers(self) -> Handlers:
        calls = self._calls
        raw: dict[str, Any] = {
            "Append": grpc.stream_stream_rpc_method_handler(
                calls.streaming("StreamService/Append", self._append)
            ),
            "ReadStream": grpc.unary_stream_rpc_method_handler(
                calls.streaming("StreamService/ReadStream", self._read),
                request_deserializer=deserializer(stream_pb2.ReadStreamRequest),
                response_serializer=stream_pb2.ReadStreamResponse.SerializeToString,
            ),
        }
        for name, handle in (
            ("CreateStream", self._create),
            ("OpenStream", self._open),
            ("CloseStream", self._close),
            ("DeleteStream", self._delete),
            ("DescribeStream", self._describe),
            ("ListStreams", self._list),
            ("FetchStream", self._fetch),
            ("TrimStream", self._trim),
            ("SetFencingToken", self._set_fencing_token),
        ):
            raw[name] = grpc.unary_unary_rpc_method_handler(
                calls.unary(f"StreamService/{name}", handle),
                request_deserializer=deserializer(getattr(stream_pb2, f"{name}Request")),
                response_serializer=getattr(stream_pb2, f"{name}Response").SerializeToString,
            )
        return grpc.method_handlers_generic_handler(SERVICE, raw)

    async def _create(
        self, context: RequestContext, request: stream_pb2.CreateStreamRequest, _: Rpc
    ) -> stream_pb2.CreateStreamResponse:
        described = await self._streams.create(context, dict(request.tags))
        return stream_pb2.CreateStreamResponse(stream=_info(described))

    async def _open(
        self, context: RequestContext, request: stream_pb2.OpenStreamRequest, _: Rpc
    ) -> stream_pb2.OpenStreamResponse:
        options = OpenStreamOptions(
            request.epoch if request.HasField("epoch") else None, request.accept_data_loss
        )
        described = await self._streams.open(context, request.stream_id, options)
        return stream_pb2.OpenStreamResponse(stream=_info(described))

    async def _close(
        self, context: RequestContext, request: stream_pb2.CloseStreamRequest, _: Rpc
    ) -> stream_pb2.CloseStreamResponse:
        await self._streams.close(context, request.stream_id)
        return stream_pb2.CloseStreamResponse()

    async def _delete(
        self, context: RequestContext, request: stream_pb2.DeleteStreamRequest, _: Rpc
    ) -> stream_pb2.DeleteStreamResponse:
        epoch = request.epoch if request.HasField("epoch") else None
        await self._streams.delete(context, request.stream_id, epoch)
        return stream_pb2.DeleteStreamResponse()

    async def _describe(
        self, context: RequestContext, request: stream_pb2.DescribeStreamRequest, _: Rpc
    ) -> stream_pb2.DescribeStreamResponse:
        described = await self._streams.describe(context, request.stream_id)
        return stream_pb2.DescribeStreamResponse(stream=_info(described))

    async def _list(
        self, context: RequestContext, request: stream_pb2.ListStreamsRequest, _: Rpc
    ) -> stream_pb2.ListStreamsResponse:
        streams = await self._streams.list(context, request.after, checked_limit(request.limit))
        return stream_pb2.ListStreamsResponse(streams=[_info(described) for described in streams])

    async def _trim(
        self, context: RequestContext, request: stream_pb2.TrimStreamRequest, _: Rpc
    ) -> stream_pb2.TrimStreamResponse:
        start = await self._streams.trim(context, request.stream_id, request.new_start_offset)
        return stream_pb2.TrimStreamResponse(start_offset=start)

    async def _set_fencing_token(
        self, context: RequestContext, request: stream_pb2.SetFencingTokenRequest, _: Rpc
    ) -> stream_pb2.SetFencingTokenResponse:
        _check_timeout(request.timeout_ms)
        await self._streams.set_fencing_token(
            context,
            request.stream_id,
            request.fencing_token,
            request.expected_fencing_token if request.HasField("expected_fencing_token") else None,
            request.expected_next_offset if request.HasField("expected_next_offset") else None,
            request.timeout_ms,
        )
        return stream_pb2.SetFencingTokenResponse()

    async def _fetch(
        self, context: RequestContext, request: stream_pb2.FetchStreamRequest, _: Rpc
    ) -> stream_pb2.FetchStreamResponse:
        if request.max_bytes_hint < 0 or request.max_wait_ms < 0:
            raise Invalid("max_bytes_hint and max_wait_ms are 0 or more")
        fetched, start, confirm = await self._streams.fetch(
            context,
            request.stream_id,
            request.start_offset,
            request.end_offset if request.HasField("end_offset") else None,
            request.max_bytes_hint,
            request.max_wait_ms,
        )
        return stream_pb2.FetchStreamResponse(
            batches=[_batch(batch) for batch in fetched.batches],
            start_offset=start,
            confirm_offset=confirm,
        )

    async def _read(
        self, context: RequestContext, request: stream_pb2.ReadStreamRequest, rpc: Rpc
    ) -> None:
        """One chunk at a time: the next is read when the connection has taken the last."""
        chunks = self._streams.read(
            context,
            request.stream_id,
            request.start_offset,
            request.end_offset if request.HasField("end_offset") else None,
        )
        async for batches, confirm in chunks:
            size = sum(parts_size(batch.parts) for batch in batches)
            self._metrics.read_stream_bytes.inc(size)
            try:
                await rpc.write(
                    stream_pb2.ReadStreamResponse(
                        batches=[_batch(batch) for batch in batches], confirm_offset=confirm
                    )
                )
            finally:
                self._metrics.read_stream_bytes.dec(size)
        if self._drain.is_draining:
            raise Closed("the node is shutting down; read on from the last offset seen")

    async def _append(self, context: RequestContext, _: object, rpc: Rpc) -> None:
        async def start(message: bytes) -> Answer:
            correlation_id = 0
            try:
                request: stream_pb2.AppendRequest = parse(stream_pb2.AppendRequest, message)
                correlation_id = request.correlation_id
                sequenced = await self._streams.append(context, _append_call(request))
            except StreamlogError as error:
                self._metrics.append_failed(error)
                return Refusal(
                    stream_pb2.AppendResponse(
                        correlation_id=correlation_id, error=to_proto(error)
                    ).SerializeToString()
                )
            return _AppendAnswer(correlation_id, sequenced, self._metrics)

        with self._budgets.of(context.peer) as budget:
            await Pipeline(reader(rpc), rpc.write, start, budget, self._drain).run()


def _check_timeout(timeout_ms: int) -> None:
    if timeout_ms < 0:
        raise Invalid(f"timeout_ms is {timeout_ms}; give 0 (the default) or more")


def _append_call(request: stream_pb2.AppendRequest) -> AppendCall:
    _check_timeout(request.timeout_ms)
    return AppendCall(
        request.stream_id,
        RecordBatch(
            request.record_count or 1,
            request.base_timestamp_ms,
            (request.payload,),
            request.attributes,
        ),
        request.expected_next_offset if request.HasField("expected_next_offset") else None,
        request.fencing_token if request.HasField("fencing_token") else None,
        request.timeout_ms,
    )


def _info(described: DescribedStream) -> stream_pb2.StreamInfo:
    description = described.description
    return stream_pb2.StreamInfo(
        stream_id=description.stream_id,
        epoch=description.epoch,
        state=int(description.state),  # type: ignore[arg-type]
        start_offset=described.start_offset,
        confirm_offset=described.confirm_offset,
        next_offset=described.next_offset,
        holder=description.holder,
        tags=description.tags,
        fencing_token=description.fencing_token,
    )


def _batch(batch: StoredBatch) -> stream_pb2.StoredBatch:
    return stream_pb2.StoredBatch(
        base_offset=batch.base_offset,
        record_count=batch.record_count,
        base_timestamp_ms=batch.base_timestamp_ms,
        payload=bytes(join(batch.parts)),
        attributes=batch.attributes,
    )
