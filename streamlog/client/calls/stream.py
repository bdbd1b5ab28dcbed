"""StreamService's calls: request and result of each, for the blocking and the asyncio client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from streamlog.client.channel import BaseCaller, Call
from streamlog.runtime.buffers import Buffer
from streamlog.v1 import stream_pb2

PAGE = 1000
APPEND = "/streamlog.v1.StreamService/Append"
READ = "/streamlog.v1.StreamService/ReadStream"


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as its node describes it. `state`: "open" or "closed"."""

    stream_id: int
    epoch: int
    state: str
    start_offset: int
    confirm_offset: int
    next_offset: int
    holder: str
    tags: dict[str, str]
    fencing_token: bytes = b""
    """b"": it has none."""


class StreamBatch(NamedTuple):
    """A record batch as fetched."""

    base_offset: int
    record_count: int
    base_timestamp_ms: int
    payload: bytes
    attributes: bytes

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.record_count


class StreamFetch(NamedTuple):
    """The batches of a fetch, and the stream's offsets then."""

    batches: list[StreamBatch]
    start_offset: int
    confirm_offset: int


@dataclass(frozen=True, slots=True)
class Append:
    """One append of `append_many`. Fields as the arguments of `Streams.append`."""

    payload: Buffer
    record_count: int = 1
    base_timestamp_ms: int = 0
    attributes: bytes = b""
    expected_next_offset: int | None = None
    fencing_token: bytes | None = None


def append_method(caller: BaseCaller) -> Any:
    """The streaming Append of the caller's channel. Its calls have the errors of the guard."""
    return caller.guard.checked(
        caller.channel.stream_stream(
            APPEND,
            request_serializer=stream_pb2.AppendRequest.SerializeToString,
            response_deserializer=stream_pb2.AppendResponse.FromString,
        )
    )


def read_method(caller: BaseCaller) -> Any:
    """As `append_method`, of ReadStream."""
    return caller.guard.checked(
        caller.channel.unary_stream(
            READ,
            request_serializer=stream_pb2.ReadStreamRequest.SerializeToString,
            response_deserializer=stream_pb2.ReadStreamResponse.FromString,
        )
    )


def _info(stream: Any) -> StreamInfo:
    return StreamInfo(
        stream.stream_id,
        stream.epoch,
        "closed" if stream.state == stream_pb2.STREAM_STATE_CLOSED else "open",
        stream.start_offset,
        stream.confirm_offset,
        stream.next_offset,
        stream.holder,
        dict(stream.tags),
        stream.fencing_token,
    )


def _stream(response: Any) -> StreamInfo:
    return _info(response.stream)


def _nothing(_: Any) -> None:
    return None


def create(tags: Mapping[str, str] | None) -> Call:
    request = stream_pb2.CreateStreamRequest(tags=dict(tags or {}))
    return Call(
        "StreamService/CreateStream",
        request,
        stream_pb2.CreateStreamResponse,
        _stream,
        writes=True,
    )


def open_stream(stream_id: int, epoch: int | None, accept_data_loss: bool) -> Call:
    request = stream_pb2.OpenStreamRequest(stream_id=stream_id, accept_data_loss=accept_data_loss)
    if epoch is not None:
        request.epoch = epoch
    return Call(
        "StreamService/OpenStream", request, stream_pb2.OpenStreamResponse, _stream, writes=True
    )


def close_stream(stream_id: int) -> Call:
    request = stream_pb2.CloseStreamRequest(stream_id=stream_id)
    return Call(
        "StreamService/CloseStream", request, stream_pb2.CloseStreamResponse, _nothing, writes=True
    )


def delete(stream_id: int, epoch: int | None) -> Call:
    request = stream_pb2.DeleteStreamRequest(stream_id=stream_id)
    if epoch is not None:
        request.epoch = epoch
    return Call(
        "StreamService/DeleteStream",
        request,
        stream_pb2.DeleteStreamResponse,
        _nothing,
        writes=True,
    )


def describe(stream_id: int) -> Call:
    request = stream_pb2.DescribeStreamRequest(stream_id=stream_id)
    return Call("StreamService/DescribeStream", request, stream_pb2.DescribeStreamResponse, _stream)


def list_page(after: int) -> Call:
    request = stream_pb2.ListStreamsRequest(after=after, limit=PAGE)
    return Call(
        "StreamService/ListStreams",
        request,
        stream_pb2.ListStreamsResponse,
        lambda response: [_info(stream) for stream in response.streams],
    )


def fetch(
    stream_id: int, start_offset: int, end_offset: int | None, max_bytes_hint: int, max_wait_ms: int
) -> Call:
    request = stream_pb2.FetchStreamRequest(
        stream_id=stream_id,
        start_offset=start_offset,
        max_bytes_hint=max_bytes_hint,
        max_wait_ms=max_wait_ms,
    )
    if end_offset is not None:
        request.end_offset = end_offset
    return Call(
        "StreamService/FetchStream",
        request,
        stream_pb2.FetchStreamResponse,
        lambda response: StreamFetch(
            batches(response), response.start_offset, response.confirm_offset
        ),
    )


def trim(stream_id: int, new_start_offset: int) -> Call:
    request = stream_pb2.TrimStreamRequest(stream_id=stream_id, new_start_offset=new_start_offset)
    return Call(
        "StreamService/TrimStream",
        request,
        stream_pb2.TrimStreamResponse,
        lambda response: int(response.start_offset),
        writes=True,
    )


def set_fencing_token(
    stream_id: int,
    token: bytes,
    expected_token: bytes | None,
    expected_next_offset: int | None,
    timeout_ms: int,
) -> Call:
    request = stream_pb2.SetFencingTokenRequest(
        stream_id=stream_id, fencing_token=token, timeout_ms=timeout_ms
    )
    if expected_token is not None:
        request.expected_fencing_token = expected_token
    if expected_next_offset is not None:
        request.expected_next_offset = expected_next_offset
    return Call(
        "StreamService/SetFencingToken",
        request,
        stream_pb2.SetFencingTokenResponse,
        _nothing,
        writes=True,
    )


def read_request(stream_id: int, start_offset: int, end_offset: int | None) -> Any:
    request = stream_pb2.ReadStreamRequest(stream_id=stream_id, start_offset=start_offset)
    if end_offset is not None:
        request.end_offset = end_offset
    return request


def batches(response: Any) -> list[StreamBatch]:
    return [
        StreamBatch(
            batch.base_offset,
            batch.record_count,
            batch.base_timestamp_ms,
            batch.payload,
            batch.attributes,
        )
        for batch in response.batches
    ]


def append_request(correlation_id: int, stream_id: int, append: Append, timeout_ms: int) -> Any:
    request = stream_pb2.AppendRequest(
        correlation_id=correlation_id,
        stream_id=stream_id,
        record_count=append.record_count,
        base_timestamp_ms=append.base_timestamp_ms,
        payload=bytes(append.payload),
        attributes=append.attributes,
        timeout_ms=timeout_ms,
    )
    if append.expected_next_offset is not None:
        request.expected_next_offset = append.expected_next_offset
    if append.fencing_token is not None:
        request.fencing_token = append.fencing_token
    return request
