from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ErrorCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_CODE_NONE: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_SERVER_ERROR: _ClassVar[ErrorCode]
    ERROR_CODE_OFFSET_OUT_OF_RANGE: _ClassVar[ErrorCode]
    ERROR_CODE_CORRUPT_MESSAGE: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_LEADER_OR_FOLLOWER: _ClassVar[ErrorCode]
    ERROR_CODE_REQUEST_TIMED_OUT: _ClassVar[ErrorCode]
    ERROR_CODE_MESSAGE_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS: _ClassVar[ErrorCode]
    ERROR_CODE_COORDINATOR_NOT_AVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_NOT_COORDINATOR: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TOPIC_EXCEPTION: _ClassVar[ErrorCode]
    ERROR_CODE_RECORD_LIST_TOO_LARGE: _ClassVar[ErrorCode]
    ERROR_CODE_TOPIC_AUTHORIZATION_FAILED: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TIMESTAMP: _ClassVar[ErrorCode]
    ERROR_CODE_UNSUPPORTED_VERSION: _ClassVar[ErrorCode]
    ERROR_CODE_TOPIC_ALREADY_EXISTS: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_PARTITIONS: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_CONFIG: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_REQUEST: _ClassVar[ErrorCode]
    ERROR_CODE_POLICY_VIOLATION: _ClassVar[ErrorCode]
    ERROR_CODE_OUT_OF_ORDER_SEQUENCE_NUMBER: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_PRODUCER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TXN_STATE: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_PRODUCER_ID_MAPPING: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_TRANSACTION_TIMEOUT: _ClassVar[ErrorCode]
    ERROR_CODE_CONCURRENT_TRANSACTIONS: _ClassVar[ErrorCode]
    ERROR_CODE_TRANSACTION_COORDINATOR_FENCED: _ClassVar[ErrorCode]
    ERROR_CODE_KAFKA_STORAGE_ERROR: _ClassVar[ErrorCode]
    ERROR_CODE_FENCED_LEADER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_LEADER_EPOCH: _ClassVar[ErrorCode]
    ERROR_CODE_OFFSET_NOT_AVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_RECORD: _ClassVar[ErrorCode]
    ERROR_CODE_THROTTLING_QUOTA_EXCEEDED: _ClassVar[ErrorCode]
    ERROR_CODE_PRODUCER_FENCED: _ClassVar[ErrorCode]
    ERROR_CODE_UNKNOWN_TOPIC_ID: _ClassVar[ErrorCode]
    ERROR_CODE_INCONSISTENT_TOPIC_ID: _ClassVar[ErrorCode]
    ERROR_CODE_TRANSACTIONAL_ID_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_TRANSACTION_ABORTABLE: _ClassVar[ErrorCode]
    ERROR_CODE_UNAVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_STORE_UNAVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_METADATA_UNAVAILABLE: _ClassVar[ErrorCode]
    ERROR_CODE_OVERLOADED: _ClassVar[ErrorCode]
    ERROR_CODE_DISK_FULL: _ClassVar[ErrorCode]
    ERROR_CODE_CLOSED: _ClassVar[ErrorCode]
    ERROR_CODE_OFFSET_CONFLICT: _ClassVar[ErrorCode]
    ERROR_CODE_TOKEN_MISMATCH: _ClassVar[ErrorCode]
    ERROR_CODE_ALREADY_EXISTS: _ClassVar[ErrorCode]
    ERROR_CODE_VALUE_CONFLICT: _ClassVar[ErrorCode]
    ERROR_CODE_STREAM_FENCED: _ClassVar[ErrorCode]
    ERROR_CODE_TENURE_FENCED: _ClassVar[ErrorCode]
    ERROR_CODE_LINEAGE_FENCED: _ClassVar[ErrorCode]
    ERROR_CODE_INVALID_NAME: _ClassVar[ErrorCode]
    ERROR_CODE_STREAM_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_KEY_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_OBJECT_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_REVISION_COMPACTED: _ClassVar[ErrorCode]
    ERROR_CODE_STAGED_NOT_FOUND: _ClassVar[ErrorCode]
    ERROR_CODE_OUTCOME_UNKNOWN: _ClassVar[ErrorCode]
    ERROR_CODE_WAL_PENDING: _ClassVar[ErrorCode]
    ERROR_CODE_DATA_IN_USE: _ClassVar[ErrorCode]
    ERROR_CODE_FOREIGN_CLUSTER: _ClassVar[ErrorCode]
    ERROR_CODE_CORRUPT: _ClassVar[ErrorCode]
