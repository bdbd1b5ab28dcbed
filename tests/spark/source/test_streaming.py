"""Offsets and plans of a streaming query, over a cluster in dicts."""

from __future__ import annotations

import json
import threading
from array import array
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamlog.client import Admin
from streamlog.errors import (
    Corrupt,
    Invalid,
    Unavailable,
    UnknownTopicOrPartition,
    UnsupportedVersion,
)
from streamlog.model.located import Located, OffsetWindow
from streamlog.runtime.clock import Clock
from streamlog.spark.cluster import cluster as cluster_module
from streamlog.spark.cluster import pin_keeper
from streamlog.spark.cluster.cluster import ServerCluster
from streamlog.spark.errors import DataLost
from streamlog.spark.options import parse_read_options
from streamlog.spark.plan.offsets import decode_offsets, decode_topic_ids, encode_offsets
from streamlog.spark.source import streaming
from streamlog.spark.source.streaming import StreamPlanner, limited
from streamlog.testing.clocks import ManualClock
from tests.spark.fake_cluster import FakeCluster
from tests.spark.reading import carry_out, produce
from tests.support.node import NodeProcess


def _planner(
    monkeypatch: pytest.MonkeyPatch,
    cluster: FakeCluster,
    *,
    clock: Clock | None = None,
    **given: str,
) -> StreamPlanner:
    monkeypatch.setattr(streaming, "open_cluster", lambda _: cluster)
    options = {"server": "h:1", "subscribe": "t", "startingOffsets": "earliest", **given}
    if "subscribePattern" in given:
        del options["subscribe"]
    return StreamPlanner(parse_read_options(options, streaming=True), clock)


def _offsets(**partitions: int) -> dict[str, Any]:
    """t0=5: offset 5 of partition 0 of topic t, made once."""
    return _made({}, **partitions)


def _made(made: dict[str, int], **partitions: int) -> dict[str, Any]:
    offsets = {(name[:-1], int(name[-1])): at for name, at in partitions.items()}
    ids = {topic: f"{topic} made {made.get(topic, 1)} times" for topic, _ in offsets}
    return encode_offsets(offsets, ids)


def test_offsets_are_the_same_text_whatever_their_order() -> None:
    first = encode_offsets({("b", 0): 1, ("a", 10): 2, ("a", 9): 3})
    second = encode_offsets({("a", 9): 3, ("b", 0): 1, ("a", 10): 2})
    assert json.dumps(first) == json.dumps(second)
    assert decode_offsets(json.loads(json.dumps(first))) == {("a", 9): 3, ("a", 10): 2, ("b", 0): 1}


def test_offsets_of_a_newer_version_or_another_source_are_refused() -> None:
    with pytest.raises(UnsupportedVersion, match="version 2"):
        decode_offsets({"version": 2, "offsets": {}})
    unreadable: list[Any] = [{"x": 1}, {"0": None}, [5], None]
    others: list[dict[str, Any]] = [{"t": {"0": 5}}, {"version": 1}]
    others += [{"version": 1, "offsets": {"t": partitions}} for partitions in unreadable]
    for other in others:
        with pytest.raises(Corrupt):
            decode_offsets(other)
    with pytest.raises(Corrupt):
        decode_topic_ids({"version": 1, "offsets": {}, "topics": ["t"]})


def test_a_query_goes_from_start_to_end_and_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster({("t", 0): (3, 20), ("t", 1): (0, 5)})
    planner = _planner(monkeypatch, cluster)
    start = planner.initial()
    assert start == _offsets(t0=3, t1=0)
    end = planner.latest(start, None)
    assert end == _offsets(t0=20, t1=5)
    assert planner.latest(end, None) == end
    planned = planner.plan(start, end)
    assert planned.plan.store_records == 22
    report = planner.report()
    assert report is not None
    assert (report["readMode"], report["storeRecords"], report["lagRecords"]) == ("store", 22, 0)
    planner.close()


