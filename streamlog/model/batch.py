"""Record batches, contexts and results of the Stream API (KIP-1183)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from streamlog.runtime.buffers import Buffer, Parts

ATTRIBUTES_BYTES_MAX = 64
"""Attributes of one record batch, bytes."""


class RecordBatch(NamedTuple):
    """What one append stores; opaque to the engine.

    `record_count` (≥ 1) is the batch's offset span. `parts` is the payload in pieces, kept without
    a copy until it is durable: the caller must not change it before the append is answered. Bytes
    that change (a bytearray that is filled anew) make everything unreadable that shares a checksum
    with them: all appends of a group in the WAL, those of other streams included, which a restart
    then refuses or, at the WAL's end, drops; and all batches of a block in an object.
    `attributes` (≤ 64 bytes) are stored beside the index and read without touching data.
    `payload_crc32c` covers the joined parts; the append is Invalid, alone, if it is wrong.
    """

    record_count: int
    base_timestamp_ms: int
    parts: Parts
    attributes: bytes = b""
    payload_crc32c: int | None = None


class CheckedBatch(RecordBatch):
    """A batch whose maker has proven `payload_crc32c` against the bytes: nobody reads them for it
    again."""

    __slots__ = ()


class StoredBatch(NamedTuple):
    """A record batch as fetched: offsets base_offset (inclusive) to end_offset (exclusive)."""

    base_offset: int
    record_count: int
    base_timestamp_ms: int
    parts: Parts
    attributes: bytes = b""

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.record_count


@dataclass(frozen=True, slots=True)
class BatchAttributes:
    """The attributes of the batch at base_offset (inclusive) to end_offset (exclusive)."""

    base_offset: int
    record_count: int
    base_timestamp_ms: int
    attributes: bytes


class Priority(IntEnum):
    """Whose work goes first when there is not enough room for all."""

    BACKGROUND = 0
    NORMAL = 1


class Reservation:
    """Room for bytes in the append queue, taken by `Stream.reserve` and used up by one append."""

    __slots__ = ("size_bytes",)

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def release(self) -> None:
        """Gives back what no append used; harmless when called again."""


class AppendContext(NamedTuple):
    """How one append is carried out.

    `deadline` is on the injected clock's monotonic scale, seconds; None waits without end.
    `expected_next_offset` and `fencing_token` are tested when the append is sequenced; a token of
    None is not tested, b"" is that of a stream without one.
    `reservation` makes the append sequence at the call, without waiting for room.
    """

    deadline: float | None = None
    priority: Priority = Priority.NORMAL
    trace_id: str = ""
    expected_next_offset: int | None = None
    fencing_token: bytes | None = None
    reservation: Reservation | None = None


class ReadMode(IntEnum):
    """How a fetch that needs objects is throttled while appends or tail reads are served."""

    IMMEDIATE = 0
    """The fetch is never throttled: the node itself waits for it."""
    WAIT = 1
    """The fetch waits until the throttle admits it, and returns one piece."""
    SKIP = 2
    """The fetch returns nothing if it would have to wait."""


@dataclass(frozen=True, slots=True)
class FetchContext:
    """How one fetch is carried out. `deadline` as in AppendContext.

    `is_catch_up`: the reader is far behind; its GETs use a lane of their own, so that they cannot
    delay other reads.
    """

    deadline: float | None = None
    priority: Priority = Priority.NORMAL
    trace_id: str = ""
    is_catch_up: bool = False
    read_mode: ReadMode = ReadMode.IMMEDIATE


APPEND = AppendContext()
FETCH = FetchContext()


class AppendResult(NamedTuple):
    """The batch is durable at base_offset (inclusive) to end_offset (exclusive)."""

    base_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Batches in order, without a gap; empty when start == end.

    The first one contains the start asked for and may begin before it; the last may pass the size
    hint and the end. `is_paced`: the throttle cut the result to a piece, or to nothing
    (ReadMode.SKIP); answer with what there is.
    """

    batches: tuple[StoredBatch, ...]
    from_cache: bool = False
    is_paced: bool = False


@dataclass(frozen=True, slots=True)
class StreamSlice:
    """A short section of a stream: start (inclusive) to end (exclusive) offset."""

    stream_id: int
    start_offset: int
    end_offset: int


class StreamState(IntEnum):
    OPEN = 1
    CLOSED = 2


@dataclass(frozen=True, slots=True)
class CreateStreamOptions:
    """`tags` (≤ 1 KiB in all) describe the stream to people; the engine does not read them."""

    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenStreamOptions:
    """`epoch` None takes the next one. An epoch below the stream's is Fenced; the stream's own
    epoch by its holder returns the stream again. `accept_data_loss` opens a stream whose holder
    has acknowledged bytes on its own disk only.
    """

    epoch: int | None = None
    accept_data_loss: bool = False


@dataclass(frozen=True, slots=True)
class CloseStreamOptions:
    """Closing waits until everything appended is confirmed and committed."""


@dataclass(frozen=True, slots=True)
class DeleteStreamOptions:
    """`epoch` None deletes whatever the epoch is."""

    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class StreamDescription:
    """A stream as the metadata knows it; offsets as in Stream."""

    stream_id: int
    epoch: int
    state: StreamState
    start_offset: int
    end_offset: int
    holder: str
    tags: dict[str, str]
    fencing_token: bytes = b""
    """b"": it has none."""


def single(payload: Buffer, *, record_count: int = 1, timestamp_ms: int = 0) -> RecordBatch:
    """A record batch of one piece."""
    return RecordBatch(record_count, timestamp_ms, (payload,))
