"""The end of a node's process: bounded in time, and told in words.

A store or a disk that hangs may hold a thread that nothing can end, and a clean stop waits for all
threads. What was acknowledged does not depend on a clean stop: the next start does the rest, as
after a crash.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import NoReturn

log = logging.getLogger(__name__)

STOPPED_AT_ONCE = 130
"""Exit code after a second signal; the shell's own for Ctrl-C."""
NOT_STOPPED = 1
SLACK_S = 10.0
"""What a stop may take beyond the times that the settings give its parts."""
WORDS_S_MAX = 1.0
"""How long the last log line may take: nobody may read stderr any more."""
SAFE = "what was acknowledged is stored, and the next start goes on from there"


class _Standby:
    """A thread that is there before its one piece of work is.

    A signal's handler must not start one: the main thread, which it interrupts, may be starting a
    thread of its own, and hold the lock that a start needs. `SimpleQueue.put` takes no such lock.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], object]] = SimpleQueue()
        threading.Thread(target=lambda: self._work.get()(), daemon=True).start()

    def do(self, work: Callable[[], object]) -> None:
        self._work.put(work)


def _end_at_once(text: str, code: int) -> NoReturn:
    """Logs the text, which takes WORDS_S_MAX at most, and ends the process.

    Not for the main thread: it may be in a log line, whose lock the text needs.
    """

    def say() -> None:
        log.warning("%s", text)
        logging.shutdown()

    words = threading.Thread(target=say, daemon=True)
    words.start()
    words.join(WORDS_S_MAX)
    os._exit(code)


class Signals:
    """SIGINT and SIGTERM within the block: the first is told, the second ends the process.

    The handlers are Python's own and not the event loop's, because the loop may be what hangs: in a
    log line, for one, when stderr is a pipe that is full and that nobody reads.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        """`on_first()` is called at once, whatever the loop does; then `came` is set."""
        self.came = asyncio.Event()
        self._on_first = on_first
        self._loop = asyncio.get_running_loop()
        self._is_second = False
        self._ender = _Standby()
        self._before: dict[int, signal.Handlers | Callable[..., object] | int | None] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_second:
            text = f"stopped at once by a second signal: {SAFE}"
            self._ender.do(lambda: _end_at_once(text, STOPPED_AT_ONCE))
            return
        self._is_second = True
        self._on_first()
        self._loop.call_soon_threadsafe(self.came.set)


class StopBound:
    """Ends the process when a stop that was begun is not over in time.

    It has a thread of its own: the event loop may be what hangs.
    """

    def __init__(self) -> None:
        self._over: SimpleQueue[None] = SimpleQueue()
        self._waiter: _Standby | None = None
        self._has_begun = False

    def prepare(self) -> None:
        """Called before `begin`, which a signal's handler calls."""
        self._waiter = _Standby()

    def begin(self, bound_s: float) -> None:
        """Does nothing where it has begun."""
        if self._has_begun:
            return
        self._has_begun = True
        assert self._waiter is not None
        self._waiter.do(lambda: self._wait(bound_s))

    def _wait(self, bound_s: float) -> None:
        try:
            self._over.get(timeout=bound_s)
        except Empty:
            text = f"not stopped within {bound_s:g} s, ends now: {SAFE}"
            _end_at_once(text, NOT_STOPPED)

    def end(self) -> None:
        self._over.put(None)
