"""One seeded history: nodes that live, crash and come back over one world, under users' work.

1. A node lives for a random while; users append, append conditionally, fetch and trim.
2. It ends by a crash, by a clean close, or (`wal=object`) becomes a zombie: the next one starts
   while it still runs.
3. Outages of store and metadata, failed calls, lost answers and late effects strike meanwhile.
4. At the end all is calm: everything is read back and held against the model.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

from streamlog.errors import StreamlogError
from streamlog.model.batch import CreateStreamOptions
from streamlog.testing.simulation import users
from streamlog.testing.simulation.log_users import LogUsers
from streamlog.testing.simulation.loop import run
from streamlog.testing.simulation.model import StreamModel, Violation
from streamlog.testing.simulation.node import Node, World

WalMode = Literal["disk", "object"]
PATIENCE_S = 300
"""Virtual seconds within which everything dead is deleted."""


@dataclass
class Report:
    """What one history did; equal for equal seeds but for wall-clock time."""

    seed: int
    wal: WalMode
    operations: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    by_kind: dict[str, int] = field(default_factory=dict)
    virtual_s: float = 0.0
    trace: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """The size of a history."""

    lives: int = 4
    life_s_max: float = 4.0
    streams: int = 2
    partitions: int = 2


def run_history(seed: int, wal: WalMode, plan: Plan = Plan()) -> Report:
    """Runs the history of `seed`. Raises Violation (or what broke) with the trace in its notes."""
    report = Report(seed, wal)

    async def main() -> None:
        world = World(seed, wal, asyncio.get_running_loop())
        try:
            await _History(world, plan, report).run()
        finally:
            report.trace = world.trace.events
            report.faults = {
                kind: count
                for kind, count in world.trace.counts.items()
                if kind.startswith(("store-", "kv-", "disk-")) or kind in ("crash", "zombie")
            }
            report.virtual_s = world.loop.time()

    try:
        run(main)
    except BaseException as error:
        error.add_note(f"seed {seed}, wal={wal}")
        error.add_note("\n".join(report.trace[-60:]))
        raise
    return report


class _History:
    def __init__(self, world: World, plan: Plan, report: Report) -> None:
        self._world = world
        self._plan = plan
        self._report = report
        self._tally = users.Tally()
        self._random = world.fork()
        self._models: dict[int, StreamModel] = {}
        self._writers: dict[int, list[users.Writer]] = {}
        self._logs = LogUsers(world, self._tally, plan.partitions)

    async def run(self) -> None:
        zombies = []
        for life in range(self._plan.lives):
            self._world.draw_outages()
            node = self._world.start_node(f"n{life}")
            users_at_work = node.incarnation.start(self._live(node), name="life")
            ends_at = self._plan.life_s_max * self._random.random() + 0.2
            await asyncio.wait([users_at_work], timeout=ends_at)
            if users_at_work.done():
                users_at_work.result()
            end = self._random.random()
            if self._world.wal == "object" and end < 0.3 and node.is_up:
                self._world.trace.add(self._world.loop, "zombie", node.incarnation.name)
                zombies.append(node)
            elif end < 0.45:
                await node.close_or_crash(timeout_s=30)
            else:
                node.crash()
        for node in zombies:
            await asyncio.sleep(self._random.random())
            node.crash()
        self._world.raise_failures()
        await self._finish()
        self._report.operations = self._tally.operations
        self._report.by_kind = self._tally.by_kind

    async def _live(self, node: Node) -> None:
        """Opens the node (again and again while the world is away) and lets users work on it."""
        engine = await node.open_until_up()
        tasks = []
        for stream_id in await self._stream_ids(node):
            try:
                stream = await engine.streams.open_stream(stream_id)
            except StreamlogError as error:
                self._world.trace.add(self._world.loop, "open-failed", type(error).__name__)
                if not error.is_retryable:
                    node.expect_fenced(error)
                continue
            model = self._models[stream_id]
            arguments = (node.incarnation, stream, model, self._random, self._tally)
            tasks += [writer.work(node.incarnation, stream) for writer in self._writers[stream_id]]
            tasks += [users.read_some(*arguments), users.trim_some(*arguments)]
        for work in tasks:
            node.watch(work)
        for work in self._logs.connect(node):
            self._logs.connected(node.watch(work))
        await asyncio.get_running_loop().create_future()

    async def _stream_ids(self, node: Node) -> list[int]:
        """The streams of the history; made by the first node that gets so far."""
        while len(self._models) < self._plan.streams:
            try:
                stream = await node.engine.streams.create_and_open_stream(CreateStreamOptions())
            except StreamlogError as error:
                self._world.trace.add(self._world.loop, "create-failed", type(error).__name__)
                await asyncio.sleep(0.5)
                continue
            number = len(self._models)
            self._models[stream.stream_id] = model = StreamModel(f"s{stream.stream_id}")
            self._writers[stream.stream_id] = [
                users.Writer(10 * number + i, model, self._random, self._tally) for i in range(2)
            ]
        return sorted(self._models)

    async def _finish(self) -> None:
        """No more faults: everything promised must be there, on two openings in a row."""
        self._world.calm()
        for name in ("check", "again"):
            node = self._world.start_node(name)
            await node.incarnation.start(self._check(node), name="check")
            await node.close()
        node = self._world.start_node("empty")
        await node.incarnation.start(self._delete_everything(node), name="empty")
        await node.close()
        self._world.raise_failures()

    async def _delete_everything(self, node: Node) -> None:
        """Where nothing is left to read, no data object stays: neither dead ones nor orphans."""
        engine = await node.open_until_up()
        await self._logs.delete(node)
        for stream_id in sorted(self._models):
            await engine.streams.delete_stream(stream_id)
        left: list[str] = []
        for _ in range(PATIENCE_S):
            await asyncio.sleep(1)
            left = [info.key for info in (await self._world.store.list("data/")).objects]
            if not left:
                return
        if not self._world.has_wild_clocks:
            raise Violation(f"everything was deleted, and {left} stays")

    async def _check(self, node: Node) -> None:
        engine = await node.open_until_up()
        for stream_id, model in sorted(self._models.items()):
            await users.read_all(await engine.streams.open_stream(stream_id), model)
        await self._logs.check(node)
