"""A stream's ranges from what objects say: against histories of which the truth is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlog.repair.recover.resolve import Known, Piece, Row, layers, resolve


@dataclass
class _History:
    """One stream: objects in the store, and what of them is committed."""

    random: Random
    epoch: int = 1
    start: int = 0
    committed: list[tuple[Piece, int]] = field(default_factory=list)
    """Pieces and the epochs under which they were written."""
    truth: list[int] = field(default_factory=list)
    """Offset → what was acknowledged there."""
    stored: dict[int, tuple[list[Row], dict[int, int]]] = field(default_factory=dict)
    """Object id → its rows, and what it has at each offset."""
    known: Known | None = None
    known_ids: set[int] = field(default_factory=set)
    written: int = 0

    @property
    def end(self) -> int:
        return len(self.truth)

    def store(self, rows: list[tuple[int, int, int]], content: dict[int, int]) -> int:
        object_id = len(self.stored) + 1
        self.stored[object_id] = [Row(*row, object_id) for row in rows], content
        return object_id

    def fresh(self, start: int, count: int) -> dict[int, int]:
        self.written += count
        return {start + i: self.written - i for i in range(count)}

    def append(self) -> None:
        content = self.fresh(self.end, self.random.randint(1, 4))
        end = self.end + len(content)
        object_id = self.store([(self.epoch, self.end, end)], content)
        self.committed.append((Piece(self.end, end, object_id), self.epoch))
        self.truth += [content[offset] for offset in sorted(content)]

    def crash(self) -> None:
        """Uploads under way, some of which did not arrive; then another holder."""
        at = self.end
        for _ in range(self.random.randint(0, 3)):
            content = self.fresh(at, self.random.randint(1, 3))
            if self.random.random() < 0.6:
                self.store([(self.epoch, at, at + len(content))], content)
            at += len(content)
        self.epoch += self.random.randint(1, 3)

    def compact(self) -> None:
        live = [one for one in self.committed if one[0].end > self.start]
        if len(live) < 2:
            return
        first = self.random.randrange(len(live) - 1)
        inputs = live[first : first + self.random.randint(2, 4)]
        start, end = max(inputs[0][0].start, self.start), inputs[-1][0].end
        rows = [(epoch, max(p.start, start), p.end) for p, epoch in inputs]
        object_id = self.store(rows, {o: self.truth[o] for o in range(start, end)})
        if self.random.random() < 0.3:
            return  # it was stored, and its commit did not make it
        index = self.committed.index(inputs[0])
        self.committed[index : index + len(inputs)] = [
            (Piece(low, high, object_id), epoch) for epoch, low, high in rows
        ]

    def trim(self) -> None:
        self.start = self.random.randint(self.start, self.end)
        self.committed = [one for one in self.committed if one[0].end > self.start]

    def checkpoint(self) -> None:
        pieces = [p._replace(start=max(p.start, self.start)) for p, _ in self.committed]
        self.known = Known(self.epoch, self.start, self.end, pieces)
        self.known_ids = {piece.object_id for piece in pieces}

    def collect(self) -> None:
        """Objects go that the checkpoint knows to be dead; and, as if there had been a newer one
        that is lost, those that were compacted since.
        """
        if self.known is None:
            return
        live = {piece.object_id for piece, _ in self.committed}
        for object_id, (rows, _) in list(self.stored.items()):
            is_trimmed = all(row.end <= self.known.start for row in rows)
            is_compacted = object_id in self.known_ids and self.start == self.known.start
            if object_id not in live and (is_trimmed or is_compacted):
                self.stored[object_id] = [], {}

    def check(self, known: Known | None) -> None:
        known_ids = {p.object_id for p in known.pieces} if known else set()
        rows = [row for i, (own, _) in self.stored.items() if i not in known_ids for row in own]
        if known is None and not rows:
            return
        resolved = resolve(known, rows, lambda i: bool(self.stored[i][0]), lambda _: False)
        assert resolved.start <= self.start or not self.committed
        assert resolved.end >= self.end
        assert not resolved.missing
        at = resolved.start
        for piece in resolved.pieces:
            assert piece.start == at < piece.end
            at = piece.end
            content = self.stored[piece.object_id][1]
            for offset in range(max(piece.start, self.start), min(piece.end, self.end)):
                assert content[offset] == self.truth[offset]
        assert at == resolved.end


STEPS = ("append", "append", "append", "crash", "compact", "trim", "checkpoint", "collect")


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=40), st.integers(0, 1 << 30))
def test_acknowledged_records_are_found_from_a_checkpoint(steps: list[str], seed: int) -> None:
    history = _History(Random(seed))
    history.checkpoint()
    for step in steps:
        getattr(history, step)()
    history.check(history.known)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.sampled_from(("append", "append", "crash", "compact", "trim")), max_size=40),
    st.integers(0, 1 << 30),
)
def test_acknowledged_records_are_found_without_a_checkpoint(steps: list[str], seed: int) -> None:
    history = _History(Random(seed))
    for step in steps:
        getattr(history, step)()
    history.check(None)


def test_a_gap_ends_the_stream_unless_what_follows_is_certain() -> None:
    rows = [Row(1, 0, 5, 1), Row(1, 8, 9, 3)]
    resolved = resolve(None, rows, bool, lambda _: False)
    assert (resolved.start, resolved.end) == (0, 5)
    assert (resolved.tail, resolved.before) == ([Piece(8, 9, 3)], [])
    certain = resolve(None, rows, bool, lambda object_id: object_id == 3)
    assert (certain.start, certain.end) == (8, 9)
    assert (certain.tail, certain.before) == ([], [Piece(0, 5, 1)])


def test_offsets_are_certain_by_any_object_that_holds_them() -> None:
    """A compaction's input stands in the stream; its copy shows that it was committed."""
    rows = [Row(1, 0, 5, 1), Row(1, 8, 9, 3), Row(1, 9, 12, 4), Row(1, 8, 9, 7)]
    resolved = resolve(None, rows, bool, lambda object_id: object_id == 7)
    assert (resolved.start, resolved.end, resolved.is_guess) == (8, 12, False)
    assert resolved.pieces == [Piece(8, 9, 3), Piece(9, 12, 4)]
    assert resolved.before == [Piece(0, 5, 1)]


