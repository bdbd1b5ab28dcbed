"""Tenures of three nodes race over a few streams, in virtual time, under faults; one seed, one run.

An actor behaves like an engine: it trusts its own offsets, has several commits in flight, loses
streams and notices late, crashes and comes back. At the end the faults stop, and everything is
compared with the oracle.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from prometheus_client import CollectorRegistry

from streamlog.errors import (
    Closed,
    Conflict,
    MetadataUnavailable,
    OutcomeUnknown,
    StreamFenced,
    StreamlogError,
    StreamNotFound,
    TenureFenced,
)
from streamlog.kvstore.interface import Compare, Operation
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.metadata.compaction_interface import CompactionTenure, Replacement
from streamlog.metadata.config import MetadataConfig
from streamlog.metadata.interface import (
    CommitEntry,
    CreateEntry,
    NewObject,
    ObjectRow,
    RangeRow,
    StreamEpoch,
    TokenEntry,
    TrimEntry,
)
from streamlog.metadata.keys.space import prefix_of
from streamlog.metadata.open import open_metadata
from streamlog.metadata.session import MetadataSession
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.simulation.world.loop import SimulationLoop
from tests.metadata.faulty_kv import FaultyKV, Shared
from tests.metadata.oracle import Oracle, Violation
from tests.metadata.world import InlineOffload, new_object, ranges_of
from tests.support.object_ids import give_up_id, take_id, take_ids

CONFIG = MetadataConfig(
    retry_backoff_ms=5,
    retry_backoff_max_ms=50,
    checkpoint_interval_ms=300,
    checkpoint_records=8,
    delta_bytes_min=400,
    put_window=8,
)
DURATION_S = 0.8
PIPELINE = 3
EXPECTED = (Conflict, MetadataUnavailable, StreamFenced, StreamNotFound)

Mutation = Callable[[Sequence[Compare], Sequence[Operation]], Sequence[Compare]]


class LoopClock:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return 1_700_000_000_000 + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()


@dataclass
class Race:
    rng: random.Random
    shared: Shared
    clock: LoopClock
    store: MemoryObjectStore
    stream_ids: list[int] = field(default_factory=list)
    acked: list[tuple[int, list[RangeRow], frozenset[int]]] = field(default_factory=list)
    fenced: list[int] = field(default_factory=list)
    orphans: set[int] = field(default_factory=set)
    actors: list[Actor] = field(default_factory=list)
    compacted: list[int] = field(default_factory=list)
    conflicted: list[int] = field(default_factory=list)
    commits: int = 0
    strips: int = 0

    async def open(self, node_id: int) -> MetadataSession:
        while True:
            try:
                metadata = await open_metadata(
                    FaultyKV(self.shared),
                    self.store,
                    cluster_id="race",
                    node_id=node_id,
                    wal_mode="object",
                    clock=self.clock,
                    random=SeededRandom(self.rng.randrange(1 << 30)),
                    offload=InlineOffload(),
                    registry=CollectorRegistry(auto_describe=False),
                    config=replace(CONFIG, operation_timeout_ms=2000),
                )
                break
            except MetadataUnavailable:
                continue
        return metadata


class Actor:
    """One node: one tenure at a time, and the state that its engine believes."""

    def __init__(self, race: Race, node_id: int) -> None:
        self.race = race
        self.node_id = node_id
        self.metadata: MetadataSession | None = None
        self.next: dict[int, tuple[int, int]] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.compactor: CompactionTenure | None = None

    async def start(self) -> None:
        self.next = {}
        self.metadata = metadata = await self.race.open(self.node_id)
        metadata.on_stream_lost(self._lost)
        while True:
            try:
                await metadata.take_over_previous(frozenset())
                break
            except MetadataUnavailable:
                continue
        for row in metadata.streams():
            if row.holder == metadata.tenure and row.state == 1:
                self.next[row.stream_id] = (row.epoch, row.end)

    async def stop(self) -> None:
        if self.metadata is not None:
            await self.metadata.kill()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def run(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        steps = (
            [self.append] * 12
            + [self.open] * 3
            + [self.take] * 3
            + [self.other] * 2
            + [self.compact] * 3
            + [self.seal, self.crash, self.release, self.checkpoint]
        )
        while loop.time() < until:
            try:
                if self.metadata is None:
                    await self.start()
                await self.race.rng.choice(steps)()
            except EXPECTED:
                await asyncio.sleep(0.01)
            except TenureFenced:
                await self.crash()
            await asyncio.sleep(self.race.rng.random() * 0.02)

    # the actions of an engine

    async def append(self) -> None:
        metadata, rng = self.metadata, self.race.rng
        assert metadata is not None
        if not self.next or rng.random() < 0.1:
            await self.create()
            return
        if len(self.tasks) >= PIPELINE:
            return
        try:
            async with asyncio.timeout(0.2):
                empty = await new_object(metadata, [])
        except TimeoutError:  # the window is full of orphans, which wait to be swept
            await self.sweep()
            return
        rows = []
        for stream_id in sorted(rng.sample(sorted(self.next), min(len(self.next), 2))):
            epoch, at = self.next[stream_id]
            end = at + rng.randint(1, 4)
            self.next[stream_id] = (epoch, end)
            rows.append(RangeRow(stream_id, epoch, at, end))
        if not rows:
            give_up_id(metadata, empty.row.object_id)
        else:
            new = replace(empty, ranges=rows)
            self.spawn(self.commit(CommitEntry(objects=[new]), new.row.object_id, rows))

    async def create(self) -> None:
        metadata = self.metadata
        assert metadata is not None
        (stream_id,) = await metadata.allocate_stream_ids(1)
        if len(self.race.stream_ids) < 5 and metadata is self.metadata:
            self.race.stream_ids.append(stream_id)
            await metadata.commit(CommitEntry(creates=[CreateEntry(stream_id, 1, {"a": "b"})]))
            if metadata is self.metadata:
                self.next[stream_id] = (1, 0)

    async def commit(self, entry: CommitEntry, object_id: int, rows: list[RangeRow]) -> None:
        assert self.metadata is not None
        try:
            done = await self.metadata.commit(entry)
        except TenureFenced:
            self.race.fenced.append(object_id)
            return
        except Closed:
            return
        self.race.commits += 1
        self.race.strips += bool(done.stripped)
        self.race.acked.append((object_id, rows, done.stripped))
        for row in rows:
            if row.stream_id in done.stripped:
                self._lost(row.stream_id, row.epoch + 1)

    async def open(self) -> None:
        await self._open(self.metadata.open_streams if self.metadata else None)

    async def take(self) -> None:
        await self._open(self.metadata.take_streams if self.metadata else None)

    async def _open(self, call: Callable[..., object] | None) -> None:
        if call is None or not self.race.stream_ids:
            return
        metadata, wanted = (
            self.metadata,
            self.race.rng.sample(
                self.race.stream_ids,
                min(len(self.race.stream_ids), self.race.rng.choice((1, 1, 2))),
            ),
        )
        for row in await call([(stream_id, None) for stream_id in wanted]):  # type: ignore[misc]
            if metadata is self.metadata:
                cursor = self.next.get(row.stream_id)
                if cursor is None or cursor[0] < row.epoch:
                    self.next[row.stream_id] = (row.epoch, row.end)

    async def other(self) -> None:
        """Trim, token, close or destroy."""
        if self.metadata is None or not self.next:
            return
        stream_id = self.race.rng.choice(sorted(self.next))
        epoch, _ = self.next[stream_id]
        row = self.metadata.stream(stream_id)
        draw = self.race.rng.random()
        if row is None or row.epoch != epoch:
            return
        if draw < 0.6:
            entry = CommitEntry(trims=[TrimEntry(stream_id, epoch, row.end)])
        elif draw < 0.75:
            entry = CommitEntry(tokens=[TokenEntry(stream_id, epoch, b"t%d" % row.end)])
        elif draw < 0.95:
            entry = CommitEntry(closes=[StreamEpoch(stream_id, epoch)])
            del self.next[stream_id]
        else:
            entry = CommitEntry(destroys=[StreamEpoch(stream_id, epoch)])
            del self.next[stream_id]
        await self.metadata.commit(entry)

    async def seal(self) -> None:
        others = [a for a in self.race.actors if a is not self and a.metadata is not None]
        if self.metadata is not None and others and self.race.rng.random() < 0.5:
            other = self.race.rng.choice(others).metadata
            assert other is not None
            await self.metadata.seal(other.tenure, even_if_alive=True)
            if self.race.rng.random() < 0.5:
                await self.metadata.take_over(other.tenure)

    async def crash(self) -> None:
        await self.stop()
        self.metadata = self.compactor = None

    async def compact(self) -> None:
        """Plans to replace a few objects by one or two outputs; commits that some time later."""
        metadata, rng = self.metadata, self.race.rng
        assert metadata is not None
        if self.compactor is None or rng.random() < 0.05:
            self.compactor = await metadata.open_compaction_tenure(ids_max=6)
        compactor = self.compactor
        if len(self.tasks) >= PIPELINE:
            return
        point = await metadata.compaction_point()
        live = [one.row.object_id for one in await metadata.live_objects()]
        inputs = sorted(rng.sample(live, min(len(live), rng.choice((1, 2, 4)))))
        rows: list[list[RangeRow]] = [[] for _ in range(rng.choice((1, 2)))]
        for row in metadata.streams():
            for start, end, one in await metadata.locate(row.stream_id, row.start, row.end):
                if one.object_id in inputs:
                    rng.choice(rows).append(RangeRow(row.stream_id, row.epoch, start, end))
        rows = [one for one in rows if one]
        if not rows:
            return
        try:
            async with asyncio.timeout(0.2):
                ids = await take_ids(compactor, len(rows))
        except TimeoutError:
            await self.sweep()
            return
        outputs = [
            NewObject(ObjectRow(object_id, 9, 5, 4, 1), one)
            for object_id, one in zip(ids, rows, strict=True)
        ]
        self.spawn(self.replace(compactor, Replacement(point, inputs, outputs)))

    async def replace(self, compactor: CompactionTenure, replacement: Replacement) -> None:
        ids = [new.row.object_id for new in replacement.outputs]
        await asyncio.sleep(self.race.rng.random() * 0.05)
        while True:
            try:
                await compactor.commit(replacement)
            except MetadataUnavailable:
                continue
            except Conflict:
                self.race.conflicted += ids
            except TenureFenced:
                if compactor is self.compactor:
                    self.compactor = None
            except Closed:
                pass
            else:
                self.race.compacted += ids
            return

    async def release(self) -> None:
        if self.metadata is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    give_up_id(self.metadata, await take_id(self.metadata))
            await self.sweep()

    async def sweep(self) -> None:
        if self.metadata is not None:
            for orphans in await self.metadata.orphan_candidates():
                self.race.orphans.update(orphans.object_ids)
                with suppress(MetadataUnavailable, OutcomeUnknown):
                    await self.metadata.orphans_deleted(orphans)

    async def checkpoint(self) -> None:
        if self.metadata is not None:
            await self.metadata.checkpoint()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _lost(self, stream_id: int, epoch: int) -> None:
        cursor = self.next.get(stream_id)
        if cursor is not None and cursor[0] < epoch:
            del self.next[stream_id]


def race(seed: int, mutate: Mutation | None = None) -> Race:
    """One run of two or three nodes. Errors: Violation, or what no tenure should ever raise."""
    loop = SimulationLoop()
    asyncio.set_event_loop(None)
    try:
        return loop.run_until_complete(_race(seed, mutate, 2 + seed % 2, loop))
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.set_exception_handler(lambda _loop, _context: None)
        with suppress(RuntimeError):
            loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def _race(
    seed: int, mutate: Mutation | None, nodes: int, loop: asyncio.AbstractEventLoop
) -> Race:
    rng, clock = random.Random(seed), LoopClock(loop)
    shared = Shared(MemoryKVStore(clock), rng, mutate=mutate)
    run = Race(rng, shared, clock, MemoryObjectStore(clock))
    run.actors = [Actor(run, node + 1) for node in range(nodes)]
    await asyncio.gather(*(actor.run(DURATION_S) for actor in run.actors))
    shared.faults = 0.0
    await asyncio.sleep(3)
    await check(run)
    for actor in run.actors:
        await actor.stop()
    await shared.kv.close()
    return run


async def check(run: Race) -> None:
    """Errors: Violation."""
    oracle = Oracle(prefix_of("race"))
    revisions = [revision for revision, _ in run.shared.history]
    if revisions != sorted(set(revisions)):
        raise Violation("the history is out of order")
    for revision, writes in run.shared.history:
        oracle.apply(revision, list(writes))
    _check_acks(run, oracle)
    observer = await run.open(99)
    await compare(observer, oracle)
    for actor in run.actors:
        if actor.metadata is not None and not actor.metadata.is_fenced:
            failure = actor.metadata._failure
            if failure is not None:
                raise failure
            await compare(actor.metadata, oracle)
    await observer.checkpoint()
    await compare(observer, oracle)
    dead = {one.object_id for one in observer.dead_objects(1 << 20)}
    live = oracle.live_objects()
    if dead != set(oracle.objects) - live:
        raise Violation(f"I7: dead {dead} are not what does not live")
    if run.orphans & set(oracle.objects):
        raise Violation(f"I6: committed objects {run.orphans & set(oracle.objects)} called orphans")
    if observer.object_count != len(live):
        raise Violation(f"{observer.object_count} objects counted, {len(live)} live")
    await observer.kill()


def _check_acks(run: Race, oracle: Oracle) -> None:
    every = {**oracle.streams, **oracle.destroyed}
    for object_id, rows, stripped in run.acked:
        for stream_id, epoch, start, end in rows:
            s = every.get(stream_id)
            there = s is not None and (start, end, object_id, epoch) in s.ranges
            if there == (stream_id in stripped):
                raise Violation(
                    f"I3: rows {start} to {end} of stream {stream_id} in object {object_id} under "
                    f"epoch {epoch} are {'' if there else 'not '}there, stripped: {stripped}"
                )
    for object_id in run.compacted:
        if object_id not in oracle.objects:
            raise Violation(f"I3: compaction output {object_id} is lost")
    for object_id in run.conflicted:
        if object_id in oracle.objects:
            raise Violation(f"I8: output {object_id} was committed and called a conflict")
    for object_id in run.fenced:
        if object_id in oracle.objects:
            raise Violation(f"object {object_id} was committed and called fenced")


async def compare(metadata: MetadataSession, oracle: Oracle) -> None:
    """Errors: Violation where the real fold is not the oracle's."""
    rows = {row.stream_id: row for row in metadata.streams(limit=1 << 20)}
    if set(rows) != set(oracle.streams):
        raise Violation(f"I9: streams {sorted(rows)} are not {sorted(oracle.streams)}")
    for stream_id, s in oracle.streams.items():
        row = rows[stream_id]
        real = (row.epoch, row.holder, row.state == 1, row.start, row.end, row.token)
        if real != (s.epoch, s.holder, s.is_open, s.start, s.end, s.token):
            raise Violation(f"I9: stream {stream_id} is {row}, not {s}")
        ranges = await ranges_of(metadata, stream_id)
        if ranges != oracle.live_ranges(stream_id):
            raise Violation(
                f"I9: stream {stream_id} has {ranges}, not {oracle.live_ranges(stream_id)}"
            )


__all__ = ["Race", "StreamlogError", "Violation", "race"]
