"""Kills broker and copiers, round by round, and checks what can be read in the end."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka_clients.kills.follower import PROGRESS_S
from tests.kafka_clients.kills.transactions.checks import (
    Finding,
    Told,
    check_copy,
    check_ends,
    check_reader,
)
from tests.kafka_clients.kills.transactions.copiers import Copier, Task
from tests.kafka_clients.kills.transactions.reading import Reading, ends, read_all
from tests.kafka_clients.kills.victims import Victim

TOPICS = ("source", "copy-1", "copy-2")
"""Each is copied into the next."""
PARTITIONS = 3
FED = 30
"""Records for each partition of the source, in each round."""
PAUSE_S_MAX = 0.5
KILLED = (*("broker",) * 5, *("copier",) * 3, *("both",) * 2)


@dataclass(slots=True)
class Report:
    """What came of the rounds; `findings` is empty where all is well.

    `killed` counts what was killed, `under_way` the transactions that kills met, `refused` the
    times that a client gave up for good and was started again.
    """

    rounds: int = 0
    killed: Counter[str] = field(default_factory=Counter)
    under_way: int = 0
    records: int = 0
    commits: Counter[str] = field(default_factory=Counter)
    aborts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    """Why clients gave up, in their words."""
    undecided: int = 0
    """Transactions of which no copier knew whether they were committed."""
    findings: list[Finding] = field(default_factory=list)


class Source:
    """Writes numbered records to the first topic, idempotently."""

    def __init__(self, server: str) -> None:
        self.written = 0
        self._failures: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": server,
                "enable.idempotence": True,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )

    def feed(self, count: int) -> None:
        for _ in range(count):
            for partition in range(PARTITIONS):
                self._producer.produce(
                    TOPICS[0], b"%d" % self.written, partition=partition, on_delivery=self._answered
                )
            self.written += 1
        self._producer.poll(0)

    def _answered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failures.append(str(error))

    def finish(self) -> None:
        left = self._producer.flush(PROGRESS_S)
        assert left == 0, f"{left} records are without an answer"
        assert not self._failures, self._failures[0]


def kill_under_copiers(
    victim: Victim, clients: Sequence[str], rounds: int, seed: int, folder: Path
) -> Report:
    """Starts broker and copiers, kills what chance says `rounds` times, and stops them all."""
    choose = random.Random(seed)
    report = Report()
    with ExitStack() as stack:
        stack.callback(victim.stop)
        victim.start()
        _make_topics(victim.kafka)
        told = {topic: Told() for topic in TOPICS[1:]}
        copiers = []
        for task in _tasks(clients):
            copier = Copier(task, victim.kafka, seed, told[task.target], folder)
            stack.callback(copier.end)
            copier.start()
            copiers.append(copier)
        source = Source(victim.kafka)
        readings = {
            topic: stack.enter_context(Reading(victim.kafka, topic, PARTITIONS))
            for topic in TOPICS[1:]
        }
        for number in range(rounds):
            source.feed(FED)
            _wait_for_progress(copiers)
            threading.Event().wait(PAUSE_S_MAX * choose.random())
            if number % 2 == 0:
                _wait_for_an_open_one(source, copiers)
            _kill_once(victim, copiers, choose, report)
        source.finish()
        _wait_for_all(victim.kafka, copiers)
        for copier in copiers:
            copier.stop()
        _check(victim.kafka, readings, told, report)
        _count(copiers, told, report)
    return report


def _tasks(clients: Sequence[str]) -> list[Task]:
    """Clients take turns, and copy what another one has written."""
    pairs = list(pairwise(TOPICS))
    return [
        Task(clients[(stage + partition) % len(clients)], source, partition, target, PARTITIONS)
        for stage, (source, target) in enumerate(pairs)
        for partition in range(PARTITIONS)
    ]


def _kill_once(
    victim: Victim, copiers: Sequence[Copier], choose: random.Random, report: Report
) -> None:
    what = choose.choice(KILLED)
    victims = [] if what == "broker" else [choose.choice(copiers)]
    met = copiers if what != "copier" else victims
    report.under_way += sum(one.is_open for one in met)
    for copier in victims:
        copier.kill()
    if what != "copier":
        victim.kill()
        victim.start()
    report.killed[what] += 1
    report.rounds += 1


def _wait_for_an_open_one(source: Source, copiers: Sequence[Copier]) -> None:
    """Returns within a transaction, or shortly behind it."""

    def is_open() -> bool:
        if any(copier.is_open for copier in copiers):
            return True
        source.feed(1)
        return False

    _wait(copiers, is_open, lambda: "no transaction has begun")


def _wait_for_progress(copiers: Sequence[Copier]) -> None:
    """Returns when a transaction has ended since the call."""
    before = sum(one.commits + one.aborts for one in copiers)
    _wait(
        copiers,
        lambda: sum(one.commits + one.aborts for one in copiers) > before,
        lambda: "no transaction has ended",
    )


def _wait_for_all(server: str, copiers: Sequence[Copier]) -> None:
    """Returns when all of the source has come to the last topic.

    A copier that works on the end of its input may have copied all of it without having said so.
    """
    for source, target in pairwise(TOPICS):
        wanted = {(one.partition, one.offset) for one in read_all(server, source, PARTITIONS)}
        with Reading(server, target, PARTITIONS) as reading:
            copied: set[tuple[int, int]] = set()

            def are_copied(reading: Reading = reading, copied: set[Any] = copied) -> bool:
                copied.update(one.original for one in reading.seen if one.original is not None)
                return wanted <= copied  # noqa: B023

            _wait(
                copiers,
                are_copied,
                lambda: f"{len(wanted - copied)} of {source} are not in {target}",  # noqa: B023
            )


def _wait(copiers: Sequence[Copier], is_met: Callable[[], bool], missed: Callable[[], str]) -> None:
    ends_at = time.monotonic() + PROGRESS_S
    while not is_met():
        for copier in copiers:
            copier.keep_running()
        assert time.monotonic() < ends_at, f"{missed()} after {PROGRESS_S} s"
        time.sleep(0.01)


def _check(
    server: str, readings: dict[str, Reading], told: dict[str, Told], report: Report
) -> None:
    stored = {topic: read_all(server, topic, PARTITIONS) for topic in TOPICS}
    report.records = len(stored[TOPICS[-1]])
    for source, target in pairwise(TOPICS):
        report.findings += check_copy(stored[source], stored[target], told[target])
        report.findings += check_ends(target, ends(server, target, PARTITIONS))
    for topic, reading in readings.items():
        reading.wait_to_the_end()
        assert not reading.failures, reading.failures[0]
        report.findings += check_reader(reading.seen, stored[topic])


def _count(copiers: Sequence[Copier], told: dict[str, Told], report: Report) -> None:
    for copier in copiers:
        client = copier.task.client
        report.commits[client] += copier.commits
        report.aborts[client] += copier.aborts
        report.refused[client] += copier.refused
        report.reasons.update(f"{client}: {reason}" for reason in copier.reasons)
    for one in told.values():
        report.undecided += len(one.committing - one.committed - one.aborted)


def _make_topics(server: str) -> None:
    admin = AdminClient({"bootstrap.servers": server, "log_level": 0})
    made = admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in TOPICS])
    for one in made.values():
        one.result(PROGRESS_S)
