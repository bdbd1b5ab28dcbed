"""The planner: each live row goes into one output, whole; bounds hold; it comes to an end."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.compaction.plan.config import KIB, CompactionConfig
from streamlog.compaction.plan.planner import (
    DEAD,
    FULLY_COMPACTED,
    STREAM_END,
    Candidate,
    MergePlan,
    PlannedInput,
    Tier,
    choose,
    end_stream,
    plan,
    tier_of,
)
from streamlog.compaction.plan.spec import (
    INPUTS_MAX,
    OUTPUT_ROWS_MAX,
    OUTPUTS_MAX,
    OutputKind,
    Rows,
    decode_spec,
    encode_spec,
)
from streamlog.format.rows import ObjectRow, RangeRow
from streamlog.metadata.compaction_interface import CompactionPoint
from tests.compaction.model import FoldModel, stats_of

SMALL = CompactionConfig(
    small_objects_min=4,
    large_objects_min=4,
    small_object_bytes=64 * KIB,
    compacted_part_bytes=16 * KIB,
    stream_object_bytes_min=128 * KIB,
    object_bytes_max=512 * KIB,
    spec_bytes_max=1024 * KIB,
)
POINT = CompactionPoint(3, 17)


def planned(object_id: int, rows: Sequence[RangeRow], size: int) -> PlannedInput:
    stats = stats_of(object_id, rows, [size] * len(rows))
    return PlannedInput(stats.row, stats.rows, stats.bytes_of(stats.rows))


def covered(merge_plan: MergePlan) -> list[tuple[int, int, int, int]]:
    """Every (stream, epoch, start, end) of the outputs, merged where rows meet."""
    assert merge_plan.spec is not None
    return merged([row for output in merge_plan.spec.outputs for row in output.rows])


def merged(rows: Sequence[RangeRow]) -> list[tuple[int, int, int, int]]:
    done: list[tuple[int, int, int, int]] = []
    for stream, epoch, start, end in sorted(rows, key=lambda row: (row[0], row[2])):
        if done and done[-1][:2] == (stream, epoch) and done[-1][3] == start:
            done[-1] = (stream, epoch, done[-1][2], end)
        else:
            assert not done or done[-1][0] < stream or done[-1][3] <= start
            done.append((stream, epoch, start, end))
    return done


def without_epochs(rows: Iterable[RangeRow]) -> list[tuple[int, int, int]]:
    """(stream, start, end), those that meet as one."""
    one_epoch = [row._replace(epoch=0) for row in rows]
    return [(stream, start, end) for stream, _, start, end in merged(one_epoch)]


@st.composite
def inputs(draw: st.DrawFn) -> list[PlannedInput]:
    """Objects with parts of streams that go on from object to object, with gaps and epochs."""
    ends: dict[int, int] = {}
    epochs: dict[int, int] = {}
    made = []
    for number in range(draw(st.integers(2, 8))):
        rows, sizes = [], []
        for stream in sorted(draw(st.sets(st.integers(1, 12), min_size=1, max_size=8))):
            start = ends.get(stream, 0) + draw(st.sampled_from([0, 0, 0, 5]))
            for _ in range(draw(st.sampled_from([1, 1, 3]))):
                epochs[stream] = epochs.get(stream, 1) + draw(st.integers(0, 1))
                ends[stream] = start + draw(st.integers(1, 50))
                rows.append(RangeRow(stream, epochs[stream], start, ends[stream]))
                sizes.append(draw(st.sampled_from([100, 20_000, 150_000])))
                start = ends[stream]
        stats = stats_of(number + 1, rows, sizes)
        made.append(PlannedInput(stats.row, stats.rows, stats.bytes_of(stats.rows)))
    return made


def left_of(
    given: Sequence[PlannedInput], done: set[tuple[int, int]], first: int
) -> list[PlannedInput]:
    """Rows from stream `first` on that are not in `done` (stream, start)."""
    left: list[PlannedInput] = []
    for one in given:
        at = [n for n, row in enumerate(one.rows) if (row.stream_id, row.start) not in done]
        at = [n for n in at if one.rows.streams[n] >= first]
        if at:
            rows = Rows([list(one.rows)[n] for n in at])
            left.append(PlannedInput(one.row, rows, array("Q", [one.sizes[n] for n in at])))
    return left


def plans(given: Sequence[PlannedInput], config: CompactionConfig) -> Iterator[MergePlan]:
    """One after another, until all is rewritten; what a merge leaves out is the next one's."""
    done: set[tuple[int, int]] = set()
    while left_of(given, done, 0):
        first, before = 0, len(done)
        while left := left_of(given, done, first):
            merge_plan = plan(POINT, left, STREAM_END, config, is_reclaiming=True)
            if merge_plan.spec is not None:
                yield merge_plan
                rows = [row for one in merge_plan.spec.inputs for row in one.rows]
                done.update((row.stream_id, row.start) for row in rows)
            if merge_plan.next_stream is None:
                break
            assert merge_plan.next_stream > first
            first = merge_plan.next_stream
        assert len(done) > before


