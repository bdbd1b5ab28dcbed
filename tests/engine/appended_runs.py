"""Appends a run to a stream as the log does."""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.model.batch import RecordBatch, Reservation
from streamlog.model.run import AppendsRuns
from streamlog.model.stream import Stream
from streamlog.runtime.concurrency.run_ack import RunAck


def reserved(stream: Stream, batches: Sequence[RecordBatch]) -> Reservation | None:
    assert isinstance(stream, AppendsRuns)
    return stream.try_reserve_run([sum(map(len, one.parts)) for one in batches])


def append_run(stream: Stream, batches: Sequence[RecordBatch]) -> RunAck:
    assert isinstance(stream, AppendsRuns)
    reservation = reserved(stream, batches)
    assert reservation is not None
    try:
        return stream.append_run(batches, reservation, ["trace"] * len(batches))
    finally:
        reservation.release()
