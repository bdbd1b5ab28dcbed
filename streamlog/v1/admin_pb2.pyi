from streamlog.v1 import error_pb2 as _error_pb2
from streamlog.v1 import log_pb2 as _log_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ConfigResourceType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONFIG_RESOURCE_TYPE_UNSPECIFIED: _ClassVar[ConfigResourceType]
    CONFIG_RESOURCE_TYPE_TOPIC: _ClassVar[ConfigResourceType]
    CONFIG_RESOURCE_TYPE_BROKER: _ClassVar[ConfigResourceType]
    CONFIG_RESOURCE_TYPE_BROKER_DEFAULT: _ClassVar[ConfigResourceType]
    CONFIG_RESOURCE_TYPE_CLIENT: _ClassVar[ConfigResourceType]
    CONFIG_RESOURCE_TYPE_CLIENT_DEFAULT: _ClassVar[ConfigResourceType]

class ConfigSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONFIG_SOURCE_UNSPECIFIED: _ClassVar[ConfigSource]
    CONFIG_SOURCE_TOPIC: _ClassVar[ConfigSource]
    CONFIG_SOURCE_BROKER: _ClassVar[ConfigSource]
    CONFIG_SOURCE_ALL_BROKERS: _ClassVar[ConfigSource]
    CONFIG_SOURCE_STATIC_BROKER: _ClassVar[ConfigSource]
    CONFIG_SOURCE_DEFAULT: _ClassVar[ConfigSource]

class ConfigOperation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONFIG_OPERATION_UNSPECIFIED: _ClassVar[ConfigOperation]
    CONFIG_OPERATION_SET: _ClassVar[ConfigOperation]
    CONFIG_OPERATION_DELETE: _ClassVar[ConfigOperation]
    CONFIG_OPERATION_APPEND: _ClassVar[ConfigOperation]
    CONFIG_OPERATION_SUBTRACT: _ClassVar[ConfigOperation]
CONFIG_RESOURCE_TYPE_UNSPECIFIED: ConfigResourceType
CONFIG_RESOURCE_TYPE_TOPIC: ConfigResourceType
CONFIG_RESOURCE_TYPE_BROKER: ConfigResourceType
CONFIG_RESOURCE_TYPE_BROKER_DEFAULT: ConfigResourceType
CONFIG_RESOURCE_TYPE_CLIENT: ConfigResourceType
CONFIG_RESOURCE_TYPE_CLIENT_DEFAULT: ConfigResourceType
CONFIG_SOURCE_UNSPECIFIED: ConfigSource
CONFIG_SOURCE_TOPIC: ConfigSource
CONFIG_SOURCE_BROKER: ConfigSource
CONFIG_SOURCE_ALL_BROKERS: ConfigSource
CONFIG_SOURCE_STATIC_BROKER: ConfigSource
CONFIG_SOURCE_DEFAULT: ConfigSource
CONFIG_OPERATION_UNSPECIFIED: ConfigOperation
CONFIG_OPERATION_SET: ConfigOperation
CONFIG_OPERATION_DELETE: ConfigOperation
CONFIG_OPERATION_APPEND: ConfigOperation
CONFIG_OPERATION_SUBTRACT: ConfigOperation

class NewTopic(_message.Message):
    __slots__ = ("name", "partitions", "configs")
    class ConfigsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    configs: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., configs: _Optional[_Mapping[str, str]] = ...) -> None: ...

class CreateTopicsRequest(_message.Message):
    __slots__ = ("topics", "validate_only")
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[NewTopic]
    validate_only: bool
    def __init__(self, topics: _Optional[_Iterable[_Union[NewTopic, _Mapping]]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class CreateTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicResult]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ...) -> None: ...

class TopicResult(_message.Message):
    __slots__ = ("name", "error", "topic_id", "partitions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    error: _error_pb2.Error
    topic_id: str
    partitions: int
    def __init__(self, name: _Optional[str] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., topic_id: _Optional[str] = ..., partitions: _Optional[int] = ...) -> None: ...

class DeleteTopicsRequest(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicResult]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicSummary]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicSummary, _Mapping]]] = ...) -> None: ...

class TopicSummary(_message.Message):
    __slots__ = ("name", "topic_id", "partitions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    topic_id: str
    partitions: int
    def __init__(self, name: _Optional[str] = ..., topic_id: _Optional[str] = ..., partitions: _Optional[int] = ...) -> None: ...

class DescribeTopicsRequest(_message.Message):
    __slots__ = ("names", "allow_auto_create")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    ALLOW_AUTO_CREATE_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    allow_auto_create: bool
    def __init__(self, names: _Optional[_Iterable[str]] = ..., allow_auto_create: _Optional[bool] = ...) -> None: ...

class DescribeTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicDescription]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicDescription, _Mapping]]] = ...) -> None: ...

