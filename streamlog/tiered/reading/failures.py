"""Since when the remote tier fails, for errors and alarms."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamlog.errors import StoreUnavailable
from streamlog.runtime.clock import Clock


class RemoteFailures:
    """One outage lasts from the first try that failed to the first that succeeded."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: float | None = None
        """The monotonic second: how long it lasts is told."""
        self._error = ""
        self._watched: dict[object, tuple[str, float]] = {}
        """What each call under way does, and the monotonic second at which its time is up."""

    @property
    def is_lasting(self) -> bool:
        """Whether the last try failed."""
        return self._since is not None

    def succeeded(self) -> None:
        self._since = None

    def failed(self, error: BaseException) -> None:
        self._error = str(error) or type(error).__name__
        if self._since is None:
            self._since = self._clock.monotonic()

    @contextmanager
    def watched(self, doing: str, timeout_ms: int) -> Iterator[None]:
        """Around a call that has this time, and is waited for although it was given up: a delete
        must not overtake a write that hangs in a thread."""
        call = object()
        self._watched[call] = doing, self._clock.monotonic() + timeout_ms / 1000
        try:
            yield
        finally:
            del self._watched[call]

    def hanging(self) -> tuple[int, str, float]:
        """How many calls were given up and have not ended; what the first of them does, and for how
        many seconds it is overdue."""
        now = self._clock.monotonic()
        late = [one for one in self._watched.values() if one[1] < now]
        if not late:
            return 0, "", 0.0
        doing, until = min(late, key=lambda one: one[1])
        return len(late), doing, now - until

    def error(self, doing: str) -> StoreUnavailable:
        """What a caller is told whose try failed."""
        for_s = 0.0 if self._since is None else self._clock.monotonic() - self._since
        return StoreUnavailable(
            f"{doing}: the remote storage has failed for {for_s:.1f} s ({self._error}); "
            "what is local can be read, try again later"
        )