@settings(max_examples=150, deadline=None)
@given(inputs())
def test_every_live_row_is_covered_once_and_whole(given_inputs: list[PlannedInput]) -> None:
    placed, specs = [], []
    for merge_plan in plans(given_inputs, SMALL):
        assert merge_plan.spec is not None
        specs.append(merge_plan.spec)
        rows = [row for one in merge_plan.spec.inputs for row in one.rows]
        assert covered(merge_plan) == merged(rows)
        placed += [one for output in merge_plan.spec.outputs for one in without_epochs(output.rows)]
    all_rows = [row for one in given_inputs for row in one.rows]
    assert merged([row for spec in specs for one in spec.inputs for row in one.rows]) == merged(
        all_rows
    )
    # An input's rows that meet are one range to the fold, whatever their epochs.
    wholes = [one for given_input in given_inputs for one in without_epochs(given_input.rows)]
    ends = {(stream, end) for stream, _, end in wholes}
    for stream, start, end in wholes:
        assert [1 for s, low, high in placed if s == stream and low <= start and end <= high] == [1]
    assert all((stream, end) in ends for stream, _, end in placed)
    for spec in specs:
        for output in spec.outputs:
            assert list(output.rows) == sorted(output.rows, key=lambda row: (row[0], row[2]))
            kinds = {row.stream_id for row in output.rows}
            assert (output.kind is OutputKind.STREAM) == (len(kinds) == 1)
        assert len(spec.outputs) <= OUTPUTS_MAX
        assert decode_spec(encode_spec(spec)) == spec


@settings(max_examples=150, deadline=None)
@given(inputs(), st.sampled_from([64, 256, 512]), st.sampled_from([256, 1024, 1 << 20]))
def test_no_output_exceeds_the_maximum_size(
    given_inputs: list[PlannedInput], object_kib: int, spec_kib: int
) -> None:
    """One stream may be in all inputs, and larger than a spec: then it takes some of them."""
    config = replace(SMALL, object_bytes_max=object_kib * KIB, spec_bytes_max=spec_kib * KIB)
    whole_bytes_max = max(
        sum(size for row, size in zip(one.rows, one.sizes, strict=True) if row.stream_id == stream)
        for one in given_inputs
        for stream in {row.stream_id for row in one.rows}
    )
    for merge_plan in plans(given_inputs, config):
        assert merge_plan.spec is not None
        sizes = [output.size_bytes for output in merge_plan.spec.outputs]
        assert max(sizes) <= max(config.object_bytes_max, whole_bytes_max)
        if len(merge_plan.spec.inputs) > 1:
            assert sum(sizes) <= config.spec_bytes_max


