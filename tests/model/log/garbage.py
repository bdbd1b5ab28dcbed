"""The collector: dead objects if no pin is older, orphans of tenures whose seal it has folded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tests.model.explorer import Label
from tests.model.log.state import SEALED, State

if TYPE_CHECKING:
    from tests.model.log.model import LogModel

Steps = Iterator[tuple[Label, State]]


def steps(model: LogModel, state: State) -> Steps:
    now, mutant = model.log.fold(state.log).count, model.mutant
    view = model.log.fold_at(state.log, state.gc_view)
    if state.gc_view != now:
        yield ("gc folds",), state._replace(gc_view=now)
    if state.gc_pin != (now, state.pin):
        yield ("gc reads pins",), state._replace(gc_pin=(now, state.pin))
    dead = dict(view.dead)
    for stored in state.store:
        obj = stored[0]
        death = dead.get(obj)
        if death is not None:
            read_at, pin = state.gc_pin
            is_after = read_at >= death or mutant == "pins are read before the object is dead"
            if is_after and (pin is None or pin >= death):
                yield ("gc deletes dead", obj), state._replace(store=state.store - {stored})
        elif obj not in view.committed:
            fence, _, sealed_at = state.fences[obj // 10]
            is_folded = (
                state.gc_view >= sealed_at or mutant == "orphans are looked for before the seal"
            )
            if (
                fence == SEALED and is_folded
            ) or mutant == "orphans are deleted by age, without a seal":
                yield ("gc deletes orphan", obj), state._replace(store=state.store - {stored})


def pins(model: LogModel, state: State) -> Steps:
    if state.pin is not None:
        yield ("reader unpins",), state._replace(pin=None)
    elif state.budget.pin:
        now = model.log.fold(state.log).count
        yield ("reader pins",), state._replace(pin=now).spend("pin")
