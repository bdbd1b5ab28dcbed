from streamlog.v1 import error_pb2 as _error_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StreamState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STREAM_STATE_UNSPECIFIED: _ClassVar[StreamState]
    STREAM_STATE_OPEN: _ClassVar[StreamState]
    STREAM_STATE_CLOSED: _ClassVar[StreamState]
STREAM_STATE_UNSPECIFIED: StreamState
STREAM_STATE_OPEN: StreamState
STREAM_STATE_CLOSED: StreamState

class StreamInfo(_message.Message):
    __slots__ = ("stream_id", "epoch", "state", "start_offset", "confirm_offset", "next_offset", "holder", "tags", "fencing_token")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    epoch: int
    state: StreamState
    start_offset: int
    confirm_offset: int
    next_offset: int
    holder: str
    tags: _containers.ScalarMap[str, str]
    fencing_token: bytes
    def __init__(self, stream_id: _Optional[int] = ..., epoch: _Optional[int] = ..., state: _Optional[_Union[StreamState, str]] = ..., start_offset: _Optional[int] = ..., confirm_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., holder: _Optional[str] = ..., tags: _Optional[_Mapping[str, str]] = ..., fencing_token: _Optional[bytes] = ...) -> None: ...

class CreateStreamRequest(_message.Message):
    __slots__ = ("tags",)
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TAGS_FIELD_NUMBER: _ClassVar[int]
    tags: _containers.ScalarMap[str, str]
    def __init__(self, tags: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CreateStreamResponse(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: StreamInfo
    def __init__(self, stream: _Optional[_Union[StreamInfo, _Mapping]] = ...) -> None: ...

class OpenStreamRequest(_message.Message):
    __slots__ = ("stream_id", "epoch", "accept_data_loss")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_DATA_LOSS_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    epoch: int
    accept_data_loss: bool
    def __init__(self, stream_id: _Optional[int] = ..., epoch: _Optional[int] = ..., accept_data_loss: _Optional[bool] = ...) -> None: ...

class OpenStreamResponse(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: StreamInfo
    def __init__(self, stream: _Optional[_Union[StreamInfo, _Mapping]] = ...) -> None: ...

class CloseStreamRequest(_message.Message):
    __slots__ = ("stream_id",)
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    def __init__(self, stream_id: _Optional[int] = ...) -> None: ...

class CloseStreamResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteStreamRequest(_message.Message):
    __slots__ = ("stream_id", "epoch")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    epoch: int
    def __init__(self, stream_id: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class DeleteStreamResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeStreamRequest(_message.Message):
    __slots__ = ("stream_id",)
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    def __init__(self, stream_id: _Optional[int] = ...) -> None: ...

class DescribeStreamResponse(_message.Message):
    __slots__ = ("stream",)
    STREAM_FIELD_NUMBER: _ClassVar[int]
    stream: StreamInfo
    def __init__(self, stream: _Optional[_Union[StreamInfo, _Mapping]] = ...) -> None: ...

class ListStreamsRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: int
    limit: int
    def __init__(self, after: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListStreamsResponse(_message.Message):
    __slots__ = ("streams",)
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[StreamInfo]
    def __init__(self, streams: _Optional[_Iterable[_Union[StreamInfo, _Mapping]]] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("correlation_id", "stream_id", "record_count", "base_timestamp_ms", "payload", "attributes", "expected_next_offset", "fencing_token", "timeout_ms")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    BASE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    stream_id: int
    record_count: int
    base_timestamp_ms: int
    payload: bytes
    attributes: bytes
    expected_next_offset: int
    fencing_token: bytes
    timeout_ms: int
    def __init__(self, correlation_id: _Optional[int] = ..., stream_id: _Optional[int] = ..., record_count: _Optional[int] = ..., base_timestamp_ms: _Optional[int] = ..., payload: _Optional[bytes] = ..., attributes: _Optional[bytes] = ..., expected_next_offset: _Optional[int] = ..., fencing_token: _Optional[bytes] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("correlation_id", "error", "base_offset", "end_offset")
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    correlation_id: int
    error: _error_pb2.Error
    base_offset: int
    end_offset: int
    def __init__(self, correlation_id: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., base_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class StoredBatch(_message.Message):
    __slots__ = ("base_offset", "record_count", "base_timestamp_ms", "payload", "attributes")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    BASE_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    record_count: int
    base_timestamp_ms: int
    payload: bytes
    attributes: bytes
    def __init__(self, base_offset: _Optional[int] = ..., record_count: _Optional[int] = ..., base_timestamp_ms: _Optional[int] = ..., payload: _Optional[bytes] = ..., attributes: _Optional[bytes] = ...) -> None: ...

class FetchStreamRequest(_message.Message):
    __slots__ = ("stream_id", "start_offset", "end_offset", "max_bytes_hint", "max_wait_ms")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_HINT_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    start_offset: int
    end_offset: int
    max_bytes_hint: int
    max_wait_ms: int
    def __init__(self, stream_id: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., max_bytes_hint: _Optional[int] = ..., max_wait_ms: _Optional[int] = ...) -> None: ...

class FetchStreamResponse(_message.Message):
    __slots__ = ("batches", "start_offset", "confirm_offset")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[StoredBatch]
    start_offset: int
    confirm_offset: int
    def __init__(self, batches: _Optional[_Iterable[_Union[StoredBatch, _Mapping]]] = ..., start_offset: _Optional[int] = ..., confirm_offset: _Optional[int] = ...) -> None: ...

class ReadStreamRequest(_message.Message):
    __slots__ = ("stream_id", "start_offset", "end_offset")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    start_offset: int
    end_offset: int
    def __init__(self, stream_id: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class ReadStreamResponse(_message.Message):
    __slots__ = ("batches", "confirm_offset")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[StoredBatch]
    confirm_offset: int
    def __init__(self, batches: _Optional[_Iterable[_Union[StoredBatch, _Mapping]]] = ..., confirm_offset: _Optional[int] = ...) -> None: ...

class TrimStreamRequest(_message.Message):
    __slots__ = ("stream_id", "new_start_offset")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    NEW_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    new_start_offset: int
    def __init__(self, stream_id: _Optional[int] = ..., new_start_offset: _Optional[int] = ...) -> None: ...

class TrimStreamResponse(_message.Message):
    __slots__ = ("start_offset",)
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    start_offset: int
    def __init__(self, start_offset: _Optional[int] = ...) -> None: ...

class SetFencingTokenRequest(_message.Message):
    __slots__ = ("stream_id", "fencing_token", "expected_fencing_token", "expected_next_offset", "timeout_ms")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    fencing_token: bytes
    expected_fencing_token: bytes
    expected_next_offset: int
    timeout_ms: int
    def __init__(self, stream_id: _Optional[int] = ..., fencing_token: _Optional[bytes] = ..., expected_fencing_token: _Optional[bytes] = ..., expected_next_offset: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class SetFencingTokenResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
