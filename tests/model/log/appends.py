"""The steps of an appender: batches, trims, moves; and how any tenure sends its commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.model.explorer import Label, sent
from tests.model.log.state import Batch, Node, State

if TYPE_CHECKING:
    from tests.model.log.model import LogModel

Steps = Iterator[tuple[Label, State]]


def steps(model: LogModel, state: State, tenure: int) -> Steps:
    node, setup = state.nodes[tenure], model.setup
    fold = model.log.fold(state.log)
    if node.objects < setup.objects and len(node.pending) < setup.in_flight and any(node.owned):
        yield _batch(state, tenure)
    if state.budget.trim and not node.pending:
        for stream, own in enumerate(node.owned):
            if own and own[1] > 0:
                trim = Batch(900 + tenure, (), True, ((stream, own[0], own[1]),), None)
                yield (
                    ("trim", tenure),
                    state.with_node(tenure, pending=(trim,)).spend("trim"),
                )
                break
    if node.claim is None and state.budget.move:
        yield from _moves(model, state, tenure)
    if node.claim is not None and model.mutant != "open uses the end seen before the move":
        is_news = any(
            holder == tenure and (own is None or own[0] != epoch)
            for (epoch, holder, _, _), own in zip(fold.streams, node.owned, strict=True)
        )
        if is_news:
            yield ("learns its move", tenure), adopt(model, state, tenure)


def _batch(state: State, tenure: int) -> tuple[Label, State]:
    node, rows = state.nodes[tenure], []
    for stream, own in enumerate(node.owned):
        if own:
            waiting = sum(
                len(values)
                for batch in node.pending
                for s, epoch, _, values in batch.ranges
                if s == stream and epoch == own[0]
            )
            value = 100 * tenure + 10 * node.objects + stream
            rows.append((stream, own[0], own[1] + waiting, (value,)))
    obj, ranges = 10 * tenure + node.objects, tuple(rows)
    batch = Batch(obj, ranges, False, (), None)
    state = state.with_node(tenure, objects=node.objects + 1, pending=(*node.pending, batch))
    return ("batch", tenure, obj), state._replace(net=sent(state.net, ("PUT", tenure, obj, ranges)))


def _moves(model: LogModel, state: State, tenure: int) -> Steps:
    streams = model.log.fold(state.log).streams
    for holder in range(len(state.nodes)):
        held = tuple(s for s, row in enumerate(streams) if row[1] == holder)
        if holder == tenure or not held:
            continue
        for wanted in {held, held[:1]}:
            ends = None
            if model.mutant == "open uses the end seen before the move":
                ends = tuple(row[3] for row in streams)
            epochs = tuple(streams[s][0] + 1 for s in wanted)
            gen = state.fences[holder][1]
            message = ("MOVE", tenure, holder, gen, wanted, ends, epochs)
            yield (
                ("moves", tenure, wanted, "from", holder),
                state.with_node(tenure, claim=holder)
                ._replace(net=sent(state.net, message))
                .spend("move"),
            )


def sending(model: LogModel, state: State, tenure: int) -> Steps:
    """The commit of the oldest batch, again after a time-out; and the crash of the tenure."""
    node = state.nodes[tenure]
    if node.pending and not node.is_sent:
        is_early = model.mutant == "commit before the PUT is durable"
        if node.pending[0].is_stored or is_early:
            message = _message(model, tenure, node)
            yield (
                ("sends commit", tenure),
                state.with_node(tenure, is_sent=True)._replace(net=sent(state.net, message)),
            )
    if node.is_sent and state.budget.resend:
        net = sent(state.net, _message(model, tenure, node))
        yield ("times out, sends again", tenure), state._replace(net=net).spend("resend")
    if state.budget.crash:
        yield (
            ("crashes", tenure),
            state.with_node(tenure, is_up=False, pending=(), is_sent=False).spend("crash"),
        )


def _message(model: LogModel, tenure: int, node: Node) -> tuple[Any, ...]:
    batch = node.pending[0]
    if model.setup.roles[tenure] == "k":
        return ("K", tenure, batch.extra, batch.compare)
    seq = node.seq + 1
    if batch.compare is None:
        record: tuple[Any, ...] = ("C", tenure, seq, batch.obj, batch.ranges, batch.extra)
    else:
        rows = tuple((s, start, start + len(values)) for s, _, start, values in batch.ranges)
        record = ("X", tenure, seq, batch.extra, batch.obj, rows)
    return ("COMMIT", tenure, seq, node.gen, record, batch.compare)


def adopt(model: LogModel, state: State, tenure: int, ends: Any = None) -> State:
    """After a move: fold at or after its revision, then open at the folded end."""
    node, owned = state.nodes[tenure], []
    for stream, (epoch, holder, _, end) in enumerate(model.log.fold(state.log).streams):
        own = node.owned[stream]
        if holder == tenure and (own is None or own[0] != epoch):
            own = (epoch, ends[stream] if ends and own is None else end)
        owned.append(own)
    return state.with_node(tenure, owned=tuple(owned), claim=None)
