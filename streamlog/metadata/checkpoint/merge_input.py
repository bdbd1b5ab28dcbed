"""Splits a run of neighbouring blocks of a checkpoint file into its blocks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streamlog.runtime.buffers import Buffer


def blocks_of(
    run: Buffer, positions: Sequence[int], first: int, last: int
) -> Iterator[tuple[int, memoryview]]:
    """Each block's number and bytes; `run` holds first (inclusive) to last (exclusive).

    `positions`: where each block of the file begins, and where the last one ends.
    """
    view, origin = memoryview(run), positions[first]
    for block in range(first, last):
        yield block, view[positions[block] - origin : positions[block + 1] - origin]
