"""Whether a log takes work: the one place that its parts ask, and report failures to.

    OPEN ──fail──▶ FAILED ──end──▶ ENDED
      └───────────────end────────────▲

A failed log is given up: what it holds beyond its durable end is provisional and never used again.
A failure after the end is remembered, so that callers still waiting learn why.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from streamlog.errors import Closed, StreamlogError


class LogState(Enum):
    OPEN = "open"
    FAILED = "failed"
    ENDED = "ended"


_NEXT = {
    LogState.OPEN: (LogState.FAILED, LogState.ENDED),
    LogState.FAILED: (LogState.ENDED,),
    LogState.ENDED: (),
}


class LogLifecycle:
    """`on_failure(error)` is called once, at the first failure."""

    def __init__(self, name: str, on_failure: Callable[[StreamlogError], None]) -> None:
        self._name = name
        self._on_failure = on_failure
        self.state = LogState.OPEN
        self.failure: StreamlogError | None = None

    @property
    def is_open(self) -> bool:
        return self.state is LogState.OPEN

    def check_open(self) -> None:
        """Errors: why the log failed; Closed."""
        if self.failure is not None:
            raise self.failure
        if self.state is LogState.ENDED:
            raise self.closed()

    def closed(self) -> Closed:
        return Closed(f"{self._name} was closed here; open it again")

    def fail(self, error: StreamlogError) -> None:
        """Nothing more is taken; later failures are ignored."""
        if self.failure is not None:
            return
        self.failure = error
        if self.state is LogState.OPEN:
            self._transition_to(LogState.FAILED)
        self._on_failure(error)

    def end(self) -> bool:
        """Whether the log was at work until now; False after a failure or an earlier end."""
        was_open = self.state is LogState.OPEN
        if self.state is not LogState.ENDED:
            self._transition_to(LogState.ENDED)
        return was_open

    def _transition_to(self, state: LogState) -> None:
        assert state in _NEXT[self.state], f"{self._name}: {self.state} to {state}"
        self.state = state