ERROR_CODE_NONE: ErrorCode
ERROR_CODE_UNKNOWN_SERVER_ERROR: ErrorCode
ERROR_CODE_OFFSET_OUT_OF_RANGE: ErrorCode
ERROR_CODE_CORRUPT_MESSAGE: ErrorCode
ERROR_CODE_UNKNOWN_TOPIC_OR_PARTITION: ErrorCode
ERROR_CODE_NOT_LEADER_OR_FOLLOWER: ErrorCode
ERROR_CODE_REQUEST_TIMED_OUT: ErrorCode
ERROR_CODE_MESSAGE_TOO_LARGE: ErrorCode
ERROR_CODE_COORDINATOR_LOAD_IN_PROGRESS: ErrorCode
ERROR_CODE_COORDINATOR_NOT_AVAILABLE: ErrorCode
ERROR_CODE_NOT_COORDINATOR: ErrorCode
ERROR_CODE_INVALID_TOPIC_EXCEPTION: ErrorCode
ERROR_CODE_RECORD_LIST_TOO_LARGE: ErrorCode
ERROR_CODE_TOPIC_AUTHORIZATION_FAILED: ErrorCode
ERROR_CODE_INVALID_TIMESTAMP: ErrorCode
ERROR_CODE_UNSUPPORTED_VERSION: ErrorCode
ERROR_CODE_TOPIC_ALREADY_EXISTS: ErrorCode
ERROR_CODE_INVALID_PARTITIONS: ErrorCode
ERROR_CODE_INVALID_CONFIG: ErrorCode
ERROR_CODE_INVALID_REQUEST: ErrorCode
ERROR_CODE_POLICY_VIOLATION: ErrorCode
ERROR_CODE_OUT_OF_ORDER_SEQUENCE_NUMBER: ErrorCode
ERROR_CODE_INVALID_PRODUCER_EPOCH: ErrorCode
ERROR_CODE_INVALID_TXN_STATE: ErrorCode
ERROR_CODE_INVALID_PRODUCER_ID_MAPPING: ErrorCode
ERROR_CODE_INVALID_TRANSACTION_TIMEOUT: ErrorCode
ERROR_CODE_CONCURRENT_TRANSACTIONS: ErrorCode
ERROR_CODE_TRANSACTION_COORDINATOR_FENCED: ErrorCode
ERROR_CODE_KAFKA_STORAGE_ERROR: ErrorCode
ERROR_CODE_FENCED_LEADER_EPOCH: ErrorCode
ERROR_CODE_UNKNOWN_LEADER_EPOCH: ErrorCode
ERROR_CODE_OFFSET_NOT_AVAILABLE: ErrorCode
ERROR_CODE_INVALID_RECORD: ErrorCode
ERROR_CODE_THROTTLING_QUOTA_EXCEEDED: ErrorCode
ERROR_CODE_PRODUCER_FENCED: ErrorCode
ERROR_CODE_UNKNOWN_TOPIC_ID: ErrorCode
ERROR_CODE_INCONSISTENT_TOPIC_ID: ErrorCode
ERROR_CODE_TRANSACTIONAL_ID_NOT_FOUND: ErrorCode
ERROR_CODE_TRANSACTION_ABORTABLE: ErrorCode
ERROR_CODE_UNAVAILABLE: ErrorCode
ERROR_CODE_STORE_UNAVAILABLE: ErrorCode
ERROR_CODE_METADATA_UNAVAILABLE: ErrorCode
ERROR_CODE_OVERLOADED: ErrorCode
ERROR_CODE_DISK_FULL: ErrorCode
ERROR_CODE_CLOSED: ErrorCode
ERROR_CODE_OFFSET_CONFLICT: ErrorCode
ERROR_CODE_TOKEN_MISMATCH: ErrorCode
ERROR_CODE_ALREADY_EXISTS: ErrorCode
ERROR_CODE_VALUE_CONFLICT: ErrorCode
ERROR_CODE_STREAM_FENCED: ErrorCode
ERROR_CODE_TENURE_FENCED: ErrorCode
ERROR_CODE_LINEAGE_FENCED: ErrorCode
ERROR_CODE_INVALID_NAME: ErrorCode
ERROR_CODE_STREAM_NOT_FOUND: ErrorCode
ERROR_CODE_KEY_NOT_FOUND: ErrorCode
ERROR_CODE_OBJECT_NOT_FOUND: ErrorCode
ERROR_CODE_REVISION_COMPACTED: ErrorCode
ERROR_CODE_STAGED_NOT_FOUND: ErrorCode
ERROR_CODE_OUTCOME_UNKNOWN: ErrorCode
ERROR_CODE_WAL_PENDING: ErrorCode
ERROR_CODE_DATA_IN_USE: ErrorCode
ERROR_CODE_FOREIGN_CLUSTER: ErrorCode
ERROR_CODE_CORRUPT: ErrorCode

class Error(_message.Message):
    __slots__ = ("code", "name", "message", "is_retryable", "has_no_side_effects", "fields")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ErrorField
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ErrorField, _Mapping]] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    IS_RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    HAS_NO_SIDE_EFFECTS_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    code: ErrorCode
    name: str
    message: str
    is_retryable: bool
    has_no_side_effects: bool
    fields: _containers.MessageMap[str, ErrorField]
    def __init__(self, code: _Optional[_Union[ErrorCode, str]] = ..., name: _Optional[str] = ..., message: _Optional[str] = ..., is_retryable: _Optional[bool] = ..., has_no_side_effects: _Optional[bool] = ..., fields: _Optional[_Mapping[str, ErrorField]] = ...) -> None: ...

class ErrorField(_message.Message):
    __slots__ = ("int_value", "string_value", "bool_value")
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    int_value: int
    string_value: str
    bool_value: bool
    def __init__(self, int_value: _Optional[int] = ..., string_value: _Optional[str] = ..., bool_value: _Optional[bool] = ...) -> None: ...