def test_where_trims_are_lost_the_largest_part_from_the_certain_one_on_is_kept() -> None:
    rows = [Row(1, 0, 50, 1), Row(1, 60, 62, 2), Row(1, 70, 75, 3), Row(2, 77, 78, 4)]
    plain = resolve(None, rows, bool, lambda _: False, trims_are_lost=True)
    assert (plain.start, plain.end, plain.is_guess) == (0, 50, True)
    resolved = resolve(None, rows, bool, lambda object_id: object_id == 2, trims_are_lost=True)
    assert (resolved.start, resolved.end, resolved.is_guess) == (70, 75, True)
    assert (resolved.tail, resolved.before) == (
        [Piece(77, 78, 4)],
        [Piece(0, 50, 1), Piece(60, 62, 2)],
    )
    last = resolve(None, rows, bool, lambda object_id: object_id == 4, trims_are_lost=True)
    assert (last.start, last.end, last.is_guess) == (77, 78, False)


def test_a_later_epoch_behind_a_gap_proves_nothing() -> None:
    """The later epoch may have begun in the gap, with an upload that did not arrive."""
    rows = [Row(1, 0, 5, 1), Row(1, 8, 9, 3), Row(2, 9, 12, 7)]
    resolved = resolve(None, rows, bool, lambda _: False)
    assert (resolved.start, resolved.end) == (0, 5)


def test_a_range_of_a_checkpoint_stays_when_its_object_is_gone() -> None:
    known = Known(3, 10, 20, [Piece(10, 15, 1), Piece(15, 20, 2)])
    rows = [Row(3, 20, 22, 9), Row(2, 17, 30, 8), Row(3, 12, 14, 7)]
    resolved = resolve(known, rows, lambda object_id: object_id != 1, lambda _: False)
    assert (resolved.start, resolved.end) == (10, 22)
    assert resolved.pieces == [
        Piece(10, 12, 1),
        Piece(12, 14, 7),
        Piece(14, 15, 1),
        Piece(15, 20, 2),
        Piece(20, 22, 9),
    ]
    assert resolved.missing == [Piece(10, 12, 1), Piece(14, 15, 1)]


def test_layers_take_the_higher_epoch_from_its_first_offset_on() -> None:
    assert layers([Row(1, 0, 10, 1), Row(2, 4, 6, 2)]) == [Row(1, 0, 4, 1), Row(2, 4, 6, 2)]
    assert layers([Row(1, 0, 3, 1), Row(1, 0, 6, 2), Row(1, 5, 9, 3)]) == [
        Row(1, 0, 6, 2),
        Row(1, 6, 9, 3),
    ]


@pytest.mark.parametrize("known", [None, Known(1, 0, 10, [Piece(0, 10, 1)])])
def test_a_row_that_a_higher_epoch_overtook_is_not_cut_in_the_middle(known: Known | None) -> None:
    """The upload with which the higher epoch began, at 10, did not arrive."""
    rows = [Row(1, 10, 15, 2), Row(2, 12, 14, 3)]
    rows += [] if known else [Row(1, 0, 10, 1)]
    resolved = resolve(known, rows, bool, lambda _: False)
    assert (resolved.pieces, resolved.tail) == ([Piece(0, 10, 1)], [Piece(12, 14, 3)])
    certain = resolve(known, rows, bool, lambda object_id: object_id == 2)
    assert certain.pieces == [Piece(0, 10, 1), Piece(10, 12, 2), Piece(12, 14, 3)]


def test_a_stream_that_nothing_tells_of_is_nobodys() -> None:
    with pytest.raises(ValueError, match=r"."):
        resolve(None, [], bool, bool)
