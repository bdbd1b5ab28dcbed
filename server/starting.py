"""A start that waits for a store or metadata that is away, and says for what.

An attempt that fails because something is away (Unavailable, OutcomeUnknown) is made again, after
a pause that grows from half a second to five. What waiting cannot mend ends the start: data of
another cluster, damage, another process, a refused setting, refused credentials, a full disk, a
folder that this user may not write. Attempts share nothing: each opens all anew, as a restart of
the process would.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from streamlog.errors import Closed, DiskFull, OutcomeUnknown, StreamlogError, Unavailable
from streamlog.runtime.clock import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")

PAUSE_S_MIN = 0.5
PAUSE_S_MAX = 5.0
"""A store that returns is noticed that late."""
WORDS_EVERY_S = 10.0


def may_pass(error: StreamlogError) -> bool:
    """Whether the start that failed so may succeed later without a change."""
    if isinstance(error, Closed | DiskFull):
        return False
    # Of a local file an error has to say that it may pass.
    helps = error.fields.get("waiting_helps", "path" not in error.fields)
    return bool(helps) and isinstance(error, Unavailable | OutcomeUnknown)


class Starting:
    """How far a start is, in words for the log, /readyz and clients."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._step = "its settings"
        self._failure: StreamlogError | None = None
        self._failed_at = ""
        """The step that `_failure` ended."""
        self.is_waiting = asyncio.Event()
        """An attempt has failed."""

    def at(self, step: str) -> None:
        """The start goes on with `step`, a noun."""
        self._step = step

    def failed(self, error: StreamlogError) -> None:
        """The start waits, for what `error` says."""
        self._failure, self._failed_at = error, self._step
        if not self.is_waiting.is_set():
            self.is_waiting.set()
            self.tell()

    def tell(self) -> None:
        log.warning("%s", self.reason)

    @property
    def reason(self) -> str:
        """For people: what is waited for, since when, and what that said last."""
        waited_s = round(self._clock.monotonic() - self._began)
        # What failed before another step may be well by now.
        failure = self._failure if self._failed_at == self._step else None
        said = "" if failure is None else f": {failure.message}"
        return f"starting: waits for {self._step}, for {waited_s} s by now{said}"


async def open_patiently(attempt: Callable[[], Awaitable[T]], starting: Starting) -> T:
    """What `attempt()` returns, the first time that it does.

    Errors: those of an attempt that waiting cannot mend.
    """
    pause_s = PAUSE_S_MIN
    while True:
        try:
            return await attempt()
        except StreamlogError as error:
            if not may_pass(error):
                raise
            starting.failed(error)
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, PAUSE_S_MAX)