def test_lag_counts_records_that_a_rate_limit_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster({("t", 0): (0, 90), ("t", 1): (0, 10)})
    planner = _planner(monkeypatch, cluster)
    end = planner.latest(planner.initial(), 20)
    assert end == _offsets(t0=18, t1=2)
    report = planner.report()
    assert report is not None
    assert report["lag"] == {"t": {"0": 72, "1": 8}}
    assert report["readMode"] == "store"
    assert report["offsets"] == {"t": {"0": 90, "1": 10}}
    behind = [report[f"{which}OffsetsBehindLatest"] for which in ("min", "max", "avg")]
    assert behind == [8, 72, 40.0]


def test_a_micro_batch_waits_for_enough_records_but_not_longer_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, clock = FakeCluster({("t", 0): (0, 3), ("t", 1): (0, 0)}), ManualClock()
    planner = _planner(
        monkeypatch, cluster, clock=clock, minOffsetsPerTrigger="10", maxTriggerDelay="60s"
    )
    # The first micro-batch of a run does not wait.
    at = planner.latest(planner.initial(), None)
    assert at == _offsets(t0=3, t1=0)
    cluster.ends["t", 1] = (0, 4)
    clock.advance(59_000)
    assert planner.latest(at, None) == at
    report = planner.report()
    assert report is not None
    assert (report["lagRecords"], report["maxOffsetsBehindLatest"]) == (4, 4)
    clock.advance(1_000)
    at = planner.latest(at, None)
    assert at == _offsets(t0=3, t1=4)
    # The wait begins anew; records of all partitions count together, up to maxOffsetsPerTrigger.
    cluster.ends.update({("t", 0): (0, 8), ("t", 1): (0, 8)})
    assert planner.latest(at, 6) == at
    cluster.ends["t", 1] = (0, 9)
    assert planner.latest(at, 6) == _offsets(t0=6, t1=7)


def test_available_now_does_not_wait_for_records_that_will_not_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster({("t", 0): (0, 13)})
    planner = _planner(
        monkeypatch,
        cluster,
        minOffsetsPerTrigger="10",
        maxOffsetsPerTrigger="10",
        clock=ManualClock(),
    )
    planner.prepare_available_now()
    at = planner.latest(planner.initial(), 10)
    assert at == _offsets(t0=10)
    assert planner.latest(at, 10) == _offsets(t0=13)


def test_a_loss_is_reported_while_a_micro_batch_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster({("t", 0): (0, 3)})
    planner = _planner(monkeypatch, cluster, minOffsetsPerTrigger="10", clock=ManualClock())
    at = planner.latest(planner.initial(), None)
    cluster.ends["t", 0] = (5, 6)
    with pytest.raises(DataLost, match="deleted"):
        planner.latest(at, None)


