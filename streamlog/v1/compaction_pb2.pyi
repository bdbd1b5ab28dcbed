from streamlog.v1 import error_pb2 as _error_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExecuteMergesRequest(_message.Message):
    __slots__ = ("executor", "done", "failed")
    EXECUTOR_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    executor: MergeExecutor
    done: MergeDone
    failed: MergeFailed
    def __init__(self, executor: _Optional[_Union[MergeExecutor, _Mapping]] = ..., done: _Optional[_Union[MergeDone, _Mapping]] = ..., failed: _Optional[_Union[MergeFailed, _Mapping]] = ...) -> None: ...

class MergeExecutor(_message.Message):
    __slots__ = ("owner",)
    OWNER_FIELD_NUMBER: _ClassVar[int]
    owner: str
    def __init__(self, owner: _Optional[str] = ...) -> None: ...

class MergeDone(_message.Message):
    __slots__ = ("number", "outcome")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    number: int
    outcome: bytes
    def __init__(self, number: _Optional[int] = ..., outcome: _Optional[bytes] = ...) -> None: ...

class MergeFailed(_message.Message):
    __slots__ = ("number", "error")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    number: int
    error: _error_pb2.Error
    def __init__(self, number: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ...) -> None: ...

class ExecuteMergesResponse(_message.Message):
    __slots__ = ("accepted", "job", "settled")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    accepted: MergesAccepted
    job: MergeJob
    settled: MergesSettled
    def __init__(self, accepted: _Optional[_Union[MergesAccepted, _Mapping]] = ..., job: _Optional[_Union[MergeJob, _Mapping]] = ..., settled: _Optional[_Union[MergesSettled, _Mapping]] = ...) -> None: ...

class MergesAccepted(_message.Message):
    __slots__ = ("cluster_id", "store_url")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    STORE_URL_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    store_url: str
    def __init__(self, cluster_id: _Optional[str] = ..., store_url: _Optional[str] = ...) -> None: ...

class MergeJob(_message.Message):
    __slots__ = ("number", "job")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    number: int
    job: bytes
    def __init__(self, number: _Optional[int] = ..., job: _Optional[bytes] = ...) -> None: ...

class MergesSettled(_message.Message):
    __slots__ = ("merges", "inputs", "outputs")
    MERGES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    merges: int
    inputs: int
    outputs: int
    def __init__(self, merges: _Optional[int] = ..., inputs: _Optional[int] = ..., outputs: _Optional[int] = ...) -> None: ...
