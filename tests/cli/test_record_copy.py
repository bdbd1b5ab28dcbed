"""A read that makes no progress is reported after the time limit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from streamlog.cli.progress import RecordProgress
from streamlog.cli.records import record_copy
from streamlog.cli.records.record_copy import CopyLimits, RecordCopy, TopicPartition, batches_until
from streamlog.cli.records.record_format import value_line
from streamlog.errors import Unavailable

AT: TopicPartition = ("t", 0)


class Clock:
    """Virtual seconds; each poll takes its time."""

    def __init__(self) -> None:
        self.now_s = 0.0


class StandingConsumer:
    """Records are there from `position` on, and none comes. `behind`: where deletion put it."""

    def __init__(self, clock: Clock, position: int, behind: int | None = None) -> None:
        self._clock = clock
        self._position = position
        self._behind = behind

    def poll_batches(self, timeout_s: float) -> list[Any]:
        self._clock.now_s += timeout_s
        if self._behind is not None and self._clock.now_s > 1:
            self._position = self._behind
        return []

    def take_offset_resets(self) -> list[Any]:
        return []

    def position(self, topic: str, partition: int) -> int:
        return self._position

    def assignment(self) -> list[TopicPartition]:
        return [AT]


class WellNode:
    """A probe whose node answers at once."""

    def __init__(self, end: int) -> None:
        self.ends = {AT: end}

    def is_due(self, every_s: float = 0.0) -> bool:
        return True

    def heard(self) -> None:
        """The node is well anyway."""

    def ask(self) -> None:
        """Answers at once."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(record_copy, "now_s", lambda: clock.now_s)
    return clock


def copy_of(
    consumer: Any,
    end: int,
    *,
    ends: dict[TopicPartition, int] | None,
    waiting: Callable[[], None] = lambda: None,
) -> RecordCopy:
    limits = CopyLimits(ends=ends, count=None, timeout_s=10, new_partitions=False)
    progress = RecordProgress(is_shown=False)
    probe: Any = WellNode(end)
    return RecordCopy(consumer, probe, value_line, limits, progress, waiting)


@pytest.mark.parametrize("ends", [None, {AT: 9}])
def test_records_that_the_node_has_and_does_not_hand_out_end_the_copy(
    clock: Clock, ends: dict[TopicPartition, int] | None
) -> None:
    with pytest.raises(Unavailable) as raised:
        copy_of(StandingConsumer(clock, 5), 9, ends=ends).run({AT: 5})
    assert "t-0: no record came from offset 5 for" in raised.value.message
    assert "streamlog status" in raised.value.message
    assert 10 <= clock.now_s < 20


def test_a_copy_that_waits_at_the_end_waits_on(clock: Clock) -> None:
    class Patience(Exception):
        pass

    def lose_patience() -> None:
        if clock.now_s > 1000:
            raise Patience

    consumer: Any = StandingConsumer(clock, 9)
    copy = copy_of(consumer, 9, ends=None, waiting=lose_patience)
    with pytest.raises(Patience):
        copy.run({AT: 9})


def test_a_bounded_read_ends_when_the_rest_is_deleted(clock: Clock) -> None:
    consumer: Any = StandingConsumer(clock, 5, behind=9)
    assert drained(batches_until(consumer, {AT: 9}, 2.0)) == 0


def test_a_bounded_read_reports_that_nothing_comes(clock: Clock) -> None:
    consumer: Any = StandingConsumer(clock, 5)
    with pytest.raises(Unavailable, match="no record of t-0 came within 2 s"):
        drained(batches_until(consumer, {AT: 9}, 2.0))


def drained(batches: Iterable[Any]) -> int:
    return sum(1 for _ in batches)
