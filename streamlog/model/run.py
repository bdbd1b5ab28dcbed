"""Appends of several batches in one call: what a medium may offer beside `Stream.append`.

A log asks a medium for it once, and appends batch by batch where it is not offered. A run costs
less, and means the same as its batches appended one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from streamlog.model.batch import RecordBatch, Reservation
from streamlog.runtime.concurrency.run_ack import RunAck


@runtime_checkable
class AppendsRuns(Protocol):
    """A Stream that takes several batches in one call."""

    def try_reserve_run(self, sizes: Sequence[int]) -> Reservation | None:
        """Room for one run of batches with these sizes, if it can be appended now; never waits.

        None: there is no room for all, or other appends wait for it, or the stream refuses some
        batch, or all. `append` and `reserve` then say why, or wait. With the reservation, and
        without an await in between, `append_run` takes such batches. Release what it did not use.
        """
        ...

    def append_run(
        self, batches: Sequence[RecordBatch], reservation: Reservation, trace_ids: Sequence[str]
    ) -> RunAck:
        """Adds the batches at next_offset, in order; next_offset moves at this call. All or none.

        `reservation`: of `try_reserve_run`, for these batches or more. `trace_ids`: one for each
        batch, for log lines. Errors, none of the batches has its place then: Invalid,
        MessageTooLarge, Overloaded; Fenced, Closed.
        """
        ...
