from streamlog.v1 import error_pb2 as _error_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PutMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUT_MODE_UNSPECIFIED: _ClassVar[PutMode]
    PUT_MODE_ALWAYS: _ClassVar[PutMode]
    PUT_MODE_IF_ABSENT: _ClassVar[PutMode]
    PUT_MODE_COMPARE_AND_SET: _ClassVar[PutMode]
PUT_MODE_UNSPECIFIED: PutMode
PUT_MODE_ALWAYS: PutMode
PUT_MODE_IF_ABSENT: PutMode
PUT_MODE_COMPARE_AND_SET: PutMode

class KvKey(_message.Message):
    __slots__ = ("namespace", "name")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: bytes
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[bytes] = ...) -> None: ...

class KvValue(_message.Message):
    __slots__ = ("data", "revision")
    DATA_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    revision: int
    def __init__(self, data: _Optional[bytes] = ..., revision: _Optional[int] = ...) -> None: ...

class KvEntry(_message.Message):
    __slots__ = ("key", "value", "error")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    key: KvKey
    value: KvValue
    error: _error_pb2.Error
    def __init__(self, key: _Optional[_Union[KvKey, _Mapping]] = ..., value: _Optional[_Union[KvValue, _Mapping]] = ..., error: _Optional[_Union[_error_pb2.Error, _Mapping]] = ...) -> None: ...

class GetKvsRequest(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[KvKey]
    def __init__(self, keys: _Optional[_Iterable[_Union[KvKey, _Mapping]]] = ...) -> None: ...

class GetKvsResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[KvEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[KvEntry, _Mapping]]] = ...) -> None: ...

class PutKv(_message.Message):
    __slots__ = ("key", "data", "mode", "expected_revision")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REVISION_FIELD_NUMBER: _ClassVar[int]
    key: KvKey
    data: bytes
    mode: PutMode
    expected_revision: int
    def __init__(self, key: _Optional[_Union[KvKey, _Mapping]] = ..., data: _Optional[bytes] = ..., mode: _Optional[_Union[PutMode, str]] = ..., expected_revision: _Optional[int] = ...) -> None: ...

class PutKvsRequest(_message.Message):
    __slots__ = ("puts",)
    PUTS_FIELD_NUMBER: _ClassVar[int]
    puts: _containers.RepeatedCompositeFieldContainer[PutKv]
    def __init__(self, puts: _Optional[_Iterable[_Union[PutKv, _Mapping]]] = ...) -> None: ...

class PutKvsResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[KvEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[KvEntry, _Mapping]]] = ...) -> None: ...

class DeleteKvsRequest(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[KvKey]
    def __init__(self, keys: _Optional[_Iterable[_Union[KvKey, _Mapping]]] = ...) -> None: ...

class DeleteKvsResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[KvEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[KvEntry, _Mapping]]] = ...) -> None: ...

class ListKvsRequest(_message.Message):
    __slots__ = ("namespace", "prefix", "after", "limit")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    prefix: bytes
    after: bytes
    limit: int
    def __init__(self, namespace: _Optional[str] = ..., prefix: _Optional[bytes] = ..., after: _Optional[bytes] = ..., limit: _Optional[int] = ...) -> None: ...

class ListKvsResponse(_message.Message):
    __slots__ = ("entries", "more")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[KvEntry]
    more: bool
    def __init__(self, entries: _Optional[_Iterable[_Union[KvEntry, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class WatchKvsRequest(_message.Message):
    __slots__ = ("namespace", "prefix", "from_revision")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    FROM_REVISION_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    prefix: bytes
    from_revision: int
    def __init__(self, namespace: _Optional[str] = ..., prefix: _Optional[bytes] = ..., from_revision: _Optional[int] = ...) -> None: ...

class WatchKvsResponse(_message.Message):
    __slots__ = ("revision", "changes")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    revision: int
    changes: _containers.RepeatedCompositeFieldContainer[KvEntry]
    def __init__(self, revision: _Optional[int] = ..., changes: _Optional[_Iterable[_Union[KvEntry, _Mapping]]] = ...) -> None: ...
