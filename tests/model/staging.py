"""Staged writes: tasks stage objects, a driver attaches those of one commit epoch, all or nothing.

1. A task's attempt stores an object and stages it by a commit record; from then on the fold knows
   it, in no stream. It expires.
2. The driver asks the holder of the streams to attach a list under (writer, epoch), the next one
   once an epoch is confirmed; a driver that was started again may name another list for the same
   epoch. An epoch that the fold has attached, or an earlier one, is answered without a record.
3. Attach is one record of the tenure that holds every stream of it: the fold appends all rows, or,
   if the tenure lost one of the streams, nothing. It compares the tenure's fence and head, and
   compares and raises `x`: otherwise two holders, of different streams, could attach one epoch.
4. Unstage (of expired objects) may come from any tenure: it compares and raises `x`. So an attach
   that was planned before it is refused, planned again, and fails because the object is gone. The
   fold skips an unstage of an attached object.
5. No sweep deletes a staged object; an unstaged object is dead, and is deleted.
6. A writer that was silent for long is forgotten, under its last epoch; if it has attached another
   epoch meanwhile, the fold keeps it. No driver asks for epochs that were silent so long.

Tenures 0 and 1 may hold the streams, 2 is the tasks', 3 the collector's. Streams 0 and 1; every
staged object has one row of one record for each, or (`is_split`) object n for stream n mod 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model.explorer import Label, delivered, put, sent, spend

HOLDERS = (0, 1)
TASKS, COLLECTOR = 2, 3


class Holder(NamedTuple):
    """A request in flight: (epoch, objects), with `x` as read when it was planned."""

    gen: int = 0
    seq: int = 0
    request: tuple[int, tuple[int, ...]] | None = None
    x: int = 0
    is_sent: bool = False
    is_partial: bool = False


class Budget(NamedTuple):
    stage: int = 2
    ask: int = 2
    again: int = 0
    move: int = 0
    unstage: int = 0
    append: int = 0
    lost: int = 0
    seal: int = 0
    forget: int = 0


class State(NamedTuple):
    """`streams`: (holder, values). `staged`, `attached` objects; `epoch`: the last one attached.

    `confirmed`: epochs whose attach a driver saw. `wanted`: what drivers asked for. `done`:
    each list that was attached, with its epoch. `view`: what the collector has folded. `silent`:
    epochs up to it are asked for no more.
    """

    gens: tuple[int, int]
    heads: tuple[int, int]
    x: int
    streams: tuple[tuple[int, tuple[int, ...]], ...]
    staged: frozenset[int]
    attached: frozenset[int]
    dead: frozenset[int]
    epoch: int
    store: frozenset[int]
    holders: tuple[Holder, ...]
    net: tuple[Any, ...]
    wanted: tuple[tuple[int, tuple[int, ...]], ...]
    confirmed: frozenset[int]
    done: tuple[tuple[int, tuple[int, ...]], ...]
    tasks_sealed: bool
    view: tuple[frozenset[int], frozenset[int], bool]
    bad: str | None
    made: int
    silent: int
    budget: Budget

    def with_holder(self, tenure: int, **changes: Any) -> State:
        changed = self.holders[tenure]._replace(**changes)
        return self._replace(holders=put(self.holders, tenure, changed))

    spend = spend


@dataclass(frozen=True, slots=True)
class Setup:
    budget: Budget
    is_split: bool = False


Steps = Iterator[tuple[Label, State]]


class StagingModel:
    def __init__(self, setup: Setup, mutant: str | None = None) -> None:
        self.mutant = mutant
        self.is_split = setup.is_split
        self.fault: str | None = None
        none: frozenset[int] = frozenset()
        self.initial = State(
            gens=(0, 0),
            heads=(0, 0),
            x=0,
            streams=((0, ()), (1 if setup.is_split else 0, ())),
            staged=none,
            attached=none,
            dead=none,
            epoch=0,
            store=none,
            holders=(Holder(), Holder()),
            net=(),
            wanted=(),
            confirmed=none,
            done=(),
            tasks_sealed=False,
            view=(none, none, False),
            bad=None,
            made=0,
            silent=0,
            budget=setup.budget,
        )

    def successors(self, state: State) -> Steps:
        yield from self._tasks(state)
        yield from self._driver(state)
        for tenure in HOLDERS:
            yield from self._holder(state, tenure)
        yield from self._collector(state)
        for message, rest in delivered(state.net):
            base = state._replace(net=rest)
            kind = message[0]
            if kind == "PUT":
                after = base._replace(store=base.store | {message[1]})
                if (
                    not base.tasks_sealed
                    and self.mutant != "an object is staged before its PUT is durable"
                ):
                    after = after._replace(net=sent(after.net, ("STAGE", message[1])))
                yield ("PUT lands", message[1]), after
            elif kind == "STAGE":
                after = base
                if not base.tasks_sealed and message[1] not in base.dead:
                    after = base._replace(staged=base.staged | {message[1]})
                yield ("staged", message[1], after is not base), after
            elif kind == "ASK":
                yield from self._asked(base, message)
            elif kind == "ATTACH":
                yield from self._attach(base, message)
            elif kind == "UNSTAGE":
                yield self._unstage(base, message)
            elif kind == "FORGET":
                yield self._forget(base, message)

    # tasks and driver

    def _tasks(self, state: State) -> Steps:
        if state.budget.stage:
            obj = state.made
            net = sent(state.net, ("PUT", obj))
            if self.mutant == "an object is staged before its PUT is durable":
                net = sent(net, ("STAGE", obj))
            yield ("task stores", obj), state._replace(net=net, made=obj + 1).spend("stage")
        if state.budget.seal and not state.tasks_sealed:
            yield ("tasks are sealed",), state._replace(tasks_sealed=True).spend("seal")

    def _driver(self, state: State) -> Steps:
        """A request may be asked again, also by a driver that was given up."""
        if state.budget.ask and state.staged:
            epoch = max(state.confirmed, default=0) + 1
            staged = tuple(sorted(state.staged))
            for objects in {staged, staged[:1], staged[-1:]}:
                after = state._replace(wanted=(*state.wanted, (epoch, objects))).spend("ask")
                for tenure in HOLDERS:
                    held = self._held(state, tenure)
                    if not state.budget.move and not self._needed(objects) <= held:
                        continue  # refused at once
                    net = sent(after.net, ("ASK", tenure, epoch, objects))
                    yield ("asks", tenure, epoch, objects), after._replace(net=net)
        if state.budget.again:
            for epoch, objects in state.wanted:
                for tenure in HOLDERS if epoch > state.silent else ():
                    net = sent(state.net, ("ASK", tenure, epoch, objects))
                    yield ("asks again", tenure, epoch), state._replace(net=net).spend("again")

    # holders

    def _asked(self, state: State, message: Any) -> Steps:
        _, tenure, epoch, objects = message
        if state.holders[tenure].request is not None:
            return
        yield ("request", tenure, epoch), self._judged(state, tenure, epoch, objects)

    def _judged(self, state: State, tenure: int, epoch: int, objects: tuple[int, ...]) -> State:
        held = self._held(state, tenure)
        is_known = epoch <= state.epoch
        if self.mutant == "a repeated attach is not recognised":
            is_known = False
        if self.mutant == "only the last epoch counts as attached":
            is_known = epoch == state.epoch
        if is_known:
            after = state._replace(confirmed=state.confirmed | {epoch})
            return after.with_holder(tenure, request=None, is_sent=False)
        is_partial = not self._needed(objects) <= held
        if (
            is_partial and (self.mutant != "a holder attaches only its own part" or not held)
        ) or not (
            set(objects) <= state.staged | state.attached
            if self.mutant == "a repeated attach is not recognised"
            else set(objects) <= state.staged
        ):
            return state.with_holder(tenure, request=None, is_sent=False)  # refused, typed
        return state.with_holder(
            tenure,
            request=(epoch, objects),
            x=state.x,
            gen=state.gens[tenure],
            seq=state.heads[tenure],
            is_sent=False,
        )

    def _holder(self, state: State, tenure: int) -> Steps:
        node = state.holders[tenure]
        if node.request is not None and not node.is_sent:
            message = ("ATTACH", tenure, node.seq + 1, node.gen, node.x, *node.request)
            after = state.with_holder(tenure, is_sent=True)
            yield ("sends attach", tenure), after._replace(net=sent(state.net, message))
        if state.budget.move:
            other = 1 - tenure
            for stream, (holder, values) in enumerate(state.streams):
                if holder == other:
                    streams = put(state.streams, stream, (tenure, values))
                    gens = put(state.gens, other, state.gens[other] + 1)
                    after = state._replace(streams=streams, gens=gens).spend("move")
                    yield ("moves", stream, "to", tenure), after
        if state.budget.append and node.request is None:
            for stream, (holder, values) in enumerate(state.streams):
                if holder == tenure:
                    value = 900 + len(values)
                    streams = put(state.streams, stream, (tenure, (*values, value)))
                    heads = put(state.heads, tenure, state.heads[tenure] + 1)
                    after = state._replace(streams=streams, heads=heads).spend("append")
                    yield ("append", tenure, stream), after

    def _attach(self, state: State, message: Any) -> Steps:
        _, tenure, seq, gen, x, epoch, objects = message
        is_fenced = state.gens[tenure] != gen
        is_x = state.x == x or self.mutant == "attach does not compare x"
        is_applied = not is_fenced and is_x and state.heads[tenure] == seq - 1
        after = state
        if is_applied:
            after = self._apply(state, tenure, epoch, objects)
            after = after._replace(heads=put(state.heads, tenure, seq))
        label = ("attach", tenure, epoch, "applied" if is_applied else "refused")
        node = state.holders[tenure]
        is_awaited = node.is_sent and (node.seq + 1, node.gen) == (seq, gen)
        if not is_awaited:
            yield label, after
            return
        if is_applied:
            told = after.with_holder(tenure, request=None, is_sent=False)
            yield label, told._replace(confirmed=told.confirmed | {epoch})
            if state.budget.lost:
                # The holder dies with the answer; the driver asks again.
                lost = after.with_holder(tenure, request=None, is_sent=False)
                yield (*label, "answer lost"), lost.spend("lost")
        else:
            yield label, self._judged(after, tenure, epoch, objects)

    def _apply(self, state: State, tenure: int, epoch: int, objects: tuple[int, ...]) -> State:
        if not set(objects) <= state.staged:
            state = state._replace(bad="an attach names objects that are not staged")
        streams = tuple(
            (holder, values + tuple(o for o in objects if stream in self._needed((o,))))
            if holder == tenure
            else (holder, values)
            for stream, (holder, values) in enumerate(state.streams)
        )
        return state._replace(
            x=state.x + (self.mutant != "attach does not raise x"),
            streams=streams,
            staged=state.staged - set(objects),
            attached=state.attached | set(objects),
            done=(*state.done, (epoch, objects)),
            epoch=max(epoch, state.epoch),
        )

    def _needed(self, objects: tuple[int, ...]) -> set[int]:
        """Streams of the objects' rows."""
        return {o % 2 for o in objects} if self.is_split else {0, 1}

    def _held(self, state: State, tenure: int) -> set[int]:
        return {s for s, (holder, _) in enumerate(state.streams) if holder == tenure}

    # the collector

    def _collector(self, state: State) -> Steps:
        if state.budget.forget and state.epoch > state.silent and self._is_silent(state):
            net = sent(state.net, ("FORGET", state.epoch, state.x))
            after = state._replace(net=net, silent=state.epoch)
            yield ("forgets", state.epoch), after.spend("forget")
        if state.budget.unstage:
            for obj in state.staged:
                net = sent(state.net, ("UNSTAGE", obj, state.x))
                yield ("unstages", obj), state._replace(net=net).spend("unstage")
        view = (state.staged | state.attached, state.dead, state.tasks_sealed)
        if view != state.view:
            yield ("collector folds",), state._replace(view=view)
        known, dead, is_sealed = state.view
        if self.mutant == "a sweep deletes staged objects":
            known = known - state.staged
        for obj in state.store:
            if obj in dead:
                yield ("deletes dead", obj), state._replace(store=state.store - {obj})
            elif obj not in known and is_sealed:
                yield ("deletes orphan", obj), state._replace(store=state.store - {obj})

    def _unstage(self, state: State, message: Any) -> tuple[Label, State]:
        _, obj, x = message
        if state.x != x:
            return ("unstage refused", obj), state
        bump = 0 if self.mutant == "unstage does not raise x" else 1
        after = state._replace(x=state.x + bump)
        is_void = obj not in state.staged and self.mutant != "unstage drops attached objects"
        if not is_void:
            after = after._replace(staged=state.staged - {obj}, dead=state.dead | {obj})
        return ("unstaged", obj, not is_void), after

    def _is_silent(self, state: State) -> bool:
        """By then the writer has no request in flight, and knows how its last commit ended."""
        under_way = any(message[0] in ("ASK", "ATTACH") for message in state.net)
        is_idle = all(node.request is None for node in state.holders)
        return not under_way and is_idle and state.epoch in state.confirmed

    def _forget(self, state: State, message: Any) -> tuple[Label, State]:
        _, epoch, x = message
        if state.x != x and self.mutant != "a writer is forgotten in spite of a later commit":
            return ("forget refused", epoch), state
        is_void = (
            state.epoch != epoch
            and self.mutant != "a writer is forgotten in spite of a later commit"
        )
        after = state._replace(x=state.x + 1, epoch=state.epoch if is_void else 0)
        return ("forgotten", epoch, not is_void), after

    def check(self, state: State) -> str | None:
        if state.bad:
            return state.bad
        rows = [tuple(v for v in values if v < 900) for _, values in state.streams]
        for row in rows:
            if len(set(row)) != len(row):
                return "an object is attached twice"
            if not set(row) <= state.store:
                return "an attached object is missing from the store"
        for _, objects in state.done:
            if any(o not in rows[stream] for o in objects for stream in self._needed((o,))):
                return "a commit is attached only in part"
        epochs = [epoch for epoch, _ in state.done]
        if len(set(epochs)) != len(epochs):
            return "an epoch is attached twice"
        if not state.confirmed <= set(epochs):
            return "a confirmed commit is not in the log"
        return None
