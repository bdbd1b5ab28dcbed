"""A power cut, and a `kill -9`, at each call of the disk that a step makes.

Steps: an append, a flush, a roll, deletions, a cleaning, an end in order, and the recovery from a
crash in any of these.

The calls are counted out: a step is repeated, and struck one call later, until it ends unstruck. A
process that is killed within a call leaves its pages to the machine, which stays up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from streamlog.errors import StreamlogError
from streamlog.log.api.cleaning import CleanableLog
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.cleaning_conformance import clean, contents, keyed
from streamlog.testing.logs.log_conformance import append
from streamlog.testing.logs.transaction_conformance import begin, end
from streamlog.testing.torn_folder import TornTree
from streamlog.testing.torn_media import DiskFault
from tests.unified.harness import UnifiedLogUnderTest, unified_log

CONFIGS = {
    "log.type": "unified",
    "cleanup.policy": "compact,delete",
    "internal.segment.bytes": "600",
    "index.interval.bytes": "200",
    "delete.retention.ms": "1000",
    "file.delete.delay.ms": "0",
}
FLUSHED_EVERY = 3
KEYS = 5
TRANSACTIONAL = 8


@dataclass
class World:
    t: UnifiedLogUnderTest
    tree: TornTree
    sent: dict[bytes, bytes] = field(default_factory=dict)
    """Value → key; no value is sent twice."""
    acked: dict[int, bytes] = field(default_factory=dict)
    """Offset → value."""
    start: int = 0
    """The log start that a deletion may have made."""
    start_acked: int = 0
    calls: int = 0

    async def append(self) -> None:
        value = b"%d" % len(self.sent)
        key = b"k%d" % (len(self.sent) % KEYS)
        self.sent[value] = key
        self.acked[(await append(self.t.log, keyed(key, value))).base_offset] = value

    async def commit(self) -> None:
        value = b"%d" % len(self.sent)
        self.sent[value] = key = b"in a transaction"
        found = [one for one in self.t.log.producers() if one.producer_id == TRANSACTIONAL]
        sequence = found[0].last_sequence + 1 if found else 0
        data = keyed(key, value, producer=(TRANSACTIONAL, 0, sequence), is_transactional=True)
        self.acked[(await begin(self.t.log, data)).base_offset] = value
        await end(self.t.log, True, TRANSACTIONAL)

    async def clean(self) -> None:
        assert isinstance(self.t.log, CleanableLog)
        await self.t.log.set_clean_end_offset(0)
        await clean(self.t, configs=CONFIGS)

    async def delete_oldest(self) -> None:
        self.start = self.t.log.segments[1].end_offset
        await self.t.log.delete_oldest_segments(self.start, "test")
        self.start_acked = self.start

    async def delete_records(self) -> None:
        self.start = self.t.log.segments[0].end_offset + 1
        await self.t.log.delete_records(self.start)
        self.start_acked = self.start

    def strike_at(self, call: int | None) -> None:
        """The power is gone from this changing call on; None: no more."""
        self.calls = 0

        def strike(_operation: str, _name: str) -> DiskFault | None:
            self.calls += 1
            return DiskFault.POWER if call is not None and self.calls > call else None

        self.tree.plan_faults(strike)

    async def check(self, durable_below: int | None) -> None:
        """`durable_below`: acknowledged records from there on may have gone, the newest first."""
        log = self.t.log
        found = await contents(log)
        assert self.start_acked <= log.log_start_offset <= self.start
        values = [value or b"" for _, value in found.values()]
        assert len(values) == len(set(values))
        for offset, (key, value) in found.items():
            assert self.sent[value or b""] == key
            assert self.acked.get(offset, value) == value
        newest = {key: offset for offset, (key, _) in found.items()}
        for offset, value in self.acked.items():
            is_durable = durable_below is None or offset < durable_below
            if is_durable and offset >= log.log_start_offset and offset not in found:
                # A cleaning took it, for a later record of its key.
                assert newest[self.sent[value]] > offset
        if durable_below is not None:
            self.acked = {o: value for o, value in self.acked.items() if o < log.log_end_offset}


Step = Callable[[World], Awaitable[None]]


async def _append(world: World) -> None:
    for _ in range(2):
        await world.append()


async def _flush(world: World) -> None:
    for _ in range(FLUSHED_EVERY):
        await world.append()


STEPS: dict[str, Step] = {
    "append": _append,
    "flush": _flush,
    "transaction": World.commit,
    "roll": lambda world: world.t.log.roll(),
    "segments deleted": World.delete_oldest,
    "records deleted": World.delete_records,
    "cleaning": World.clean,
    "end in order": lambda world: world.t.reopened(),
    "token": lambda world: world.t.log.set_fencing_token(b"token"),
}
KILLED, POWER = "killed", "power cut"


@contextlib.asynccontextmanager
async def _world(seed: int, how: str, *, is_lazy: bool) -> AsyncIterator[World]:
    tree = TornTree(SeededRandom(seed))
    cut = tree.crash if how == POWER else tree.restart
    configs = {**CONFIGS, "flush.messages": str(FLUSHED_EVERY)} if is_lazy else CONFIGS
    async with unified_log(lambda: tree, configs, cut_power=cut) as t:
        world = World(t, tree)
        for number in range(3 * KEYS):
            await (world.commit() if number % 7 == 3 else world.append())
        await t.log.roll()
        await _append(world)
        yield world
        tree.plan_faults(None)


async def _struck(work: Awaitable[None]) -> None:
    with contextlib.suppress(StreamlogError, OSError):
        await work


@pytest.mark.parametrize("how", [KILLED, POWER])
@pytest.mark.parametrize("name", STEPS)
def test_a_process_that_ends_at_any_call_of_a_step_loses_nothing(name: str, how: str) -> None:
    is_lazy = name == "flush"

    async def body(call: int) -> bool:
        """Whether the call was made."""
        async with _world(call, how, is_lazy=is_lazy) as world:
            durable = world.t.log.segments[-1].base_offset if is_lazy and how == POWER else None
            world.strike_at(call)
            await _struck(STEPS[name](world))
            is_struck = not world.tree.top.has_power
            world.tree.plan_faults(None)
            await world.t.crashed()
            await world.check(durable)
            # It goes on, and the step can be made again.
            await STEPS[name](world)
            await _append(world)
            await world.t.reopened()
            await world.check(None)
            return is_struck

    call = 0
    while asyncio.run(body(call)):
        call += 1
    assert call


@pytest.mark.parametrize("how", [KILLED, POWER])
@pytest.mark.parametrize("name", STEPS)
def test_a_recovery_that_ends_at_any_call_is_done_by_the_next(name: str, how: str) -> None:
    """Of what a crash has left that struck a step at its first call, or after each quarter."""
    is_lazy = name == "flush"

    async def calls_of() -> int:
        async with _world(0, how, is_lazy=is_lazy) as world:
            world.strike_at(None)
            await STEPS[name](world)
            return world.calls

    async def body(in_step: int, call: int) -> bool:
        async with _world(100 * in_step + call, how, is_lazy=is_lazy) as world:
            durable = world.t.log.segments[-1].base_offset if is_lazy and how == POWER else None
            world.strike_at(in_step)
            await _struck(STEPS[name](world))
            world.tree.plan_faults(None)
            cut = world.t.cut_power

            def cut_again() -> None:
                """The power is back, and goes again while the next process opens the log."""
                cut()
                world.strike_at(call)

            world.t.cut_power = cut_again
            await _struck(world.t.crashed())
            is_struck = not world.tree.top.has_power
            world.tree.plan_faults(None)
            world.t.cut_power = cut
            await world.t.crashed()
            await world.check(durable)
            await _append(world)
            await world.t.reopened()
            await world.check(None)
            return is_struck

    count = asyncio.run(calls_of())
    for in_step in sorted({count * part // 4 for part in range(4)}):
        call = 0
        while asyncio.run(body(in_step, call)):
            call += 1
