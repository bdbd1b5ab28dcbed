"""Checks of a read: its offsets are in the stream, and its batches have no gap."""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.engine.stream_core import StreamCore
from streamlog.errors import Corrupt, OffsetOutOfRange
from streamlog.metadata.interface import ObjectRow
from streamlog.model.batch import BatchAttributes, StoredBatch
from streamlog.objectstore.keys import data_key


def check_offsets(core: StreamCore, start: int, end: int) -> None:
    """The stream is usable and has [start, end). Errors: `core.stop`'s, OffsetOutOfRange."""
    if core.stop is not None:
        raise core.stop()
    if start < core.start or end > core.confirm or start > end:
        offset = start if start < core.start or start > end else end
        raise OffsetOutOfRange(
            f"offset {offset} is out of range: stream {core.stream_id} has {core.start} "
            f"(inclusive) to {core.confirm} (exclusive)",
            offset=offset,
            start_offset=core.start,
            end_offset=core.confirm,
        )


def check_run(
    core: StreamCore,
    batches: Sequence[BatchAttributes],
    start: int,
    row: ObjectRow,
) -> None:
    """The batches contain `start` and leave no gap. Errors: Corrupt."""
    position = start
    for batch in batches:
        if batch.base_offset > position or (position != start and batch.base_offset != position):
            break
        position = batch.base_offset + batch.record_count
    else:
        if batches:
            return
    raise gap(core, position, row)


def check_seam(
    core: StreamCore, batch: StoredBatch, position: int, row: ObjectRow, *, begins: bool
) -> None:
    """The batch starts at `position`, or earlier if it is the first (`begins`). Errors: Corrupt."""
    if batch.base_offset != position and not (begins and batch.base_offset < position):
        raise gap(core, position, row)


def gap(core: StreamCore, position: int, row: ObjectRow) -> Corrupt:
    """The error for a stream without a record at `position`."""
    return Corrupt(
        f"stream {core.stream_id} has a gap at offset {position} in or after "
        f"{data_key(row.object_id)}: run fsck",
        object_key=data_key(row.object_id),
        start=0,
        end=row.size_bytes,
    )
