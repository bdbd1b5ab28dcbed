"""Checkpoints: `steps` as counts of covered records, `file_steps` with their files in the store.

Attempts use new file names, so `k` never returns to an old value and every answer is final.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.model.explorer import Label, sent
from tests.model.log.state import LIVE, SEALED, Batch, State

if TYPE_CHECKING:
    from tests.model.log.model import LogModel

Steps = Iterator[tuple[Label, State]]
AT_ONCE = 2


def steps(model: LogModel, state: State) -> Steps:
    if state.budget.checkpoint and len(state.writing) < AT_ONCE:
        one = (model.log.fold(state.log).count, state.k)
        writing = tuple(sorted((*state.writing, one)))
        yield ("checkpoint written",), state._replace(writing=writing).spend("checkpoint")
    for one in set(state.writing):
        rest = list(state.writing)
        rest.remove(one)
        after = state._replace(writing=tuple(rest))
        covered, k_as_read = one
        if k_as_read == state.k or model.mutant == "checkpoint does not compare k":
            deleted = max(covered, state.deleted)
            yield ("checkpoint installed", covered), after._replace(k=covered, deleted=deleted)
        else:
            yield ("checkpoint refused",), after


def file_steps(model: LogModel, state: State, tenure: int) -> Steps:
    node = state.nodes[tenure]
    if state.budget.checkpoint and not node.pending:
        obj = 10 * tenure + node.objects
        for files in {(obj,), (*state.files[:1], obj)}:  # a base, or a delta on the base of `k`
            batch = Batch(obj, (), False, files, state.files)
            yield (
                ("PUT for checkpoint", tenure, files),
                state.with_node(tenure, objects=node.objects + 1, pending=(batch,))
                ._replace(net=sent(state.net, ("PUT", tenure, obj, ())))
                .spend("checkpoint"),
            )
    own = tuple(
        sorted(obj for obj, _ in state.store if obj // 10 == tenure and obj not in state.files)
    )
    is_free = (
        not node.pending or model.mutant == "a live tenure deletes its files during an attempt"
    )
    if state.budget.sweep and own and own != node.claim and is_free:
        yield ("reads k", tenure), state.with_node(tenure, claim=own)
    for obj in node.claim or ():
        yield ("deletes its file", tenure, obj), _deleted(model, state, obj)


def named(model: LogModel, state: State, message: tuple[Any, ...]) -> Steps:
    """The transaction that replaces `k`."""
    _, tenure, files, k_as_read = message
    node, is_live = state.nodes[tenure], state.fences[tenure][0] == LIVE
    is_fenced = not is_live and model.mutant != "checkpoint does not compare f/T"
    is_applied = state.files == k_as_read and not is_fenced
    after = state._replace(files=files) if is_applied else state
    is_awaited = bool(node.pending) and node.pending[0].extra == files
    label = ("checkpoint", files, tenure, "applied" if is_applied else "refused")
    if is_awaited:
        is_up = node.is_up and is_live
        yield label, after.with_node(tenure, is_up=is_up, pending=(), is_sent=False)
    else:
        yield label, after
    if is_applied and is_awaited and state.budget.lost:
        yield (*label, "answer lost"), after.spend("lost")


def sweep(model: LogModel, state: State) -> Steps:
    """Files of sealed tenures: fences first, then `k`. An unborn tenure's fence is absent."""
    if not state.budget.sweep:
        return
    mutant, (seen, k_seen) = model.mutant, state.file_view
    sealed = frozenset(
        tenure
        for tenure, (fence, _, _) in enumerate(state.fences)
        if fence == SEALED
        or (
            mutant == "files are listed after the fence was seen absent"
            and tenure in model.setup.unborn
            and state.budget.restart
        )
    )
    is_reversed = mutant == "file sweep reads k before it sees the seal"
    if sealed != seen:
        view = (sealed, k_seen if is_reversed else None)
        yield ("sweep sees seals",), state._replace(file_view=view)
    if (seen or is_reversed) and k_seen != state.files:
        yield ("sweep reads k",), state._replace(file_view=(seen, state.files))
    for obj, _ in state.store:
        is_unnamed = k_seen is not None and obj not in k_seen
        if obj // 10 in seen and (is_unnamed or mutant == "file sweep does not read k"):
            yield ("sweep deletes file", obj), _deleted(model, state, obj)


def _deleted(model: LogModel, state: State, obj: int) -> State:
    """One deletion per run is enough: it enables no step. So all views are dropped after it."""
    return state._replace(
        store=state.store - {(obj, ())},
        budget=state.budget._replace(sweep=0),
        file_view=model.initial.file_view,
        nodes=tuple(node._replace(claim=None) for node in state.nodes),
    )
