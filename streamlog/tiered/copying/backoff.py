"""When a task of a partition is tried again after it failed. Pure but for chance."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.runtime.rand import Random


@dataclass(frozen=True, slots=True)
class TaskBackoff:
    """`first_ms` after the first failure, twice as long after each that follows, `max_ms` at most;
    each longer or shorter by up to the share `jitter`, so that partitions that failed together do
    not come back together."""

    random: Random
    first_ms: int = 500
    max_ms: int = 30_000
    jitter: float = 0.2

    def delay_s(self, failures: int) -> float:
        """Seconds until the next try, after so many failures (1 or more) one after another."""
        doublings = min(failures - 1, 62)
        delay_ms = min(self.first_ms << doublings, self.max_ms)
        spread = 1 + self.jitter * (2 * self.random.random() - 1)
        return min(delay_ms * spread, self.max_ms) / 1000