def test_a_stream_larger_than_a_spec_is_merged_in_parts() -> None:
    rows = [[RangeRow(7, 1, 10 * n, 10 * n + 10)] for n in range(20)]
    given_inputs = [planned(n + 1, one, 150 * KIB) for n, one in enumerate(rows)]
    merge_plans = list(plans(given_inputs, SMALL))
    assert [len(one.spec.inputs) for one in merge_plans if one.spec is not None] == [6, 6, 6, 2]
    assert all(
        output.size_bytes <= SMALL.object_bytes_max
        for one in merge_plans
        if one.spec is not None
        for output in one.spec.outputs
    )


@settings(max_examples=50, deadline=None)
@given(inputs())
def test_a_new_output_is_not_worth_another_rewrite(
    given_inputs: list[PlannedInput],
) -> None:
    first = plan(POINT, given_inputs, STREAM_END, SMALL, is_reclaiming=True)
    assert first.spec is not None
    sizes = {
        (r.stream_id, r.end): s for i in given_inputs for r, s in zip(i.rows, i.sizes, strict=True)
    }
    again = []
    for number, output in enumerate(first.spec.outputs):
        rows = list(output.rows)
        held = [
            sum(
                size
                for (stream, end), size in sizes.items()
                if stream == row.stream_id and row.start < end <= row.end
            )
            for row in rows
        ]
        stats = stats_of(100 + number, rows, held)
        again.append(PlannedInput(stats.row, stats.rows, stats.bytes_of(stats.rows)))
    assert plan(POINT, again, STREAM_END, SMALL).spec is None


def test_compaction_comes_to_an_end() -> None:
    model = FoldModel(7, SMALL)
    for _ in range(40):
        model.append(20 * KIB)
        model.compact()
    done = len(model.specs)
    model.compact()
    assert len(model.specs) == done > 5
    assert not model.futile


def test_a_stream_with_much_data_gets_an_object_of_its_own() -> None:
    parts = [
        [RangeRow(1, 1, n, n + 1), RangeRow(2, 1, n, n + 1), RangeRow(3, 1, n, n + 1)]
        for n in range(4)
    ]
    made = []
    for number, rows in enumerate(parts):
        stats = stats_of(number + 1, rows, [1000, 60_000, 1000])
        made.append(PlannedInput(stats.row, stats.rows, stats.bytes_of(stats.rows)))
    merge_plan = plan(POINT, made, STREAM_END, SMALL)
    assert merge_plan.spec is not None
    assert [(o.kind, list(o.rows)) for o in merge_plan.spec.outputs] == [
        (OutputKind.STREAM_SET, [RangeRow(1, 1, 0, 4), RangeRow(3, 1, 0, 4)]),
        (OutputKind.STREAM, [RangeRow(2, 1, 0, 4)]),
    ]


def test_an_object_that_meets_no_other_is_spared() -> None:
    alone = planned(1, [RangeRow(9, 1, 0, 5)], 40_000)
    merge_plan = plan(
        POINT,
        [alone, *(planned(2 + n, [RangeRow(1, 1, n, n + 1)], 1000) for n in range(3))],
        STREAM_END,
        SMALL,
    )
    assert merge_plan.spec is not None
    assert [one.row.object_id for one in merge_plan.spec.inputs] == [2, 3, 4]


def test_a_merge_too_large_for_one_spec_goes_on_at_the_next_stream() -> None:
    made = [
        stats_of(
            number + 1, [RangeRow(s, 1, number, number + 1) for s in range(1, 41)], [9_000] * 40
        )
        for number in range(6)
    ]
    at, streams, specs = 0, [], 0
    while True:
        end = end_stream(made, at, SMALL)
        inputs = [
            PlannedInput(one.row, rows, one.bytes_of(rows))
            for one in made
            if len(rows := one.rows.between(at, end))
        ]
        merge_plan = plan(POINT, inputs, end, SMALL)
        assert merge_plan.spec is not None
        assert sum(output.size_bytes for output in merge_plan.spec.outputs) <= SMALL.spec_bytes_max
        streams += sorted({row.stream_id for o in merge_plan.spec.outputs for row in o.rows})
        specs += 1
        if merge_plan.next_stream is None:
            break
        at = merge_plan.next_stream
    assert streams == list(range(1, 41))
    assert specs == 3


