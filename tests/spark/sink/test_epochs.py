"""The driver's part over a real engine: commits that are lost, late, repeated; aborts; replays."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from streamlog.client.channel import Call
from streamlog.client.staging import StagedObject
from streamlog.errors import OutcomeUnknown, StagedNotFound, Unavailable
from streamlog.runtime.clock import SystemClock
from streamlog.spark.errors import EpochPassed
from streamlog.spark.sink.epochs import abort_epoch, commit_epoch
from streamlog.spark.sink.stage import StagingTask
from streamlog.spark.sink.write_options import WriteOptions
from tests.spark.staged_node import WAIT_S, StagedNode, broken_off, quick_retries

TOPIC = "t"


@pytest.fixture
def node() -> Iterator[StagedNode]:
    with quick_retries(), StagedNode() as running:
        running.create_topic(TOPIC, 2)
        yield running


def _stage(
    node: StagedNode, writer_id: str, attempt: str, *values: bytes, ttl_ms: int = 0
) -> list[StagedObject]:
    options = WriteOptions(server="h:1", topic=TOPIC, staged_ttl_ms=ttl_ms)
    target = node.target(writer_id)
    task = StagingTask(target, options, attempt, clock=SystemClock(), start=0.0)
    keys = [b"k%d" % n for n in range(len(values))]
    return task.write([pa.RecordBatch.from_pydict({"key": keys, "value": list(values)})])


def _values(node: StagedNode) -> list[bytes]:
    return sorted(row.value or b"" for rows in node.rows(TOPIC).values() for row in rows)


class _Lost:
    """Commits arrive, or do not, and no answer comes."""

    def __init__(self, *, arrives: bool) -> None:
        self._arrives = arrives
        self.calls = 0

    def __call__(self, node: StagedNode, call: Call) -> Any:
        if not call.rpc.endswith("/Commit"):
            return node.answer(call)
        self.calls += 1
        if self._arrives:
            node.answer(call)
        raise broken_off(call)


def _commit(node: StagedNode, epoch: int, objects: Sequence[StagedObject]) -> Any:
    with node.writer("q") as writer:
        return commit_epoch(writer, epoch, objects)


def _abort(node: StagedNode, epoch: int, objects: Sequence[StagedObject]) -> bool:
    with node.writer("q") as writer:
        return abort_epoch(writer, epoch, objects)


def _left(node: StagedNode) -> int:
    with node.writer("q") as writer:
        return writer.status().staged_objects


def test_an_epoch_that_is_replayed_is_written_once(
    node: StagedNode, caplog: pytest.LogCaptureFixture
) -> None:
    committed = _commit(
        node, 0, [*_stage(node, "q", "0-a", b"1", b"2"), *_stage(node, "q", "1-a", b"3")]
    )
    assert not committed.was_committed
    node.restart()
    replayed = _commit(node, 0, _stage(node, "q", "0-b", b"1", b"2", b"3"))
    assert replayed.was_committed
    assert replayed.parts == committed.parts
    assert _values(node) == [b"1", b"2", b"3"]
    assert "epoch 0 of writer q had been committed before" in caplog.text
    assert _left(node) == 0
    assert _commit(node, 1, []) is None
    _commit(node, 2, _stage(node, "q", "0-c", b"4"))
    assert _values(node) == [b"1", b"2", b"3", b"4"]


def test_a_commit_that_failed_is_replayed(node: StagedNode) -> None:
    objects = _stage(node, "q", "0-a", b"1")
    lost = _Lost(arrives=False)
    with node.writer("q", lost, timeout_ms=500) as writer, pytest.raises(OutcomeUnknown):
        commit_epoch(writer, 5, objects)
    assert lost.calls > 1
    assert not _abort(node, 5, objects)
    assert (_values(node), _left(node)) == ([], 0)
    with pytest.raises(StagedNotFound):
        _commit(node, 5, objects)
    assert not _commit(node, 5, _stage(node, "q", "0-b", b"1")).was_committed
    assert _values(node) == [b"1"]


def test_an_abort_after_a_commit_that_had_succeeded_takes_nothing_away(
    node: StagedNode, caplog: pytest.LogCaptureFixture
) -> None:
    objects = _stage(node, "q", "0-a", b"1", b"2")
    with (
        node.writer("q", _Lost(arrives=True), timeout_ms=20) as writer,
        pytest.raises(OutcomeUnknown),
    ):
        commit_epoch(writer, 0, objects)
    assert _abort(node, 0, objects)
    assert "its records are there" in caplog.text
    assert _values(node) == [b"1", b"2"]
    assert _commit(node, 0, _stage(node, "q", "0-b", b"1", b"2")).was_committed
    assert _values(node) == [b"1", b"2"]


def test_a_late_commit_of_an_abandoned_driver(node: StagedNode) -> None:
    late, own = _stage(node, "q", "0-a", b"1"), _stage(node, "q", "0-b", b"1")
    assert not _commit(node, 3, own).was_committed
    assert _commit(node, 3, late).was_committed
    _commit(node, 4, _stage(node, "q", "0-c", b"2"))
    assert _values(node) == [b"1", b"2"]


def test_an_earlier_epoch_is_an_error_and_no_silent_loss(node: StagedNode) -> None:
    _commit(node, 7, _stage(node, "q", "0-a", b"1"))
    anew = _stage(node, "q", "0-b", b"2")
    with pytest.raises(EpochPassed, match="new writerId") as raised:
        _commit(node, 0, anew)
    assert (raised.value.epoch, raised.value.last_epoch) == (0, 7)
    assert (_values(node), _left(node)) == ([b"1"], 0)


def test_a_node_that_is_killed_in_a_commit_has_all_of_it_or_nothing(node: StagedNode) -> None:
    epochs = 12
    for epoch in range(epochs):
        objects = _stage(node, "q", f"{epoch}-a", b"%03d a" % epoch, b"%03d b" % epoch)
        calls = 0

        def killed(at: StagedNode, call: Call, turns: int = epoch * 3) -> Any:
            nonlocal calls
            calls += 1
            return at.answer(call, kill_after=turns if calls == 1 else None)

        with node.writer("q", killed) as writer:
            assert commit_epoch(writer, epoch, objects) is not None
        assert calls > 1
    assert _values(node) == sorted(
        b"%03d %s" % (epoch, name) for epoch in range(epochs) for name in (b"a", b"b")
    )


def test_an_abort_that_cannot_ask_leaves_everything(node: StagedNode) -> None:
    def away(_: StagedNode, call: Call) -> Any:
        raise Unavailable("no node")

    objects = _stage(node, "q", "0-a", b"1")
    with node.writer("q", away, timeout_ms=20) as writer, pytest.raises(Unavailable):
        abort_epoch(writer, 0, objects)
    assert _left(node) == 1
    assert not _abort(node, 0, [])
    assert not _commit(node, 0, objects).was_committed


def test_uncommitted_objects_expire(node: StagedNode) -> None:
    kept = _stage(node, "q", "0-a", b"1")
    killed = _stage(node, "q", "0-b", b"1", ttl_ms=1000)
    ends_at = time.monotonic() + WAIT_S
    while _left(node) > 1:
        assert time.monotonic() < ends_at
    with pytest.raises(StagedNotFound):
        _commit(node, 0, killed)
    assert not _commit(node, 0, kept).was_committed
    assert _values(node) == [b"1"]
