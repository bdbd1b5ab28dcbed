"""Breadth-first search over a model's states, and the shortest way to a violation.

Visited states are kept as 64-bit hashes with the hash that each was reached from: a trace is made
by walking forward again. So labels cost nothing until one is needed, and a state takes some 100
bytes once it was expanded.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

Label = tuple[Any, ...]


class Model(Protocol):
    """States are nested tuples; equal tuples are the same state."""

    @property
    def initial(self) -> Hashable: ...

    fault: str | None
    """Set by `successors` while it yields a step that itself breaks an invariant."""

    def successors(self, state: Any) -> Iterator[tuple[Label, Any]]: ...

    def check(self, state: Any) -> str | None:
        """The invariant that the state breaks."""
        ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """`is_exhausted`: every reachable state was visited, or a violation ended the search."""

    violation: str | None
    states: int
    edges: int
    depth: int
    seconds: float
    trace: tuple[Label, ...]
    is_exhausted: bool


def explore(model: Model, *, states_max: int = 12_000_000) -> Outcome:
    began = time.perf_counter()
    parents: dict[int, int | None] = {hash(model.initial): None}
    level: list[Any] = [model.initial]
    depth = edges = expanded = 0
    check, successors = model.check, model.successors
    while level:
        following: list[Any] = []
        add = following.append
        for state in level:
            expanded += 1
            parent = hash(state)
            model.fault = None
            for _, reached in successors(state):
                edges += 1
                key = hash(reached)
                if key in parents and model.fault is None:
                    continue
                fault = model.fault
                parents.setdefault(key, parent)
                violation = fault or check(reached)
                if violation is not None:
                    seconds = time.perf_counter() - began
                    trace = _trace(model, parents, parent, key)
                    return Outcome(violation, expanded, edges, depth + 1, seconds, trace, True)
                add(reached)
            if expanded >= states_max:
                seconds = time.perf_counter() - began
                return Outcome(None, expanded, edges, depth, seconds, (), False)
        level = following
        depth += 1
    return Outcome(None, expanded, edges, max(depth - 1, 0), time.perf_counter() - began, (), True)


def _trace(model: Model, parents: dict[int, int | None], last: int, end: int) -> tuple[Label, ...]:
    """The labels from the first state to `end`, which was reached from `last`."""
    way: list[int] = [end]
    at: int | None = last
    while at is not None:
        way.append(at)
        at = parents[at]
    way.reverse()
    state, labels = model.initial, []
    for key in way[1:]:
        for label, reached in model.successors(state):
            if hash(reached) == key:
                labels.append(label)
                state = reached
                break
    return tuple(labels)


def put(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


def with_node(state: Any, tenure: int, **changes: Any) -> Any:
    """A state's method: the state with one node changed."""
    changed = state.nodes[tenure]._replace(**changes)
    return state._replace(nodes=put(state.nodes, tenure, changed))


def spend(state: Any, what: str) -> Any:
    """A state's method: the state with one less of that in its budget."""
    left = getattr(state.budget, what)
    return state._replace(budget=state.budget._replace(**{what: left - 1}))


def sent(net: tuple[Any, ...], message: Any) -> tuple[Any, ...]:
    """A bag: one order for the same messages, so that equal states are equal."""
    return tuple(sorted((*net, message), key=hash))


def delivered(net: tuple[Any, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Each message that differs, and the net without one copy of it."""
    for index, message in enumerate(net):
        if not index or net[index - 1] != message:
            yield message, (*net[:index], *net[index + 1 :])
