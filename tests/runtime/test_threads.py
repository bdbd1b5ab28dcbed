"""Calls in threads: their results, errors, order and cancellation; and how threads end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable

import pytest

from streamlog.runtime.offload import THREADS, Lane, ThreadOffload

WAIT_S = 30.0


class Gate:
    """Holds calls in their threads until it opens."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self._opened = threading.Event()

    def __call__(self) -> None:
        self.entered.release()
        assert self._opened.wait(WAIT_S)

    def wait_until_entered(self) -> None:
        assert self.entered.acquire(timeout=WAIT_S)

    def open(self) -> None:
        self._opened.set()


def raising(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def test_results_and_errors_are_the_callers() -> None:
    async def main() -> None:
        offload = ThreadOffload()
        assert await offload.run(Lane.CPU, divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await offload.run(Lane.CPU, divmod, 1, 0)
        with pytest.raises(SystemExit):
            await offload.run(Lane.CPU, raising(SystemExit()))
        # No future takes a StopIteration: its caller would wait for ever.
        with pytest.raises(RuntimeError, match="StopIteration"):
            await offload.run(Lane.CPU, raising(StopIteration()))
        assert await offload.run(Lane.CPU, int, "1") == 1
        await offload.close()

    asyncio.run(main())


def test_a_lane_of_one_thread_keeps_the_order_of_calls() -> None:
    async def main() -> None:
        offload, made = ThreadOffload(), list[int]()
        assert THREADS[Lane.META] == 1
        await asyncio.gather(*(offload.run(Lane.META, made.append, n) for n in range(1000)))
        assert made == list(range(1000))
        await offload.close()

    asyncio.run(main())


def test_a_lane_has_no_more_threads_than_it_needs() -> None:
    async def main() -> None:
        offload, names = ThreadOffload({Lane.CPU: 3}), set[str]()

        def note() -> None:
            names.add(threading.current_thread().name)

        for _ in range(20):
            await offload.run(Lane.CPU, note)
        assert names == {"streamlog-cpu_0"}
        gate, loop = Gate(), asyncio.get_running_loop()
        held = [asyncio.ensure_future(offload.run(Lane.CPU, gate)) for _ in range(5)]
        for _ in range(3):
            await loop.run_in_executor(None, gate.wait_until_entered)
        assert not gate.entered.acquire(blocking=False)
        gate.open()
        await asyncio.gather(*held)
        await offload.close()

    asyncio.run(main())


def test_a_cancelled_call_that_has_not_begun_is_left_out() -> None:
    async def main() -> None:
        offload, made, gate = ThreadOffload(), list[int](), Gate()
        held = asyncio.ensure_future(offload.run(Lane.META, gate))
        left_out = asyncio.ensure_future(offload.run(Lane.META, made.append, 1))
        last = asyncio.ensure_future(offload.run(Lane.META, made.append, 2))
        await asyncio.get_running_loop().run_in_executor(None, gate.wait_until_entered)
        held.cancel()
        left_out.cancel()
        gate.open()
        await last
        assert made == [2]
        assert held.cancelled()
        await offload.close()

    asyncio.run(main())


def test_close_waits_for_calls_that_were_queued() -> None:
    async def main() -> None:
        offload, made, gate = ThreadOffload(), list[int](), Gate()
        held = asyncio.ensure_future(offload.run(Lane.META, gate))
        queued = asyncio.ensure_future(offload.run(Lane.META, made.append, 1))
        await asyncio.get_running_loop().run_in_executor(None, gate.wait_until_entered)
        closing = asyncio.ensure_future(offload.close())
        await asyncio.sleep(0)
        assert not closing.done()
        gate.open()
        await closing
        assert made == [1]
        await asyncio.gather(held, queued)
        # Late callers get new threads.
        assert await offload.run(Lane.META, int, "1") == 1
        await offload.close()

    asyncio.run(main())


def test_an_offload_serves_one_loop_after_another() -> None:
    offload = ThreadOffload()

    async def ask() -> int:
        return await offload.run(Lane.CPU, int, "1")

    assert [asyncio.run(ask()), asyncio.run(ask())] == [1, 1]
    asyncio.run(offload.close())


def test_a_call_keeps_nothing_of_its_arguments() -> None:
    class Payload:
        def check(self, is_right: bool) -> None:
            if not is_right:
                raise ValueError

    async def main() -> None:
        offload = ThreadOffload()
        for is_right in (True, False):
            payload = Payload()
            seen = weakref.ref(payload)
            try:
                await offload.run(Lane.META, payload.check, is_right)
            except ValueError:
                assert not is_right
            del payload
            # Behind it, so the thread has let go of it.
            await offload.run(Lane.META, int, "1")
            assert seen() is None
        await offload.close()

    asyncio.run(main())


def test_threads_end_with_their_offload() -> None:
    async def main() -> list[threading.Thread]:
        others = set(threading.enumerate())  # Of offloads that other tests left.
        await ThreadOffload().run(Lane.CPU, int, "1")
        started = [one for one in threading.enumerate() if one not in others]
        return [one for one in started if one.name == "streamlog-cpu_0"]

    threads = asyncio.run(main())
    assert len(threads) == 1
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_the_interpreter_waits_for_a_call_when_it_exits() -> None:
    script = """
import asyncio, os, sys, threading
from streamlog.runtime.offload import Lane, ThreadOffload

entered = threading.Event()

def work():
    entered.set()
    os.read(0, 1)
    print("done", flush=True)

async def main():
    asyncio.ensure_future(ThreadOffload().run(Lane.META, work))
    await asyncio.sleep(0)
    await asyncio.get_running_loop().run_in_executor(None, entered.wait)

asyncio.run(main())
print("exiting", flush=True)
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "exiting\n"
    out, _ = child.communicate(".", timeout=WAIT_S)
    assert (out, child.returncode) == ("done\n", 0)
