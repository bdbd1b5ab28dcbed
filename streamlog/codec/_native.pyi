from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from streamlog.codec.pure.records import Headers, Record
from streamlog.runtime.buffers import Buffer

CRC_INSTRUCTIONS: str

_Tuple = TypeVar("_Tuple", bound=tuple[object, ...])
_Header = TypeVar("_Header", bound=tuple[int, ...])
_Batch = TypeVar("_Batch", bound=tuple[object, memoryview])

_Binary = tuple[Buffer | None, Buffer, Buffer]
_Headers = tuple[Buffer, _Binary, _Binary]
_Rows = tuple[
    int, memoryview, memoryview, memoryview, _Binary | None, _Binary | None, _Headers | None
]

class _AnyBuffer(Protocol):
    def __buffer__(self, flags: int, /) -> memoryview: ...

def crc32c(data: Buffer, previous: int = 0, /) -> int: ...
def crc32c_by_table(data: Buffer, previous: int = 0, /) -> int: ...
def murmur2(data: Buffer, /) -> int: ...
def partition_for_key(key: Buffer, partitions: int, /) -> int: ...
def partitions_for_keys(
    keys: Sequence[Buffer | None], partitions: int, otherwise: int, /
) -> list[int]: ...
def scan(
    view: memoryview, verify_crc: bool, header: type[_Header], batch: type[_Batch], /
) -> list[_Batch]: ...
def check_records(batch: Buffer, /) -> None: ...

class RecordWriter:
    @property
    def record_count(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def __init__(self, size_limit_bytes: int) -> None: ...
    def append(
        self,
        timestamp_ms: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: Headers | None = None,
        /,
    ) -> bool: ...
    def extend(
        self,
        values: Sequence[Buffer | None],
        *,
        timestamp_ms: int,
        keys: Sequence[Buffer | None] | None = None,
        timestamps_ms: Sequence[int] | None = None,
        headers: Sequence[Headers] | None = None,
        start: int = 0,
    ) -> int: ...
    def take(
        self, producer_id: int, producer_epoch: int, base_sequence: int, attributes: int, /
    ) -> bytearray: ...

class RecordReader:
    def __new__(
        cls, header: tuple[int, ...], records: Buffer, base_offset: int, /
    ) -> RecordReader: ...
    def __iter__(self) -> Iterator[Record]: ...
    def __next__(self) -> Record: ...
    def all(self) -> list[Record]: ...
    def list_as(self, kind: type[_Tuple], topic: str, partition: int, /) -> list[_Tuple]: ...
    def values(self) -> list[bytes | None]: ...

class ColumnsDecoder:
    def __new__(
        cls,
        data: Buffer,
        base_offsets: _AnyBuffer | None,
        start: int,
        end: int,
        rows_max: int,
        bytes_max: int,
        keys: bool,
        values: bool,
        headers: bool,
        verify_crc: bool,
        /,
    ) -> ColumnsDecoder: ...
    def step(self) -> tuple[int, int, int, int]: ...
    def supply(self, records: Buffer, /) -> None: ...
    def take(self) -> _Rows | None: ...

def encode_columns(
    count: int,
    timestamp_ms: int,
    keys: _Binary | None,
    values: _Binary | None,
    headers: _Headers | None,
    timestamps_us: Buffer | None,
    rows: Buffer | None,
    batch_bytes: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    /,
) -> tuple[memoryview, list[tuple[int, int, int, int]]]: ...
def key_partitions(keys: _Binary, count: int, partitions: int, /) -> memoryview: ...
