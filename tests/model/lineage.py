"""Lineages: metadata is rebuilt from the bucket while a node still runs on the old metadata.

1. A rebuild lists the bucket, takes the newest checkpoint file and the objects that this does not
   know, checks that nothing new came, and raises the lineage if it has not changed since.
2. It waits until the old node has checked the lineage (the grace), and lists again. A new file, or
   a missing one that it needs, ends it. Then it stores its checkpoint file and becomes usable.
3. The old node compares the lineage before each request that deletes. A dead object is deleted only
   after a checkpoint file was stored that has it dead; checkpoint files are listed, then compared.
4. A request that deletes arrives arbitrarily late, but that of an orphan within the grace: the one
   place where the protocol trusts time.
5. A rebuild may crash at any step, and is tried again; two run at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model.explorer import Label, delivered, put, sent

INPUT, ORPHAN, OUTPUT, NEW = 1, 2, 3, 4
"""Objects: a compaction makes OUTPUT of INPUT; NEW is appended while the rebuilds run."""
CONTENTS = {
    INPUT: frozenset("a"),
    ORPHAN: frozenset("o"),
    OUTPUT: frozenset("a"),
    NEW: frozenset("n"),
}


class File(NamedTuple):
    """A checkpoint file. `rank`: its revision; a rebuild's is above all earlier ones."""

    rank: int
    live: frozenset[int]
    dead: frozenset[int]


class Old(NamedTuple):
    """The node on the old metadata. `has_compared`: since its last request that deletes.

    `listed`: checkpoint files that a sweep has found and `k` does not name.
    """

    live: frozenset[int]
    dead: frozenset[int] = frozenset()
    named: File | None = None
    listed: frozenset[File] | None = None
    has_compared: bool = False
    is_stopped: bool = False
    acknowledged: frozenset[str] = frozenset("a")


class Rebuild(NamedTuple):
    """`step`: its next step. `began_with`: the lineage that it saw."""

    step: str = "list"
    tries: int = 1
    objects: frozenset[int] = frozenset()
    files: frozenset[File] = frozenset()
    needs: frozenset[int] = frozenset()
    began_with: tuple[int, int] = (0, 0)
    mine: tuple[int, int] = (0, 0)


class State(NamedTuple):
    """`lineage`: what cluster.json says, number and id. `usable`: rebuilt metadata, named last."""

    objects: frozenset[int]
    files: frozenset[File]
    lineage: tuple[int, int]
    old: Old
    rebuilds: tuple[Rebuild, ...]
    net: tuple[Any, ...]
    usable: frozenset[tuple[tuple[int, int], frozenset[int], File]]


@dataclass(frozen=True, slots=True)
class Setup:
    """`tries` of each rebuild; `stores`: the old node's steps with OUTPUT and NEW."""

    tries: tuple[int, ...]
    stores: tuple[int, ...]


Steps = Iterator[tuple[Label, State]]

ORDER = ("list", "read", "check", "raise", "wait", "check again", "store", "name", "done")
BY_MUTANT = {
    "the lineage is raised only with the name": (
        "list",
        "read",
        "check",
        "check again",
        "store",
        "name",
        "done",
    ),
    "the rebuild does not wait": tuple(step for step in ORDER if step != "wait"),
    "the bucket is not listed again": tuple(step for step in ORDER if step != "check again"),
    "the checkpoint is stored before the wait": (
        *("list", "read", "check", "raise", "store", "wait", "check again", "name", "done"),
    ),
}


