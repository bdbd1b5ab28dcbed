"""How the store and the KV store apply a request, and how the sender takes the answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.model.explorer import Label, delivered, put
from tests.model.log import checkpoints
from tests.model.log.appends import adopt
from tests.model.log.state import LIVE, State

if TYPE_CHECKING:
    from tests.model.log.model import LogModel

Steps = Iterator[tuple[Label, State]]
Message = tuple[Any, ...]


def steps(model: LogModel, state: State) -> Steps:
    for message, rest in delivered(state.net):
        base = state._replace(net=rest)
        if message[0] == "PUT":
            yield _stored(base, message)
        elif message[0] == "COMMIT":
            yield from _commit(model, base, message)
        elif message[0] == "K":
            yield from checkpoints.named(model, base, message)
        else:
            yield from _move(model, base, message)


def _stored(state: State, message: Message) -> tuple[Label, State]:
    _, tenure, obj, ranges = message
    pending = tuple(
        batch._replace(is_stored=True) if batch.obj == obj else batch
        for batch in state.nodes[tenure].pending
    )
    state = state._replace(store=state.store | {(obj, ranges)})
    return ("PUT lands", obj), state.with_node(tenure, pending=pending)


def _commit(model: LogModel, state: State, message: Message) -> Steps:
    after, is_applied = _commit_transaction(model, state, message)
    _, tenure, seq, gen, *_ = message
    label = ("commit", tenure, seq, gen, "applied" if is_applied else "refused")
    yield label, _answer(model, after, message, is_applied)
    if is_applied and state.budget.lost:
        yield (*label, "answer lost"), after.spend("lost")


def _commit_transaction(model: LogModel, state: State, message: Message) -> tuple[State, bool]:
    """Two compares, three for a compaction; two puts, or three."""
    _, tenure, seq, gen, record, x = message
    mutant, (fence, fence_gen, _) = model.mutant, state.fences[tenure]
    is_fence_right = (fence == LIVE or mutant == "commit compares only the fence's gen") and (
        fence_gen == gen or mutant == "commit compares only the fence's state"
    )
    if not is_fence_right and mutant != "commit does not compare the fence":
        return state, False
    if mutant == "commit compares absence of its record, not the head":
        records = model.log.records(state.log)[state.deleted :]
        if any(r[0] in "CX" and r[1] == tenure and r[2] == seq for r in records):
            return state, False
    elif state.heads[tenure] != seq - 1 and mutant != "commit does not compare the head":
        return state, False
    if x is not None and state.x != x and mutant != "compaction does not compare x":
        return state, False
    if fence != LIVE:
        model.fault = "a sealed tenure committed"
    state = state._replace(
        heads=put(state.heads, tenure, seq),
        log=model.log.add(state.log, record),
        x=state.x + (x is not None),
    )
    return state, True


def _answer(model: LogModel, state: State, message: Message, is_applied: bool) -> State:
    """A refusal carries fence and head as read in the same transaction."""
    _, tenure, seq, gen, record, x = message
    node = state.nodes[tenure]
    obj = record[3 if record[0] == "C" else 4]
    is_awaited = node.is_up and node.is_sent and node.seq + 1 == seq and node.gen == gen
    if not is_awaited or not node.pending or node.pending[0].obj != obj:
        return state
    if is_applied:
        return _applied(model, state, tenure)
    if state.heads[tenure] >= seq and model.mutant != "a refused commit counts as not applied":
        return _applied(model, state, tenure)
    fence, gen_now, _ = state.fences[tenure]
    if fence != LIVE:
        return state.with_node(tenure, is_up=False, pending=(), is_sent=False)
    if gen_now != node.gen:
        return _refresh(model, state, tenure)
    if x is not None:
        return state.with_node(tenure, pending=(), is_sent=False)  # x has changed: plan again
    return state.with_node(tenure, seq=state.heads[tenure], is_sent=False)


def _applied(model: LogModel, state: State, tenure: int) -> State:
    node, fold = state.nodes[tenure], model.log.fold(state.log)
    batch, owned = node.pending[0], list(node.owned)
    if batch.compare is None:
        for stream, epoch, start, values in batch.ranges:
            if fold.truth[stream][start : start + len(values)] != values:
                model.fault = "an acknowledged record is not in the log"
            own = owned[stream]
            if own and own[0] == epoch:
                owned[stream] = (epoch, start + len(values))
    return state.with_node(
        tenure, seq=node.seq + 1, pending=node.pending[1:], is_sent=False, owned=tuple(owned)
    )


def _refresh(model: LogModel, state: State, tenure: int) -> State:
    """The gen has changed: adopt the fold; drop ranges of every stream whose epoch changed."""
    node = state.nodes[tenure]
    owned: list[tuple[int, int] | None] = list(node.owned)
    for stream, (epoch, holder, _, end) in enumerate(model.log.fold(state.log).streams):
        own = owned[stream]
        if holder != tenure:
            owned[stream] = None
        elif own is None or own[0] != epoch:
            owned[stream] = (epoch, end)

    def kept(stream: int, epoch: int) -> bool:
        own = owned[stream]
        return own is not None and (
            own[0] == epoch or model.mutant == "rows are stripped by holder, not by epoch"
        )

    pending = []
    for batch in node.pending:
        if batch.compare is not None:
            continue
        ranges = tuple(
            (s, owned[s][0], start, values)  # type: ignore[index]
            for s, epoch, start, values in batch.ranges
            if kept(s, epoch)
        )
        trims = tuple(trim for trim in batch.extra if kept(trim[0], trim[1]))
        if ranges or trims:
            pending.append(batch._replace(ranges=ranges, extra=trims))
    gen = state.fences[tenure][1]
    return state.with_node(
        tenure, gen=gen, owned=tuple(owned), pending=tuple(pending), is_sent=False
    )


def _move(model: LogModel, state: State, message: Message) -> Steps:
    _, tenure, holder, gen, streams, ends, epochs = message
    fence, gen_now, sealed_at = state.fences[holder]
    is_stale = gen_now != gen and model.mutant != "move does not compare the holder's gen"
    if is_stale or state.fences[tenure][0] != LIVE:
        yield ("move refused", tenure), state.with_node(tenure, claim=None)
        return
    bump = 0 if model.mutant == "move does not raise the holder's gen" else 1
    record = ("M", holder, gen_now + 1, tenure, streams, epochs)
    after = state._replace(
        fences=put(state.fences, holder, (fence, gen_now + bump, sealed_at)),
        log=model.log.add(state.log, record),
    )
    is_up = after.nodes[tenure].is_up
    yield ("move applied", tenure, holder), adopt(model, after, tenure, ends) if is_up else after
    if state.budget.lost and ends is None:
        yield ("move applied, answer lost", tenure, holder), after.spend("lost")
