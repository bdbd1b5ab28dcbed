"""An engine over a moody remote store, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar, TypeVarTuple

from prometheus_client import CollectorRegistry

from streamlog.engine.config import StreamEngineConfig
from streamlog.engine.engine import Engine, EngineParts
from streamlog.engine.streams.client import EngineStreamClient
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Lane
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.simulation.world.incarnation import EPOCH_MS
from streamlog.testing.simulation.world.loop import run as run
from streamlog.wal.config import WalMode
from tests.engine.fakes import FakeMetadata, FakeWal
from tests.support.slow_store import Latency, Moods, SlowStore

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LoopClock:
    """The running loop's time."""

    def now_ms(self) -> int:
        return EPOCH_MS + int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class InlineOffload:
    """Runs offloaded work inline, without time."""

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        await asyncio.sleep(0)
        return fn(*args)

    async def close(self) -> None:
        pass


class RemoteWorld:
    """What outlives a process: metadata, WAL, and the store with its moods."""

    def __init__(
        self, mode: WalMode, moods: Moods, config: StreamEngineConfig | None = None
    ) -> None:
        self.mode: WalMode = mode
        self.config = config or StreamEngineConfig()
        self.clock: Clock = LoopClock()
        self.metadata = FakeMetadata()
        self.objects = MemoryObjectStore(self.clock)
        self.store = SlowStore(self.objects, moods, random=SeededRandom(3))
        self.wal = FakeWal() if mode == "disk" else None

    @asynccontextmanager
    async def engine(
        self, *, crash: bool = False
    ) -> AsyncIterator[tuple[EngineStreamClient, Engine]]:
        engine = Engine(
            EngineParts(
                self.mode,
                self.metadata.as_metadata,
                self.store,
                None if self.wal is None else self.wal.as_wal,
                self.clock,
                SeededRandom(1),
                InlineOffload(),
                CollectorRegistry(),
                True,
            ),
            self.config,
        )
        await engine.start()
        try:
            yield EngineStreamClient(engine), engine
        finally:
            await (engine.kill() if crash else engine.close())
            self.metadata.next_tenure()


def latency(median_ms: float) -> Moods:
    same = Latency(median_ms)
    return Moods(put=same, get=same, other=same)


def virtually(scenario: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """Runs the scenario in virtual time; returns the seconds that passed."""
    ended: list[float] = []

    async def main() -> None:
        await scenario()
        ended.append(asyncio.get_running_loop().time())

    run(main)
    return ended[0]
