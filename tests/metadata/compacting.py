"""Random appends, trims, destructions, transfers, compactions, checkpoints and restarts of two
nodes, compared with a plain list of ranges; one seed gives one history.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from streamlog.errors import Conflict, StoreUnavailable
from streamlog.format.rows import Rows
from streamlog.metadata.compaction_interface import (
    CompactionPoint,
    CompactionTenure,
    Replacement,
)
from streamlog.metadata.interface import (
    CommitEntry,
    NewObject,
    ObjectRow,
    RangeRow,
    StreamEpoch,
    TrimEntry,
)
from streamlog.metadata.session import MetadataSession
from streamlog.objectstore.interface import ObjectStore
from streamlog.runtime.buffers import Buffer
from tests.metadata.world import World, create, new_object, ranges_of
from tests.support.metadata_insides import follower_of
from tests.support.object_ids import give_up_ids, take_ids

Ranges = list[tuple[int, int, int]]


@dataclass
class Planned:
    replacement: Replacement
    after: int
    """Number of compactions that the model had seen when this one was planned."""


@dataclass
class Truth:
    """`ranges[s]`: start, end, object id of ranges that were committed and not replaced."""

    ranges: dict[int, Ranges] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)
    ever: set[int] = field(default_factory=set)
    rows: dict[int, list[RangeRow]] = field(default_factory=dict)
    """Each object's own rows."""
    compactions: list[frozenset[int]] = field(default_factory=list)

    def live(self, stream_id: int) -> Ranges:
        start = self.starts[stream_id]
        return [(max(a, start), b, o) for a, b, o in self.ranges[stream_id] if b > start]

    def counts(self) -> Counter[int]:
        return Counter(o for s in self.ranges for _, _, o in self.live(s))

    def replace(self, replacement: Replacement) -> None:
        self.compactions.append(frozenset(replacement.inputs))
        for new in replacement.outputs:
            self.ever.add(new.row.object_id)
            for run in runs(new.ranges):
                if run.stream_id not in self.ranges:
                    continue
                old = self.ranges[run.stream_id]
                kept = [one for one in old if not run.start < one[1] <= run.end]
                start = max(run.start, self.starts[run.stream_id])
                if start < run.end:
                    kept.append((start, run.end, new.row.object_id))
                self.ranges[run.stream_id] = sorted(kept)


def runs(rows: list[RangeRow] | Any) -> list[RangeRow]:
    joined: list[RangeRow] = []
    for row in rows:
        if joined and joined[-1].stream_id == row.stream_id and joined[-1].end == row.start:
            joined[-1] = joined[-1]._replace(end=row.end)
        else:
            joined.append(row)
    return joined


def _place(row: RangeRow) -> tuple[int, int]:
    return row.stream_id, row.start


