"""Which blocks one GET reads."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from streamlog.format.ranged_gets import index_range, plan_gets
from streamlog.format.rows import ObjectRow


class Block(NamedTuple):
    position: int
    length: int


def planned(blocks: list[Block], get_bytes: int, gap_bytes_max: int) -> list[tuple[int, int]]:
    return [(get.start, get.end) for get in plan_gets(blocks, get_bytes, gap_bytes_max)]


def test_an_empty_range_of_blocks_needs_no_get() -> None:
    assert list(plan_gets([], 100)) == []


def test_neighbours_are_one_get() -> None:
    assert planned([Block(0, 10), Block(10, 10), Block(20, 10)], 100, 0) == [(0, 30)]


def test_a_gap_is_read_up_to_its_bound() -> None:
    assert planned([Block(0, 10), Block(15, 10)], 100, 5) == [(0, 25)]
    assert planned([Block(0, 10), Block(16, 10)], 100, 5) == [(0, 10), (16, 26)]


def test_a_get_ends_with_the_block_that_reaches_its_size() -> None:
    blocks = [Block(10 * number, 10) for number in range(5)]
    assert planned(blocks, 20, 0) == [(0, 20), (20, 40), (40, 50)]
    assert planned(blocks, 15, 0) == [(0, 20), (20, 40), (40, 50)]
    assert planned(blocks, 1, 0) == [(10 * number, 10 * number + 10) for number in range(5)]


def test_a_block_before_the_end_of_its_predecessor_starts_another_get() -> None:
    assert planned([Block(20, 10), Block(0, 10)], 100, 50) == [(20, 30), (0, 10)]
    assert planned([Block(0, 10), Block(5, 10)], 100, 50) == [(0, 10), (5, 15)]


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 100)), max_size=30),
    st.integers(1, 500),
    st.integers(0, 200),
)
def test_each_block_is_read_once_in_order_and_whole(
    steps: list[tuple[int, int]], get_bytes: int, gap_bytes_max: int
) -> None:
    blocks, position = list[Block](), 0
    for gap, length in steps:
        blocks.append(Block(position + gap, length))
        position += gap + length
    data = bytes(number % 251 for number in range(position))
    gets = list(plan_gets(blocks, get_bytes, gap_bytes_max))
    assert [block for get in gets for block in get.blocks] == blocks
    for get in gets:
        brought = data[get.start : get.end]
        assert get.length == len(brought)
        for block in get.blocks:
            wanted = data[block.position : block.position + block.length]
            assert get.block_bytes(brought, block) == wanted
        assert get.length - get.blocks[-1].length < get_bytes + gap_bytes_max
    for before, after in pairwise(gets):
        assert before.length >= get_bytes or after.start - before.end > gap_bytes_max


def test_a_small_object_is_read_as_a_whole() -> None:
    row = ObjectRow(1, 1000, 700, 100, 0)
    assert index_range(row) == (700, 800)
    assert index_range(row, small_object_bytes=799) == (700, 800)
    assert index_range(row, small_object_bytes=800) == (0, 800)
