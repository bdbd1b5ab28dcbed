"""Seals by any node at any moment, and nodes that start again under a new tenure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.model.explorer import Label, put
from tests.model.log.state import LIVE, SEALED, State

if TYPE_CHECKING:
    from tests.model.log.model import LogModel


def steps(model: LogModel, state: State) -> Iterator[tuple[Label, State]]:
    count = model.log.fold(state.log).count
    if state.budget.seal:
        for tenure, (fence, _, _) in enumerate(state.fences):
            if fence == LIVE:
                yield ("seal", tenure), _sealed(state, tenure, count).spend("seal")
    if state.budget.restart:
        for new, old in model.setup.restarts:
            node = state.nodes[new]
            if node.is_up or node.objects:
                continue
            after = state
            is_open = state.fences[old][0] == LIVE
            if is_open and model.mutant != "restart does not seal the old tenure":
                after = _sealed(state, old, count)
            yield (
                ("registers", new, "after", old),
                after.with_node(new, is_up=True).spend("restart"),
            )


def _sealed(state: State, tenure: int, count: int) -> State:
    _, gen, _ = state.fences[tenure]
    return state._replace(fences=put(state.fences, tenure, (SEALED, gen, count)))
