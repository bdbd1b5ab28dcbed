"""The cost of a Spark query: time, and CPU of the driver, the JVM and all Python workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from statistics import median

import psutil

WARM_UPS = 4
"""Rounds before the measured ones: compiling in the JVM takes half of a first run's CPU."""
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Cost:
    wall_s: float
    cpu_s: float
    """CPU of Spark: this process, the JVM, Python workers."""
    server_cpu_s: float
    """CPU of Kafka's server and of our node together."""


class Meter:
    """Reads CPU times of process trees."""

    def __init__(self, jvm: psutil.Process, servers: list[psutil.Process]) -> None:
        self._jvm = _Tree(jvm)
        self._servers = [_Tree(one) for one in servers]

    def begin(self) -> Cost:
        """Starts a measurement, which `end` ends."""
        spark, servers = self._spark_s(), self._servers_s()
        return Cost(time.perf_counter(), spark, servers)

    def end(self, began: Cost) -> Cost:
        """The cost since `begin`'s result."""
        wall_s = time.perf_counter() - began.wall_s
        spark, servers = self._spark_s(), self._servers_s()
        return Cost(wall_s, spark - began.cpu_s, servers - began.server_cpu_s)

    def cost(self, work: Callable[[], object]) -> Cost:
        began = self.begin()
        work()
        return self.end(began)

    def in_turns(
        self, cases: Mapping[str, Callable[[], object]], rounds: int = ROUNDS
    ) -> dict[str, list[Cost]]:
        """Runs all cases in turn, `rounds` times, after WARM_UPS rounds that do not count."""
        for work in WARM_UPS * list(cases.values()):
            work()
        costs: dict[str, list[Cost]] = {name: [] for name in cases}
        for _ in range(rounds):
            for name, work in cases.items():
                costs[name].append(self.cost(work))
        return costs

    def _spark_s(self) -> float:
        return sum(psutil.Process().cpu_times()[:2]) + self._jvm.cpu_s()

    def _servers_s(self) -> float:
        return sum(one.cpu_s() for one in self._servers)


class _Tree:
    """A process and its descendants.

    Its own children that ended are in its times, for it waits for them. Spark's Python daemon does
    not wait for its workers, and Spark ends those that were idle for a minute: what each had taken
    when it was last seen stays counted.
    """

    def __init__(self, root: psutil.Process) -> None:
        self._root = root
        self._workers_s: dict[psutil.Process, float] = {}
        self._found_s = 0.0

    def cpu_s(self) -> float:
        """CPU seconds so far; it never decreases."""
        found = 0.0
        children = self._root.children()
        for one in (self._root, *children):
            with suppress(psutil.NoSuchProcess):
                found += sum(one.cpu_times()[:4])
        for child in children:
            with suppress(psutil.NoSuchProcess):
                for worker in child.children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        self._workers_s[worker] = sum(worker.cpu_times()[:2])
        # A child may end between two samples and be counted in neither.
        self._found_s = max(self._found_s, found + sum(self._workers_s.values()))
        return self._found_s


def ratios(base: list[Cost], measured: list[Cost], *, wall: bool = False) -> list[float]:
    """By round, the cost of `base` as a multiple of that of `measured`."""
    return [
        one.wall_s / other.wall_s if wall else one.cpu_s / other.cpu_s
        for one, other in zip(base, measured, strict=True)
    ]


def wall_s(costs: list[Cost]) -> float:
    return median(one.wall_s for one in costs)


def cpu_s(costs: list[Cost]) -> float:
    return median(one.cpu_s for one in costs)


def server_cpu_s(costs: list[Cost]) -> float:
    return median(one.server_cpu_s for one in costs)


def ratio(base: list[Cost], measured: list[Cost], *, wall: bool = False) -> float:
    return median(ratios(base, measured, wall=wall))


def ratio_with_servers(base: list[Cost], measured: list[Cost]) -> float:
    """The ratio by all CPU, on both sides of the network."""
    return median(
        (one.cpu_s + one.server_cpu_s) / (other.cpu_s + other.server_cpu_s)
        for one, other in zip(base, measured, strict=True)
    )
