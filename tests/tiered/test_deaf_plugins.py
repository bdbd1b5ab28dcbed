"""Plug-ins that do not end when they are cancelled, or make an error of it: as threads that hang on
a mounted folder, and as code that catches too much."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.simulation.world.loop import run as run_virtually
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.storage.files import to_its_end
from tests.tiered.harness import TieredLogUnderTest, VirtualClock, tiered_log, values

CONFIG = RemoteLogConfig(copy_timeout_ms=60_000)


async def filled(t: TieredLogUnderTest) -> dict[int, bytes]:
    """Several closed segments."""
    wanted: dict[int, bytes] = {}
    for number in range(40):
        value = b"%06d" % number * 16
        info = await append(t.log, encoded([value], at_ms=t.clock.now_ms()))
        wanted[info.base_offset] = value
    return wanted


@pytest.mark.parametrize("hanging", ["copy", "delete"])
def test_a_call_that_hangs_in_a_thread_is_told_while_it_is_waited_for(hanging: str) -> None:
    async def body() -> None:
        free = asyncio.Event()

        async def wait(call: str) -> None:
            if call == hanging:
                await to_its_end(free.wait())
            elif hanging == "delete" and call == "copied":
                raise OSError("what was copied has to be deleted")

        tree, clock = TornTree(SeededRandom(3)), VirtualClock()
        async with tiered_log(tree, {}, CONFIG, clock=clock) as t:
            wanted = await filled(t)
            t.storage.strike = wait
            await asyncio.sleep(300)
            (alarm,) = (one for one in t.manager.alarms() if "do not end" in one)
            doing = {"copy": "copying", "delete": "deleting"}[hanging]
            assert alarm.startswith("remote_storage: ")
            assert doing in alarm
            t.storage.strike = lambda _: None
            free.set()
            await asyncio.sleep(300)
            assert t.manager.alarms() == []
            await t.configure(local_retention_bytes="0")
            await t.retain()
            assert t.log.local_log_start_offset > 0
            assert await values(t.log) == wanted

    run_virtually(body)


def test_a_manager_ends_in_its_time_beside_a_call_that_never_does() -> None:
    async def body() -> None:
        free, began = asyncio.Event(), asyncio.Event()

        async def deaf(call: str) -> None:
            began.set()
            while not free.is_set():
                try:
                    await free.wait()
                except asyncio.CancelledError:
                    continue

        loop = asyncio.get_running_loop()
        tree, clock = TornTree(SeededRandom(3)), VirtualClock()
        async with tiered_log(tree, {}, CONFIG, clock=clock) as t:
            await filled(t)
            t.storage.strike = deaf
            await began.wait()
            stopped = loop.time()
        assert loop.time() - stopped <= 30
        free.set()
        await asyncio.sleep(1)

    run_virtually(body)


def test_a_task_ends_with_its_log_although_the_plug_in_makes_an_error_of_it() -> None:
    async def body() -> None:
        began = asyncio.Event()
        calls: list[str] = []

        async def catches_all(call: str) -> None:
            calls.append(call)
            began.set()
            try:
                await asyncio.Event().wait()
            except BaseException as error:
                raise OSError("no connection") from error

        tree, clock = TornTree(SeededRandom(3)), VirtualClock()
        async with tiered_log(tree, {}, CONFIG, clock=clock) as t:
            await filled(t)
            t.storage.strike = catches_all
            await began.wait()
            await t.log.close()
            await asyncio.sleep(600)
            del calls[:]
            await asyncio.sleep(3600)
            assert calls == [], "nobody copies for a log that has ended"
            t.storage.strike = lambda _: None
            await t.open()

    run_virtually(body)