class TopicDescription(_message.Message):
    __slots__ = ("name", "error", "topic_id", "partitions", "configs", "capped_configs")
    class ConfigsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class CappedConfigsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CONFIGS_FIELD_NUMBER: _ClassVar[int]
    CAPPED_CONFIGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    error: _error_pb2.Error
    topic_id: str
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionDescription]
    configs: _containers.ScalarMap[str, str]
    capped_configs: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., topic_id: _Optional[str] = ..., partitions: _Optional[_Iterable[_Union[PartitionDescription, _Mapping]]] = ..., configs: _Optional[_Mapping[str, str]] = ..., capped_configs: _Optional[_Mapping[str, str]] = ...) -> None: ...

class PartitionDescription(_message.Message):
    __slots__ = ("partition", "error", "leader_node", "leader_epoch", "log_start_offset", "high_watermark", "last_stable_offset", "log_end_offset", "size_bytes", "segments", "meta_stream_id", "data_stream_id", "time_stream_id", "txn_stream_id", "fencing_token")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LEADER_NODE_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LAST_STABLE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    META_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    TXN_STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    FENCING_TOKEN_FIELD_NUMBER: _ClassVar[int]
    partition: int
    error: _error_pb2.Error
    leader_node: int
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    size_bytes: int
    segments: int
    meta_stream_id: int
    data_stream_id: int
    time_stream_id: int
    txn_stream_id: int
    fencing_token: bytes
    def __init__(self, partition: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ..., leader_node: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., last_stable_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., size_bytes: _Optional[int] = ..., segments: _Optional[int] = ..., meta_stream_id: _Optional[int] = ..., data_stream_id: _Optional[int] = ..., time_stream_id: _Optional[int] = ..., txn_stream_id: _Optional[int] = ..., fencing_token: _Optional[bytes] = ...) -> None: ...

class CreatePartitionsRequest(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: int
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[int] = ...) -> None: ...

class CreatePartitionsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConfigResource(_message.Message):
    __slots__ = ("type", "name")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    type: ConfigResourceType
    name: str
    def __init__(self, type: _Optional[_Union[ConfigResourceType, str]] = ..., name: _Optional[str] = ...) -> None: ...

class DescribeConfigsRequest(_message.Message):
    __slots__ = ("resource",)
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    resource: ConfigResource
    def __init__(self, resource: _Optional[_Union[ConfigResource, _Mapping]] = ...) -> None: ...

class DescribeConfigsResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ConfigEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[ConfigEntry, _Mapping]]] = ...) -> None: ...

class ConfigEntry(_message.Message):
    __slots__ = ("name", "value", "source", "read_only", "documentation", "default_value", "configured_value", "source_kind", "synonyms", "type", "sensitive")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTATION_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
    CONFIGURED_VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_KIND_FIELD_NUMBER: _ClassVar[int]
    SYNONYMS_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SENSITIVE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    source: str
    read_only: bool
    documentation: str
    default_value: str
    configured_value: str
    source_kind: ConfigSource
    synonyms: _containers.RepeatedCompositeFieldContainer[ConfigSynonym]
    type: str
    sensitive: bool
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., source: _Optional[str] = ..., read_only: _Optional[bool] = ..., documentation: _Optional[str] = ..., default_value: _Optional[str] = ..., configured_value: _Optional[str] = ..., source_kind: _Optional[_Union[ConfigSource, str]] = ..., synonyms: _Optional[_Iterable[_Union[ConfigSynonym, _Mapping]]] = ..., type: _Optional[str] = ..., sensitive: _Optional[bool] = ...) -> None: ...

class ConfigSynonym(_message.Message):
    __slots__ = ("name", "value", "source")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    source: ConfigSource
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., source: _Optional[_Union[ConfigSource, str]] = ...) -> None: ...

