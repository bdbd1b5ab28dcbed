"""The whole protocol on one record log: tenures, moves, compaction, checkpoints, garbage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.model.explorer import Label
from tests.model.log import appends, checkpoints, compactions, deliveries, garbage, seals
from tests.model.log.fold import RecordLog
from tests.model.log.state import LIVE, Budget, Node, State


@dataclass(frozen=True, slots=True)
class Setup:
    """`roles`, one letter per tenure: a appender, c compactor, k checkpointer with files.

    `holders`: the tenure that holds each stream at first. `unborn`: tenures that come by a restart;
    `restarts`: (new, old). `objects`: of each appender; `in_flight`: uploads at once.
    """

    roles: str
    holders: tuple[int, ...]
    budget: Budget
    objects: int = 1
    in_flight: int = 1
    unborn: tuple[int, ...] = ()
    restarts: tuple[tuple[int, int], ...] = ()
    has_collector: bool = False


class LogModel:
    def __init__(self, setup: Setup, mutant: str | None = None) -> None:
        self.setup, self.mutant = setup, mutant
        self.fault: str | None = None
        self.log = RecordLog(tuple((1, holder, 0, 0) for holder in setup.holders))
        self._checked: dict[Any, str | None] = {}
        tenures = range(len(setup.roles))
        nodes = tuple(
            Node(
                tenure not in setup.unborn,
                0,
                0,
                tuple((1, 0) if holder == tenure else None for holder in setup.holders),
                (),
                False,
                0,
                None,
            )
            for tenure in tenures
        )
        fences = tuple((LIVE, 0, 0) for _ in tenures)
        heads = tuple(0 for _ in tenures)
        self.initial = State(fences, heads, 0, 0, 0, 0, frozenset(), nodes, (), setup.budget)

    def successors(self, state: State) -> Iterator[tuple[Label, State]]:
        for tenure, node in enumerate(state.nodes):
            if not node.is_up:
                continue
            role = self.setup.roles[tenure]
            if role == "a":
                yield from appends.steps(self, state, tenure)
            elif role == "k":
                yield from checkpoints.file_steps(self, state, tenure)
            else:
                yield from compactions.steps(self, state, tenure)
            yield from appends.sending(self, state, tenure)
        yield from deliveries.steps(self, state)
        yield from seals.steps(self, state)
        if self.setup.has_collector:
            yield from garbage.steps(self, state)
        yield from garbage.pins(self, state)
        if "k" in self.setup.roles:
            yield from checkpoints.sweep(self, state)
        else:
            yield from checkpoints.steps(self, state)

    def check(self, state: State) -> str | None:
        fold = self.log.fold(state.log)
        if fold.bad:
            return fold.bad
        key = (state.log, state.store, state.pin)
        try:
            found = self._checked[key]
        except KeyError:
            found = self._checked[key] = self._check_store(state)
        if found:
            return found
        if state.files and not {(obj, ()) for obj in state.files} <= state.store:
            return "`k` names a deleted file"
        if state.deleted > state.k:
            return "records were deleted that no checkpoint holds"
        return None

    def _check_store(self, state: State) -> str | None:
        fold, stored = self.log.fold(state.log), dict(state.store)
        for stream, rows in enumerate(fold.ranges):
            _, _, at, end = fold.streams[stream]
            for a, b, obj in rows:
                if a != at:
                    return "a stream's ranges leave a gap"
                at = b
                if obj not in stored:
                    return "a live object is missing from the store"
                held = {
                    start + index: value
                    for s, _, start, values in stored[obj]
                    if s == stream
                    for index, value in enumerate(values)
                }
                if any(held.get(o) != fold.truth[stream][o] for o in range(a, b)):
                    return "content changed"
            if at != end:
                return "a stream's ranges end early"
        if state.pin is not None and not self.log.fold_at(state.log, state.pin).live <= set(stored):
            return "a pinned object was deleted"
        return None
