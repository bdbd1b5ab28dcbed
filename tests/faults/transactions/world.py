"""One process after another over the same store, metadata and disk, in virtual time.

A process that is killed gets no further: none of its tasks runs again, so that its calls end
nowhere, and what it had under way is as a crash leaves it.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import streamlog
from streamlog.codec.batch import BatchProducer, scan
from streamlog.codec.records import BatchBuilder, decode
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.coordinator.api import ProducerIdAndEpoch, TransactionState
from streamlog.coordinator.config import TransactionConfig
from streamlog.engine.config import StreamEngineConfig
from streamlog.errors import (
    ConcurrentTransactions,
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
)
from streamlog.log.api.abstract_log import AbstractLog, Isolation
from streamlog.model.partition import TopicPartition
from streamlog.testing.simulation.world.loop import SimulationLoop
from streamlog.wal.config import WalConfig, WalMode
from streamlog.wiring import OpenEngine
from tests.support.every_await import Lab, Striker

T = TypeVar("T")
CONFIG = StreamEngineConfig(
    wal=WalConfig(wal_bytes_max=8 << 20, file_bytes=4 << 20),
    compaction=CompactionConfig(compaction_process="inline", compaction_interval_ms=10**9),
)
TIMEOUT_MS = 60_000
RETRY_S = 0.05
ANSWER_S = 300.0
LIMIT_S = 3600.0
CANCELS_MAX = 100
SURVIVORS = ("main", "kvstore.")
"""Prefixes of the names of tasks that are not the process's."""
BUSY = (ConcurrentTransactions, CoordinatorLoadInProgress, CoordinatorNotAvailable)


FROZEN: set[asyncio.Task[Any]] = set()
"""Tasks of processes that were killed."""


class Process:
    """A node's engine and its coordinator."""

    def __init__(self, engine: OpenEngine) -> None:
        self.engine = engine
        self.coordinator = engine.transactions

    async def log(self, partition: TopicPartition) -> AbstractLog:
        return await self.engine.logs.log(partition)


class World:
    def __init__(self, lab: Lab, mode: WalMode) -> None:
        self._lab = lab
        self._mode = mode
        self._dead: set[asyncio.Task[Any]] = set()
        self._died = asyncio.Event()
        self._kept: list[Any] = []

    async def start(self) -> Process:
        components = self._lab.components(has_disk=self._mode == "disk")
        opened = streamlog.open(
            "memory://",
            wal=self._mode,
            config=CONFIG,
            transactions=TransactionConfig(state_partitions=1),
            components=components,
        )
        engine = await opened.__aenter__()
        # It is never left: a process that is killed closes nothing.
        self._kept.append(opened)
        return Process(engine)

    def kill(self) -> None:
        """No task that there is now runs on, but the test's own and those of the metadata."""
        for task in asyncio.all_tasks(self._lab.loop):
            if not task.get_name().startswith(SURVIVORS):
                FROZEN.add(task)
        self._died.set()

    async def until_killed(self, call: Coroutine[Any, Any, None]) -> bool:
        """Runs the call as the process's own task; whether the process was killed meanwhile."""
        running = self._lab.loop.create_task(call, name="scenario")
        dying = self._lab.loop.create_task(self._died.wait(), name="main: until killed")
        done, _ = await asyncio.wait(
            [running, dying], timeout=ANSWER_S, return_when=asyncio.FIRST_COMPLETED
        )
        assert done, f"no end: {self._lab.loop.describe_waiting()}"
        if self._died.is_set():
            self._kept.append(running)
            self._lab.restart()
            return True
        dying.cancel()
        await running
        return False

    async def close(self) -> None:
        await self._lab.close()


class _Mortal:
    """Awaits a coroutine for as long as its process lives."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, None, Any]:
        coroutine, task = self._coroutine, asyncio.current_task()
        error: BaseException | None = None
        while True:
            try:
                future = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as stop:
                return stop.value
            error = None
            try:
                yield future
                while task in FROZEN:
                    yield from asyncio.get_running_loop().create_future()
            except BaseException as thrown:  # noqa: BLE001 - handed on to the coroutine
                error = thrown


def run(scenario: Callable[[Lab], Awaitable[None]]) -> None:
    """Runs the scenario on a virtual loop whose processes can be killed."""
    loop = SimulationLoop(limit_s=LIMIT_S)

    async def mortal(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return await _Mortal(coroutine)

    def factory(
        loop: asyncio.AbstractEventLoop,
        coroutine: Coroutine[Any, Any, Any],
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(mortal(coroutine), loop=loop, context=context)
        # A task that is cancelled before its first step never closes its coroutine.
        task.add_done_callback(lambda _: coroutine.close())
        return task

    loop.set_task_factory(factory)  # type: ignore[arg-type]
    loop.set_exception_handler(lambda _loop, _context: None)
    asyncio.set_event_loop(None)

    async def main() -> None:
        await scenario(Lab(loop, Striker("fail", 0)))

    try:
        with _quiet():
            loop.run_until_complete(loop.create_task(main(), name="main"))
        _end_all(loop)
    finally:
        FROZEN.clear()
        loop.close()


def _end_all(loop: SimulationLoop) -> None:
    """Cancels what is left, the tasks of killed processes, too: nothing comes of it any more."""
    FROZEN.clear()
    for _ in range(CANCELS_MAX):
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if not left:
            return
        loop.run_until_complete(loop.create_task(asyncio.sleep(0), name="main: end"))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without log lines of what was killed, and without a collection that ends its coroutines."""
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()


# ---- what a client does


async def retried(call: Callable[[], Awaitable[T]]) -> T:
    """As a client does that asks again; time is virtual."""
    while True:
        try:
            return await call()
        except BUSY:
            await asyncio.sleep(RETRY_S)


async def new_producer(process: Process, name: str) -> ProducerIdAndEpoch:
    await retried(process.coordinator.ensure_topic)
    return await retried(lambda: process.coordinator.init_producer_id(name, TIMEOUT_MS))


async def write(
    process: Process,
    producer: ProducerIdAndEpoch,
    partition: TopicPartition,
    value: bytes,
    sequence: int,
) -> None:
    """One record, durable on return; the partition was added to the transaction."""
    opened = await process.log(partition)
    opened.verified(*producer)
    builder = BatchBuilder(1 << 20)
    builder.extend([value], timestamp_ms=1_700_000_000_000)
    batch = builder.build(BatchProducer(*producer, sequence), is_transactional=True)
    await (await opened.append(batch))


async def until_ended(process: Process, name: str) -> TransactionState:
    """Waits until no markers are under way."""
    while True:
        described = await retried(lambda: process.coordinator.describe(name))
        if described.state not in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT):
            return described.state
        await asyncio.sleep(RETRY_S)


async def read_committed(opened: AbstractLog) -> list[bytes]:
    """The values that a consumer is handed, which drops what was aborted."""
    values: list[bytes] = []
    offset = opened.log_start_offset
    while offset < opened.last_stable_offset:
        fetched = await opened.fetch(offset, 1 << 20, isolation=Isolation.READ_COMMITTED)
        waiting = sorted(fetched.aborted, key=lambda one: one.first_offset)
        dropped: set[int] = set()
        for header, view in scan(b"".join(bytes(part) for part in fetched.parts)):
            while waiting and waiting[0].first_offset <= header.last_offset:
                dropped.add(waiting.pop(0).producer_id)
            if header.is_control:
                dropped.discard(header.producer_id)
            elif header.producer_id not in dropped:
                values += [bytes(value or b"") for _, _, _, value, _ in decode(view)]
        offset = fetched.next_offset
    return values
