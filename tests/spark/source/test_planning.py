"""Plans: every record once, sizes within their bounds, order within a partition."""

from __future__ import annotations

import pickle
from array import array

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streamlog.errors import Corrupt, Unavailable
from streamlog.model.located import Located, LocatedRun, ObjectTable, OffsetWindow
from streamlog.spark.plan.planning import REQUEST_BYTES, ReadPlan, plan_service, plan_store
from streamlog.spark.plan.types import ServicePiece, StorePiece, TaskPlan
from streamlog.spark.read.object_read import visits
from tests.spark.fake_cluster import FakeCluster

MIB = 1 << 20


def _covered(plan: ReadPlan) -> dict[tuple[str, int], list[tuple[int, int]]]:
    spans: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for task in plan.tasks:
        for piece in task.pieces:
            spans.setdefault((piece.topic, piece.partition), []).append((piece.start, piece.end))
    return {at: sorted(pieces) for at, pieces in spans.items()}


def _planned(
    cluster: FakeCluster, *, max_bytes: int = 128 * MIB, min_tasks: int | None = None
) -> tuple[ReadPlan, list[OffsetWindow]]:
    cluster.pin(1000)
    windows = [OffsetWindow(*at, *ends) for at, ends in sorted(cluster.ends.items())]
    plan = plan_store(
        windows,
        cluster.locate(windows),
        max_bytes=max_bytes,
        min_tasks=min_tasks,
        has_node=True,
    )
    return plan, windows


@settings(deadline=None, max_examples=60)
@example(
    ends={("a", 0): (0, 8), ("a", 1): (12, 14)},
    max_bytes=100_000,
    min_tasks=5,
    object_records=13,
    uncommitted=0,
)
@given(
    ends=st.dictionaries(
        st.tuples(st.sampled_from("ab"), st.integers(0, 3)),
        st.tuples(st.integers(0, 60), st.integers(0, 300)).map(lambda p: (p[0], p[0] + p[1])),
        min_size=1,
    ),
    max_bytes=st.sampled_from([1, 3000, 100_000, 10 * MIB]),
    min_tasks=st.none() | st.integers(1, 40),
    object_records=st.integers(1, 50),
    uncommitted=st.integers(0, 20),
)
def test_every_record_is_planned_once(
    ends: dict[tuple[str, int], tuple[int, int]],
    max_bytes: int,
    min_tasks: int | None,
    object_records: int,
    uncommitted: int,
) -> None:
    cluster = FakeCluster(ends, object_records=object_records, uncommitted=uncommitted)
    plan, windows = _planned(cluster, max_bytes=max_bytes, min_tasks=min_tasks)
    covered = _covered(plan)
    for window in windows:
        pieces = covered.get((window.topic, window.partition), [])
        at = window.start
        for start, end in pieces:
            assert start == at < end
            at = end
        assert at == window.end
    records = plan.store_records + plan.service_records
    assert records == sum(window.count for window in windows)
    if min_tasks is not None:
        assert len(plan.tasks) >= min(min_tasks, records)
    for task in plan.tasks:
        _check_visits(task)


def _check_visits(task: TaskPlan) -> None:
    """The parts of each partition come in order, in the objects that hold them."""
    assert list(task.objects.ids) == sorted(set(task.objects.ids))
    last: dict[tuple[str, int], int] = {}
    for visit in visits(task):
        assert visit.row.index_position == visit.row.object_id * 1000
        for part in visit.parts:
            piece = task.pieces[part.piece]
            assert isinstance(piece, StorePiece)
            at = (piece.topic, piece.partition)
            assert part.start >= last.get(at, piece.start)
            assert piece.start <= part.start < part.end <= piece.end
            last[at] = part.end
    for piece in task.pieces:
        if isinstance(piece, StorePiece):
            assert last[piece.topic, piece.partition] >= piece.end


