"""Task plans as sent to executors: plain columns that pickle small and fast, without pyspark."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streamlog.client.tls import Tls
from streamlog.model.located import AbortedSpan, ObjectTable


@dataclass(frozen=True, slots=True)
class StorePiece:
    """Offsets start to ends[-1] (exclusive) of a partition; range i of it lies in objects[i].

    Offset o of the partition is offset o + shift of the stream. `aborted`: the aborted transactions
    that overlap the piece and are not to be read.
    """

    topic: str
    partition: int
    stream_id: int
    shift: int
    start: int
    ends: array[int]
    objects: array[int]
    cost_bytes: int
    topic_id: str = ""
    aborted: tuple[AbortedSpan, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return StorePiece, (
            self.topic,
            self.partition,
            self.stream_id,
            self.shift,
            self.start,
            self.ends,
            self.objects,
            self.cost_bytes,
            self.topic_id,
            self.aborted,
        )

    @property
    def end(self) -> int:
        return self.ends[-1]


@dataclass(frozen=True, slots=True)
class ServicePiece:
    """Offsets start to end (exclusive) of a partition, to be fetched from a node.

    `topic_id` empty: any topic of that name.
    """

    topic: str
    partition: int
    start: int
    end: int
    cost_bytes: int
    topic_id: str = ""


Piece = StorePiece | ServicePiece


def as_service(piece: Piece, start: int, end: int) -> ServicePiece:
    """Offsets start to end (exclusive) of the piece, to be fetched from a node."""
    return ServicePiece(piece.topic, piece.partition, start, end, piece.cost_bytes, piece.topic_id)


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """Pieces of one partition are in offset order. `objects`: the objects that the pieces name."""

    pieces: Sequence[Piece]
    objects: ObjectTable

    def __reduce__(self) -> tuple[Any, ...]:
        return TaskPlan, (self.pieces, self.objects)

    @property
    def cost_bytes(self) -> int:
        return sum(piece.cost_bytes for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class ReadPlace:
    """How a task reaches records. `store_url` None: through the node alone.

    `is_store_needed`: records in objects must not be fetched from the node instead. `read_name`:
    the name of the read in its metrics.
    """

    server: str | None
    store_url: str | None
    cluster_id: str
    is_store_needed: bool
    isolation: str
    fail_on_data_loss: bool
    verify_crc: bool
    pin_id: int | None = None
    pin_ttl_ms: int = 0
    planned_ms: int = 0
    read_name: str = ""
    tls: Tls | None = None
    """How the node is reached; its files are looked for where the task runs."""
