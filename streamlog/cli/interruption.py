"""Ctrl-C, SIGTERM and SIGHUP in a command that must say how far it came."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """A signal asked the command to end; `exit_code` is the shell's for it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Interruption:
    """Where a signal may break in.

    The first signal breaks a wait for input, and otherwise is seen by `check`: in the middle of a
    send it would leave the producer's state half changed. The second one raises wherever it comes.
    """

    def __init__(self) -> None:
        self._number = 0
        self._may_break = False

    def received(self, number: int, frame: FrameType | None) -> None:
        is_second = self._number != 0
        self._number = self._number or number
        if self._may_break or is_second:
            raise Interrupted(number)

    def check(self) -> None:
        """Errors: Interrupted, where a signal came."""
        if self._number:
            raise Interrupted(self._number)

    @contextmanager
    def may_break(self) -> Iterator[None]:
        """Around a wait that a signal ends at once."""
        self._may_break = True
        try:
            self.check()
            yield
        finally:
            self._may_break = False

    def breaking(self, items: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
        """The items; the wait for each may be broken, the work on each not."""
        while True:
            with self.may_break():
                item = next(items, None)
            if item is None:
                return
            yield item
            self.check()


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Takes the signals over; gives them back at the end."""
    interruption = Interruption()
    before = {number: signal.signal(number, interruption.received) for number in SIGNALS}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
