"""Threads that take calls off an event loop, for two thirds of what an executor costs.

A call that writes and syncs 4 KiB takes 90 µs of CPU through here, 30 of them the loop's, and 130
(53) through a ThreadPoolExecutor. The executor has a future of its own behind each that a coroutine
awaits, and asyncio wakes its loop by a socket that it reads until that fails.

1. A call goes to a lane's threads through a queue, first come, first served. A thread is made when
   a call would wait, up to the lane's number.
2. What became of it goes back through `Arrivals`: the first one to arrive wakes the loop, and those
   that follow until it looks need no wake-up of their own.
3. Threads end behind the calls that were queued before: at `end`, when their lane is forgotten, and
   when the interpreter exits, which waits for them. So no call is cut off in the middle.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SWITCH_S = 0.0005
WAKE_UPS_MAX = 4096
"""Wake-ups that one look takes together; there is one at a time, or a few that raced."""


def switch_often() -> None:
    """For a process whose event loop others wait for: a thread that computes in Python keeps the
    interpreter for 0.5 ms at a time, where it would keep it for 5."""
    sys.setswitchinterval(SWITCH_S)


class Arrivals:
    """What threads have done, on its way to one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._done: deque[_Call] = deque()
        self._is_woken = False
        self._read_end, self._write_end = os.pipe()
        self._close = weakref.finalize(self, _close_pipe, self._read_end, self._write_end)
        os.set_blocking(self._read_end, False)
        os.set_blocking(self._write_end, False)
        loop.add_reader(self._read_end, self._look)

    def put(self, call: _Call) -> None:
        """Any thread. The loop clears `_is_woken` before it looks, so nothing is overlooked."""
        self._done.append(call)
        if not self._is_woken:
            self._is_woken = True
            # A pipe that is full has woken the loop.
            with contextlib.suppress(BlockingIOError):
                os.write(self._write_end, b"\0")

    def close(self) -> None:
        """The loop's; no thread has a call of it any more."""
        self._take()
        if not self.loop.is_closed():
            self.loop.remove_reader(self._read_end)
        self._close()

    def _look(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._read_end, WAKE_UPS_MAX)
        self._take()

    def _take(self) -> None:
        self._is_woken = False
        done = self._done
        while done:
            done.popleft().answer()


class _Call:
    """One call, from the loop to a thread and back."""

    __slots__ = ("args", "arrivals", "error", "fn", "future", "lane", "result")

    def __init__(
        self,
        lane: LaneThreads,
        arrivals: Arrivals,
        future: asyncio.Future[Any],
        fn: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> None:
        self.lane = lane
        self.arrivals = arrivals
        self.future = future
        self.fn = fn
        self.args = args
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """In a thread; left out where nobody waits any more."""
        if self.future.cancelled():
            return
        try:
            self.result = self.fn(*self.args)
        except StopIteration as error:
            # No future takes it; its caller would wait for ever.
            self.error = RuntimeError(f"{self.fn!r} raised {error!r}")
        except BaseException as error:  # noqa: BLE001 - the caller's to handle
            self.error = error

    def answer(self) -> None:
        """On the loop. An error's traceback leads to `run`, and so here: nothing leads back."""
        self.lane.under_way -= 1
        future, result, error = self.future, self.result, self.error
        del self.future, self.result, self.error, self.args
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)


class LaneThreads:
    """Up to `most` threads that share a queue of calls; used on event loops."""

    def __init__(self, name: str, most: int) -> None:
        self._name = name
        self._most = most
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.under_way = 0
        """Calls without an answer."""
        weakref.finalize(self, _end, self._calls, self._threads).atexit = False

    def call(
        self, arrivals: Arrivals, fn: Callable[[*Ts], T], args: tuple[*Ts]
    ) -> asyncio.Future[T]:
        """`fn(*args)` in one of the threads; exceptions are the future's.

        Cancelled, the call runs to its end if it has begun, and is left out if it has not.
        """
        future: asyncio.Future[T] = arrivals.loop.create_future()
        self.under_way += 1
        self._calls.put(_Call(self, arrivals, future, fn, args))
        if len(self._threads) < min(self.under_way, self._most):
            self._begin_thread()
        return future

    def end(self) -> None:
        """Blocks until all calls have been made, and the threads have ended."""
        _end(self._calls, self._threads)
        for thread in self._threads:
            thread.join()

    def _begin_thread(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=_work, args=(self._calls,), name=name, daemon=True)
        self._threads.append(thread)
        _queues[thread] = self._calls
        thread.start()


_queues: weakref.WeakKeyDictionary[threading.Thread, SimpleQueue[_Call | None]]
_queues = weakref.WeakKeyDictionary()
"""Of all threads that may be at work when the interpreter exits."""


def _work(calls: SimpleQueue[_Call | None]) -> None:
    while (call := calls.get()) is not None:
        call.run()
        call.arrivals.put(call)
        del call  # It would keep its payload until the next one comes.


def _end(calls: SimpleQueue[_Call | None], threads: list[threading.Thread]) -> None:
    for _ in threads:
        calls.put(None)


def _close_pipe(*ends: int) -> None:
    for end in ends:
        os.close(end)


@atexit.register
def _end_all() -> None:
    """Threads are daemons, which are cut off otherwise, in the middle of a call."""
    left = list(_queues.items())
    for _, calls in left:
        calls.put(None)
    for thread, _ in left:
        thread.join()