def test_a_skewed_partition_is_split_and_tiny_ones_share_a_task() -> None:
    ends = {("big", 0): (0, 5_000_000), **{("tiny", n): (0, 20) for n in range(30)}}
    cluster = FakeCluster(ends, object_records=100_000)
    plan, _ = _planned(cluster, max_bytes=64 * MIB)
    big = [t for t in plan.tasks if any(piece.topic == "big" for piece in t.pieces)]
    tiny = [t for t in plan.tasks if any(piece.topic == "tiny" for piece in t.pieces)]
    assert len(big) == 8
    assert len(tiny) == 1
    # A cut moves by a quarter at most, to where an object ends.
    assert all(t.cost_bytes <= 80 * MIB for t in plan.tasks)
    starts = {piece.start for t in big for piece in t.pieces}
    assert all(start % 100_000 == 0 for start in starts)


def test_many_small_ranges_are_charged_for_their_requests() -> None:
    plan, _ = _planned(FakeCluster({("t", 0): (0, 10_000)}), max_bytes=4 * MIB)
    assert len(plan.tasks) == -(-(10_000 * 100 + 1000 * REQUEST_BYTES) // (4 * MIB))


def test_records_in_no_object_are_fetched_last() -> None:
    plan, _ = _planned(FakeCluster({("t", 0): (0, 95)}, uncommitted=15))
    assert (plan.store_records, plan.service_records) == (80, 15)
    stored, fetched = plan.tasks[0].pieces
    assert (stored.start, stored.end) == (0, 80)
    assert fetched == ServicePiece("t", 0, 80, 95, 15 * 512)


def test_without_a_node_records_in_no_object_are_an_error() -> None:
    cluster = FakeCluster({("t", 0): (0, 95)}, uncommitted=15)
    cluster.pin(1000)
    windows = [OffsetWindow("t", 0, 0, 95)]
    with pytest.raises(Unavailable, match="server"):
        plan_store(windows, cluster.locate(windows), max_bytes=MIB, min_tasks=None, has_node=False)


def test_records_deleted_meanwhile_are_lost_and_a_hole_is_corrupt() -> None:
    def run(start: int, end: int) -> LocatedRun:
        return LocatedRun(0, 1, start, 0, array("q", [end]), array("Q", [1]), 100)

    table = ObjectTable()
    table.append(1, 10, 20, 30)
    windows = [OffsetWindow("t", 0, 5, 30)]

    def planned(*runs: LocatedRun) -> ReadPlan:
        located = Located(1, runs, table)
        return plan_store(windows, located, max_bytes=MIB, min_tasks=None, has_node=True)

    (lost,) = planned(run(10, 30)).lost
    assert (lost.start, lost.end) == (5, 10)
    with pytest.raises(Corrupt, match="fsck"):
        planned(run(5, 10), run(20, 30))


def test_a_plan_for_the_service_is_cut_too() -> None:
    windows = [OffsetWindow("t", 0, 0, 10_000), OffsetWindow("t", 1, 3, 3)]
    plan = plan_service(windows, max_bytes=MIB, min_tasks=None)
    assert len(plan.tasks) == 5
    assert _covered(plan) == {("t", 0): [(n * 2000, n * 2000 + 2000) for n in range(5)]}


def test_streams_that_share_objects_are_read_by_one_visit_each() -> None:
    plan, _ = _planned(FakeCluster({("t", n): (0, 50) for n in range(8)}))
    (task,) = plan.tasks
    planned = list(visits(task))
    assert [visit.row.object_id for visit in planned] == [1, 2, 3, 4, 5]
    assert all(len(visit.parts) == 8 for visit in planned)


def test_a_task_pickles_small() -> None:
    plan, _ = _planned(FakeCluster({("t", 0): (0, 100_000)}), max_bytes=1 << 40)
    (task,) = plan.tasks
    # 16 bytes a range, 24 an object, and little besides.
    assert len(pickle.dumps(task, 5)) < 10_000 * (16 + 24) + 2000
    assert pickle.loads(pickle.dumps(task, 5)) == task  # noqa: S301 - own bytes
