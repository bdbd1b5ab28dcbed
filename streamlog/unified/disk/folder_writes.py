"""FolderWrites: what is written in a log folder now, and whether its disk takes what is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from streamlog.errors import DiskFull, StoreUnavailable
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.answers import FORGET_S
from streamlog.runtime.progress import Due


@dataclass(slots=True)
class _Refusals:
    """Since the last write that succeeded."""

    since: float
    last_at: float
    count: int
    message: str


class FolderWrites:
    """Of all partitions and checkpoints of one folder, each of which has a name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.under_way: dict[object, str] = {}
        """The oldest first."""
        self._full: _Refusals | None = None
        self._failing: dict[str, _Refusals] = {}
        """Those that a disk refuses for another reason than room: one bad sector is in one."""

    @contextmanager
    def of(self, what: str, name: str) -> Iterator[None]:
        """Around a write, which raises DiskFull or StoreUnavailable where the disk refuses it."""
        token = object()
        self.under_way[token] = what
        try:
            with self.checked(name):
                yield
            self._full = None
            self._failing.pop(name, None)
        finally:
            del self.under_way[token]

    @contextmanager
    def checked(self, name: str) -> Iterator[None]:
        """Around what may write nothing: it says that the disk refuses, and never that it takes."""
        try:
            yield
        except DiskFull as error:
            self._full = self._another(self._full, error.message)
            raise
        except StoreUnavailable as error:
            self._failing[name] = self._another(self._failing.get(name), error.message)
            raise

    def _another(self, before: _Refusals | None, message: str) -> _Refusals:
        now = self._clock.monotonic()
        if before is None:
            return _Refusals(now, now, 1, message)
        return _Refusals(before.since, now, before.count + 1, message)

    def _is_forgotten(self, refusals: _Refusals) -> bool:
        return self._clock.monotonic() - refusals.last_at > FORGET_S

    def progress(self) -> Due | None:
        """A check: the write that has been under way for longest."""
        for token, what in self.under_way.items():
            return Due(token, what)
        return None

    def failing(self, after_s: float) -> Due | None:
        """A check: what has been refused for longest, again and again, by a disk that has room.
        Ends when a write of it succeeds, or none is tried."""
        for name, refusals in list(self._failing.items()):
            if self._is_forgotten(refusals):
                del self._failing[name]
            elif refusals.count > 1:
                return Due("", refusals.message, after_s, refusals.since)
        return None

    def full(self) -> Due | None:
        """A check: the last write found no room. Ends when a write succeeds, or none is tried."""
        if self._full is None:
            return None
        if self._is_forgotten(self._full):
            self._full = None
            return None
        return Due("", self._full.message, 0.0, self._full.since)
