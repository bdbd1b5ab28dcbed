"""BatchReader: where the batches of a log are read from, whatever the medium."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from streamlog.runtime.buffers import Parts


class ReadBatch(Protocol):
    """A stored record batch; `end_offset` counts as the medium does."""

    @property
    def parts(self) -> Parts: ...
    @property
    def end_offset(self) -> int: ...


class BatchRun(NamedTuple):
    """Batches in order, without a gap; offset o of the log is o + `shift` in `end_offset`.

    `is_paced`: the medium lets other requests go first; the answer is what there is by now. A fetch
    that has nothing goes on behind a gap all the same.
    `empty_until`: the log has no batch before this offset any more; -1: nothing is said.
    `is_too_large`: the run is empty, because the batch is larger than the read may be.
    `held_bytes`: of memory that the batches are views of, and that nobody else needs; 0: they are
    no such views.
    """

    batches: Sequence[ReadBatch]
    shift: int
    is_paced: bool
    empty_until: int = -1
    is_too_large: bool = False
    held_bytes: int = 0


class BatchReader(Protocol):
    """Reads the batches of one log."""

    async def read(
        self, offset: int, end_offset: int, max_bytes: int, *, is_required: bool
    ) -> BatchRun:
        """Batches from the one with `offset`, not many more than `max_bytes`, at least one.

        Not `is_required`: the run may be empty where the medium would have to wait, or where the
        batch is larger than `max_bytes`, and `is_too_large` says so. It also is where a cleaning
        left nothing between the offsets, and `empty_until` says so.
        """
        ...
