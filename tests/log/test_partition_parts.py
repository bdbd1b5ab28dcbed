"""Parts that any kind of log stands on: lifecycle, reading, factories. No streams are involved."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest

from streamlog.errors import Closed, Internal, PolicyViolation, StreamlogError, Unavailable
from streamlog.log.api.batch_reader import BatchRun
from streamlog.log.api.log_factory import LogFactories, LogKind
from streamlog.log.partition.lifecycle import LogLifecycle, LogState
from streamlog.log.partition.view.reading import BatchesRead, fetch_batches
from streamlog.runtime.buffers import Parts


class Batch(NamedTuple):
    parts: Parts
    end_offset: int


class ListReader:
    """Batches of one record each, `run_length` of them a read; `sizes` are their bytes."""

    def __init__(self, sizes: list[int], run_length: int = 2, shift: int = 0) -> None:
        self.sizes = sizes
        self.reads: list[tuple[int, int, bool]] = []
        self.fails_at = -1
        self._run_length = run_length
        self._shift = shift

    async def read(
        self, offset: int, end_offset: int, max_bytes: int, *, is_required: bool
    ) -> BatchRun:
        self.reads.append((offset, max_bytes, is_required))
        if offset == self.fails_at:
            raise Unavailable("the medium is away")
        end = min(offset + self._run_length, end_offset)
        batches = [
            Batch((bytes(self.sizes[number]),), number + 1 + self._shift)
            for number in range(offset, end)
        ]
        return BatchRun(batches, self._shift, is_paced=False)


def fetched(
    reader: ListReader, offset: int, max_bytes: int, *, min_one_batch: bool = True
) -> BatchesRead:
    return asyncio.run(
        fetch_batches(reader, offset, len(reader.sizes), max_bytes, min_one_batch=min_one_batch)
    )


@pytest.mark.parametrize("shift", [0, 7])
def test_a_fetch_returns_whole_batches_up_to_its_bytes(shift: int) -> None:
    read = fetched(ListReader([10] * 9, shift=shift), 1, 55)
    assert (read.batches, read.size_bytes, read.next_offset) == (5, 50, 6)


def test_a_large_first_batch_is_returned_only_where_one_is_required() -> None:
    assert fetched(ListReader([99, 1]), 0, 10).size_bytes == 99
    read = fetched(ListReader([99, 1]), 0, 10, min_one_batch=False)
    assert (read.batches, read.next_offset) == (0, 0)


def test_only_the_first_run_is_required() -> None:
    reader = ListReader([10] * 6)
    fetched(reader, 0, 100)
    assert [is_required for _, _, is_required in reader.reads] == [True, False, False]


def test_an_error_behind_the_first_run_is_left_to_the_next_fetch() -> None:
    reader = ListReader([10] * 6)
    reader.fails_at = 2
    assert fetched(reader, 0, 100).next_offset == 2
    with pytest.raises(Unavailable):
        fetched(reader, 2, 100)


def test_a_medium_that_returns_nothing_is_an_error_and_no_endless_loop() -> None:
    with pytest.raises(Internal, match="offset 0"):
        fetched(ListReader([10], run_length=0), 0, 100)


def test_a_log_fails_once_and_remembers_why() -> None:
    told: list[StreamlogError] = []
    lifecycle = LogLifecycle("t-0", told.append)
    lifecycle.check_open()
    first = Unavailable("first")
    lifecycle.fail(first)
    lifecycle.fail(Unavailable("second"))
    assert (lifecycle.state, told) == (LogState.FAILED, [first])
    with pytest.raises(Unavailable, match="first"):
        lifecycle.check_open()
    assert not lifecycle.end()


def test_only_the_end_of_an_open_log_is_orderly() -> None:
    lifecycle = LogLifecycle("t-0", lambda _: None)
    assert lifecycle.end()
    assert not lifecycle.end()
    with pytest.raises(Closed, match="t-0"):
        lifecycle.check_open()
    lifecycle.fail(Unavailable("late"))
    assert lifecycle.state is LogState.ENDED
    with pytest.raises(Unavailable, match="late"):
        lifecycle.check_open()


def test_a_kind_of_log_without_a_factory_is_refused() -> None:
    with pytest.raises(PolicyViolation, match="shared"):
        LogFactories({}).of(LogKind.SHARED)
