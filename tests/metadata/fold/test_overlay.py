"""Overlaid ranges, compared with a list of offsets."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.metadata.fold.compaction_history import CompactionHistory
from streamlog.metadata.fold.generation import Generation, NewObjectEntry, find_in_all, pieces_of
from streamlog.metadata.fold.overlay import ObjectRange, filled, overlaid, uncovered
from streamlog.metadata.interface import ObjectRow


@st.composite
def layers(draw: st.DrawFn) -> tuple[list[ObjectRange], list[ObjectRange]]:
    """Adjacent ranges, and newer ranges over some of them."""
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=12))
    lower, at = [], draw(st.integers(0, 3))
    for number, size in enumerate(sizes):
        lower.append(ObjectRange(at, at + size, number))
        at += size
    upper: list[ObjectRange] = []
    index = 0
    while index < len(lower):
        taken = draw(st.integers(1, 3))
        if draw(st.booleans()):
            run = lower[index : index + taken]
            upper.append(ObjectRange(run[0].start, run[-1].end, 100 + index))
        index += taken
    return lower, upper


def by_offset(*stacked: Sequence[ObjectRange]) -> dict[int, int]:
    return {o: one.object_id for layer in stacked for one in layer for o in range(*one[:2])}


@settings(max_examples=200, deadline=None)
@given(layers(), st.integers(0, 40), st.integers(1, 40), st.integers(1, 9))
def test_newer_ranges_win_at_their_offsets(
    both: tuple[list[ObjectRange], list[ObjectRange]], start: int, size: int, limit: int
) -> None:
    lower, upper = both
    every = overlaid(lower, upper)
    assert by_offset(every) == by_offset(lower, upper)
    kept, hidden = uncovered(lower, upper)
    assert sorted([*kept, *hidden]) == lower
    overlapping = [one for one in every if one.start < start + size and one.end > start]

    def of(layer: list[ObjectRange], low: int, high: int, room: int) -> list[ObjectRange]:
        return [one for one in layer if one.start < high and one.end > low][:room]

    gaps: list[tuple[int, int, int]] = []

    def below(low: int, high: int, room: int) -> list[ObjectRange]:
        gaps.append((low, high, room))
        return of(lower, low, high, room)

    first = of(upper, start, start + size, limit)
    assert filled(first, start, start + size, limit, below) == overlapping[:limit]
    assert all(low < high and room > 0 for low, high, room in gaps)


def test_a_range_with_a_visible_end_keeps_the_visible_part() -> None:
    kept, hidden = uncovered([ObjectRange(0, 10, 1)], [ObjectRange(0, 4, 2)])
    assert (kept, hidden) == ([ObjectRange(4, 10, 1)], [])
    kept, hidden = uncovered([ObjectRange(0, 10, 1)], [ObjectRange(5, 10, 2)])
    assert (kept, hidden) == ([], [ObjectRange(0, 10, 1)])
    kept, hidden = uncovered([ObjectRange(0, 10, 1)], [ObjectRange(0, 4, 2), ObjectRange(4, 10, 2)])
    assert (kept, hidden) == ([], [ObjectRange(0, 10, 1)])


def generation(ranges: Sequence[ObjectRange], *patches: ObjectRange) -> Generation:
    made = Generation()
    for one in (*ranges, *patches):
        made.objects[one.object_id] = NewObjectEntry(ObjectRow(one.object_id, 1, 1, 1, 1), 1, 1)
    if ranges:
        made.ranges[3] = array("Q", [ranges[0].start])
        for one in ranges:
            made.ranges[3].extend(one[1:])
    for one in patches:
        made.apply_patch(3, [one])
    return made


def test_patches_of_any_generation_hide_what_is_older() -> None:
    ranges = [ObjectRange(at, at + 10, at) for at in range(0, 100, 10)]
    first = generation(ranges[2:6], ObjectRange(20, 40, 201), ObjectRange(5, 10, 202))
    second = generation(ranges[6:], ObjectRange(20, 40, 203), ObjectRange(50, 80, 204))
    expected = [
        ObjectRange(5, 10, 202),
        ObjectRange(20, 40, 203),
        ranges[4],
        ObjectRange(50, 80, 204),
        *ranges[8:],
    ]
    for limit in range(1, 9):
        assert find_in_all([first, second], 3, 0, 100, limit) == expected[:limit]
    assert find_in_all([first, second], 3, 45, 81, 9) == [ranges[4], expected[3], ranges[8]]
    assert find_in_all([first, second], 9, 0, 100, 9) == []
    first.absorb(second)
    assert find_in_all([first], 3, 0, 100, 9) == expected


def test_a_replaced_patch_is_counted_off_its_object() -> None:
    made = generation([ObjectRange(0, 10, 1), ObjectRange(10, 20, 2)], ObjectRange(0, 10, 5))
    newer = generation([], ObjectRange(0, 20, 6))
    made.absorb(newer)
    assert pieces_of(made.patches[3]) == [ObjectRange(0, 20, 6)]
    assert made.objects[5].ranges == 0
    assert made.patch_count == 1


def test_many_patches_of_one_stream_are_found_by_bisection() -> None:
    made = Generation()
    for number in range(2000):
        made.objects[number] = NewObjectEntry(ObjectRow(number, 1, 1, 1, 1), 1, 1)
        made.apply_patch(3, [ObjectRange(2 * number, 2 * number + 1, number)])
    assert made.patch_count == 2000
    assert find_in_all([made], 3, 1999, 2005, 9) == [
        ObjectRange(2000, 2001, 1000),
        ObjectRange(2002, 2003, 1001),
        ObjectRange(2004, 2005, 1002),
    ]


def test_the_history_knows_which_inputs_were_replaced() -> None:
    history = CompactionHistory()
    for number in range(1500):
        history.add(array("Q", [10 * number, 10 * number + 1]))
    assert history.counter == 1500
    assert len(history.inputs) == 1000
    assert not history.replaced_since(1500, [14_990])
    assert history.replaced_since(1499, [14_990])
    assert not history.replaced_since(1499, [14_980])
    assert not history.replaced_since(500, [1])
    assert history.replaced_since(499, [1])  # unknown by now
    again = CompactionHistory(history.counter, history.inputs)
    assert again.replaced_since(1499, [14_990])
    again.add(array("Q", range(70_000)))
    assert again.inputs == []
    assert again.replaced_since(1500, [1])
