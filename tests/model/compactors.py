"""Several compactors, each under a tenure of its own, beside appends and trims of one stream.

1. A compactor reads `x`, then folds, then chooses inputs that are live; its output covers some of
   their ranges (an input may keep others) and is stored before the commit.
2. The commit compares fence, head and `x` as read, and bumps `x`.
3. Refused with the head at its record: an earlier copy was applied. Refused because `x` has
   changed: fold; if no input lost a range to another compaction, offer the same output again under
   the new `x`, else give it up. A trim that emptied an input is no reason to give up.
4. The fold takes the output's rows clipped to the stream's start.
5. A dead object is deleted at any time, an orphan once its tenure is sealed and folded after.

An object holds one row of offsets; contents are their own offsets, so content is kept if and only
if the live rows cover the stream from its start to its end, once each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model.explorer import Label, delivered, put, sent, spend

Row = tuple[int, int, int]
"""start, end, object"""


class Job(NamedTuple):
    """`covered`: the rows of inputs that the output replaces, as they were when it was planned."""

    inputs: frozenset[int]
    covered: tuple[Row, ...]
    output: Row
    is_stored: bool
    x: int


class Compactor(NamedTuple):
    """`x`: as read for the next plan."""

    is_up: bool = True
    seq: int = 0
    x: int | None = None
    job: Job | None = None
    is_sent: bool = False
    outputs: int = 0


class Budget(NamedTuple):
    append: int = 1
    trim: int = 0
    jobs: int = 2
    resend: int = 0
    lost: int = 0
    seal: int = 0


class State(NamedTuple):
    """`rows`: live ones in order. `committed`: every object ever."""

    start: int
    end: int
    rows: tuple[Row, ...]
    committed: frozenset[int]
    x: int
    sealed: tuple[bool, ...]
    heads: tuple[int, ...]
    store: frozenset[int]
    compactors: tuple[Compactor, ...]
    net: tuple[Any, ...]
    bad: str | None
    budget: Budget

    def with_compactor(self, number: int, **changes: Any) -> State:
        changed = self.compactors[number]._replace(**changes)
        return self._replace(compactors=put(self.compactors, number, changed))

    spend = spend


@dataclass(frozen=True, slots=True)
class Setup:
    """`objects` of one offset each are there at first."""

    objects: int
    compactors: int
    budget: Budget


Steps = Iterator[tuple[Label, State]]


class CompactorsModel:
    def __init__(self, setup: Setup, mutant: str | None = None) -> None:
        self.mutant = mutant
        self.fault: str | None = None
        objects = range(setup.objects)
        self.initial = State(
            0,
            setup.objects,
            tuple((o, o + 1, o) for o in objects),
            frozenset(objects),
            0,
            (False,) * setup.compactors,
            (0,) * setup.compactors,
            frozenset(objects),
            (Compactor(),) * setup.compactors,
            (),
            None,
            setup.budget,
        )

    def successors(self, state: State) -> Steps:
        if state.budget.append:
            row = (state.end, state.end + 1, state.end)
            yield (
                ("append",),
                state._replace(
                    end=state.end + 1,
                    rows=(*state.rows, row),
                    committed=state.committed | {row[2]},
                    store=state.store | {row[2]},
                ).spend("append"),
            )
        if state.budget.trim:
            for to in range(state.start + 1, state.end + 1):
                after = state._replace(start=to, rows=_clipped(state.rows, to))
                yield ("trim", to), after.spend("trim")
        for number, compactor in enumerate(state.compactors):
            if state.budget.seal and not state.sealed[number]:
                after = state._replace(sealed=put(state.sealed, number, True))
                yield ("seal", number), after.spend("seal")
            if compactor.is_up:
                yield from self._works(state, number)
        for message, rest in delivered(state.net):
            base = state._replace(net=rest)
            if message[0] == "PUT":
                yield self._lands(base, message)
            else:
                yield from self._commit(base, message)
        yield from self._collects(state)

    def _works(self, state: State, number: int) -> Steps:
        one = state.compactors[number]
        job = one.job
        if job is None:
            if state.budget.jobs and one.x != state.x:
                yield ("reads x", number), state.with_compactor(number, x=state.x)
            if state.budget.jobs and one.x is not None:
                yield from self._plans(state, number)
        elif not one.is_sent:
            if job.is_stored:
                if self.mutant == "x is read after the plan":
                    job = job._replace(x=state.x)
                message = ("C", number, one.seq + 1, job)
                after = state.with_compactor(number, is_sent=True, job=job)
                yield ("sends", number), after._replace(net=sent(state.net, message))
        elif state.budget.resend:
            net = sent(state.net, ("C", number, one.seq + 1, job))
            yield ("sends again", number), state._replace(net=net).spend("resend")

    def _plans(self, state: State, number: int) -> Steps:
        """Any two or more adjacent rows."""
        one = state.compactors[number]
        assert one.x is not None
        rows = state.rows
        for low in range(len(rows)):
            for high in range(low + 2, len(rows) + 1):
                covered = rows[low:high]
                output = (covered[0][0], covered[-1][1], 100 + 10 * number + one.outputs)
                job = Job(frozenset(row[2] for row in covered), covered, output, False, one.x)
                after = state.with_compactor(number, job=job, x=None, outputs=one.outputs + 1)
                after = after._replace(net=sent(state.net, ("PUT", number, output[2])))
                yield ("plans", number, covered, output), after.spend("jobs")

    def _lands(self, state: State, message: Any) -> tuple[Label, State]:
        _, number, output = message
        after = state._replace(store=state.store | {output})
        job = state.compactors[number].job
        if job is not None and job.output[2] == output:
            after = after.with_compactor(number, job=job._replace(is_stored=True))
        return ("PUT lands", number, output), after

    def _commit(self, state: State, message: Any) -> Steps:
        _, number, seq, job = message
        is_head = state.heads[number] == seq - 1
        is_x = state.x == job.x or self.mutant == "commit does not compare x"
        is_applied = is_head and is_x and not state.sealed[number]
        after = state
        if is_applied:
            after = self._apply(state, job)
            after = after._replace(heads=put(state.heads, number, seq), x=state.x + 1)
        label = ("commit", number, seq, "applied" if is_applied else "refused")
        yield label, self._answer(after, message, is_applied)
        if is_applied and state.budget.lost:
            yield (*label, "answer lost"), after.spend("lost")

    def _apply(self, state: State, job: Job) -> State:
        """Takes the inputs' live parts within the output, and puts the clipped output in place."""
        start, end, output = job.output
        gone = [
            row for row in state.rows if row[2] in job.inputs and row[0] < end and row[1] > start
        ]
        low = start if self.mutant == "outputs are not clipped" else max(start, state.start)
        rows = [row for row in state.rows if row not in gone]
        bad = "an object was committed twice" if output in state.committed else state.bad
        if low < end:
            rows.append((low, end, output))
        return state._replace(
            rows=tuple(sorted(rows)), committed=state.committed | {output}, bad=bad
        )

    def _answer(self, state: State, message: Any, is_applied: bool) -> State:
        _, number, seq, job = message
        one, mutant = state.compactors[number], self.mutant
        if not one.is_up or not one.is_sent or one.seq + 1 != seq or one.job != job:
            return state
        is_in = state.heads[number] >= seq and mutant != "every refusal counts as a change of x"
        if is_applied or is_in:
            return state.with_compactor(number, seq=seq, job=None, is_sent=False)
        if state.sealed[number]:
            return state.with_compactor(number, is_up=False, job=None)
        seq_now = state.heads[number]
        if mutant == "outputs are offered again without a check":
            is_kept = True
        elif mutant == "the check asks only whether inputs are live":
            live = {row[2] for row in state.rows}
            is_kept = bool(live & job.inputs)
        else:
            is_kept = self._is_untouched(state, job)
        if is_kept:
            again = job._replace(x=state.x)
            return state.with_compactor(number, job=again, is_sent=False, seq=seq_now)
        return state.with_compactor(number, job=None, is_sent=False, seq=seq_now)

    def _is_untouched(self, state: State, job: Job) -> bool:
        """Whether every covered row, clipped to the current start, still belongs to its input."""
        return all(row in state.rows for row in _clipped(job.covered, state.start))

    def _collects(self, state: State) -> Steps:
        live = {row[2] for row in state.rows}
        for obj in state.store:
            if obj in state.committed:
                if obj not in live:
                    yield ("gc deletes dead", obj), state._replace(store=state.store - {obj})
            elif (
                state.sealed[(obj - 100) // 10]
                or self.mutant == "orphans are deleted by age, without a seal"
            ):
                yield ("gc deletes orphan", obj), state._replace(store=state.store - {obj})

    def check(self, state: State) -> str | None:
        if state.bad:
            return state.bad
        at = state.start
        for start, end, obj in state.rows:
            if start != at:
                return "compaction changed content"
            if obj not in state.store:
                return "a live object is missing from the store"
            at = end
        return None if at == state.end else "compaction changed content"


def _clipped(rows: tuple[Row, ...], start: int) -> tuple[Row, ...]:
    return tuple((max(a, start), b, obj) for a, b, obj in rows if b > start)
