"""Which blocks of an object or file are read by one GET: pure.

1. A GET reads neighbours, with the gaps between them that are smaller than a request is worth.
2. A GET ends with the block that reaches `get_bytes`; so it may be larger, by less than a block.
3. A block that begins before its predecessor ends starts another GET.
Why there is one planner: docs/rfcs/0009-one-planner-of-ranged-gets.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from streamlog.format.rows import ObjectRow
from streamlog.runtime.buffers import Buffer

GAP_BYTES_MAX = 64 << 10
"""Bytes that cost less time to read than another GET does."""


class StoredBlock(Protocol):
    """Anything that lies at `position` and has `length` bytes."""

    @property
    def position(self) -> int: ...

    @property
    def length(self) -> int: ...


B = TypeVar("B", bound=StoredBlock)


@dataclass(frozen=True, slots=True)
class RangedGet(Generic[B]):
    """At least one block, in the order of their positions."""

    blocks: Sequence[B]

    @property
    def start(self) -> int:
        return self.blocks[0].position

    @property
    def end(self) -> int:
        """Exclusive."""
        return self.blocks[-1].position + self.blocks[-1].length

    @property
    def length(self) -> int:
        return self.end - self.start

    def block_bytes(self, data: Buffer, block: B) -> memoryview:
        """The bytes of `block` in `data`, which the GET has brought."""
        first = block.position - self.start
        return memoryview(data)[first : first + block.length]


def plan_gets(
    blocks: Iterable[B], get_bytes: int, gap_bytes_max: int = GAP_BYTES_MAX
) -> Iterator[RangedGet[B]]:
    """GETs that read `blocks`, in the order of `blocks`, each of which is read once.

    To ask for few GETs, give the blocks in the order of their positions.
    """
    run: list[B] = []
    end = 0
    for block in blocks:
        if run:
            is_full = end - run[0].position >= get_bytes
            if is_full or not 0 <= block.position - end <= gap_bytes_max:
                yield RangedGet(run)
                run = []
        run.append(block)
        end = block.position + block.length
    if run:
        yield RangedGet(run)


def index_range(row: ObjectRow, small_object_bytes: int = 0) -> tuple[int, int]:
    """First byte and end (exclusive) of the GET that brings an object's index region.

    The GET brings all that lies before the index, too, where that is `small_object_bytes` at most:
    then no block needs a GET of its own.
    """
    end = row.index_position + row.index_length
    return (0 if end <= small_object_bytes else row.index_position), end
