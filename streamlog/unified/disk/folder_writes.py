"""FolderWrites: what is written in a log folder now, and whether its disk took the last write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streamlog.errors import DiskFull
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.answers import FORGET_S
from streamlog.runtime.progress import Due


class FolderWrites:
    """Of all partitions and checkpoints of one folder."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.under_way: dict[object, str] = {}
        """The oldest first."""
        self._refusal: DiskFull | None = None
        self._refused_since = self._refused_at = 0.0
        """When the first write since one that succeeded found no room, and the last."""

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Around a write, which raises DiskFull where there is no room."""
        token = object()
        self.under_way[token] = what
        try:
            with self.checked():
                yield
            self._refusal = None
        finally:
            del self.under_way[token]

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Around what may write nothing: it says that there is no room, and never that there is."""
        try:
            yield
        except DiskFull as error:
            self._refused_at = self._clock.monotonic()
            if self._refusal is None:
                self._refused_since = self._refused_at
            self._refusal = error
            raise

    def progress(self) -> Due | None:
        """A check: the write that has been under way for longest."""
        for token, what in self.under_way.items():
            return Due(token, what)
        return None

    def full(self) -> Due | None:
        """A check: the last write found no room. Ends when a write succeeds, or none is tried."""
        if self._refusal is None:
            return None
        if self._clock.monotonic() - self._refused_at > FORGET_S:
            self._refusal = None
            return None
        return Due("", self._refusal.message, 0.0, self._refused_since)