class GatedStore:
    """A store whose PUTs wait while `gate` exists, and then fail if `fails`."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.gate: asyncio.Event | None = None
        self.waits = asyncio.Event()
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def put(self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False) -> Any:
        if self.gate is not None:
            self.waits.set()
            await self.gate.wait()
            if self.fails:
                raise StoreUnavailable("the store is away", operation="put")
        return await self._store.put(key, parts, if_absent=if_absent)


class History:
    def __init__(self, seed: int, *, streams: int = 6) -> None:
        self.rng = random.Random(seed)
        self.world = World()
        self.store = GatedStore(self.world.store)
        self.world.store = self.store
        self.settings: dict[str, Any] = {
            "delta_bytes_min": self.rng.choice([0, 300, 2000, 50_000]),
            "delta_percent": self.rng.choice([1, 25, 100]),
        }
        self.streams_max = streams
        self.nodes: list[MetadataSession] = []
        self.compactors: list[CompactionTenure] = []
        self.truth = Truth()
        self.planned: list[Planned | None] = [None, None]
        self.conflicts = 0

    async def run(self, steps: int) -> None:
        self.nodes = [await self.world.open(n + 1, **self.settings) for n in range(2)]
        self.compactors = [await n.open_compaction_tenure(ids_max=40) for n in self.nodes]
        choices = (
            [self.append] * 10
            + [self.plan] * 8
            + [self.compact] * 8
            + [self.trim] * 3
            + [self.checkpoint] * 3
            + [self.slow_checkpoint] * 2
            + [self.destroy, self.move, self.restart, self.reopen_compactor]
        )
        for _ in range(steps):
            await self.rng.choice(choices)()
            if self.rng.random() < 0.3:
                await self.check_one()
        await self.check_all()

    async def stop(self) -> None:
        for node in self.nodes:
            await node.close(drained=True)

    # actions

    def node(self) -> MetadataSession:
        return self.rng.choice(self.nodes)

    async def caught_up(self) -> MetadataSession:
        node = self.node()
        await node.catch_up()
        return node

    def a_stream(self) -> int | None:
        return self.rng.choice(sorted(self.truth.ranges)) if self.truth.ranges else None

    async def holder(self, stream_id: int) -> tuple[MetadataSession, int]:
        for node in self.nodes:
            await (
                node.catch_up()
            )  # otherwise it may not have seen yet that the other node took the stream
            row = node.stream(stream_id)
            if row is not None and row.holder == node.tenure:
                return node, row.epoch
        raise AssertionError(f"nobody holds stream {stream_id}")

    async def append(self) -> None:
        truth, rng = self.truth, self.rng
        if (len(truth.ranges) < self.streams_max and rng.random() < 0.2) or not truth.ranges:
            (stream_id,) = await create(self.node())
            truth.ranges[stream_id], truth.starts[stream_id] = [], 0
            return
        chosen = self.a_stream()
        assert chosen is not None
        node, _ = await self.holder(chosen)
        rows = []
        for stream_id in sorted(truth.ranges):
            row = node.stream(stream_id)
            if row is None or row.holder != node.tenure or rng.random() < 0.5:
                continue
            rows.append((stream_id, row.epoch, row.end, row.end + rng.randint(1, 9)))
        if not rows:
            return
        new = await new_object(node, rows)
        await node.commit(CommitEntry(objects=[new]))
        truth.ever.add(new.row.object_id)
        truth.rows[new.row.object_id] = list(new.ranges)
        for stream_id, _, at, end in rows:
            truth.ranges[stream_id].append((at, end, new.row.object_id))

    async def trim(self) -> None:
        stream_id = self.a_stream()
        if stream_id is None:
            return
        node, epoch = await self.holder(stream_id)
        row = node.stream(stream_id)
        assert row is not None
        start = self.rng.randint(row.start, min(row.end, row.start + 25))
        await node.commit(CommitEntry(trims=[TrimEntry(stream_id, epoch, start)]))
        self.truth.starts[stream_id] = start

    async def destroy(self) -> None:
        stream_id = self.a_stream()
        if stream_id is None or self.rng.random() < 0.5:
            return
        node, epoch = await self.holder(stream_id)
        await node.commit(CommitEntry(destroys=[StreamEpoch(stream_id, epoch)]))
        del self.truth.ranges[stream_id], self.truth.starts[stream_id]

    async def move(self) -> None:
        stream_id = self.a_stream()
        if stream_id is not None:
            node = await self.caught_up()
            await node.take_streams([(stream_id, None)])

    async def checkpoint(self) -> None:
        await self.node().checkpoint()

    async def slow_checkpoint(self) -> None:
        """Checkpoints while the fold goes on; storing the files sometimes fails."""
        node, gate = self.node(), asyncio.Event()
        self.store.gate, self.store.fails = gate, self.rng.random() < 0.5
        self.store.waits.clear()
        writing = asyncio.create_task(node.checkpoint())
        begun = asyncio.create_task(self.store.waits.wait())
        await asyncio.wait((writing, begun), return_when=asyncio.FIRST_COMPLETED)
        begun.cancel()
        for _ in range(self.rng.randint(1, 8)):
            await self.rng.choice([self.append, self.plan, self.compact, self.trim])()
            await self.check_one()
        gate.set()
        with suppress(StoreUnavailable):
            await writing
        self.store.gate = None
        await self.check_node(node)

    async def restart(self) -> None:
        index = self.rng.randrange(2)
        if self.rng.random() < 0.5:
            await self.nodes[index].kill()
        else:
            await self.nodes[index].close(drained=True)
        self.nodes[index] = await self.world.open(index + 1, **self.settings)
        await self.nodes[index].take_over_previous(frozenset())
        await self.reopen_compactor(index)

    async def reopen_compactor(self, index: int | None = None) -> None:
        index = self.rng.randrange(2) if index is None else index
        self.compactors[index] = await self.nodes[index].open_compaction_tenure(ids_max=40)
        self.planned[index] = None

    # compactions

    async def plan(self) -> None:
        """Plans outputs for random live objects: whole ranges or runs of them, some left out."""
        rng, index = self.rng, self.rng.randrange(2)
        node, compactor = self.nodes[index], self.compactors[index]
        if self.planned[index] is not None:
            return
        point = await node.compaction_point()
        live_ids = await self.live_of(node)
        if not live_ids:
            return
        inputs = set(rng.sample(sorted(live_ids), min(len(live_ids), rng.choice([1, 2, 3, 8]))))
        await node.catch_up()  # plan and model look at the same moment
        outputs = rng.choice([1, 1, 2, 3])
        rows: list[list[RangeRow]] = [[] for _ in range(outputs)]
        for stream_id in sorted(self.truth.ranges):
            for run in self.some_runs(stream_id, inputs):
                rng.choice(rows).extend(run)
        ids = await self.ids(index, outputs)
        if ids is None:
            return
        made = [
            NewObject(ObjectRow(object_id, 10, 5, 5, object_id & 0xFF), sorted(one, key=_place))
            for object_id, one in zip(ids, rows, strict=True)
        ]
        give_up_ids(compactor, [n.row.object_id for n in made if not n.ranges])
        made = [new for new in made if new.ranges]
        if made:
            point = CompactionPoint(point.counter, point.revision)
            self.planned[index] = Planned(
                Replacement(point, sorted(inputs), made), len(self.truth.compactions)
            )

    async def live_of(self, node: MetadataSession) -> set[int]:
        """All live objects, by pages; there may be too many, never too few."""
        await node.catch_up()
        listed: list[int] = []
        after, counts = 0, self.truth.counts()
        while True:
            page = await node.live_objects(after=after, limit=self.rng.choice([2, 30, 500]))
            if not page:
                break
            for one in page:
                assert one.row.object_id > after
                after = one.row.object_id
                listed.append(after)
                assert one.live_ranges >= counts[after]
        assert set(listed) >= set(counts)
        assert set(listed) <= self.truth.ever
        return set(listed)

    def some_runs(self, stream_id: int, inputs: set[int]) -> list[list[RangeRow]]:
        """Runs of adjacent ranges of inputs, as rows that may be split at epochs."""
        rng = self.rng
        groups: list[list[RangeRow]] = []
        for start, end, object_id in self.truth.live(stream_id):
            if object_id not in inputs or rng.random() < 0.15:
                continue
            at = rng.randint(start + 1, end) if rng.random() < 0.3 else end
            rows = [RangeRow(stream_id, 1, start, at)]
            if at < end:
                rows.append(RangeRow(stream_id, 2, at, end))
            if groups and groups[-1][-1].end == start and rng.random() < 0.8:
                groups[-1] += rows
            else:
                groups.append(rows)
        return groups

    async def ids(self, index: int, count: int) -> list[int] | None:
        node, compactor = self.nodes[index], self.compactors[index]
        try:
            async with asyncio.timeout(0.5):
                return await take_ids(compactor, count)
        except TimeoutError:
            for orphans in await node.orphan_candidates():
                assert not set(orphans.object_ids) & self.truth.ever
                await node.orphans_deleted(orphans)
            return None

    async def compact(self) -> None:
        index = self.rng.randrange(2)
        planned, self.planned[index] = self.planned[index], None
        if planned is None:
            return
        replacement = planned.replacement
        newer = self.truth.compactions[planned.after :]
        is_overtaken = any(not one.isdisjoint(replacement.inputs) for one in newer)
        if self.rng.random() < 0.5:
            await self.nodes[index].catch_up()
        try:
            await self.compactors[index].commit(replacement)
        except Conflict:
            assert is_overtaken
            self.conflicts += 1
            return
        assert not is_overtaken
        self.truth.replace(replacement)

    # checks

    async def check_one(self) -> None:
        stream_id = self.a_stream()
        if stream_id is None:
            return
        node = await self.caught_up()
        expected, row = self.truth.live(stream_id), node.stream(stream_id)
        assert row is not None
        low = self.rng.randint(0, row.end)
        high = self.rng.randint(low + 1, row.end + 5)
        limit = self.rng.choice([1, 2, 3, 64])
        live = await node.locate(stream_id, low, high, limit=limit)
        located = [(one.start, one.end, one.object.object_id) for one in live]
        overlapping = [one for one in expected if one[0] < high and one[1] > low]
        assert located == overlapping[:limit]
        objects = sorted({o for _, _, o in expected} & set(self.truth.rows))
        if objects:
            await self.check_parts(node, self.rng.choice(objects))

    async def check_parts(self, node: MetadataSession, object_id: int) -> None:
        expected = []
        for row in self.truth.rows[object_id]:
            if row.stream_id not in self.truth.ranges:
                continue
            for start, end, other in self.truth.live(row.stream_id):
                if other == object_id:
                    expected.append(RangeRow(row.stream_id, row.epoch, start, end))
        own = {i: Rows(rows) for i, rows in self.truth.rows.items() if self.rng.random() < 0.5}
        own[object_id] = Rows(self.truth.rows[object_id])
        parts = await node.live_parts(own)
        assert parts.keys() == own.keys()
        assert parts[object_id] == Rows(expected)

    async def check_all(self) -> None:
        truth = self.truth
        for node in self.nodes:
            await node.catch_up()
            await self.check_node(node)
            await create(node)  # a change, so that there is something to checkpoint
            await node.checkpoint()
            await self.check_node(node)
            counts = truth.counts()
            dead = {one.object_id for one in node.dead_objects(1 << 20)}
            assert dead == truth.ever - set(counts)
            assert node.object_count == len(counts)
            listed = await node.live_objects(limit=1 << 20)
            assert {one.row.object_id: one.live_ranges for one in listed} == counts
            _check_files(node, sum(counts.values()))
        late = await self.world.open(9, **self.settings)
        await self.check_node(late)
        await late.close(drained=True)

    async def check_node(self, node: MetadataSession) -> None:
        truth = self.truth
        await node.catch_up()
        for stream_id in truth.ranges:
            assert await ranges_of(node, stream_id) == truth.live(stream_id)
        counts = truth.counts()
        for object_id in counts:
            assert await node.object(object_id) is not None
        for one in node.dead_objects(1 << 20):
            assert one.object_id not in counts


def _check_files(node: MetadataSession, live: int) -> None:
    """The files hold the live ranges, and those that are known as dead in the base."""
    state = follower_of(node).state
    delta, base = state.levels.delta, state.levels.base
    held = sum(one.tail.range_count for one in (delta, base) if one is not None)
    assert held == live + state.base_dead_ranges
