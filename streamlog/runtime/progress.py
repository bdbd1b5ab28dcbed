"""Watches a node's own progress: work that is due and does not move raises an alarm.

1. A component has a *check*, which returns what the component waits for now: `Due`, or None while
   nothing is due. `Due.moved` is any value that changes when the work moves: usually a counter, or
   the oldest piece of work itself (never its id(), which a later piece may get). Components keep no
   times; their cost is one addition per batch or request.
2. `tick` calls every check once a second. Work that is due with the same `moved` for
   `stalled_after` raises an alarm; so does a request without an answer for `unanswered_after`
   (`Answers`).
3. An alarm ends at the first tick at which its work has moved or is no longer due.
4. A single late tick raises no alarm: after a pause of the process, or of its event loop, answers
   that have arrived are processed first. So two ticks in a row must see the same.

Every alarm is in `alarms` (status, /readyz), in the gauge, and in the log: when it begins, every
five minutes while it lasts, and when it ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge

from streamlog.runtime.clock import Clock
from streamlog.runtime.config import setting

log = logging.getLogger(__name__)

TICK_S = 1.0
REPEAT_S = 300.0
"""Between two log lines about an alarm that lasts."""


@dataclass(frozen=True, slots=True)
class ProgressConfig:
    """When the node raises alarms (docs/operations.md lists them)."""

    stalled_after_ms: int = setting(
        60_000,
        "Work that is due and has not moved for so long raises an alarm: in status, /readyz, "
        "metrics and the log. Lower: earlier alarms, and more of them for delays that pass by "
        "themselves.",
        minimum=1000,
    )
    unanswered_after_ms: int = setting(
        10_000,
        "An object store or metadata store that has not answered for so long raises an alarm. "
        "Lower: earlier alarms, and false ones on slow networks.",
        minimum=100,
    )
    probe_interval_ms: int = setting(
        10_000,
        "After so long without an answer a store gets a small request, so that an idle node, too, "
        "notices when it is away. On S3 an idle node sends 0.26 million HEADs a month "
        "at 10 s ($0.10); a busy one none.",
        minimum=100,
    )


class Due(NamedTuple):
    """Work that is due. `waits_for`: text for people. `after_s`: when it becomes an alarm; None:
    after `stalled_after`. `since` (monotonic): since when, if the component knows it."""

    moved: Hashable
    waits_for: str
    after_s: float | None = None
    since: float | None = None


Check = Callable[[], Due | None]


@dataclass(frozen=True, slots=True)
class Alarm:
    """`name` is stable: docs/operations.md says what to do for each."""

    name: str
    waits_for: str
    since_ms: int

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC)
        return f"{self.name}: {self.waits_for} (since {since:%Y-%m-%dT%H:%M:%SZ})"


class _Watched:
    """One check, and its state at the last tick."""

    __slots__ = ("alarm", "check", "is_ripe", "logged_at", "moved", "name", "since")

    def __init__(self, name: str, check: Check) -> None:
        self.name = name
        self.check = check
        self.moved: Hashable = None
        self.since: float | None = None
        """When `moved` got its present value; None: nothing is due."""
        self.is_ripe = False
        """Whether the work was late at the last tick, too."""
        self.alarm: Alarm | None = None
        self.logged_at = 0.0

    def due(self) -> Due | None:
        try:
            return self.check()
        except Exception as error:  # noqa: BLE001 - it becomes the alarm
            # A bug in a check must not end the node: it becomes an alarm like any other.
            return Due("failed", f"the check of {self.name} failed by a bug: {error!r}", 0.0)


class ProgressWatch:
    """Runs the checks and keeps their alarms. Call `tick` every TICK_S."""

    def __init__(self, config: ProgressConfig, clock: Clock, registry: CollectorRegistry) -> None:
        self.config = config
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        self._gauge = Gauge(
            "streamlog_alarm",
            "1 while that alarm is raised: work that is due and does not move, or a store that "
            "does not answer; status and /readyz say what it waits for.",
            ["alarm"],
            registry=registry,
        )

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """Raised alarms, in the order in which their checks were added."""
        return tuple(
            watched.alarm for watched in self._watched.values() if watched.alarm is not None
        )

    def watch(self, name: str, check: Check) -> None:
        """Calls `check` at every tick. `name` must be new: it is that of the alarm."""
        if name in self._watched:
            raise ValueError(f"there is a check named {name}")
        self._watched[name] = _Watched(name, check)
        self._gauge.labels(name).set(0)

    def tick(self) -> None:
        """Raises and ends alarms."""
        now = self._clock.monotonic()
        for watched in self._watched.values():
            self._update(watched, watched.due(), now)

    def _update(self, watched: _Watched, due: Due | None, now: float) -> None:
        if due is None:
            watched.moved = watched.since = None
        elif watched.since is None or watched.moved != due.moved:
            watched.moved, watched.since = due.moved, now
        if due is None or watched.since is None:
            watched.is_ripe = False
            self._end(watched)
            return
        since = watched.since if due.since is None else due.since
        after_s = self.config.stalled_after_ms / 1000 if due.after_s is None else due.after_s
        is_late = now - since >= after_s
        if is_late and (watched.is_ripe or watched.alarm is not None):
            self._raise(watched, due, since, now)
        elif not is_late:
            self._end(watched)
        watched.is_ripe = is_late

    def _raise(self, watched: _Watched, due: Due, since: float, now: float) -> None:
        since_ms = self._clock.now_ms() - int((now - since) * 1000)
        if watched.alarm is not None:
            # The same standstill, even if another piece of work is the oldest now.
            since_ms = min(since_ms, watched.alarm.since_ms)
        is_new = watched.alarm is None
        watched.alarm = Alarm(watched.name, due.waits_for, since_ms)
        if is_new or now - watched.logged_at >= REPEAT_S:
            watched.logged_at = now
            self._gauge.labels(watched.name).set(1)
            log.error("alarm %s", watched.alarm, extra={"alarm": watched.name})

    def _end(self, watched: _Watched) -> None:
        if watched.alarm is None:
            return
        lasted_s = (self._clock.now_ms() - watched.alarm.since_ms) / 1000
        log.warning(
            "alarm %s has passed after %.0f s",
            watched.name,
            lasted_s,
            extra={"alarm": watched.name},
        )
        watched.alarm = None
        self._gauge.labels(watched.name).set(0)
