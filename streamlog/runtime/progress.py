"""One watch over a node's own progress: work that is due and does not move becomes an alarm.

1. A component tells by a *check* what it waits for now: `Due`, or None while nothing is due. Its
   `moved` is any value that changes when the work moves: a counter mostly, or the oldest piece of
   work itself (never its id(), which a later piece may get). Components keep no times, and what
   they pay is one addition per batch or request.
2. `tick` asks every check once a second. Work that is due with the same `moved` for `stalled_after`
   is an alarm; so is a request without an answer for `unanswered_after` (`Answers`).
3. An alarm ends by itself at the first tick at which its work is no longer due, or has moved.
4. A single late tick raises nothing: after a pause of the process, or of its event loop, answers
   that have arrived must be taken first. So two ticks in a row have to see the same.

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
    """When the node says that it does not get on (docs/operations.md lists the alarms)."""

    stalled_after_ms: int = setting(
        60_000,
        "Work that is due and has not moved for so long becomes an alarm: in status, /readyz, "
        "metrics and the log. Lower: told sooner, and more often for what passes by itself.",
        minimum=1000,
    )
    unanswered_after_ms: int = setting(
        10_000,
        "An object store or metadata store that has not answered for so long becomes an alarm. "
        "Lower: told sooner, and false alarms on slow networks.",
        minimum=100,
    )
    probe_interval_ms: int = setting(
        10_000,
        "After so long without an answer the stores are asked for something small, that an idle "
        "node, too, notices when one is away. On S3 an idle node sends 0.26 million HEADs a month "
        "at 10 s ($0.10); a busy one none.",
        minimum=100,
    )


class Due(NamedTuple):
    """Work that is due. `waits_for`: for people. `after_s`: when it is an alarm, where that is
    another time than `stalled_after`. `since` (monotonic): where the component knows it."""

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
    """One check and what was seen of it."""

    __slots__ = ("alarm", "check", "is_ripe", "moved", "name", "since", "told_at")

    def __init__(self, name: str, check: Check) -> None:
        self.name = name
        self.check = check
        self.moved: Hashable = None
        self.since: float | None = None
        """When `moved` was first seen as it is; None: nothing is due."""
        self.is_ripe = False
        """The tick before saw it late, too."""
        self.alarm: Alarm | None = None
        self.told_at = 0.0

    def due(self) -> Due | None:
        try:
            return self.check()
        except Exception as error:  # noqa: BLE001 - it becomes the alarm
            # The watch itself must not end the node; that it fails is told like all else.
            return Due("failed", f"the check of {self.name} failed by a bug: {error!r}", 0.0)


class ProgressWatch:
    """Call `tick` every TICK_S."""

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
        """Those that are raised, in the order in which checks were added."""
        return tuple(one.alarm for one in self._watched.values() if one.alarm is not None)

    def watch(self, name: str, check: Check) -> None:
        """Asks `check` at every tick; its alarm has this name, a new one for each."""
        if name in self._watched:
            raise ValueError(f"there is a check named {name}")
        self._watched[name] = _Watched(name, check)
        self._gauge.labels(name).set(0)

    def tick(self) -> None:
        """Raises and ends alarms."""
        now = self._clock.monotonic()
        for one in self._watched.values():
            self._look(one, one.due(), now)

    def _look(self, one: _Watched, due: Due | None, now: float) -> None:
        if due is None:
            one.moved = one.since = None
        elif one.since is None or one.moved != due.moved:
            one.moved, one.since = due.moved, now
        if due is None or one.since is None:
            one.is_ripe = False
            self._end(one)
            return
        since = one.since if due.since is None else due.since
        after_s = self.config.stalled_after_ms / 1000 if due.after_s is None else due.after_s
        is_late = now - since >= after_s
        if is_late and (one.is_ripe or one.alarm is not None):
            self._raise(one, due, since, now)
        elif not is_late:
            self._end(one)
        one.is_ripe = is_late

    def _raise(self, one: _Watched, due: Due, since: float, now: float) -> None:
        since_ms = self._clock.now_ms() - int((now - since) * 1000)
        if one.alarm is not None:
            # The same standstill, whatever is the oldest part of it now.
            since_ms = min(since_ms, one.alarm.since_ms)
        is_new = one.alarm is None
        one.alarm = Alarm(one.name, due.waits_for, since_ms)
        if is_new or now - one.told_at >= REPEAT_S:
            one.told_at = now
            self._gauge.labels(one.name).set(1)
            log.error("alarm %s", one.alarm, extra={"alarm": one.name})

    def _end(self, one: _Watched) -> None:
        if one.alarm is None:
            return
        lasted_s = (self._clock.now_ms() - one.alarm.since_ms) / 1000
        log.warning(
            "alarm %s has passed after %.0f s", one.name, lasted_s, extra={"alarm": one.name}
        )
        one.alarm = None
        self._gauge.labels(one.name).set(0)
