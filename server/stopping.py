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


def end_at_once(text: str, code: int) -> NoReturn:
    """Logs the text, which takes WORDS_S_MAX at most, and ends the process."""

    def say() -> None:
        log.warning("%s", text)
        logging.shutdown()

    words = threading.Thread(target=say, daemon=True)
    words.start()
    words.join(WORDS_S_MAX)
    os._exit(code)


def second_signal() -> NoReturn:
    end_at_once(f"stopped at once by a second signal: {SAFE}", STOPPED_AT_ONCE)


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
            second_signal()
        self._is_second = True
        self._on_first()
        self._loop.call_soon_threadsafe(self.came.set)


class StopBound:
    """Ends the process when a stop that was begun is not over in time."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def begin(self, bound_s: float) -> None:
        """Does nothing where it has begun."""
        if self._timer is not None:
            return
        # A thread of its own: the event loop may be what hangs.
        text = f"not stopped within {bound_s:g} s, ends now: {SAFE}"
        self._timer = threading.Timer(bound_s, end_at_once, (text, NOT_STOPPED))
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