class IncrementalAlterConfigsRequest(_message.Message):
    __slots__ = ("resource", "changes", "validate_only")
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    resource: ConfigResource
    changes: _containers.RepeatedCompositeFieldContainer[ConfigChange]
    validate_only: bool
    def __init__(self, resource: _Optional[_Union[ConfigResource, _Mapping]] = ..., changes: _Optional[_Iterable[_Union[ConfigChange, _Mapping]]] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class ConfigChange(_message.Message):
    __slots__ = ("name", "operation", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    operation: ConfigOperation
    value: str
    def __init__(self, name: _Optional[str] = ..., operation: _Optional[_Union[ConfigOperation, str]] = ..., value: _Optional[str] = ...) -> None: ...

class IncrementalAlterConfigsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("version", "cluster_id", "node_id", "tenure", "store_url", "meta_url", "wal", "started_ms", "streams", "topics", "partitions", "objects", "pending_upload_bytes", "wal_bytes", "metadata_revision", "rss_bytes", "connections", "alarms", "listeners")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TENURE_FIELD_NUMBER: _ClassVar[int]
    STORE_URL_FIELD_NUMBER: _ClassVar[int]
    META_URL_FIELD_NUMBER: _ClassVar[int]
    WAL_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    PENDING_UPLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    METADATA_REVISION_FIELD_NUMBER: _ClassVar[int]
    RSS_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONNECTIONS_FIELD_NUMBER: _ClassVar[int]
    ALARMS_FIELD_NUMBER: _ClassVar[int]
    LISTENERS_FIELD_NUMBER: _ClassVar[int]
    version: str
    cluster_id: str
    node_id: int
    tenure: str
    store_url: str
    meta_url: str
    wal: str
    started_ms: int
    streams: int
    topics: int
    partitions: int
    objects: int
    pending_upload_bytes: int
    wal_bytes: int
    metadata_revision: int
    rss_bytes: int
    connections: int
    alarms: _containers.RepeatedScalarFieldContainer[str]
    listeners: _containers.RepeatedCompositeFieldContainer[ListenerStatus]
    def __init__(self, version: _Optional[str] = ..., cluster_id: _Optional[str] = ..., node_id: _Optional[int] = ..., tenure: _Optional[str] = ..., store_url: _Optional[str] = ..., meta_url: _Optional[str] = ..., wal: _Optional[str] = ..., started_ms: _Optional[int] = ..., streams: _Optional[int] = ..., topics: _Optional[int] = ..., partitions: _Optional[int] = ..., objects: _Optional[int] = ..., pending_upload_bytes: _Optional[int] = ..., wal_bytes: _Optional[int] = ..., metadata_revision: _Optional[int] = ..., rss_bytes: _Optional[int] = ..., connections: _Optional[int] = ..., alarms: _Optional[_Iterable[str]] = ..., listeners: _Optional[_Iterable[_Union[ListenerStatus, _Mapping]]] = ...) -> None: ...

class ListenerStatus(_message.Message):
    __slots__ = ("name", "protocol", "address", "advertised")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ADVERTISED_FIELD_NUMBER: _ClassVar[int]
    name: str
    protocol: str
    address: str
    advertised: str
    def __init__(self, name: _Optional[str] = ..., protocol: _Optional[str] = ..., address: _Optional[str] = ..., advertised: _Optional[str] = ...) -> None: ...

class ListObjectsRequest(_message.Message):
    __slots__ = ("page_token", "limit")
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    page_token: str
    limit: int
    def __init__(self, page_token: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListObjectsResponse(_message.Message):
    __slots__ = ("objects", "next_page_token")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[ObjectSummary]
    next_page_token: str
    def __init__(self, objects: _Optional[_Iterable[_Union[ObjectSummary, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ObjectSummary(_message.Message):
    __slots__ = ("key", "object_id", "size_bytes", "modified_ms", "live")
    KEY_FIELD_NUMBER: _ClassVar[int]
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODIFIED_MS_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    key: str
    object_id: int
    size_bytes: int
    modified_ms: int
    live: bool
    def __init__(self, key: _Optional[str] = ..., object_id: _Optional[int] = ..., size_bytes: _Optional[int] = ..., modified_ms: _Optional[int] = ..., live: _Optional[bool] = ...) -> None: ...

class DescribeObjectRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class DescribeObjectResponse(_message.Message):
    __slots__ = ("object", "format_version", "cluster_id", "tenure", "blocks")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    TENURE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    object: ObjectSummary
    format_version: int
    cluster_id: str
    tenure: str
    blocks: _containers.RepeatedCompositeFieldContainer[ObjectBlock]
    def __init__(self, object: _Optional[_Union[ObjectSummary, _Mapping]] = ..., format_version: _Optional[int] = ..., cluster_id: _Optional[str] = ..., tenure: _Optional[str] = ..., blocks: _Optional[_Iterable[_Union[ObjectBlock, _Mapping]]] = ...) -> None: ...

class ObjectBlock(_message.Message):
    __slots__ = ("stream_id", "epoch", "start_offset", "end_offset", "position", "length", "compression")
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    stream_id: int
    epoch: int
    start_offset: int
    end_offset: int
    position: int
    length: int
    compression: str
    def __init__(self, stream_id: _Optional[int] = ..., epoch: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., position: _Optional[int] = ..., length: _Optional[int] = ..., compression: _Optional[str] = ...) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BackupResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class PinObjectsRequest(_message.Message):
    __slots__ = ("pin_id", "ttl_ms", "owner")
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    pin_id: int
    ttl_ms: int
    owner: str
    def __init__(self, pin_id: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., owner: _Optional[str] = ...) -> None: ...

class PinObjectsResponse(_message.Message):
    __slots__ = ("pin_id",)
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    pin_id: int
    def __init__(self, pin_id: _Optional[int] = ...) -> None: ...

class UnpinObjectsRequest(_message.Message):
    __slots__ = ("pin_id",)
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    pin_id: int
    def __init__(self, pin_id: _Optional[int] = ...) -> None: ...

class UnpinObjectsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LocateRecordsRequest(_message.Message):
    __slots__ = ("windows", "isolation_level")
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_LEVEL_FIELD_NUMBER: _ClassVar[int]
    windows: _containers.RepeatedCompositeFieldContainer[OffsetWindow]
    isolation_level: _log_pb2.IsolationLevel
    def __init__(self, windows: _Optional[_Iterable[_Union[OffsetWindow, _Mapping]]] = ..., isolation_level: _Optional[_Union[_log_pb2.IsolationLevel, str]] = ...) -> None: ...

class OffsetWindow(_message.Message):
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

class LocateRecordsResponse(_message.Message):
    __slots__ = ("revision", "runs", "object_ids", "index_positions", "index_lengths", "index_crcs", "attached", "aborted", "without_objects")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    OBJECT_IDS_FIELD_NUMBER: _ClassVar[int]
    INDEX_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    INDEX_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    INDEX_CRCS_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_OBJECTS_FIELD_NUMBER: _ClassVar[int]
    revision: int
    runs: _containers.RepeatedCompositeFieldContainer[LocatedRun]
    object_ids: _containers.RepeatedScalarFieldContainer[int]
    index_positions: _containers.RepeatedScalarFieldContainer[int]
    index_lengths: _containers.RepeatedScalarFieldContainer[int]
    index_crcs: _containers.RepeatedScalarFieldContainer[int]
    attached: _containers.RepeatedCompositeFieldContainer[AttachedStream]
    aborted: _containers.RepeatedCompositeFieldContainer[AbortedSpan]
    without_objects: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, revision: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[LocatedRun, _Mapping]]] = ..., object_ids: _Optional[_Iterable[int]] = ..., index_positions: _Optional[_Iterable[int]] = ..., index_lengths: _Optional[_Iterable[int]] = ..., index_crcs: _Optional[_Iterable[int]] = ..., attached: _Optional[_Iterable[_Union[AttachedStream, _Mapping]]] = ..., aborted: _Optional[_Iterable[_Union[AbortedSpan, _Mapping]]] = ..., without_objects: _Optional[_Iterable[int]] = ...) -> None: ...

class AbortedSpan(_message.Message):
    __slots__ = ("window", "producer_id", "first_offset", "last_offset")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    window: int
    producer_id: int
    first_offset: int
    last_offset: int
    def __init__(self, window: _Optional[int] = ..., producer_id: _Optional[int] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ...) -> None: ...

class AttachedStream(_message.Message):
    __slots__ = ("object_id", "stream_id", "base", "epoch", "leader_epoch")
    OBJECT_ID_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    object_id: int
    stream_id: int
    base: int
    epoch: int
    leader_epoch: int
    def __init__(self, object_id: _Optional[int] = ..., stream_id: _Optional[int] = ..., base: _Optional[int] = ..., epoch: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class LocatedRun(_message.Message):
    __slots__ = ("window", "stream_id", "start_offset", "shift", "end_offsets", "object_ids", "size_bytes")
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SHIFT_FIELD_NUMBER: _ClassVar[int]
    END_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    OBJECT_IDS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    window: int
    stream_id: int
    start_offset: int
    shift: int
    end_offsets: _containers.RepeatedScalarFieldContainer[int]
    object_ids: _containers.RepeatedScalarFieldContainer[int]
    size_bytes: int
    def __init__(self, window: _Optional[int] = ..., stream_id: _Optional[int] = ..., start_offset: _Optional[int] = ..., shift: _Optional[int] = ..., end_offsets: _Optional[_Iterable[int]] = ..., object_ids: _Optional[_Iterable[int]] = ..., size_bytes: _Optional[int] = ...) -> None: ...
