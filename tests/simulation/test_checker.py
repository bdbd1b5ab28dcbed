"""The models accept right histories and find each wrong one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from streamlog.testing.simulation.checker import (
    PartitionModel,
    RegisterModel,
    RegisterOperation,
    SeenBatch,
    Sent,
    SentBatch,
    StagedModel,
    StreamModel,
    TokenModel,
    Violation,
)


class Read(NamedTuple):
    base_offset: int
    record_count: int
    parts: tuple[bytes, ...]

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.record_count


A, B, C = Sent(0, 0, 2), Sent(0, 1, 3), Sent(1, 0, 1)


def at(offset: int, batch: Sent) -> Read:
    return Read(offset, batch.record_count, (batch.payload(40),))


def stream() -> StreamModel:
    """A at 0 and B at 2 were acknowledged; C was sent."""
    model = StreamModel("s")
    for batch in (A, B, C):
        model.send(batch)
    model.acknowledge(A, 0)
    model.acknowledge(B, 2)
    return model


def test_a_right_history_of_a_stream_passes() -> None:
    model = stream()
    model.opened("n1", 1, 0, 5, 0, 5)
    assert model.read([at(0, A), at(2, B)], 1, 0) == 5
    assert model.read([at(5, C)], 5, 0) == 6
    model.trimmed(2)
    model.opened("n2", 3, 2, 6, 2, 6)
    model.opened("n1", 1, 0, 5, 2, 6)  # it has not heard that it lost the stream
    model.finish(2, 6, {2: B, 5: C})


def read_gap(model: StreamModel) -> None:
    model.read([at(0, A), at(3, B)], 0, 0)


def read_elsewhere(model: StreamModel) -> None:
    model.read([at(4, A)], 4, 0)


def read_before_asked(model: StreamModel) -> None:
    model.read([at(0, A)], 2, 0)


def read_other_at_offset(model: StreamModel) -> None:
    model.read([at(2, C)], 2, 0)


def read_never_sent(model: StreamModel) -> None:
    model.read([at(5, Sent(7, 7, 1))], 5, 0)


def read_refused(model: StreamModel) -> None:
    model.refuse(C)
    model.read([at(5, C)], 5, 0)


def read_wrong_count(model: StreamModel) -> None:
    model.read([Read(5, 2, (C.payload(40),))], 5, 0)


def read_trimmed(model: StreamModel) -> None:
    model.read([at(0, A)], 0, 2)


def read_twice_elsewhere(model: StreamModel) -> None:
    model.read([at(5, C)], 5, 0)
    model.read([at(6, C)], 6, 0)


def acknowledged_twice(model: StreamModel) -> None:
    model.acknowledge(A, 7)


def acknowledged_where_another_is(model: StreamModel) -> None:
    model.acknowledge(C, 2)


def acknowledged_has_gone(model: StreamModel) -> None:
    model.finish(0, 2, {0: A})


def acknowledged_was_replaced(model: StreamModel) -> None:
    model.finish(0, 5, {0: A, 2: C})


def seen_has_gone(model: StreamModel) -> None:
    model.read([at(5, C)], 5, 0)
    model.finish(0, 5, {0: A, 2: B})


def trim_came_back(model: StreamModel) -> None:
    model.trimmed(2)
    model.finish(0, 5, {0: A, 2: B})


def nobody_trimmed(model: StreamModel) -> None:
    model.finish(2, 5, {2: B})


def writer_out_of_order(model: StreamModel) -> None:
    later = Sent(0, 2, 1)
    model.send(later)
    model.send(Sent(0, 3, 1))
    model.finish(0, 7, {0: A, 2: B, 5: Sent(0, 3, 1), 6: later})


def opened_too_short(model: StreamModel) -> None:
    model.opened("n1", 1, 0, 2, 0, 5)


def opened_before_a_trim(model: StreamModel) -> None:
    model.opened("n1", 1, 0, 5, 2, 5)


def a_start_that_was_seen_goes_back(model: StreamModel) -> None:
    model.saw(2, 5)
    model.finish(0, 5, {0: A, 2: B})


def an_end_that_was_told_goes_back(model: StreamModel) -> None:
    model.saw_end(6)
    model.opened("n1", 1, 0, 5, model.start_seen, model.end)


def epoch_opened_twice(model: StreamModel) -> None:
    model.opened("n1", 1, 0, 5, 0, 5)
    model.opened("n2", 1, 0, 5, 0, 5)


@pytest.mark.parametrize(
    "history",
    [
        read_gap,
        read_elsewhere,
        read_before_asked,
        read_other_at_offset,
        read_never_sent,
        read_refused,
        read_wrong_count,
        read_trimmed,
        read_twice_elsewhere,
        acknowledged_twice,
        acknowledged_where_another_is,
        acknowledged_has_gone,
        acknowledged_was_replaced,
        seen_has_gone,
        trim_came_back,
        nobody_trimmed,
        writer_out_of_order,
        opened_too_short,
        opened_before_a_trim,
        a_start_that_was_seen_goes_back,
        an_end_that_was_told_goes_back,
        epoch_opened_twice,
    ],
)
def test_a_wrong_history_of_a_stream_is_found(history: Callable[[StreamModel], None]) -> None:
    model = stream()
    with pytest.raises(Violation, match=r"^s: "):
        history(model)


def test_a_token_passes_if_and_only_if_it_may_be_the_streams() -> None:
    model = TokenModel("s")
    model.change(b"a")
    with model.call() as seen:
        # Whether "a" was set is not known, and "b" comes while the call is under way.
        model.change(b"b")
        for token in (b"", b"a", b"b"):
            model.passed(token, seen)
            model.refused(token, seen)
    model.changed(b"b")
    with model.call() as seen:
        model.passed(b"b", seen)
        for token in (b"", b"a", b"never"):
            model.refused(token, seen)
            with pytest.raises(Violation, match="passed where the token was"):
                model.passed(token, seen)
        with pytest.raises(Violation, match="was refused and is the stream's token"):
            model.refused(b"b", seen)


def test_a_token_change_that_expected_the_end_has_its_place_among_the_appends() -> None:
    model = TokenModel("s")
    model.placed(model.change(b"a"), end=4)
    model.placed(model.change(b"b"), end=9)
    for token, offset in ((b"", 3), (b"a", 4), (b"b", 5), (b"b", 9)):
        model.appended(token, offset)
    model.finish()
    model.change(b"a")  # Without a place: it may be made at any later offset.
    model.appended(b"a", 12)
    model.finish()
    model.appended(b"", 5)
    with pytest.raises(Violation, match="b'' passed at 5, the token was changed to b'a' at 4"):
        model.finish()
    model.recovered()
    model.finish()


def partition() -> PartitionModel:
    """Sequences 0–1 at 0, 2 at 2, acknowledged; 3 was sent."""
    model = PartitionModel("t-0")
    for batch in (SentBatch(0, 2, b""), SentBatch(2, 1, b""), SentBatch(3, 1, b"")):
        model.sent.append(batch)
        model.unanswered.append(batch)
    model.acknowledge(model.sent[0], 0)
    model.acknowledge(model.sent[1], 2)
    return model


FIRST, SECOND, THIRD = SeenBatch(0, 0, (0, 1)), SeenBatch(2, 2, (2,)), SeenBatch(3, 3, (3,))


def test_a_right_history_of_a_partition_passes() -> None:
    model = partition()
    assert model.read([FIRST, SECOND], 1) == 3
    model.acknowledge(model.sent[0], 0)
    model.acknowledge(model.sent[2], 3)
    assert not model.unanswered
    model.start_asked = 2
    model.finish(2, [SECOND, THIRD])


def resend_stored_again(model: PartitionModel) -> None:
    model.acknowledge(model.sent[0], 3)


def produced_twice(model: PartitionModel) -> None:
    model.finish(0, [FIRST, SECOND, SeenBatch(3, 2, (2,)), SeenBatch(4, 3, (3,))])


def produced_and_lost(model: PartitionModel) -> None:
    model.acknowledge(model.sent[2], 3)
    model.finish(0, [FIRST, SECOND])


def produced_out_of_order(model: PartitionModel) -> None:
    model.finish(0, [FIRST, SeenBatch(2, 3, (3,)), SeenBatch(3, 2, (2,))])


def produced_elsewhere(model: PartitionModel) -> None:
    model.acknowledge(model.sent[2], 4)
    model.finish(0, [FIRST, SECOND, THIRD])


def record_lost_in_a_batch(model: PartitionModel) -> None:
    model.read([SeenBatch(0, 0, (0, 2))], 0)


def consumed_gap(model: PartitionModel) -> None:
    model.read([FIRST, SeenBatch(3, 3, (3,))], 0)


def consumed_otherwise(model: PartitionModel) -> None:
    model.read([SECOND], 2)
    model.read([SeenBatch(2, 3, (3,))], 2)


def consumed_and_gone(model: PartitionModel) -> None:
    model.read([SeenBatch(7, 3, (3,))], 7)
    model.acknowledge(model.sent[2], 3)
    model.finish(0, [FIRST, SECOND, THIRD])


def deleted_came_back(model: PartitionModel) -> None:
    model.start = 2
    model.acknowledge(model.sent[2], 3)
    model.finish(0, [FIRST, SECOND, THIRD])


def nobody_deleted(model: PartitionModel) -> None:
    model.acknowledge(model.sent[2], 3)
    model.finish(2, [SECOND, THIRD])


@pytest.mark.parametrize(
    "history",
    [
        resend_stored_again,
        produced_twice,
        produced_and_lost,
        produced_out_of_order,
        produced_elsewhere,
        record_lost_in_a_batch,
        consumed_gap,
        consumed_otherwise,
        consumed_and_gone,
        deleted_came_back,
        nobody_deleted,
    ],
)
def test_a_wrong_history_of_a_partition_is_found(
    history: Callable[[PartitionModel], None],
) -> None:
    model = partition()
    with pytest.raises(Violation, match=r"^t-0: "):
        history(model)


def put(value: str, called: float, answered: float | None = None) -> RegisterOperation:
    return RegisterOperation("put", called, value, answered=answered)


def get(value: str | None, called: float, answered: float) -> RegisterOperation:
    return RegisterOperation("get", called, value, answered=answered)


def cas(
    expected: str | None,
    value: str,
    called: float,
    answered: float | None = None,
    *,
    has_changed: bool = True,
) -> RegisterOperation:
    return RegisterOperation("cas", called, value, expected, answered, has_changed)


def delete(called: float, answered: float | None = None) -> RegisterOperation:
    return RegisterOperation("delete", called, answered=answered)


@pytest.mark.parametrize(
    "operations",
    [
        [put("a", 0, 1), get("a", 2, 3)],
        [put("a", 0, 4), get(None, 1, 2), get("a", 2, 3)],
        [put("a", 0, 9), put("b", 0, 9), get("b", 1, 2), get("a", 3, 4)],
        [put("a", 0), get(None, 1, 2), get("a", 50, 51)],
        [put("a", 0), put("b", 1, 2), get("b", 3, 4), get("a", 5, 6)],
        [put("a", 0, 1), cas("a", "b", 2, 3), get("b", 4, 5)],
        [put("a", 0, 1), put("b", 2), cas("a", "c", 3, 4, has_changed=False), get("b", 5, 6)],
        [put("a", 0, 1), cas("a", "b", 2), get("a", 3, 4), get("b", 5, 6)],
        [put("a", 0, 1), delete(2), get("a", 3, 4), get(None, 5, 6)],
        [cas(None, "a", 0, 1), delete(2, 3), cas("a", "b", 4, 5, has_changed=False)],
    ],
)
def test_a_linearizable_register_passes(operations: list[RegisterOperation]) -> None:
    RegisterModel("k", operations).finish()


@pytest.mark.parametrize(
    "operations",
    [
        [put("a", 0, 1), get(None, 2, 3)],
        [put("a", 0, 1), put("b", 2, 3), get("a", 4, 5)],
        [put("a", 0, 9), get("a", 1, 2), get(None, 3, 4)],
        [put("a", 0), get("a", 1, 2), get(None, 3, 4)],
        [get("a", 0, 1), put("a", 2, 3)],
        [put("a", 0, 1), cas("a", "b", 2, 3), cas("a", "c", 4, 5)],
        [put("a", 0, 1), cas("a", "b", 2, 3, has_changed=False)],
        [put("a", 0, 1), delete(2, 3), get("a", 4, 5)],
        [put("a", 0, 9), put("b", 0, 9), get("a", 1, 2), get("b", 3, 4), get("a", 5, 6)],
    ],
)
def test_a_register_that_is_not_linearizable_is_found(
    operations: list[RegisterOperation],
) -> None:
    with pytest.raises(Violation, match=r"^k: "):
        RegisterModel("k", operations).finish()


def _staged_model() -> StagedModel:
    """Objects 1 and 2, each with values for both partitions, and an append of a producer."""
    model = StagedModel("t", 2)
    model.staged(1, {0: [b"a", b"b"], 1: [b"c"]})
    model.staged(2, {0: [b"d"], 1: [b"e"]})
    model.appended(0, b"p")
    return model


def _shows(model: StagedModel, *partitions: list[bytes]) -> None:
    for number, values in enumerate(partitions):
        for offset, value in enumerate(values):
            model.read(number, offset, value)
        model.ends(number, len(values))


def test_a_staged_commit_exists_once_whole_and_in_order() -> None:
    model = _staged_model()
    model.asked(0, [1])
    model.confirmed(0, {0: 1, 1: 0})
    model.asked(1, [2])
    _shows(model, [b"p", b"a", b"b", b"d"], [b"c", b"e"])
    model.finish()
    _shows(unknown := _staged_model(), [b"p"], [])
    unknown.asked(0, [1])
    unknown.finish()


@pytest.mark.parametrize(
    ("first", "second", "how"),
    [
        ([b"p"], [], "none of"),
        ([b"a", b"b"], [], "none of"),
        ([b"a", b"p", b"b"], [b"c"], "epoch 0 is"),
        ([b"b", b"a"], [b"c"], "epoch 0 is"),
        ([b"p", b"a", b"b"], [b"c"], "told"),
        ([b"a", b"b"], [b"c", b"e"], "never committed"),
        ([b"a", b"b", b"a"], [b"c"], "exist twice"),
    ],
)
def test_a_staged_commit_that_differs_from_its_answer_is_found(
    first: list[bytes], second: list[bytes], how: str
) -> None:
    model = _staged_model()
    model.asked(0, [1])
    model.confirmed(0, {0: 0, 1: 0})
    _shows(model, first, second)
    with pytest.raises(Violation, match=how):
        model.finish()


def test_two_lists_of_one_epoch_never_both_exist() -> None:
    model = _staged_model()
    model.asked(0, [1])
    model.asked(0, [2])
    _shows(model, [b"a", b"b", b"d"], [b"c", b"e"])
    with pytest.raises(Violation, match="never committed"):
        model.finish()
    model.told(5, [1])
    with pytest.raises(Violation, match="epoch 5 is"):
        model.told(5, [2])
    model.confirmed(6, {0: 1})
    with pytest.raises(Violation, match="was at"):
        model.confirmed(6, {0: 2})
    with pytest.raises(Violation, match="staged twice"):
        model.staged(1, {})
    with pytest.raises(Violation, match="where"):
        model.read(0, 0, b"other")


def test_a_staged_commit_that_was_read_stays() -> None:
    model = _staged_model()
    model.asked(0, [1])
    _shows(model, [b"a", b"b"], [b"c"])
    model.ends(0, 1)
    with pytest.raises(Violation, match="has gone"):
        model.finish()
