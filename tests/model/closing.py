"""Opening and closing: two live nodes take streams from each other; one of them may be sealed.

1. Without force a stream is opened only when it is CLOSED, or its holder SEALED; with force (a
   balancer's) also from a live holder.
2. Open at the epoch that the same tenure holds returns it without a transaction; a reopen under a
   new epoch is a move that bumps the tenure's own gen, so that another opener is refused.
3. A move is planned by a fold that may be old; it compares the gen that the holder had then.
4. ALL moves closed streams too, and they stay closed. A list opens the streams that it names.
5. A close is an entry of a commit record, after everything appended under its epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model.explorer import Label, delivered, put, sent, spend, with_node

Stream = tuple[int, int, bool]
"""epoch, holder, is open"""


class Node(NamedTuple):
    """`view`: the fold and fences as read for the next open. `own`: epochs that it may append at.

    `closing`: a stream whose close record is under way.
    """

    gen: int = 0
    seq: int = 0
    own: tuple[int | None, ...] = ()
    view: Any = None
    closing: int | None = None


class Budget(NamedTuple):
    open: int = 2
    close: int = 2
    seal: int = 0
    all: int = 0
    force: int = 0


class State(NamedTuple):
    """`fences`: (is live, gen). `openers`: every (stream, epoch, tenure) that was ever handed out.

    `asked`: every (stream, epoch) whose close was asked for.
    """

    fences: tuple[tuple[bool, int], ...]
    heads: tuple[int, ...]
    streams: tuple[Stream, ...]
    nodes: tuple[Node, ...]
    net: tuple[Any, ...]
    openers: frozenset[tuple[int, int, int]]
    asked: frozenset[tuple[int, int]]
    bad: str | None
    budget: Budget

    with_node = with_node
    spend = spend


@dataclass(frozen=True, slots=True)
class Setup:
    holders: tuple[int, ...]
    tenures: int
    budget: Budget


Steps = Iterator[tuple[Label, State]]


class ClosingModel:
    def __init__(self, setup: Setup, mutant: str | None = None) -> None:
        self.mutant = mutant
        self.fault: str | None = None
        nodes = tuple(
            Node(own=tuple(1 if holder == tenure else None for holder in setup.holders))
            for tenure in range(setup.tenures)
        )
        openers = frozenset((s, 1, holder) for s, holder in enumerate(setup.holders))
        self.initial = State(
            ((True, 0),) * setup.tenures,
            (0,) * setup.tenures,
            tuple((1, holder, True) for holder in setup.holders),
            nodes,
            (),
            openers,
            frozenset(),
            None,
            setup.budget,
        )

    def successors(self, state: State) -> Steps:
        for tenure in range(len(state.nodes)):
            yield from self._closes(state, tenure)
            yield from self._opens(state, tenure)
            if state.budget.seal and state.fences[tenure][0]:
                fence = (False, state.fences[tenure][1])
                after = state._replace(fences=put(state.fences, tenure, fence))
                yield ("seal", tenure), after.spend("seal")
        for message, rest in delivered(state.net):
            base = state._replace(net=rest)
            if message[0] == "C":
                yield self._close_lands(base, message)
            else:
                yield self._move_lands(base, message)

    def _closes(self, state: State, tenure: int) -> Steps:
        node = state.nodes[tenure]
        if node.closing is not None or not state.budget.close:
            return
        for stream, epoch in enumerate(node.own):
            if epoch is not None:
                message = ("C", tenure, node.seq + 1, node.gen, stream, epoch)
                own = put(node.own, stream, None)
                after = state.with_node(tenure, own=own, closing=stream).spend("close")
                after = after._replace(asked=state.asked | {(stream, epoch)})
                yield ("closes", tenure, stream), after._replace(net=sent(state.net, message))

    def _opens(self, state: State, tenure: int) -> Steps:
        node = state.nodes[tenure]
        view = (state.streams, state.fences)
        if state.budget.open and node.view != view:
            yield ("looks", tenure), state.with_node(tenure, view=view)
        if node.view is None:
            return
        streams, fences = node.view
        for stream, (epoch, holder, is_open) in enumerate(streams):
            if not state.budget.open or (holder == tenure and is_open):
                continue
            after = state.with_node(tenure, view=None).spend("open")
            kind = "open"
            if is_open and fences[holder][0] and self.mutant != "open does not check for CLOSED":
                if not state.budget.force:
                    continue
                kind, after = "force", after.spend("force")
            message = ("M", tenure, holder, fences[holder][1], (stream,), (epoch + 1,), kind)
            after = after._replace(net=sent(state.net, message))
            yield ("opens", tenure, stream, "of", holder, kind), after
        if state.budget.all:
            for holder, (is_live, gen) in enumerate(fences):
                if holder != tenure and not is_live:
                    held = tuple(s for s, row in enumerate(streams) if row[1] == holder)
                    message = ("M", tenure, holder, gen, held, (), "all")
                    after = state.with_node(tenure, view=None).spend("all")
                    after = after._replace(net=sent(state.net, message))
                    yield ("takes ALL", tenure, "of", holder), after

    def _close_lands(self, state: State, message: Any) -> tuple[Label, State]:
        _, tenure, seq, gen, stream, epoch = message
        node, fence = state.nodes[tenure], state.fences[tenure]
        if fence == (True, gen) and state.heads[tenure] == seq - 1:
            after = state._replace(
                heads=put(state.heads, tenure, seq),
                streams=put(state.streams, stream, (epoch, tenure, False)),
            )
            if state.streams[stream][:2] != (epoch, tenure):
                after = after._replace(bad="a stream was closed by a tenure that does not hold it")
            if (stream, epoch) not in state.asked:
                after = after._replace(bad="a stream was closed under another epoch than asked for")
            return ("close applied", tenure, stream), after.with_node(tenure, seq=seq, closing=None)
        if not fence[0]:
            return ("close refused", tenure), state.with_node(tenure, closing=None)
        # The gen has changed: fold, strip by epoch, send the rest again.
        now = state.streams[stream]
        is_mine = now[1] == tenure and (
            now[0] == epoch or self.mutant == "a repeated close does not compare the epoch"
        )
        after = self._folded(state, tenure)
        if not is_mine:
            return ("close stripped", tenure), after.with_node(tenure, closing=None)
        again = ("C", tenure, node.seq + 1, fence[1], stream, now[0])
        return ("close again", tenure), after._replace(net=sent(state.net, again))

    def _folded(self, state: State, tenure: int) -> State:
        """Reads the gen and folds every move up to it: lost streams are given up."""
        own = state.nodes[tenure].own
        if self.mutant != "gen is used before the moves up to it are folded":
            own = tuple(
                epoch if epoch is not None and state.streams[s][:2] == (epoch, tenure) else None
                for s, epoch in enumerate(own)
            )
        return state.with_node(tenure, gen=state.fences[tenure][1], own=own)

    def _move_lands(self, state: State, message: Any) -> tuple[Label, State]:
        _, tenure, holder, gen, streams, epochs, kind = message
        is_all = kind == "all"
        fence, own = state.fences[holder], state.fences[tenure]
        mutant = self.mutant
        is_stale = fence[1] != gen and mutant != "open does not compare the holder's gen"
        if is_stale or not own[0]:
            return ("move refused", tenure), state
        bump = 0 if holder == tenure and mutant == "a reopen does not raise the own gen" else 1
        after = state._replace(fences=put(state.fences, holder, (fence[0], fence[1] + bump)))
        if is_all:
            streams = tuple(s for s, row in enumerate(state.streams) if row[1] == holder)
            epochs = tuple(state.streams[s][0] + 1 for s in streams)
        for stream, new in zip(streams, epochs, strict=True):
            epoch, held_by, is_open = after.streams[stream]
            if held_by != holder:
                continue
            if new <= epoch:
                after = after._replace(bad="an epoch was opened twice")
            if is_open and state.fences[holder][0] and kind == "open":
                after = after._replace(bad="an open stream was taken from a live holder")
            opens = not is_all or is_open or mutant == "ALL opens closed streams"
            if is_all and opens and not is_open:
                after = after._replace(bad="a closed stream was opened without a request")
            after = after._replace(streams=put(after.streams, stream, (new, tenure, opens)))
            if opens:
                after = self._handed_out(after, tenure, stream, new)
        if holder == tenure:
            after = self._folded(after, tenure)
        return ("move applied", tenure, streams, "of", holder), after

    def _handed_out(self, state: State, tenure: int, stream: int, epoch: int) -> State:
        if any(s == stream and e == epoch and t != tenure for s, e, t in state.openers):
            return state._replace(bad="two tenures opened one epoch")
        own = put(state.nodes[tenure].own, stream, epoch)
        openers = state.openers | {(stream, epoch, tenure)}
        return state.with_node(tenure, own=own)._replace(openers=openers)

    def check(self, state: State) -> str | None:
        return state.bad
