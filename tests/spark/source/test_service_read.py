"""Windows through a node that answers from a list, and the retries of their planning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from streamlog.client.calls import locate as locate_calls
from streamlog.codec.records import encode_values
from streamlog.errors import (
    NotLeader,
    OffsetOutOfRange,
    Unauthorized,
    Unavailable,
    UnknownTopicOrPartition,
)
from streamlog.model.located import Located, ObjectTable, OffsetWindow
from streamlog.spark.cluster import cluster
from streamlog.spark.cluster.cluster import ServerCluster
from streamlog.spark.errors import DataLost
from streamlog.spark.plan.types import ReadPlace, ServicePiece
from streamlog.spark.read.service_read import EMPTY_ANSWERS_MAX, ServiceReader

PIECE = ServicePiece("t", 0, 0, 4, 0)


def _place(*, fail_on_data_loss: bool) -> ReadPlace:
    return ReadPlace("127.0.0.1:1", None, "", False, "read_committed", fail_on_data_loss, True)


def _answer(next_offset: int, *values: bytes, end: int = 4, stable: int | None = None) -> Any:
    data = encode_values(list(values), timestamp_ms=5).data if values else b""
    return SimpleNamespace(
        next_offset=next_offset,
        record_batches=data,
        aborted_transactions=(),
        high_watermark=end,
        last_stable_offset=end if stable is None else stable,
    )


def _ends(
    monkeypatch: pytest.MonkeyPatch, answers: Sequence[Any], *, fail_on_data_loss: bool = True
) -> list[tuple[int, int]]:
    """Windows of the chunks that a reader makes of `answers`, errors among them."""
    left = iter(answers)

    def finish(_: ServiceReader, offset: int) -> Any:
        answer = next(left, None)
        assert answer is not None, f"asked once more, at {offset}"
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(ServiceReader, "_start", lambda _, __, offset: offset)
    monkeypatch.setattr(ServiceReader, "_finish", finish)
    place = _place(fail_on_data_loss=fail_on_data_loss)
    with closing(ServiceReader("127.0.0.1:1", place)) as reader:
        return [(chunk.start, chunk.end) for chunk in reader.chunks(PIECE)]


def test_a_partition_that_gives_nothing_any_more_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = [_answer(2, b"a", b"b", end=2)]
    at_end = [_answer(2, end=2)] * (EMPTY_ANSWERS_MAX - 1)
    rest = [_answer(4, b"c", b"d")]
    whole = [(0, 2), (2, 4)]
    assert _ends(monkeypatch, [*first, *at_end, *rest]) == whole
    with pytest.raises(Unavailable, match=r"t-0 ends at offset 2.*to 4"):
        _ends(monkeypatch, [*first, *at_end, _answer(2, end=2)])
    is_open = [_answer(2, stable=2)] * EMPTY_ANSWERS_MAX
    with pytest.raises(Unavailable, match=r"t-0 ends at offset 2.*to 4.*transaction"):
        _ends(monkeypatch, [*first, *is_open])
    paced = [_answer(2, end=4)] * (2 * EMPTY_ANSWERS_MAX)
    assert _ends(monkeypatch, [*first, *paced, *rest]) == whole


def test_records_deleted_after_planning_are_an_error_or_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = OffsetOutOfRange("offset 0 was deleted", start_offset=2)
    answers = [gone, _answer(4, b"c", b"d")]
    with pytest.raises(DataLost, match="failOnDataLoss"):
        _ends(monkeypatch, answers)
    assert _ends(monkeypatch, answers, fail_on_data_loss=False) == [(2, 4)]
    assert "offsets 0 to 2 of t-0 are gone" in caplog.text


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_an_end_before_the_plan_is_lost_data_that_no_option_goes_on_without(
    monkeypatch: pytest.MonkeyPatch, fail_on_data_loss: bool
) -> None:
    answers = [_answer(2, b"a", b"b"), OffsetOutOfRange("the partition ends at 1", start_offset=0)]
    with pytest.raises(DataLost, match=r"offsets 2 to 4.*the partition ends at 1") as raised:
        _ends(monkeypatch, answers, fail_on_data_loss=fail_on_data_loss)
    assert "failOnDataLoss" not in str(raised.value)


def test_a_topic_that_went_after_planning_is_an_error_or_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = [_answer(2, b"a", b"b"), UnknownTopicOrPartition("t is another")]
    with pytest.raises(DataLost, match=r"offsets 2 to 4 of t-0.*failOnDataLoss"):
        _ends(monkeypatch, answers)
    assert _ends(monkeypatch, answers, fail_on_data_loss=False) == [(0, 2)]
    assert "recreated" in caplog.text


@pytest.fixture
def at() -> Iterator[ServerCluster]:
    with closing(ServerCluster("127.0.0.1:1", "read_committed")) as opened:
        yield opened


def _failing(*errors: Exception) -> Callable[..., Located]:
    left = list(errors)

    def located(*_: object) -> Located:
        if left:
            raise left.pop(0)
        return Located(7, [], ObjectTable())

    return located


def test_a_plan_outlives_a_node_that_is_away_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, at: ServerCluster
) -> None:
    windows = [OffsetWindow("t", 0, 0, 4)]
    away = Unavailable("the node is starting")
    monkeypatch.setattr(locate_calls, "_located", _failing(away, NotLeader("opening")))
    assert at.locate(windows).revision == 7
    monkeypatch.setattr(locate_calls, "_located", _failing(Unauthorized("no")))
    with pytest.raises(Unauthorized):
        at.locate(windows)
    monkeypatch.setattr(cluster, "TIMEOUT_MS", 1)
    monkeypatch.setattr(locate_calls, "_located", _failing(away))
    with pytest.raises(Unavailable):
        at.locate(windows)
