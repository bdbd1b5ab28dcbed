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
import socket
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType, TracebackType
from typing import NoReturn

log = logging.getLogger(__name__)

STOPPED_AT_ONCE = 130
"""Exit code after a second signal; the shell's own for Ctrl-C."""
NOT_STOPPED = 1
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SLACK_S = 10.0
"""What a stop may take beyond the times that the settings give its parts."""
WORDS_S_MAX = 1.0
"""How long the last log line may take: nobody may read stderr any more."""
SAFE = "what was acknowledged is stored, and the next start goes on from there"


def _end_at_once(text: str, code: int) -> NoReturn:
    """Logs the text, which takes WORDS_S_MAX at most, and ends the process."""

    def say() -> None:
        log.warning("%s", text)
        logging.shutdown()

    words = threading.Thread(target=say, daemon=True)
    words.start()
    words.join(WORDS_S_MAX)
    os._exit(code)


class Signals:
    """SIGINT, SIGTERM and SIGHUP within the block: the first is told, the second ends the process.

    A SIGHUP is never the second: a terminal that closes sends one, and its shell another. Where it
    is ignored (`nohup`) it stays so.

    A thread hears of them through a socket that the interpreter's own handler writes to. The main
    thread may be what hangs: in a log line, for one, when stderr is a pipe that is full and that
    nobody reads. It would run a handler only once its system call ends, and a signal that comes
    just before the call does not end it.
    """

    def __init__(self, on_first: Callable[[], None]) -> None:
        """`on_first()` is called at once, from that thread; `came` is set."""
        self.came = asyncio.Event()
        self._on_first = on_first
        self._loop = asyncio.get_running_loop()
        self._heard, self._told = socket.socketpair()
        self._told.setblocking(False)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._fd_before = -1
        self._before: dict[int, signal.Handlers | Callable[..., object] | int | None] = {}

    def __enter__(self) -> Signals:
        self._listener.start()
        # A full buffer holds two signals already.
        self._fd_before = signal.set_wakeup_fd(self._told.fileno(), warn_on_full_buffer=False)
        for number in ENDING:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._before[number] = signal.signal(number, _go_on)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        # A forked child may hold the other end open for ever: a close alone would not be heard.
        self._told.shutdown(socket.SHUT_WR)
        self._told.close()
        self._listener.join()
        self._heard.close()

    def _listen(self) -> None:
        is_second = False
        while numbers := self._heard.recv(64):
            for number in numbers:
                if number not in ENDING or (is_second and number == signal.SIGHUP):
                    continue
                if is_second:
                    text = f"stopped at once by a second signal: {SAFE}"
                    _end_at_once(text, STOPPED_AT_ONCE)
                is_second = True
                self._loop.call_soon_threadsafe(self.came.set)
                self._on_first()


def _go_on(number: int, frame: FrameType | None) -> None:
    """The main thread has nothing to do for a signal; without a handler it would end."""


def _tell_nobody() -> None:
    """A forked child has the same socket, and would tell its parent of the child's own signals.
    asyncio does this, too, from Python 3.12 on."""
    signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_tell_nobody)


class StopBound:
    """Ends the process when a stop that was begun is not over in time.

    It has a thread of its own, because the event loop may be what hangs, and has it early: a
    process that can start no more threads can still stop.
    """

    def __init__(self) -> None:
        self._begun: SimpleQueue[float] = SimpleQueue()
        self._over: SimpleQueue[None] = SimpleQueue()

    def prepare(self) -> None:
        """Called before `begin`."""
        threading.Thread(target=self._wait, daemon=True).start()

    def begin(self, bound_s: float) -> None:
        """Does nothing where it has begun."""
        self._begun.put(bound_s)

    def _wait(self) -> None:
        bound_s = self._begun.get()
        try:
            self._over.get(timeout=bound_s)
        except Empty:
            text = f"not stopped within {bound_s:g} s, ends now: {SAFE}"
            _end_at_once(text, NOT_STOPPED)

    def end(self) -> None:
        self._over.put(None)
