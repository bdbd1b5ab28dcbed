"""`wal=disk`: one stream, node A with its log on a disk, node B without one.

1. A acknowledges what its WAL has synced, and commits it afterwards; B acknowledges after the
   commit. A crash loses what was not synced, or finds it written all the same.
2. A's next tenure seals the one before, takes over ALL of it if the WAL in hand names it (or the
   operator accepts loss), and replays.
3. B takes the stream of a sealed tenure of A only if that is drained, or if an operator accepts
   loss. Records that were acknowledged and not committed are then lost for good.
4. A tenure whose WAL has entries of a stream that it did not get opens that stream only when their
   release is durable: otherwise the next replay would take them for its own.
5. Entries are replayed only for a stream that came from a tenure which the WAL names.

Tenures 0 to 2 are node A's, one after another; 3 is B's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model.explorer import Label, delivered, put, sent, spend, with_node

A_TENURES = (0, 1, 2)
B = 3

Entry = tuple[int, int, int]
"""epoch, offset, value"""


class Fence(NamedTuple):
    is_live: bool
    gen: int
    is_drained: bool


class Node(NamedTuple):
    """`own`: (epoch, next offset). `buffer`: not synced; `queue`: to be committed."""

    is_up: bool
    gen: int = 0
    seq: int = 0
    own: tuple[int, int] | None = None
    buffer: tuple[Entry, ...] = ()
    queue: tuple[Entry, ...] = ()
    is_sent: bool = False
    is_replayed: bool = False


class Disk(NamedTuple):
    """`names`: tenures whose whole log lies here. `released`: entries given up in memory alone."""

    entries: tuple[Entry, ...] = ()
    names: frozenset[int] = frozenset()
    released: frozenset[Entry] = frozenset()


class Budget(NamedTuple):
    append: int = 2
    crash: int = 0
    close: int = 0
    seal: int = 0
    start: int = 0
    move: int = 0
    resend: int = 0
    lost: int = 0
    accept_loss: int = 0
    swap: int = 0


class State(NamedTuple):
    """`stream`: (epoch, holder, is open); `values`: what is committed, by offset.

    `acked`: (offset, value). `given_up`: acknowledged records that an operator gave up for lost.
    """

    fences: tuple[Fence | None, ...]
    heads: tuple[int, ...]
    stream: tuple[int, int, bool]
    values: tuple[int, ...]
    nodes: tuple[Node, ...]
    disk: Disk
    shelf: Disk
    net: tuple[Any, ...]
    acked: frozenset[tuple[int, int]]
    given_up: frozenset[tuple[int, int]]
    made: int
    budget: Budget

    with_node = with_node
    spend = spend


@dataclass(frozen=True, slots=True)
class Setup:
    budget: Budget


Steps = Iterator[tuple[Label, State]]


class DiskWalModel:
    def __init__(self, setup: Setup, mutant: str | None = None) -> None:
        self.mutant = mutant
        self.fault: str | None = None
        nodes = (Node(True, own=(1, 0), is_replayed=True), Node(False), Node(False), Node(True))
        fences = (Fence(True, 0, False), None, None, Fence(True, 0, False))
        disk = Disk(names=frozenset({0}))
        nothing: frozenset[Any] = frozenset()
        self.initial = State(
            fences,
            (0, 0, 0, 0),
            (1, 0, True),
            (),
            nodes,
            disk,
            Disk(),
            (),
            nothing,
            nothing,
            1,
            setup.budget,
        )

    def successors(self, state: State) -> Steps:
        for tenure, node in enumerate(state.nodes):
            if not node.is_up:
                continue
            yield from self._appends(state, tenure)
            yield from self._sends(state, tenure)
            yield from self._moves(state, tenure)
            yield from self._ends(state, tenure)
            if tenure != B:
                yield from self._wal(state, tenure)
        yield from self._starts(state)
        if state.budget.seal:
            for tenure in A_TENURES:
                fence = state.fences[tenure]
                if fence and fence.is_live:
                    # Only the tenure itself knows that its WAL is empty.
                    is_drained = self.mutant == "a seal by another tenure says drained"
                    yield ("seal", tenure), _seal(state, tenure, is_drained).spend("seal")
        for message, rest in delivered(state.net):
            base = state._replace(net=rest)
            yield from (self._commit if message[0] == "C" else self._move)(base, message)

    # what a tenure does

    def _appends(self, state: State, tenure: int) -> Steps:
        node = state.nodes[tenure]
        if node.own and node.is_replayed and state.budget.append:
            epoch, offset = node.own
            entry = (epoch, offset, state.made)
            where = "queue" if tenure == B else "buffer"
            changes: dict[str, Any] = {where: (*getattr(node, where), entry)}
            after = state.with_node(tenure, own=(epoch, offset + 1), **changes)
            after = after._replace(made=state.made + 1).spend("append")
            if self.mutant == "ack before the sync" and tenure != B:
                after = _ack(after, entry)
            yield ("append", tenure, entry), after

    def _wal(self, state: State, tenure: int) -> Steps:
        node, disk = state.nodes[tenure], state.disk
        if node.buffer:
            after = state._replace(disk=disk._replace(entries=disk.entries + node.buffer))
            after = after.with_node(tenure, buffer=(), queue=node.queue + node.buffer)
            for entry in node.buffer:
                after = _ack_from_wal(after, tenure, entry)
            yield ("syncs", tenure), after
        if disk.released:
            left = tuple(entry for entry in disk.entries if entry not in disk.released)
            after = state._replace(disk=disk._replace(entries=left, released=frozenset()))
            yield ("release is durable", tenure), after
        if not node.is_replayed and state.stream[1] not in range(tenure):
            yield ("replays", tenure), self._replayed(state, tenure)

    def _replayed(self, state: State, tenure: int) -> State:
        """As engine/replay/recovery.py: committed entries are left out, the newest epoch wins."""
        node, disk = state.nodes[tenure], state.disk
        if node.own is None:
            released = disk.released | frozenset(disk.entries)
            return state.with_node(tenure, is_replayed=True)._replace(
                disk=disk._replace(released=released)
            )
        epoch, start = node.own
        taken: list[Entry] = []
        for entry in disk.entries:
            at = start + len(taken)
            if entry[1] < start:
                continue
            if entry[1] < at:
                if entry[0] <= taken[entry[1] - start][0]:
                    continue
                del taken[entry[1] - start :]
            elif entry[1] > at:
                self.fault = "the replay finds a gap"
                continue
            taken.append(entry)
        queue = tuple((epoch, offset, value) for _, offset, value in taken)
        after = state.with_node(
            tenure, is_replayed=True, own=(epoch, start + len(queue)), queue=queue
        )
        # A whole entry in the WAL counts as acknowledged from here on: readers see it.
        for entry in queue:
            after = _ack_from_wal(after, tenure, entry)
        return after

    def _sends(self, state: State, tenure: int) -> Steps:
        node = state.nodes[tenure]
        if not node.queue:
            return
        message = ("C", tenure, node.seq + 1, node.gen, node.queue[0])
        if not node.is_sent:
            after = state.with_node(tenure, is_sent=True)._replace(net=sent(state.net, message))
            if self.mutant == "WAL released before the commit's answer":
                after = _released(after, node.queue[0])
            yield ("sends commit", tenure), after
        elif state.budget.resend:
            net = sent(state.net, message)
            yield ("sends again", tenure), state._replace(net=net).spend("resend")

    def _moves(self, state: State, tenure: int) -> Steps:
        """Asks for the stream: from an earlier tenure by ALL, from the other node by a list."""
        epoch, holder, is_open = state.stream
        if holder == tenure or not state.budget.move or state.nodes[tenure].own:
            return
        fence = state.fences[holder]
        assert fence is not None
        is_own_node = tenure != B and holder != B
        if is_own_node and (holder > tenure or state.nodes[tenure].is_replayed):
            return
        if not is_own_node and not (state.nodes[tenure].is_replayed or tenure == B):
            return
        if is_open and fence.is_live:
            return  # from a live holder only closed streams
        holds_wal = holder != B and is_open and not fence.is_drained
        in_hand = is_own_node and holder in state.disk.names
        if self.mutant == "take-over ignores the drained flag":
            holds_wal = False
        if self.mutant == "take-over accepts a WAL that does not name the holder" and is_own_node:
            in_hand = True
        if not is_own_node and tenure != B and state.disk.entries:
            unreleased = [e for e in state.disk.entries if e not in state.disk.released]
            is_late = self.mutant == "opens before the release is durable" and not unreleased
            if not is_late and self.mutant != "opens with another epoch's entries in its WAL":
                return
        request = ("M", tenure, holder, fence.gen, epoch + 1)
        after = state.spend("move")
        if not holds_wal or in_hand:
            yield (
                ("moves", tenure, "from", holder),
                after._replace(net=sent(state.net, (*request, False))),
            )
        elif state.budget.accept_loss:
            after = after._replace(net=sent(state.net, (*request, True))).spend("accept_loss")
            yield ("moves, accepting loss", tenure, "from", holder), after

    def _ends(self, state: State, tenure: int) -> Steps:
        node = state.nodes[tenure]
        down = Node(False)
        if state.budget.crash and tenure != B:
            after = state._replace(
                nodes=put(state.nodes, tenure, down),
                disk=state.disk._replace(released=frozenset()),
            ).spend("crash")
            yield ("crashes", tenure), after
            if node.buffer:
                entries = after.disk.entries + node.buffer
                disk = after.disk._replace(entries=entries)
                yield ("crashes, its last write is whole", tenure), after._replace(disk=disk)
        if not state.budget.close or node.buffer or not node.is_replayed:
            return
        if tenure == B:
            if node.own and not node.queue and state.stream[1] == B:
                # The holder's own commit record; none of its requests is in flight.
                after = state.with_node(B, own=None)._replace(stream=(state.stream[0], B, False))
                yield ("closes the stream", B), after.spend("close")
        else:
            is_empty = (
                not node.queue or self.mutant == "the seal says drained while entries are left"
            )
            after = state._replace(
                nodes=put(state.nodes, tenure, down),
                disk=state.disk._replace(released=frozenset()),
            )
            fence = state.fences[tenure]
            if fence and fence.is_live:
                after = _seal(after, tenure, is_empty)
            yield ("ends", tenure, "drained" if is_empty else "undrained"), after.spend("close")

    def _starts(self, state: State) -> Steps:
        """One process of A at a time: the folder is locked. Its disk may have been swapped."""
        if any(state.nodes[tenure].is_up for tenure in A_TENURES):
            return
        if state.budget.swap:
            yield (
                ("disks are swapped",),
                state._replace(disk=state.shelf, shelf=state.disk).spend("swap"),
            )
        unborn = [tenure for tenure in A_TENURES if state.fences[tenure] is None]
        if not unborn or not state.budget.start:
            return
        tenure = unborn[0]
        old = state.fences[tenure - 1]
        after = _seal(state, tenure - 1, False) if old and old.is_live else state
        names = after.disk.names | {tenure}
        after = after._replace(
            fences=put(after.fences, tenure, Fence(True, 0, False)),
            nodes=put(after.nodes, tenure, Node(True)),
            disk=after.disk._replace(names=names),
        )
        yield ("starts", tenure), after.spend("start")

    # transactions

    def _commit(self, state: State, message: Any) -> Steps:
        _, tenure, seq, gen, entry = message
        fence = state.fences[tenure]
        assert fence is not None
        is_applied = fence.is_live and fence.gen == gen and state.heads[tenure] == seq - 1
        label = ("commit", tenure, seq, "applied" if is_applied else "refused")
        after = state
        if is_applied:
            epoch, offset, value = entry
            if state.stream != (epoch, tenure, True) or offset != len(state.values):
                self.fault = "a commit does not fit the fold"
            after = state._replace(
                heads=put(state.heads, tenure, seq), values=(*state.values, value)
            )
        yield label, self._answer(after, message, is_applied)
        if is_applied and state.budget.lost:
            yield (*label, "answer lost"), after.spend("lost")

    def _answer(self, state: State, message: Any, is_applied: bool) -> State:
        _, tenure, seq, gen, entry = message
        node, fence = state.nodes[tenure], state.fences[tenure]
        assert fence is not None
        if not node.is_up or not node.is_sent or (node.seq + 1, node.gen) != (seq, gen):
            return state
        if is_applied or state.heads[tenure] >= seq:
            after = _ack(state, entry) if tenure == B else _released(state, entry)
            return after.with_node(tenure, seq=seq, queue=node.queue[1:], is_sent=False)
        if not fence.is_live:
            after = state._replace(nodes=put(state.nodes, tenure, Node(False)))
            return after._replace(disk=after.disk._replace(released=frozenset()))
        lost = state.stream[1] != tenure
        return state.with_node(
            tenure,
            gen=fence.gen,
            is_sent=False,
            own=None if lost else node.own,
            queue=() if lost else node.queue,
        )

    def _move(self, state: State, message: Any) -> Steps:
        _, tenure, holder, gen, epoch, is_accepting = message
        fence, own = state.fences[holder], state.fences[tenure]
        assert fence is not None
        assert own is not None
        if fence.gen != gen or not own.is_live or state.stream[1] != holder:
            yield ("move refused", tenure), state
            return
        after = state._replace(
            fences=put(state.fences, holder, fence._replace(gen=gen + 1)),
            stream=(epoch, tenure, True),
        )
        if is_accepting:
            end = len(state.values)
            given_up = frozenset(one for one in state.acked if one[0] >= end)
            after = after._replace(given_up=state.given_up | given_up)
        node = after.nodes[tenure]
        if node.is_up:
            is_ready = tenure == B or node.is_replayed
            skips = holder not in state.disk.names and tenure != B and not is_ready
            if skips and self.mutant != "replays for a tenure that the WAL does not name":
                # Its own data came after these entries, or was given up: nothing to replay.
                released = frozenset(state.disk.entries)
                after = after._replace(disk=state.disk._replace(released=released))
                is_ready = True
            after = after.with_node(
                tenure, own=(epoch, len(state.values)), is_replayed=is_ready, queue=()
            )
        yield ("move applied", tenure, holder), after

    # invariants

    def check(self, state: State) -> str | None:
        values = state.values
        if len(set(values)) != len(values):
            return "a record is stored twice"
        held = {(o, v) for _, o, v in (*state.disk.entries, *state.shelf.entries)}
        for record in state.acked - state.given_up:
            offset, value = record
            if offset < len(values):
                if values[offset] != value:
                    return "an acknowledged record was replaced"
            elif record not in held:
                return "an acknowledged record is in neither fold nor WAL"
        if any(o < len(values) and values[o] == v for o, v in state.given_up):
            return "a record whose loss was accepted came back"
        return None


def _seal(state: State, tenure: int, is_drained: bool) -> State:
    fence = state.fences[tenure]
    assert fence is not None
    sealed = Fence(False, fence.gen, is_drained)
    return state._replace(fences=put(state.fences, tenure, sealed))


def _ack(state: State, entry: Entry) -> State:
    return state._replace(acked=state.acked | {(entry[1], entry[2])})


def _ack_from_wal(state: State, tenure: int, entry: Entry) -> State:
    after = _ack(state, entry)
    if state.stream[1] != tenure:
        # The accepted loss covers this record too: the tenure has not seen its seal yet.
        after = after._replace(given_up=after.given_up | {(entry[1], entry[2])})
    return after


def _released(state: State, entry: Entry) -> State:
    """All entries of the record: a replayed one has another epoch in the WAL."""
    gone = frozenset(one for one in state.disk.entries if one[1:] == entry[1:])
    return state._replace(disk=state.disk._replace(released=state.disk.released | gone))
