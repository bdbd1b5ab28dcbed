from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StagedBatches(_message.Message):
    __slots__ = ("topic", "partition", "batches")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    batches: bytes
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., batches: _Optional[bytes] = ...) -> None: ...

class StagedProducer(_message.Message):
    __slots__ = ("producer_id", "producer_epoch")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    producer_epoch: int
    def __init__(self, producer_id: _Optional[int] = ..., producer_epoch: _Optional[int] = ...) -> None: ...

class StageRequest(_message.Message):
    __slots__ = ("writer_id", "attempt", "parts", "expires_ms", "producer")
    WRITER_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    writer_id: str
    attempt: str
    parts: _containers.RepeatedCompositeFieldContainer[StagedBatches]
    expires_ms: int
    producer: StagedProducer
    def __init__(self, writer_id: _Optional[str] = ..., attempt: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[StagedBatches, _Mapping]]] = ..., expires_ms: _Optional[int] = ..., producer: _Optional[_Union[StagedProducer, _Mapping]] = ...) -> None: ...

class StagedPart(_message.Message):
    __slots__ = ("topic", "partition", "records", "size_bytes")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    records: int
    size_bytes: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., records: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class StageResponse(_message.Message):
    __slots__ = ("object_id", "expires_at_ms", "parts")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    object_id: int
    expires_at_ms: int
    parts: _containers.RepeatedCompositeFieldContainer[StagedPart]
    def __init__(self, object_id: _Optional[int] = ..., expires_at_ms: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[StagedPart, _Mapping]]] = ...) -> None: ...

class StagedPartitions(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class StagedManifestEntry(_message.Message):
    __slots__ = ("object_id", "partitions")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    object_id: int
    partitions: _containers.RepeatedCompositeFieldContainer[StagedPartitions]
    def __init__(self, object_id: _Optional[int] = ..., partitions: _Optional[_Iterable[_Union[StagedPartitions, _Mapping]]] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("writer_id", "epoch", "objects")
    WRITER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    writer_id: str
    epoch: int
    objects: _containers.RepeatedCompositeFieldContainer[StagedManifestEntry]
    def __init__(self, writer_id: _Optional[str] = ..., epoch: _Optional[int] = ..., objects: _Optional[_Iterable[_Union[StagedManifestEntry, _Mapping]]] = ...) -> None: ...

class CommittedPart(_message.Message):
    __slots__ = ("topic", "partition", "start_offset", "end_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    start_offset: int
    end_offset: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("epoch", "was_committed", "parts")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WAS_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    was_committed: bool
    parts: _containers.RepeatedCompositeFieldContainer[CommittedPart]
    def __init__(self, epoch: _Optional[int] = ..., was_committed: _Optional[bool] = ..., parts: _Optional[_Iterable[_Union[CommittedPart, _Mapping]]] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("transactional_id", "producer", "epoch", "objects")
    TRANSACTIONAL_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    transactional_id: str
    producer: StagedProducer
    epoch: int
    objects: _containers.RepeatedCompositeFieldContainer[StagedManifestEntry]
    def __init__(self, transactional_id: _Optional[str] = ..., producer: _Optional[_Union[StagedProducer, _Mapping]] = ..., epoch: _Optional[int] = ..., objects: _Optional[_Iterable[_Union[StagedManifestEntry, _Mapping]]] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("was_attached", "parts")
    WAS_ATTACHED_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    was_attached: bool
    parts: _containers.RepeatedCompositeFieldContainer[CommittedPart]
    def __init__(self, was_attached: _Optional[bool] = ..., parts: _Optional[_Iterable[_Union[CommittedPart, _Mapping]]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("writer_id",)
    WRITER_ID_FIELD_NUMBER: _ClassVar[int]
    writer_id: str
    def __init__(self, writer_id: _Optional[str] = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("last_epoch", "committed_ms", "parts", "staged_objects")
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    STAGED_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    last_epoch: int
    committed_ms: int
    parts: _containers.RepeatedCompositeFieldContainer[CommittedPart]
    staged_objects: int
    def __init__(self, last_epoch: _Optional[int] = ..., committed_ms: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[CommittedPart, _Mapping]]] = ..., staged_objects: _Optional[int] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("writer_id", "object_ids", "producer")
    WRITER_ID_FIELD_NUMBER: _ClassVar[int]
    OBJECT_IDS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    writer_id: str
    object_ids: _containers.RepeatedScalarFieldContainer[int]
    producer: StagedProducer
    def __init__(self, writer_id: _Optional[str] = ..., object_ids: _Optional[_Iterable[int]] = ..., producer: _Optional[_Union[StagedProducer, _Mapping]] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("dropped",)
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    dropped: int
    def __init__(self, dropped: _Optional[int] = ...) -> None: ...