def test_an_allowed_loss_is_reported_once_while_a_micro_batch_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark asks many times a second, and the wait may last for hours."""
    cluster = FakeCluster({("t", 0): (0, 3)})
    planner = _planner(
        monkeypatch, cluster, minOffsetsPerTrigger="10", failOnDataLoss="false", clock=ManualClock()
    )
    at = planner.latest(planner.initial(), None)
    for start in (5, 6):
        cluster.ends["t", 0] = (start, 8)
        for _ in range(20):
            assert planner.latest(at, None) == at
    messages = [record.getMessage() for record in caplog.records]
    assert [text.split(" were")[0] for text in messages] == [
        "offsets 3 to 5 of t-0",
        "offsets 3 to 6 of t-0",
    ]


def test_lag_counts_records_that_available_now_leaves_to_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster({("t", 0): (0, 10), ("u", 0): (0, 8)})
    planner = _planner(monkeypatch, cluster, subscribePattern="[tu]", failOnDataLoss="false")
    at = planner.initial()
    planner.prepare_available_now()
    cluster.made["u"] = 2
    cluster.ends.update({("t", 0): (0, 12), ("t", 1): (2, 9), ("u", 0): (0, 20)})
    planner.latest(at, None)
    report = planner.report()
    assert report is not None
    assert report["lag"] == {"t": {"0": 2, "1": 7}, "u": {"0": 20}}


def test_a_rate_limit_is_shared_by_size_and_starves_nobody() -> None:
    begins = {("a", 0): 0, ("a", 1): 0, ("a", 2): 7}
    ends = {("a", 0): 1_000_000, ("a", 1): 1, ("a", 2): 7}
    assert limited(begins, ends, 1000) == {("a", 0): 999, ("a", 1): 1, ("a", 2): 7}
    assert limited(begins, ends, 1_000_001) == ends


def test_new_partitions_and_topics_join_at_their_start(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster({("t", 0): (0, 10)})
    planner = _planner(monkeypatch, cluster, subscribePattern="[tu]")
    start = planner.latest(planner.initial(), None)
    cluster.ends.update({("t", 1): (0, 4), ("u", 0): (0, 6), ("v", 0): (0, 9)})
    joined = planner.latest(start, None)
    assert joined == _offsets(t0=10, t1=0, u0=0)
    assert planner.plan(start, joined).plan.tasks == []
    end = planner.latest(joined, None)
    assert end == _offsets(t0=10, t1=4, u0=6)
    assert planner.plan(joined, end).plan.store_records == 10
    planner.close()


def test_available_now_ends_at_the_offsets_of_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster({("t", 0): (0, 10), ("t", 1): (0, 4)})
    planner = _planner(monkeypatch, cluster)
    planner.prepare_available_now()
    cluster.ends.update({("t", 0): (0, 50), ("t", 2): (0, 3)})
    at, steps = encode_offsets({("t", 0): 0}), 0
    while (following := planner.latest(at, 5)) != at:
        at, steps = following, steps + 1
        assert steps < 20
    # Partition 1 was there and is read to its end; 2 came later and waits for the next run.
    assert at == _offsets(t0=10, t1=4)


@pytest.mark.parametrize(
    ("start", "ends", "says"),
    [
        (_offsets(t0=3), {("t", 0): (5, 20)}, "deleted"),
        (_offsets(t0=30), {("t", 0): (0, 20)}, "recreated"),
        (_offsets(t0=3, t1=1), {("t", 0): (0, 20)}, "gone"),
        (_offsets(t0=3), {("t", 0): (0, 20), ("t", 1): (7, 9)}, "new partition"),
    ],
)
def test_loss_is_an_error_unless_it_is_allowed_and_then_a_warning(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    start: dict[str, Any],
    ends: dict[tuple[str, int], tuple[int, int]],
    says: str,
) -> None:
    with pytest.raises(DataLost, match=says):
        _planner(monkeypatch, FakeCluster(ends)).latest(start, None)
    planner = _planner(monkeypatch, FakeCluster(ends), failOnDataLoss="false")
    end = planner.latest(start, None)
    assert says in caplog.text
    planner.plan(start, end)
    assert planner.latest(end, None) == planner.latest(end, 5)
    planner.close()


def test_a_trimmed_head_is_passed_over_where_loss_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster({("t", 0): (5, 20)})
    planner = _planner(monkeypatch, cluster, failOnDataLoss="false")
    plan = planner.plan(_offsets(t0=3), _offsets(t0=20)).plan
    assert plan.store_records == 15
    planner.close()


def test_a_trim_between_the_parts_of_an_answer_is_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Trimmed(FakeCluster):
        def locate(self, windows: Sequence[OffsetWindow]) -> Located:
            found = super().locate(windows)
            if self.ends["t", 0][0] > 0:
                return found
            # Ranges up to 10 were answered; then everything below 20 was deleted.
            self.ends["t", 0] = (20, 40)
            first = replace(found.runs[0], ends=array("q", [10]), objects=array("Q", [1]))
            return replace(found, runs=[first, *super().locate(windows).runs])

    for allowed in ("true", "false"):
        cluster = Trimmed({("t", 0): (0, 40)})
        planner = _planner(monkeypatch, cluster, failOnDataLoss=allowed)
        if allowed == "true":
            with pytest.raises(DataLost, match="0 to 20 of t-0 were deleted"):
                planner.plan(_offsets(t0=0), _offsets(t0=40))
            assert cluster.pins == []
        else:
            assert planner.plan(_offsets(t0=0), _offsets(t0=40)).plan.store_records == 20
        planner.close()


def test_a_real_hole_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    class Holed(FakeCluster):
        def locate(self, windows: Sequence[OffsetWindow]) -> Located:
            found = super().locate(windows)
            (run,) = found.runs
            ends = [(0, 10, 1), (20, 40, 3)]
            runs = [
                replace(run, start=low, ends=array("q", [high]), objects=array("Q", [one]))
                for low, high, one in ends
            ]
            return replace(found, runs=runs)

    cluster = Holed({("t", 0): (0, 40)})
    planner = _planner(monkeypatch, cluster)
    with pytest.raises(Corrupt, match="10 to 20 of t-0"):
        planner.plan(_offsets(t0=0), _offsets(t0=40))
    assert cluster.pins == []
    planner.close()


def test_logged_offsets_can_be_planned_again_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster({("t", 0): (0, 20)})
    start, end = _offsets(t0=3), _offsets(t0=9, t1=4)
    planner = _planner(monkeypatch, cluster, failOnDataLoss="false")
    assert planner.plan(start, end).plan.store_records == 6
    planner.close()


def test_a_pin_lasts_until_the_next_plan_and_ends_with_the_query(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster({("t", 0): (0, 20)})
    planner = _planner(monkeypatch, cluster)
    planner.plan(_offsets(t0=0), _offsets(t0=5))
    assert cluster.pins == [1]
    planner.plan(_offsets(t0=5), _offsets(t0=9))
    assert cluster.pins == [2]
    planner.close()
    assert cluster.pins == []
    assert cluster.closed == 2


def test_actions_of_one_micro_batch_have_a_pin_each_until_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster({("t", 0): (0, 20)})
    planner = _planner(monkeypatch, cluster)
    for pins in ([1], [1, 2], [1, 2, 3]):
        planner.plan(_offsets(t0=0), _offsets(t0=5))
        assert cluster.pins == pins
    planner.plan(_offsets(t0=5), _offsets(t0=9))
    assert cluster.pins == [4]
    planner.close()
    assert cluster.pins == []


def test_a_topic_that_was_made_anew_is_lost_and_then_new(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Though it has as many records as the one before."""
    cluster = FakeCluster({("t", 0): (0, 10), ("t", 1): (0, 5)})
    planner = _planner(monkeypatch, cluster, failOnDataLoss="false")
    at = planner.latest(planner.initial(), None)
    assert at == _offsets(t0=10, t1=5)
    cluster.made["t"], cluster.ends = 2, {("t", 0): (0, 30)}
    with pytest.raises(DataLost, match="recreated"):
        _planner(monkeypatch, cluster).latest({**at, "offsets": {"t": {"0": 10}}}, None)
    anew = planner.latest(at, None)
    assert anew == _made({"t": 2}, t0=0)
    assert "recreated" in caplog.text
    assert planner.plan(at, anew).plan.tasks == []
    end = planner.latest(anew, None)
    assert end == _made({"t": 2}, t0=30)
    assert planner.plan(anew, end).plan.store_records == 30
    planner.close()