class LineageModel:
    def __init__(self, setup: Setup, mutant: str | None = None) -> None:
        self.mutant = mutant
        self.fault: str | None = None
        self._stores = setup.stores
        self._order = BY_MUTANT.get(mutant or "", ORDER)
        first = File(1, frozenset({INPUT}), frozenset())
        self.initial = State(
            frozenset({INPUT, ORPHAN}),
            frozenset({first}),
            (0, 0),
            Old(frozenset({INPUT}), named=first),
            tuple(Rebuild(tries=tries) for tries in setup.tries),
            (),
            frozenset(),
        )

    def successors(self, state: State) -> Steps:
        if not state.old.is_stopped:
            yield from self._writes(state)
            yield from self._deletes(state)
        for index, rebuild in enumerate(state.rebuilds):
            if rebuild.step != "done":
                yield from self._rebuilds(state, index, rebuild)
        for key, rest in delivered(state.net):
            after = state._replace(net=rest)
            if isinstance(key, File):
                yield ("file deleted", key.rank), after._replace(files=state.files - {key})
            else:
                yield ("object deleted", key), after._replace(objects=state.objects - {key})

    def _writes(self, state: State) -> Steps:
        old = state.old
        for key in self._stores:
            if key not in old.live | old.dead:
                if key not in state.objects:
                    yield ("old stores", key), state._replace(objects=state.objects | {key})
                elif key == OUTPUT:
                    live, dead = old.live - {INPUT} | {OUTPUT}, old.dead | {INPUT}
                    yield (
                        ("old commits the compaction",),
                        state._replace(old=old._replace(live=live, dead=dead)),
                    )
                else:
                    changed = old._replace(
                        live=old.live | {NEW}, acknowledged=old.acknowledged | CONTENTS[NEW]
                    )
                    yield ("old acknowledges",), state._replace(old=changed)
        named = old.named
        assert named is not None
        if (named.live, named.dead) != (old.live, old.dead):
            file = File(named.rank + 1, old.live, old.dead)
            after = state._replace(files=state.files | {file}, old=old._replace(named=file))
            yield ("old checkpoints",), after

    def _deletes(self, state: State) -> Steps:
        old = state.old
        assert old.named is not None
        if state.lineage != (0, 0) and self.mutant != "the old node does not compare the lineage":
            yield ("old looks and stops",), state._replace(old=old._replace(is_stopped=True))
        elif not old.has_compared and (old.listed or state.objects & (old.dead | {ORPHAN})):
            yield ("old compares",), state._replace(old=old._replace(has_compared=True))
        strays = state.files - {old.named} - set(state.net)
        if strays and old.listed is None:
            keeps = self.mutant == "a sweep compares before it lists"
            changed = old._replace(listed=strays, has_compared=keeps and old.has_compared)
            yield ("old lists files",), state._replace(old=changed)
        if not old.has_compared:
            return
        if old.listed:
            net = state.net
            for file in sorted(old.listed):
                net = sent(net, file)
            changed = old._replace(listed=None, has_compared=False)
            yield ("old sweeps files",), state._replace(old=changed, net=net)
        dead = (
            old.dead
            if self.mutant == "a dead object is deleted before its checkpoint"
            else old.named.dead
        )
        for key in (*sorted(dead), ORPHAN):
            if key in state.objects and key not in state.net:
                changed = old._replace(has_compared=False)
                yield ("old deletes", key), state._replace(old=changed, net=sent(state.net, key))

    def _rebuilds(self, state: State, index: int, rebuild: Rebuild) -> Steps:
        step = rebuild.step
        if step != "list":
            yield ("crashes", index), self._given_up(state, index)
        elif not rebuild.tries:
            return
        after = getattr(self, "_" + step.replace(" ", "_"))(state, index, rebuild)
        if after is not None:
            yield (step, index), after

    def _given_up(self, state: State, index: int) -> State:
        again = Rebuild(tries=state.rebuilds[index].tries - 1)
        return state._replace(rebuilds=put(state.rebuilds, index, again))

    def _next(self, state: State, index: int, **changes: Any) -> State:
        rebuild = state.rebuilds[index]
        step = self._order[self._order.index(rebuild.step) + 1]
        return state._replace(
            rebuilds=put(state.rebuilds, index, rebuild._replace(step=step, **changes))
        )

    def _list(self, state: State, index: int, _: Rebuild) -> State:
        return self._next(
            state, index, objects=state.objects, files=state.files, began_with=state.lineage
        )

    def _read(self, state: State, index: int, rebuild: Rebuild) -> State:
        newest = max(rebuild.files, default=None)
        if newest is None or newest not in state.files:
            return self._given_up(state, index)
        unknown = rebuild.objects - newest.live - newest.dead
        if newest.rank >= 1000:
            # Its epochs are above those of what the old node stored since.
            unknown = frozenset()
        needs = newest.live | unknown
        if not needs <= rebuild.objects or not unknown <= state.objects:
            return self._given_up(state, index)
        return self._next(state, index, needs=needs)

    def _check(self, state: State, index: int, rebuild: Rebuild) -> State:
        if state.objects - rebuild.objects or state.files - rebuild.files:
            return self._given_up(state, index)
        return self._next(state, index)

    def _check_again(self, state: State, index: int, rebuild: Rebuild) -> State:
        files = {file for file in state.files if file.rank < 1000}
        is_new = state.objects - rebuild.objects or files - rebuild.files
        if is_new or not rebuild.needs <= state.objects:
            return self._given_up(state, index)
        return self._next(state, index)

    def _raise(self, state: State, index: int, rebuild: Rebuild) -> State:
        if (
            self.mutant != "the lineage is raised without If-Match"
            and state.lineage != rebuild.began_with
        ):
            return self._given_up(state, index)
        mine = (rebuild.began_with[0] + 1, index)
        return self._next(state._replace(lineage=mine), index, mine=mine)

    def _wait(self, state: State, index: int, _: Rebuild) -> State | None:
        has_looked = (
            state.old.is_stopped or self.mutant == "the old node does not compare the lineage"
        )
        return self._next(state, index) if has_looked and ORPHAN not in state.net else None

    def _store(self, state: State, index: int, rebuild: Rebuild) -> State:
        return self._next(state._replace(files=state.files | {_file(rebuild, index)}), index)

    def _name(self, state: State, index: int, rebuild: Rebuild) -> State:
        mine = rebuild.mine
        if self.mutant == "the lineage is raised only with the name":
            mine = (rebuild.began_with[0] + 1, index)
            state = state._replace(lineage=mine)
        elif state.lineage != mine:
            return self._given_up(state, index)
        usable = (mine, rebuild.needs, _file(rebuild, index))
        return self._next(state._replace(usable=state.usable | {usable}), index)

    def check(self, state: State) -> str | None:
        numbers = [mine[0] for mine, _, _ in state.usable]
        if len(set(numbers)) < len(numbers):
            return "two rebuilds are usable under one number"
        for mine, needs, file in state.usable:
            if mine != state.lineage:
                continue
            if not needs <= state.objects:
                return "an object that the rebuilt metadata needs is gone"
            if file not in state.files:
                return "the rebuilt metadata's checkpoint file is gone"
            there = frozenset[str]().union(*(CONTENTS[key] for key in needs))
            if not state.old.acknowledged <= there:
                return "an acknowledged record is not in the rebuilt metadata"
        return None


def _file(rebuild: Rebuild, index: int) -> File:
    return File(1000 + 10 * rebuild.began_with[0] + index, rebuild.needs, frozenset())
