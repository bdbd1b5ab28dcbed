"""The demonstration's verdict finds what is lost, doubled or changed."""

from __future__ import annotations

import pytest

from streamlog.demo.scenario import first_mismatch

LINES = [b"a", b"b", b"", b"d", b"e"]


@pytest.mark.parametrize("begin", range(7))
@pytest.mark.parametrize("count", [0, 1, 4, 5, 6, 17])
def test_the_lines_repeated_match(begin: int, count: int) -> None:
    repeated = LINES * 6
    assert first_mismatch(LINES, begin, repeated[begin : begin + count]) is None


@pytest.mark.parametrize("at", range(12))
def test_the_first_difference_is_found(at: int) -> None:
    values: list[bytes | None] = list((LINES * 3)[:12])
    values[at] = b"?"
    assert first_mismatch(LINES, 0, values) == at
    values[at] = None
    assert first_mismatch(LINES, 0, values) == at


def test_a_lost_and_a_doubled_line_are_differences() -> None:
    repeated = LINES * 3
    assert first_mismatch(LINES, 0, repeated[:6] + repeated[7:]) == 6
    assert first_mismatch(LINES, 0, repeated[:7] + repeated[6:]) == 7
