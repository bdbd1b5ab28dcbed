"""Object ids: a tenure stores only ids in [floor, floor + W) of its own blocks.

1. A tenure takes blocks by comparing the counter; a window may pass from one block to the next.
2. An id is open from its PUT until it is committed, or given up and swept by its own tenure once
   every PUT of it was answered. The floor is the lowest open id; it counts once a record has it.
3. A PUT may land at any later time, and a second time.
4. A sweeper that saw the seal of T and then folded deletes, without a LIST, every id of T in
   [floor, floor + W) that is not committed. It does so again when T is gone and no PUT of it is in
   flight; that this holds a day after the seal is the one thing for which time is trusted.
   After that T's blocks are dropped, and an object that still exists there stays for ever.

Ids are positions in the tenure's own row of blocks of two; W is 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model.explorer import Label, delivered, put, sent, spend

BLOCK = 2
WINDOW = 2


class Tenure(NamedTuple):
    """`blocks`: numbers in the order taken; `counter`: as read for the next block, or None.

    `open`: ids taken and neither committed nor swept; `given_up`: those never to be committed.
    `stored`: open ids whose PUT was answered. `floor`: of the last record that was answered.
    """

    is_up: bool = True
    is_sealed: bool = False
    blocks: tuple[int, ...] = ()
    counter: int | None = None
    next: int = 0
    floor: int = 0
    open: frozenset[int] = frozenset()
    given_up: frozenset[int] = frozenset()
    stored: frozenset[int] = frozenset()
    is_sent: bool = False


class Budget(NamedTuple):
    objects: int = 4
    give_up: int = 0
    crash: int = 0
    seal: int = 0
    put_again: int = 0


class State(NamedTuple):
    """`committed`: (tenure, object), `floors`: per tenure, both as the fold has them.

    `store`: (object, the tenure whose bytes it holds). `seen`: tenures whose seal the sweeper saw,
    each with committed ids and floor as folded then, or None; `swept`: how often each was.
    """

    counter: int
    tenures: tuple[Tenure, ...]
    committed: frozenset[tuple[int, int]]
    floors: tuple[int, ...]
    store: frozenset[tuple[int, int]]
    net: tuple[Any, ...]
    seen: tuple[Any, ...]
    swept: tuple[int, ...]
    budget: Budget

    def with_tenure(self, number: int, **changes: Any) -> State:
        changed = self.tenures[number]._replace(**changes)
        return self._replace(tenures=put(self.tenures, number, changed))

    spend = spend


@dataclass(frozen=True, slots=True)
class Setup:
    tenures: int
    budget: Budget


Steps = Iterator[tuple[Label, State]]


class IdWindowModel:
    def __init__(self, setup: Setup, mutant: str | None = None) -> None:
        self.mutant = mutant
        self.fault: str | None = None
        count = setup.tenures
        tenures = tuple(Tenure() for _ in range(count))
        self.initial = State(
            0,
            tenures,
            frozenset(),
            (0,) * count,
            frozenset(),
            (),
            (None,) * count,
            (0,) * count,
            setup.budget,
        )

    def successors(self, state: State) -> Steps:
        for number, tenure in enumerate(state.tenures):
            if tenure.is_up:
                yield from self._takes_block(state, number)
                yield from self._stores(state, number)
                yield from self._commits(state, number)
                yield from self._sweeps_own(state, number)
                if state.budget.crash:
                    yield ("crashes", number), state.with_tenure(number, is_up=False).spend("crash")
            if state.budget.seal and not tenure.is_sealed:
                yield ("seal", number), state.with_tenure(number, is_sealed=True).spend("seal")
            yield from self._sweep(state, number)
        for message, rest in delivered(state.net):
            base = state._replace(net=rest)
            if message[0] == "PUT":
                yield self._lands(base, message)
            else:
                yield self._committed(base, message)

    def _takes_block(self, state: State, number: int) -> Steps:
        tenure = state.tenures[number]
        if tenure.next < BLOCK * len(tenure.blocks) or tenure.is_sealed:
            return
        if tenure.counter is None:
            yield ("reads counter", number), state.with_tenure(number, counter=state.counter)
            return
        if tenure.counter != state.counter and self.mutant != "a block is taken without a compare":
            yield ("block refused", number), state.with_tenure(number, counter=None)
            return
        block = tenure.counter + 1
        after = state.with_tenure(number, counter=None, blocks=(*tenure.blocks, block))
        yield ("takes block", number, block), after._replace(counter=block)

    def _stores(self, state: State, number: int) -> Steps:
        tenure, taken = state.tenures[number], state.tenures[number].next
        has_room = taken < tenure.floor + WINDOW or self.mutant == "ids are stored past the window"
        if state.budget.objects and has_room and taken < BLOCK * len(tenure.blocks):
            after = state.with_tenure(number, next=taken + 1, open=tenure.open | {taken})
            message = ("PUT", number, taken)
            after = after._replace(net=sent(state.net, message)).spend("objects")
            yield ("PUT", number, taken), after
        if state.budget.put_again:
            for position in tenure.open - tenure.stored - tenure.given_up:
                net = sent(state.net, ("PUT", number, position))
                yield ("PUT again", number, position), state._replace(net=net).spend("put_again")
        if state.budget.give_up:
            for position in tenure.open - tenure.given_up:
                if not tenure.is_sent:
                    given_up = tenure.given_up | {position}
                    after = state.with_tenure(number, given_up=given_up).spend("give_up")
                    yield ("gives up", number, position), after

    def _lands(self, state: State, message: Any) -> tuple[Label, State]:
        _, number, position = message
        tenure = state.tenures[number]
        stored = tenure.stored | {position} if position in tenure.open else tenure.stored
        after = state.with_tenure(number, stored=stored)
        obj = _object(tenure, position)
        others = frozenset(one for one in state.store if one[0] != obj)
        return ("PUT lands", number, position), after._replace(store=others | {(obj, number)})

    def _commits(self, state: State, number: int) -> Steps:
        """One record: the oldest stored object, or none where only the floor moves."""
        tenure = state.tenures[number]
        if tenure.is_sent:
            return
        ready = sorted((tenure.stored & tenure.open) - tenure.given_up)
        closing = set(ready[:1])
        floor = self._floor(tenure, closing)
        if not closing and floor <= tenure.floor:
            return
        message = ("COMMIT", number, ready[0] if ready else None, floor)
        after = state.with_tenure(number, is_sent=True)._replace(net=sent(state.net, message))
        if self.mutant == "the floor rises before its record is durable":
            after = after.with_tenure(number, floor=floor)
        yield ("commits", number, tuple(closing), "floor", floor), after

    def _floor(self, tenure: Tenure, closing: set[int]) -> int:
        still = tenure.open - closing
        if self.mutant == "the floor passes ids that were given up":
            still -= tenure.given_up
        return min(still, default=tenure.next)

    def _committed(self, state: State, message: Any) -> tuple[Label, State]:
        _, number, position, floor = message
        tenure = state.tenures[number]
        if tenure.is_sealed:
            after = state.with_tenure(number, is_up=False)
            return ("commit refused", number), after
        after = state._replace(floors=put(state.floors, number, max(floor, state.floors[number])))
        gone = frozenset() if position is None else frozenset({position})
        if position is not None:
            row = (number, _object(tenure, position))
            after = after._replace(committed=state.committed | {row})
        after = after.with_tenure(
            number,
            open=tenure.open - gone,
            stored=tenure.stored - gone,
            floor=max(floor, tenure.floor),
            is_sent=False,
        )
        return ("commit", number, position, "floor", floor), after

    def _sweeps_own(self, state: State, number: int) -> Steps:
        tenure = state.tenures[number]
        under_way = {m[2] for m in state.net if m[0] == "PUT" and m[1] == number}
        if self.mutant == "a tenure sweeps its own id during the PUT":
            under_way = set()
        for position in tenure.given_up - under_way:
            after = state.with_tenure(
                number,
                open=tenure.open - {position},
                given_up=tenure.given_up - {position},
                stored=tenure.stored - {position},
            )
            obj = _object(tenure, position)
            store = frozenset(one for one in state.store if one != (obj, number))
            yield ("sweeps its own", number, position), after._replace(store=store)

    def _sweep(self, state: State, number: int) -> Steps:
        tenure, mutant = state.tenures[number], self.mutant
        own = frozenset(obj for t, obj in state.committed if t == number)
        folded = (own, state.floors[number])
        is_early = mutant == "a sweep folds before the seal"
        is_news = state.seen[number] != folded and state.swept[number] < 2
        if is_news and (tenure.is_sealed or is_early):
            after = state._replace(seen=put(state.seen, number, folded))
            yield ("sweeper folds", number), after
        if not tenure.is_sealed or state.seen[number] is None or state.swept[number] >= 2:
            return
        is_late = not any(m[0] == "PUT" and m[1] == number for m in state.net)
        is_late = is_late and not tenure.is_up
        if state.swept[number] and not is_late:
            return
        committed, floor = state.seen[number]
        end = min(floor + WINDOW, BLOCK * len(tenure.blocks))
        if mutant == "a sweep covers only one block of the tenure":
            end = min(end, BLOCK * (floor // BLOCK + 1))
        gone = {_object(tenure, position) for position in range(floor, end)} - committed
        store = frozenset(one for one in state.store if one[0] not in gone)
        times = 2 if mutant == "a sealed tenure is swept once only" else state.swept[number] + 1
        after = state._replace(store=store, swept=put(state.swept, number, times))
        yield ("sweeps", number, times), after

    def check(self, state: State) -> str | None:
        stored = dict(state.store)
        if len(stored) != len(state.store):
            return "two objects under one id"
        for number, obj in state.committed:
            if obj not in stored:
                return "a live object is missing from the store"
            if stored[obj] != number:
                return "a live object has another tenure's bytes"
        committed = {obj for _, obj in state.committed}
        for obj, number in state.store:
            if obj in committed or state.swept[number] < 2 or state.tenures[number].is_up:
                continue
            if not any(m[0] == "PUT" and m[1] == number for m in state.net):
                return "an orphan stays for ever"
        return None


def _object(tenure: Tenure, position: int) -> int:
    index, offset = divmod(position, BLOCK)
    return BLOCK * tenure.blocks[index] + offset
