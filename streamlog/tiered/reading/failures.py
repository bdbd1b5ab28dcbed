"""Since when the remote tier fails, for errors and alarms."""

from __future__ import annotations

from streamlog.errors import StoreUnavailable
from streamlog.runtime.clock import Clock


class RemoteFailures:
    """One outage lasts from the first try that failed to the first that succeeded."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ms: int | None = None
        self._error = ""

    @property
    def since_ms(self) -> int | None:
        """None: the last try succeeded, or there was none."""
        return self._since_ms

    def succeeded(self) -> None:
        self._since_ms = None

    def failed(self, error: BaseException) -> None:
        self._error = str(error) or type(error).__name__
        if self._since_ms is None:
            self._since_ms = self._clock.now_ms()

    def error(self, doing: str) -> StoreUnavailable:
        """What a caller is told whose try failed."""
        for_ms = 0 if self._since_ms is None else self._clock.now_ms() - self._since_ms
        return StoreUnavailable(
            f"{doing}: the remote storage has failed for {for_ms / 1000:.1f} s ({self._error}); "
            "what is local can be read, try again later"
        )
