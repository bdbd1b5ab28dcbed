"""One run of the Kafka benchmarks: its rows, its aims, and how long it may take.

1. A group of rows has a slot of time, and what those before it left of theirs: its cases are
   measured in fewer rounds when that is over, at least in one. So a slow disk makes a run less
   exact, and not endless.
2. A case that fails is a row that says so, and the next one goes on.
3. Every aim is a row at the end, in the order of `AIMS`, also one that was not measured.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from benchmarks.kafka.servers import Server
from benchmarks.page import AIM
from benchmarks.report import FAILED, Report, Row

ROUNDS = 3
NO_FACTS: Mapping[str, float] = MappingProxyType({})


class Aim(NamedTuple):
    """`group` measures it. `unit` empty: a ratio to what the sentence names."""

    group: str
    sentence: str
    aim: float
    less_is_better: bool = False
    unit: str = "×"


AIMS = {
    "cpu 1024 KiB": Aim("encoded", "server CPU by our gRPC's, 1 MiB", 0.8, True),
    "cpu 128 KiB": Aim("encoded", "server CPU by our gRPC's, 128 KiB", 0.6, True),
    "cpu 16 KiB": Aim("encoded", "server CPU by our gRPC's, 16 KiB", 0.4, True),
    "bare": Aim("encoded", "throughput by the bare server's, 1 MiB", 0.85),
    "small": Aim("encoded", "requests of one batch of 1 KiB", 15_000, unit="1/s"),
    "durable": Aim(
        "clients",
        "librdkafka, 1 KiB, by Kafka's, or 0.9 of bare",
        1.5,
    ),
    "fsynced default": Aim("clients", "librdkafka, 1 KiB, default, by fsynced Kafka's", 8),
    "fsynced 128 KiB": Aim("clients", "librdkafka, 1 KiB, 128 KiB, by fsynced Kafka's", 2.5),
    "durable, not idempotent": Aim(
        "clients",
        "librdkafka, not idempotent, 1 KiB, by Kafka's, or 0.9 of bare",
        1.5,
    ),
    "fsynced default, not idempotent": Aim(
        "clients", "librdkafka, not idempotent, 1 KiB, default, by fsynced Kafka's", 8
    ),
    "fsynced 128 KiB, not idempotent": Aim(
        "clients", "librdkafka, not idempotent, 1 KiB, 128 KiB, by fsynced Kafka's", 2.5
    ),
    "fsynced 16 KiB, not idempotent": Aim(
        "clients", "librdkafka, not idempotent, 1 KiB, 16 KiB, by fsynced Kafka's", 8
    ),
    "slow default": Aim(
        "slow-syncs", "librdkafka, 1 KiB, default, by fsynced Kafka's, slow syncs", 8
    ),
    "slow 128 KiB": Aim(
        "slow-syncs", "librdkafka, 1 KiB, 128 KiB, by fsynced Kafka's, slow syncs", 2.5
    ),
    "slow default, not idempotent": Aim(
        "slow-syncs",
        "librdkafka, not idempotent, 1 KiB, default, by fsynced Kafka's, slow syncs",
        8,
    ),
    "slow 128 KiB, not idempotent": Aim(
        "slow-syncs",
        "librdkafka, not idempotent, 1 KiB, 128 KiB, by fsynced Kafka's, slow syncs",
        2.5,
    ),
    "slow unified, not idempotent": Aim(
        "slow-syncs",
        "unified topic, librdkafka, not idempotent, 128 KiB, by fsynced Kafka's, slow syncs",
        3,
    ),
    "slow unified": Aim(
        "slow-syncs", "unified topic, librdkafka, 128 KiB, by fsynced Kafka's, slow syncs", 3
    ),
    "slow p99": Aim(
        "slow-syncs", "ack p99 by fsynced Kafka's, at half of its load, slow syncs", 1 / 3, True
    ),
    "p99": Aim("encoded", "ack p99 by fsynced Kafka's, at half of its load", 1 / 3, True),
    "catch-up": Aim("clients", "librdkafka, catch-up by Kafka's", 1.0),
    "rss": Aim("encoded", "RSS at half load by Kafka's with -Xmx1g, both fresh", 0.5, True),
    "cost of idempotence": Aim(
        "transactions", "cost of idempotence by plain, 8 Java producers", 3, True, "%"
    ),
    "cost of transactions": Aim(
        "transactions", "cost of transactions by plain, 8 Java producers", 10, True, "%"
    ),
    "unified durable": Aim("kinds", "unified topic, librdkafka, 128 KiB, by fsynced Kafka's", 3),
    "unified durable, not idempotent": Aim(
        "kinds", "unified topic, librdkafka, not idempotent, 128 KiB, by fsynced Kafka's", 3
    ),
    "unified lazy, not idempotent": Aim(
        "kinds", "unified topic with flush.ms=1000, not idempotent, by Kafka's", 0.7
    ),
    "unified lazy": Aim("kinds", "unified topic with flush.ms=1000, by Kafka's", 0.7),
    "unified catch-up": Aim("kinds", "unified topic, catch-up by a shared one's", 0.9),
    "beside unified": Aim(
        "kinds", "shared topic beside a unified one, by beside its own kind", 0.97
    ),
    "beside shared": Aim(
        "kinds", "unified topic beside a shared one, by beside its own kind", 0.97
    ),
    "idle 500": Aim("idle", "1,000 idle consumers, wait of 500 ms", 20, True, "% of a core"),
    "idle 5000": Aim("idle", "1,000 idle consumers, wait of 5 s", 3, True, "% of a core"),
    "idle size": Aim("idle", "memory of an idle consumer", 20, True, "KB"),
}


class _Met(NamedTuple):
    values: list[float]
    facts: Mapping[str, float]
    is_reached: bool | None


class Bench:
    """`scale`: bytes, requests and consumers of a round by those of a whole run. `folder`: on the
    disk that is measured; groups may put servers of their own there."""

    def __init__(
        self,
        report: Report,
        servers: Mapping[str, Server],
        folder: Path,
        scale: float,
        rounds: int | None = None,
    ) -> None:
        self.report = report
        self.servers = servers
        self.folder = folder
        self.scale = scale
        self._rounds = rounds
        self._slot_ends = time.monotonic()
        self._met: dict[str, _Met] = {}

    def begin_slot(self, minutes: float) -> None:
        """The group that follows has this time for more rounds than one, and what is left of all
        slots before."""
        self._slot_ends += minutes * 60

    def rounds(self, most: int = ROUNDS) -> Iterator[int]:
        """At least one."""
        for number in range(min(most, self._rounds or most)):
            if number and time.monotonic() > self._slot_ends:
                return
            yield number

    def number(self, named: int, least: int = 10) -> int:
        """So many at any scale, because a row or an aim names the number; fewer in a quick run,
        whose figures mean nothing."""
        return named if self._rounds is None else max(least, int(named * self.scale))

    def attempt(self, group: str, case: str, work: Callable[[], None]) -> None:
        """Does the work; a failure is a row."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever fails, the other rows are measured
            traceback.print_exc()
            row = Row(group, case, float("nan"), FAILED)
            self.report.add(row)
            self.report.note(f"{group}, {case}: {type(error).__name__}: {error}"[:300])

    def meet(
        self,
        name: str,
        values: float | Sequence[float],
        facts: Mapping[str, float] = NO_FACTS,
        *,
        is_reached: bool | None = None,
    ) -> None:
        """The aim's figure: one, or one of each round. `is_reached`: where another figure decides,
        too."""
        found = [values] if isinstance(values, (int, float)) else list(values)
        self._met[name] = _Met(found, facts, is_reached)

    def add_aims(self, groups: Sequence[str]) -> None:
        """A row for each aim of these groups."""
        for name, aim in AIMS.items():
            if aim.group not in groups:
                continue
            met = self._met.get(name)
            row = Row(
                AIM, aim.sentence, float("nan") if met is None else median(met.values), aim.unit,
                aim=aim.aim, less_is_better=aim.less_is_better,
            )  # fmt: skip
            if met is not None:
                row.is_reached = met.is_reached
                row.facts = dict(met.facts)
                if len(met.values) > 1:
                    row.facts |= {"least": min(met.values), "most": max(met.values)}
            self.report.add(row)