def test_a_topic_made_anew_since_available_now_began_waits_for_the_next_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = FakeCluster({("t", 0): (0, 10), ("u", 0): (0, 10)})
    planner = _planner(monkeypatch, cluster, subscribePattern="[tu]", failOnDataLoss="false")
    planner.prepare_available_now()
    at = _offsets(t0=3, u0=3)
    cluster.made["t"], cluster.ends["t", 0] = 2, (0, 30)
    end = planner.latest(at, None)
    assert end == _offsets(t0=3, u0=10)
    assert planner.latest(end, None) == end
    again = _planner(monkeypatch, cluster, subscribePattern="[tu]", failOnDataLoss="false")
    again.prepare_available_now()
    assert again.latest(end, None) == _made({"t": 2}, t0=0, u0=10)


@pytest.mark.parametrize("mode", ["store", "service"])
@pytest.mark.parametrize("when", ["before", "between", "deleted"])
def test_a_topic_that_is_made_anew_around_a_plan(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str, mode: str
) -> None:
    """Of the old one nothing is left, and what the new one has at these offsets is not read."""

    class Remade(FakeCluster):
        def locate(self, windows: Sequence[OffsetWindow]) -> Located:
            if when == "between":
                self.made["t"] = 2
            elif when == "deleted":
                self.ends.pop(("t", 0), None)
                if any(part.topic == "t" for part in windows):
                    raise UnknownTopicOrPartition("there is no t")
            return super().locate(windows)

    for allowed in ("true", "false"):
        cluster = Remade({("t", 0): (0, 40), ("u", 0): (0, 9)})
        if when == "before":
            cluster.made["t"] = 2
        planner = _planner(
            monkeypatch, cluster, subscribePattern="[tu]", failOnDataLoss=allowed, readMode=mode
        )
        start, end = _offsets(t0=0, u0=0), _offsets(t0=40, u0=9)
        if mode == "service":
            # What is fetched names the topic that is meant, whatever there is by then.
            pieces = [part for task in planner.plan(start, end).plan.tasks for part in task.pieces]
            assert {part.topic_id for part in pieces} == {"t made 1 times", "u made 1 times"}
        elif allowed == "true":
            with pytest.raises(DataLost, match="topic t was deleted"):
                planner.plan(start, end)
            assert cluster.pins == []
        else:
            planned = planner.plan(start, end)
            assert planned.plan.store_records == 9
            assert "topic t was deleted" in caplog.text
        planner.close()


