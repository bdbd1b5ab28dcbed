"""Ctrl-C, SIGTERM and SIGHUP in a command that must report its progress when it ends."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """A signal asked the command to end; `exit_code` is the shell's for it.

    As KeyboardInterrupt it is no Exception, so that a producer in `with` is closed without waiting.
    """

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Interruption:
    """Where a signal may interrupt a command.

    The first signal interrupts a wait for input, and otherwise only `check` raises it: in the
    middle of a send it would leave the producer's state half changed. `when_deferred` is called
    then, and may make the send end soon. The second signal raises wherever the command is.
    """

    def __init__(self) -> None:
        self.signal_number = 0
        """The first signal that came; 0: none."""
        self._may_break = False
        self.when_deferred: Callable[[], object] = lambda: None

    def received(self, number: int, frame: FrameType | None) -> None:
        is_second = self.signal_number != 0
        self.signal_number = self.signal_number or number
        if self._may_break or is_second:
            raise Interrupted(number)
        self.when_deferred()

    def check(self) -> None:
        """Errors: Interrupted, where a signal came."""
        if self.signal_number:
            raise Interrupted(self.signal_number)

    @contextmanager
    def may_break(self) -> Iterator[None]:
        """Surrounds a wait that a signal ends at once."""
        self._may_break = True
        try:
            self.check()
            yield
        finally:
            self._may_break = False

    def breaking(self, items: Iterator[list[bytes]]) -> Iterator[list[bytes]]:
        """The items. A signal may interrupt the wait for an item, not the work on it."""
        while True:
            with self.may_break():
                item = next(items, None)
            if item is None:
                return
            yield item
            self.check()


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Handles the signals inside the block, and restores the old handlers at its end.

    A signal that the parent made the command ignore, as `nohup` does, stays ignored.
    """
    interruption = Interruption()
    before = {
        number: signal.signal(number, interruption.received)
        for number in SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
