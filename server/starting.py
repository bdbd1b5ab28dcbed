"""A start that waits for a store or metadata that does not answer, and says so.

An attempt that fails with Unavailable or OutcomeUnknown is repeated, after a pause that grows from
half a second to five. Errors that waiting cannot mend end the start: data of another cluster,
damage, another process, a refused setting, refused credentials, a full disk, a folder that this
user may not write. Attempts share nothing: each opens everything again, as a restart of the process
would.
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
"""A store that answers again is noticed after this time at most."""
WORDS_EVERY_S = 10.0


def may_pass(error: StreamlogError) -> bool:
    """Whether a start that failed with `error` may succeed later without a change."""
    if isinstance(error, Closed | DiskFull):
        return False
    # An error of a local file lasts, unless it says otherwise.
    helps = error.fields.get("waiting_helps", "path" not in error.fields)
    return bool(helps) and isinstance(error, Unavailable | OutcomeUnknown)


class Starting:
    """The progress of a start, in words for the log, /readyz and clients."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._step = "its settings"
        self._failure: StreamlogError | None = None
        self._failed_at = ""
        """The step that `_failure` ended."""
        self.is_waiting = asyncio.Event()
        """An attempt has failed."""

    def begin_step(self, step: str) -> None:
        """Notes the next step, a noun such as `the object store s3://b`."""
        self._step = step

    def failed(self, error: StreamlogError) -> None:
        """An attempt failed: the start waits until the cause of `error` has passed."""
        self._failure, self._failed_at = error, self._step
        if not self.is_waiting.is_set():
            self.is_waiting.set()
            self.log_reason()

    def log_reason(self) -> None:
        log.warning("%s", self.reason)

    @property
    def reason(self) -> str:
        """For people: the step that is waited for, for how long, and its last error."""
        waited_s = round(self._clock.monotonic() - self._began)
        # The failure of an earlier step is over: the start got past it.
        failure = self._failure if self._failed_at == self._step else None
        cause = "" if failure is None else f": {failure.message}"
        return f"starting: waits for {self._step}, for {waited_s} s by now{cause}"


async def open_patiently(attempt: Callable[[], Awaitable[T]], starting: Starting) -> T:
    """Repeats `attempt()` until it returns; its result.

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