def test_a_checkpoint_without_topic_ids_is_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster({("t", 0): (0, 20)})
    cluster.made["t"] = 5
    planner = _planner(monkeypatch, cluster)
    start = encode_offsets({("t", 0): 3})
    assert "topics" not in start
    end = planner.latest(start, None)
    assert end == _made({"t": 5}, t0=20)
    assert planner.plan(start, end).plan.store_records == 17
    planner.close()


def test_times_for_no_partition_are_not_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster({("t", 0): (0, 20)})
    with pytest.raises(Invalid, match="must name all partitions"):
        _planner(monkeypatch, cluster, startingOffsetsByTimestamp="{}").initial()


def test_a_topic_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownTopicOrPartition, match="there is no t"):
        _planner(monkeypatch, FakeCluster({("u", 0): (0, 1)})).initial()


class AwayCluster(FakeCluster):
    """Its node is away as soon as it has pinned."""

    def __init__(self) -> None:
        super().__init__({("t", 0): (0, 100)})
        self.renewing = threading.Event()
        self.is_back = threading.Event()
        self.both_closed = threading.Event()

    def renew(self, pin_id: int) -> bool:
        self.renewing.set()
        assert self.is_back.wait(30)
        return True

    def unpin(self, pin_id: int) -> None:
        raise Unavailable("the node is away")

    def close(self) -> None:
        super().close()
        if self.closed == 2:
            self.both_closed.set()


def test_a_query_stops_without_its_node_and_says_what_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pin_keeper, "CLOSE_WAIT_S", 0.05)
    cluster = AwayCluster()
    planner = _planner(monkeypatch, cluster, pinTtlMs="1000")
    start = planner.initial()
    planner.plan(start, planner.latest(start, None))
    assert cluster.renewing.wait(30)
    planner.close()
    messages = [record.getMessage() for record in caplog.records]
    assert any("could not be removed and end by themselves" in text for text in messages)
    assert any("a renewal of pins ends by itself" in text for text in messages)
    cluster.is_back.set()
    assert cluster.both_closed.wait(30)


def test_a_pin_is_not_removed_for_longer_than_its_own_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_module, "UNPIN_TIMEOUT_MS", 100)
    cluster = ServerCluster("127.0.0.1:1", "read_committed")
    with closing(cluster), pytest.raises(Unavailable, match=r"not reached within 0\.1 s"):
        cluster.unpin(1)


def test_a_stream_over_topics_at_rest_lets_a_node_run_in_between(tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = parse_read_options(
        {
            "store": f"local://{data}/objects",
            "meta": f"rocksdb://{data}/meta",
            "subscribe": "t",
            "startingOffsets": "earliest",
        },
        streaming=True,
    )
    with closing(StreamPlanner(options)) as planner:
        at: dict[str, Any] | None = None
        for round_ in range(2):
            with NodeProcess(data, wal="object") as node:
                if at is None:
                    with Admin(node.server) as admin:
                        admin.create_topic("t", 1)
                produce(node.server, "t", [(0, b"x")] * 10)
            at = planner.initial() if at is None else at
            end = planner.latest(at, None)
            assert decode_offsets(end) == {("t", 0): 10 * (round_ + 1)}
            assert decode_topic_ids(end) == decode_topic_ids(at)
            planned = planner.plan(at, end)
            planner.let_go()
            assert carry_out(planned).column("offset").to_pylist() == list(
                range(10 * round_, 10 * round_ + 10)
            )
            at = end
