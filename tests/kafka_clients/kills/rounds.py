"""Kills a broker under writers, round by round, and checks what is left."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from confluent_kafka.admin import AdminClient, NewTopic

from tests.kafka_clients.kills.follower import PROGRESS_S, Follower
from tests.kafka_clients.kills.history import Finding, History, check, check_reader
from tests.kafka_clients.kills.victims import Victim
from tests.kafka_clients.kills.writers import Writer

TOPIC = "killed"
PARTITIONS = 2
PAUSE_S_MAX = 0.3
READER = "consumer"
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(slots=True)
class Report:
    """What came of the rounds; `findings` is empty where all is well.

    `under_way`: how many kills met records of a writer that it had no answer for. `duplicates` are
    retries whose originals were stored, in the rounds that waited for answers.
    """

    histories: list[History]
    rounds: int = 0
    under_way: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    findings: list[Finding] = field(default_factory=list)


def kill_under_writers(
    victim: Victim,
    clients: Sequence[str],
    rounds: int,
    seed: int,
    folder: Path,
    configs: Mapping[str, str] = NOTHING,
) -> Report:
    """Starts the broker and the writers, kills the broker `rounds` times, and stops them all."""
    choose = random.Random(seed)
    with ExitStack() as stack:
        stack.callback(victim.stop)
        victim.start()
        _make_topic(victim.kafka, configs)
        writers = [
            stack.enter_context(Writer(client, victim.kafka, TOPIC, PARTITIONS, folder))
            for client in clients
        ]
        report = Report([writer.history for writer in writers])
        with Follower(victim.kafka, TOPIC, PARTITIONS) as follower:
            _begin(writers)
            for number in range(rounds):
                _kill_once(victim, writers, choose, report, is_awaited=number % 2 == 0)
            _wait_for_answers(writers)
            for writer in writers:
                writer.stop()
            report.duplicates += victim.duplicates()
            stored = victim.stored(TOPIC, PARTITIONS)
            follower.wait_for(len(stored))
        victim.assert_idle()
    assert not follower.failures, follower.failures[0]
    report.findings += check(report.histories, stored)
    report.findings += check_reader(READER, follower.seen, stored)
    return report


def _kill_once(
    victim: Victim,
    writers: Sequence[Writer],
    choose: random.Random,
    report: Report,
    is_awaited: bool,
) -> None:
    """Every other kill comes while clients find the broker again, the rest once it has answered."""
    if is_awaited:
        _wait_for_answers(writers)
        report.duplicates += victim.duplicates()
    threading.Event().wait(PAUSE_S_MAX * choose.random())
    for writer in writers:
        report.under_way[writer.history.writer] += writer.history.unanswered > 0
    victim.kill()
    report.rounds += 1
    victim.start()


def _make_topic(server: str, configs: Mapping[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": server, "log_level": 0})
    topic = NewTopic(TOPIC, PARTITIONS, 1, config=dict(configs))
    (made,) = admin.create_topics([topic]).values()
    made.result(PROGRESS_S)


def _begin(writers: Sequence[Writer]) -> None:
    """They begin together: Java takes longer to start than the others."""
    _wait_for(writers, lambda writer: writer.is_ready, "is not ready")
    for writer in writers:
        writer.begin()


def _wait_for_answers(writers: Sequence[Writer]) -> None:
    """Returns when each of the writers was acknowledged something more."""
    before = {writer: len(writer.history.acknowledged) for writer in writers}

    def has_more(writer: Writer) -> bool:
        return len(writer.history.acknowledged) > before[writer]

    _wait_for(writers, has_more, "was acknowledged nothing")


def _wait_for(writers: Sequence[Writer], is_met: Callable[[Writer], bool], missed: str) -> None:
    waiting = list(writers)
    ends_at = time.monotonic() + PROGRESS_S
    while waiting:
        for writer in waiting:
            writer.assert_alive()
        waiting = [writer for writer in waiting if not is_met(writer)]
        names = ", ".join(writer.history.writer for writer in waiting)
        assert time.monotonic() < ends_at, f"{names}: {missed} for {PROGRESS_S} s"
        time.sleep(0.005)
