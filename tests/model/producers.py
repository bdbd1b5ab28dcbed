"""Producer state: one idempotent producer, one partition, two nodes that pass it on.

1. An append is sequenced if its number follows the last one. Remembered numbers are duplicates,
   which are answered with their offset once that is confirmed. All others are refused.
2. State is provisional from sequencing to commit. A node that learns that it lost the partition
   drops all of it. A client's time-out takes nothing back.
3. State is stored in the log alone: a snapshot in the meta stream, of all that was sequenced when
   it was taken, written once that is confirmed; and the data after it, replayed at opening.
4. The client has at most two unanswered batches and sends them to any node, also twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model.explorer import Label, delivered, put, sent, spend, with_node

IN_FLIGHT = 2
Batch = tuple[int, int]
"""sequence number, offset"""


class Node(NamedTuple):
    """`epoch` None: it does not think that it owns the partition. `known`: the remembered batches,
    oldest first; `pending`: those of them that are not committed; `taken`: a snapshot on its way.
    """

    gen: int = 0
    seq: int = 0
    epoch: int | None = None
    known: tuple[Batch, ...] = ()
    last: int = -1
    next: int = 0
    pending: tuple[Batch, ...] = ()
    is_sent: bool = False
    taken: tuple[int, tuple[Batch, ...]] | None = None
    is_up: bool = True


class Budget(NamedTuple):
    retry: int = 1
    move: int = 2
    snapshot: int = 0
    lost: int = 0
    resend: int = 0
    seal: int = 0
    time_out: int = 0


class State(NamedTuple):
    """`stream`: (epoch, holder); `log`: sequence numbers by offset; `snapshot`: (offset, batches)
    in the meta stream; `acked`: what the client was told; `begun`: batches sent at least once.
    """

    fences: tuple[tuple[bool, int], ...]
    heads: tuple[int, ...]
    stream: tuple[int, int]
    log: tuple[int, ...]
    snapshot: tuple[int, tuple[Batch, ...]]
    nodes: tuple[Node, ...]
    net: tuple[Any, ...]
    acked: frozenset[Batch]
    begun: int
    bad: str | None
    budget: Budget

    with_node = with_node
    spend = spend


@dataclass(frozen=True, slots=True)
class Setup:
    batches: int
    budget: Budget


Steps = Iterator[tuple[Label, State]]


class ProducersModel:
    def __init__(self, setup: Setup, mutant: str | None = None) -> None:
        self.mutant, self.setup = mutant, setup
        self.fault: str | None = None
        self.remembered = (
            1 if mutant == "fewer batches are remembered than are in flight" else IN_FLIGHT
        )
        self.initial = State(
            ((True, 0), (True, 0)),
            (0, 0),
            (1, 0),
            (),
            (0, ()),
            (Node(epoch=1), Node()),
            (),
            frozenset(),
            0,
            None,
            setup.budget,
        )

    def successors(self, state: State) -> Steps:
        yield from self._client(state)
        for tenure, node in enumerate(state.nodes):
            if node.is_up:
                yield from self._owner(state, tenure)
                yield from self._moves(state, tenure)
            if state.budget.seal and state.fences[tenure][0]:
                fence = (False, state.fences[tenure][1])
                after = state._replace(fences=put(state.fences, tenure, fence))
                yield ("seal", tenure), after.spend("seal")
        for message, rest in delivered(state.net):
            base = state._replace(net=rest)
            if message[0] == "APPEND":
                yield ("arrives", *message[1:]), self._arrives(base, *message[1:])
            elif message[0] == "COMMIT":
                yield from self._commit(base, message)
            else:
                yield self._snapshot_lands(base, message)

    def _client(self, state: State) -> Steps:
        answered = {seq for seq, _ in state.acked}
        lowest = next((s for s in range(state.begun) if s not in answered), state.begun)
        if state.begun < min(self.setup.batches, lowest + IN_FLIGHT):
            for tenure in range(len(state.nodes)):
                net = sent(state.net, ("APPEND", tenure, state.begun))
                yield (
                    ("client sends", state.begun, "to", tenure),
                    state._replace(net=net, begun=state.begun + 1),
                )
        if state.budget.retry:
            for seq in range(lowest, state.begun):
                if seq in answered:
                    continue
                for tenure in range(len(state.nodes)):
                    net = sent(state.net, ("APPEND", tenure, seq))
                    yield (
                        ("client retries", seq, "to", tenure),
                        state._replace(net=net).spend("retry"),
                    )

    def _arrives(self, state: State, tenure: int, seq: int) -> State:
        node, mutant = state.nodes[tenure], self.mutant
        if not node.is_up or node.epoch is None:
            return state  # not the leader
        known = dict(node.known)
        if seq in known and mutant != "duplicates are not recognised":
            is_confirmed = (seq, known[seq]) not in node.pending
            if is_confirmed or mutant == "a duplicate is answered before it is confirmed":
                return state._replace(acked=state.acked | {(seq, known[seq])})
            return state  # answered with the first one
        if seq != node.last + 1 and not (
            mutant == "duplicates are not recognised" and seq <= node.last
        ):
            is_stored = seq in state.log and seq not in {s for s, _ in state.acked}
            if is_stored and seq <= node.last:
                return state._replace(bad="a stored batch was refused as out of order")
            return state
        batch = (seq, node.next)
        return state.with_node(
            tenure,
            known=(*node.known, batch)[-self.remembered :],
            last=max(seq, node.last),
            next=node.next + 1,
            pending=(*node.pending, batch),
        )

    def _owner(self, state: State, tenure: int) -> Steps:
        node = state.nodes[tenure]
        if node.pending:
            message = ("COMMIT", tenure, node.seq + 1, node.gen, node.epoch, node.pending[0])
            if not node.is_sent:
                after = state.with_node(tenure, is_sent=True)
                yield ("sends commit", tenure), after._replace(net=sent(state.net, message))
            elif state.budget.resend:
                net = sent(state.net, message)
                yield ("sends again", tenure), state._replace(net=net).spend("resend")
            if state.budget.time_out and self.mutant == "a time-out undoes the append":
                seq, _ = node.pending[-1]
                known = tuple(batch for batch in node.known if batch[0] != seq)
                after = state.with_node(tenure, known=known, last=seq - 1)
                yield ("client's time-out", tenure, seq), after.spend("time_out")
        yield from self._snapshots(state, tenure)

    def _snapshots(self, state: State, tenure: int) -> Steps:
        """Taken at the end of what is sequenced, written once the data up to there is confirmed."""
        node, mutant = state.nodes[tenure], self.mutant
        if node.epoch is None:
            return
        if state.budget.snapshot and node.taken is None:
            taken = (node.next, node.known)
            if mutant == "a snapshot leaves provisional batches out" and node.pending:
                confirmed = tuple(batch for batch in node.known if batch not in node.pending)
                taken = (node.pending[0][1], confirmed)
            after = state.with_node(tenure, taken=taken).spend("snapshot")
            yield ("takes snapshot", tenure, *taken), after
        if node.taken is not None:
            is_confirmed = not node.pending or node.pending[0][1] >= node.taken[0]
            if is_confirmed or mutant == "a snapshot holds provisional state":
                message = ("SNAPSHOT", tenure, node.gen, node.epoch, node.taken)
                after = state.with_node(tenure, taken=None)
                yield ("writes snapshot", tenure), after._replace(net=sent(state.net, message))

    def _snapshot_lands(self, state: State, message: Any) -> tuple[Label, State]:
        _, tenure, gen, epoch, snapshot = message
        is_applied = state.fences[tenure] == (True, gen) and state.stream == (epoch, tenure)
        is_newer = snapshot[0] >= state.snapshot[0]
        after = state._replace(snapshot=snapshot) if is_applied and is_newer else state
        return ("snapshot", tenure, is_applied), after

    def _commit(self, state: State, message: Any) -> Steps:
        _, tenure, seq, gen, epoch, batch = message
        is_applied = state.fences[tenure] == (True, gen) and state.heads[tenure] == seq - 1
        after = state
        if is_applied:
            after = state._replace(log=(*state.log, batch[0]), heads=put(state.heads, tenure, seq))
            if state.stream != (epoch, tenure) or batch[1] != len(state.log):
                after = after._replace(bad="a commit does not fit the fold")
        label = ("commit", tenure, batch, "applied" if is_applied else "refused")
        yield label, self._answer(after, message, is_applied)
        if is_applied and state.budget.lost:
            yield (*label, "answer lost"), after.spend("lost")

    def _answer(self, state: State, message: Any, is_applied: bool) -> State:
        _, tenure, seq, gen, _, batch = message
        node = state.nodes[tenure]
        if not node.is_sent or (node.seq + 1, node.gen) != (seq, gen):
            return state
        if is_applied or state.heads[tenure] >= seq:
            after = state._replace(acked=state.acked | {batch})
            return after.with_node(tenure, seq=seq, pending=node.pending[1:], is_sent=False)
        is_live, gen_now = state.fences[tenure]
        if not is_live:
            return state.with_node(
                tenure, is_up=False, epoch=None, known=(), pending=(), is_sent=False, taken=None
            )
        if state.stream == (node.epoch, tenure):
            return state.with_node(tenure, gen=gen_now, is_sent=False)
        lost = state.with_node(
            tenure, gen=gen_now, epoch=None, pending=(), is_sent=False, taken=None
        )
        if state.stream[1] == tenure:
            return self._opened(lost, tenure)  # it came back under another epoch
        return lost

    def _moves(self, state: State, tenure: int) -> Steps:
        epoch, holder = state.stream
        if holder == tenure or not state.budget.move or not state.fences[tenure][0]:
            return
        is_live, gen = state.fences[holder]
        after = state._replace(
            fences=put(state.fences, holder, (is_live, gen + 1)), stream=(epoch + 1, tenure)
        ).spend("move")
        if not state.nodes[tenure].pending:
            after = self._opened(after, tenure)
        yield ("moves", "to", tenure), after

    def _opened(self, state: State, tenure: int) -> State:
        """From the fold as it is after the move: snapshot, then the data behind it."""
        node = state.nodes[tenure]
        start, batches = state.snapshot
        if self.mutant != "no replay after the snapshot":
            batches += tuple((seq, at) for at, seq in enumerate(state.log) if at >= start)
        if self.mutant == "producer state is kept after fencing" and node.known:
            batches = node.known
        return state.with_node(
            tenure,
            epoch=state.stream[0],
            gen=state.fences[tenure][1],
            known=batches[-self.remembered :],
            last=batches[-1][0] if batches else -1,
            next=len(state.log),
            pending=(),
            is_sent=False,
            taken=None,
        )

    def check(self, state: State) -> str | None:
        if state.bad:
            return state.bad
        log = state.log
        if len(set(log)) != len(log):
            return "a batch is stored twice"
        if list(log) != sorted(log):
            return "batches are out of order"
        if any(offset >= len(log) or log[offset] != seq for seq, offset in state.acked):
            return "an acknowledged batch is not in the log"
        return None
