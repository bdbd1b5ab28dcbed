"""A fold that tests feed with records and moves."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence

from streamlog.codec.crc import crc32c
from streamlog.format.records.commit import CommitRecord, Create, ObjectRows, RecordEntry
from streamlog.metadata.fold.fold import Fold
from streamlog.metadata.fold.generation import find
from streamlog.metadata.interface import StreamEpoch, Tenure
from streamlog.metadata.keys.transfer import TransferRecord
from streamlog.runtime.concurrency.steps import run

A, B = Tenure(1, 1), Tenure(2, 1)
Row = tuple[int, int, int, int]


def rows(object_id: int, *given: Row) -> ObjectRows:
    """Rows as (stream, epoch, start, end)."""
    return ObjectRows(
        object_id,
        100,
        90,
        10,
        7,
        0,
        array("Q", [s for s, _, _, _ in given]),
        array("I", [end - start for _, _, start, end in given]),
    )


def crc_of(given: Sequence[Row]) -> int:
    crc = 0
    for row in given:
        crc = crc32c(struct.pack("<4Q", *row), crc)
    return crc


class Harness:
    """A fold with a record counter per tenure."""

    def __init__(self) -> None:
        self.fold = Fold()
        self.revision = 0

    def record(self, tenure: Tenure, *entries: RecordEntry, crc: Sequence[Row] = ()) -> None:
        self.revision += 1
        seq = self.fold.mark(tenure).seq + 1
        record = CommitRecord(0, crc_of(crc), entries)
        run(self.fold.apply_record(tenure, seq, record, self.revision))

    def create(self, tenure: Tenure, *streams: int) -> None:
        self.record(tenure, RecordEntry(creates=tuple(Create(s, 1) for s in streams)))

    def append(self, tenure: Tenure, object_id: int, *given: Row) -> None:
        self.record(tenure, RecordEntry(objects=(rows(object_id, *given),)), crc=given)

    def move(self, holder: Tenure, to: Tenure, *streams: tuple[int, int]) -> None:
        gen = self.fold.mark(holder).gen + 1
        listed = [StreamEpoch(*s) for s in streams] or None
        run(self.fold.apply_transfer(holder, gen, TransferRecord(to, bytes(16), listed)))

    def ranges(self, stream_id: int) -> list[tuple[int, int, int]]:
        flat = self.fold.newest.ranges.get(stream_id)
        return [] if flat is None else [tuple(r) for r in find(flat, 0, 1 << 63, 99)]  # type: ignore[misc]
