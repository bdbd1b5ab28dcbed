"""A unified log over a folder in memory, or a real one, with crashes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TypeVar, TypeVarTuple, cast

from prometheus_client import CollectorRegistry

from streamlog.errors import StreamlogError
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.config import LogConfig
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.log_factory import TopicIdentity
from streamlog.log.api.metrics import LogMetrics
from streamlog.log.api.topic_config import parse
from streamlog.model.partition import TopicPartition
from streamlog.runtime.concurrency.catch_up_throttle import NO_THROTTLE, ReadThrottle
from streamlog.runtime.disk.tree import FolderTree
from streamlog.runtime.offload import Lane, Offload
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.clocks import ManualClock
from streamlog.testing.torn_folder import TornTree
from streamlog.testing.torn_media import DiskFault
from streamlog.unified.log_folder import FolderOwner, LogFolder
from streamlog.unified.unified_log import UnifiedLog
from streamlog.unified.unified_logs import UnifiedLogFactory

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

PARTITION = TopicPartition("t", 0)
DEFAULTS = LogConfig()
OWNER = FolderOwner("cluster", 1)


@contextmanager
def disk_that_fails_after(tree: TornTree, calls: int) -> Iterator[None]:
    """Each call behind so many fails, and what that raises ends with the block."""
    left = calls

    def strike(_operation: str, _name: str) -> DiskFault | None:
        nonlocal left
        left -= 1
        return DiskFault.IO_ERROR if left < 0 else None

    tree.plan_faults(strike)
    try:
        with suppress(StreamlogError, OSError):
            yield
    finally:
        tree.plan_faults(None)


class HeldOffload:
    """Runs work on the loop, one step later; while it holds, work of one lane waits.

    `is_dead`: the process has ended, and what its tasks still ask for is done by nobody.
    """

    def __init__(self) -> None:
        self._free = asyncio.Event()
        self._free.set()
        self._held = Lane.FILES
        self.is_dead = False

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        if self.is_dead:
            return cast(T, None)
        await asyncio.sleep(0)
        if lane is self._held:
            await self._free.wait()
        return fn(*args)

    async def close(self) -> None:
        return

    def hold(self, lane: Lane = Lane.FILES) -> None:
        """Work on logs' files, if nothing else is said."""
        self._held = lane
        self._free.clear()

    def release(self) -> None:
        self._free.set()


class UnifiedLogUnderTest:
    """`tree_of` gives the tree to each process; `cut_power` loses what it has not synced."""

    log: AbstractLog
    folder: LogFolder

    def __init__(
        self,
        tree_of: Callable[[], FolderTree],
        configs: Mapping[str, str],
        config: LogConfig = DEFAULTS,
        cut_power: Callable[[], None] = lambda: None,
        offload: Offload | None = None,
        throttle: ReadThrottle = NO_THROTTLE,
    ) -> None:
        """`offload`: of the first process; None: one that runs on the loop and can be held."""
        self.cut_power = cut_power
        self.clock = ManualClock()
        self.throttle = throttle
        self.random = SeededRandom(1)
        self.config = config
        self.configs = dict(configs)
        self.failures: list[StreamlogError] = []
        self.held = HeldOffload()
        self.offload: Offload = offload or self.held
        self._tree_of = tree_of
        self.handle = 0

    async def start(self) -> None:
        await self.open_folder()
        topic = TopicIdentity("t", self.random.uuid(), "attempt")
        (self.handle,) = await self.factory.create(topic, [0], parse(self.configs))
        await self.open()

    @property
    def factory(self) -> UnifiedLogFactory:
        return UnifiedLogFactory(self.folder)

    async def open_folder(self, *, accepts_data_loss: bool = False) -> None:
        metrics = LogMetrics(CollectorRegistry())
        environment = LogEnvironment(
            self.clock, self.random, self.config, metrics, self.offload, self.throttle
        )
        self.folder = await LogFolder.open(
            self._tree_of(), OWNER, environment, self.offload, accepts_data_loss=accepts_data_loss
        )

    async def open(self) -> None:
        opened = await self.factory.open(PARTITION, self.handle, parse(self.configs), self._failed)
        assert isinstance(opened, UnifiedLog)
        self.log = opened

    def _failed(self, _log: AbstractLog, error: StreamlogError) -> None:
        self.failures.append(error)

    async def reopened(self) -> None:
        await self.log.close()
        await self.folder.close()
        await self.open_folder()
        await self.open()

    async def crashed(self) -> None:
        self.held.is_dead = True
        await self.log.kill()
        await self.folder.kill()
        self.offload = self.held = HeldOffload()
        self.cut_power()
        await self.open_folder()
        await self.open()

    def hold(self) -> None:
        self.held.hold()

    def release(self) -> None:
        self.held.release()

    async def stop(self) -> None:
        self.release()
        await self.log.close()
        await self.folder.close()


@asynccontextmanager
async def unified_log(
    tree_of: Callable[[], FolderTree],
    configs: Mapping[str, str] | None = None,
    config: LogConfig = DEFAULTS,
    cut_power: Callable[[], None] = lambda: None,
    offload: Offload | None = None,
    throttle: ReadThrottle = NO_THROTTLE,
) -> AsyncIterator[UnifiedLogUnderTest]:
    under_test = UnifiedLogUnderTest(tree_of, configs or {}, config, cut_power, offload, throttle)
    await under_test.start()
    try:
        yield under_test
    finally:
        await under_test.stop()