def test_rows_of_a_spec_are_bound() -> None:
    count = 15_000
    made = []
    for number in range(4):
        # Gaps between the parts: nothing merges, each is a row.
        rows = [RangeRow(s, 1, 2 * number, 2 * number + 1) for s in range(1, count + 1)]
        stats = stats_of(number + 1, rows, [10] * count)
        made.append(PlannedInput(stats.row, stats.rows, array("Q", [10] * count)))
    merge_plan = plan(POINT, made, STREAM_END, SMALL, is_reclaiming=True)
    assert merge_plan.spec is not None
    assert merge_plan.spec.rows == OUTPUT_ROWS_MAX
    assert merge_plan.next_stream == OUTPUT_ROWS_MAX // 4 + 1
    assert all(max(one.rows.streams) < merge_plan.next_stream for one in merge_plan.spec.inputs)


def test_tiers() -> None:
    def tier(size_bytes: int, parts: int, dead: float = 0.0) -> Tier:
        return tier_of(Candidate(ObjectRow(1, size_bytes, 0, 0, 0), parts, dead), SMALL)

    assert tier(8 * KIB, 1) == Tier(1, False)
    assert tier(8 * KIB, 16) == Tier(2, False)
    assert tier(64 * KIB, 4) == FULLY_COMPACTED
    assert tier(64 * KIB, 64) == Tier(1, True)
    assert tier(600 * KIB, 1) == FULLY_COMPACTED
    assert tier(600 * KIB, 4, 0.5) == DEAD


def test_fresh_objects_go_first_and_dead_ones_last() -> None:
    fresh = [Candidate(ObjectRow(n, 8 * KIB, 0, 0, 0), 16) for n in range(4)]
    ripe = [Candidate(ObjectRow(10 + n, 64 * KIB, 0, 0, 0), 64) for n in range(4)]
    dead = [Candidate(ObjectRow(20, 600 * KIB, 0, 0, 0), 4, 0.9)]
    choice = choose([*dead, *ripe, *fresh], SMALL)
    assert choice is not None
    assert [row.object_id for row in choice.inputs] == [0, 1, 2, 3]
    futile = frozenset({0, 1, 2, 3})
    choice = choose([*dead, *ripe, *fresh], SMALL, [futile])
    assert choice is not None
    assert [row.object_id for row in choice.inputs] == [10, 11, 12, 13]
    choice = choose([*dead, *ripe[1:], *fresh[1:]], SMALL)
    assert choice is not None
    assert choice.tier == DEAD
    assert choose([*ripe[1:], *fresh[1:]], SMALL) is None


def test_a_futile_set_does_not_keep_other_objects_from_being_merged() -> None:
    fresh = [Candidate(ObjectRow(n, 8 * KIB, 0, 0, 0), 16) for n in range(INPUTS_MAX)]
    futile = [frozenset(range(INPUTS_MAX))]
    assert choose(fresh, SMALL, futile) is None
    newer = [Candidate(ObjectRow(100 + n, 8 * KIB, 0, 0, 0), 16) for n in range(4)]
    choice = choose([*fresh, *newer], SMALL, futile)
    assert choice is not None
    assert [row.object_id for row in choice.inputs] == [100, 101, 102, 103]
    assert choose([*fresh, *newer[1:]], SMALL, futile) is None


def test_a_reclaiming_merge_takes_no_more_than_a_spec_can() -> None:
    dead = [Candidate(ObjectRow(n, 600 * KIB, 0, 0, 0), 4, 0.9) for n in range(5)]
    choice = choose(dead, replace(SMALL, spec_bytes_max=1300 * KIB))
    assert choice is not None
    assert len(choice.inputs) == 2


def test_compaction_ends_under_contradicting_settings() -> None:
    config = replace(SMALL, object_bytes_max=24 * KIB, stream_object_bytes_min=24 * KIB)
    model = FoldModel(6, config)
    for _ in range(40):
        model.append(20 * KIB)
        model.compact()
    assert model.amplification < 4
