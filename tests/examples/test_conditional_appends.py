"""The examples of conditional appends, each by several processes that race, are paused and die.

The node is killed in the middle, too. What counts is what the log holds in the end: whether every
promise that was made to a process is kept, and no two of them acted as the only one.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamlog.client import Consumer
from tests.support.command import ROOT, environment
from tests.support.node import NodeProcess

WAIT_S = 90
FOR_EVER = 10**9
LEASE_MS = 499
"""The example's lease; a time of a record has lost up to a millisecond."""
NAMES = ("ann", "bob", "eve")
AT = re.compile(r"(.+): (\d+) at (\d+)")


class Processes:
    """Runs of one example; `lines` is what they have printed, each with the process's name."""

    def __init__(self, example: str, server: str) -> None:
        self._command = [sys.executable, "-W", "error", str(ROOT / "examples" / example), server]
        self._changed = threading.Condition()
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._threads: list[threading.Thread] = []
        self.lines: list[tuple[str, str]] = []

    def start(self, name: str, count: int = FOR_EVER) -> None:
        process = subprocess.Popen(
            [*self._command, name, str(count)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment(),
        )
        self._running[name] = process
        thread = threading.Thread(target=self._read, args=(name, process))
        thread.start()
        self._threads.append(thread)

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with self._changed:
                    self.lines.append((name, line.strip()))
                    self._changed.notify_all()

    def until(self, seen: Callable[[list[tuple[str, str]]], bool], since: int = 0) -> None:
        """Waits until what was printed from line `since` on fits."""
        with self._changed:
            fits = self._changed.wait_for(lambda: seen(self.lines[since:]), WAIT_S)
        assert fits, self.lines[-30:]

    def signal(self, name: str, number: signal.Signals) -> None:
        self._running[name].send_signal(number)

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        process.kill()
        process.wait(WAIT_S)

    def ended(self) -> None:
        """Waits for the end of all of them, which must be a success."""
        for process in self._running.values():
            assert process.wait(WAIT_S) == 0, self.lines[-30:]
        self._running.clear()

    def close(self) -> None:
        for name in list(self._running):
            self.signal(name, signal.SIGCONT)
            self.kill(name)
        for thread in self._threads:
            thread.join(WAIT_S)

    def acknowledged(self) -> list[tuple[str, int, int]]:
        """Name, value and offset of each append that a process was told of."""
        found = [AT.fullmatch(line) for _, line in self.lines]
        return [(one[1], int(one[2]), int(one[3])) for one in found if one is not None]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "data") as started:
        yield started


@pytest.fixture
def processes(node: NodeProcess, request: pytest.FixtureRequest) -> Iterator[Processes]:
    running = Processes(request.param, node.server)
    try:
        yield running
    finally:
        running.close()


def events(server: str, topic: str, partition: int = 0) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    with Consumer(server) as consumer:
        consumer.assign([(topic, partition)])
        end = consumer.end_offsets([(topic, partition)])[topic, partition]
        while consumer.position(topic, partition) < end:
            for record in consumer.poll(1.0):
                assert record.value is not None
                found[record.offset] = json.loads(record.value) | {"ms": record.timestamp_ms}
    return found


def appends(count: int) -> Callable[[list[tuple[str, str]]], bool]:
    return lambda lines: sum(" at " in line for _, line in lines) >= count


def appended_by_others(name: str) -> Callable[[list[tuple[str, str]]], bool]:
    return lambda lines: any(who != name for who, line in lines if " at " in line)


def said_by(name: str) -> Callable[[list[tuple[str, str]]], bool]:
    return lambda lines: any(who == name for who, _ in lines)


def latest(processes: Processes) -> str:
    """Who was told of an append last."""
    return processes.acknowledged()[-1][0]


@pytest.mark.parametrize("processes", ["leader_election.py"], indirect=True)
def test_one_leader_counts_at_a_time(node: NodeProcess, processes: Processes) -> None:
    for name in NAMES:
        processes.start(name)
    processes.until(appends(30))

    # A leader is paused, and wakes up under its successor.
    paused, since = latest(processes), len(processes.lines)
    processes.signal(paused, signal.SIGSTOP)
    processes.until(lambda lines: any("leads in" in x and n != paused for n, x in lines), since)
    processes.until(appends(5), since)
    processes.signal(paused, signal.SIGCONT)
    processes.until(lambda lines: any("leads now" in x and n == paused for n, x in lines), since)

    node.kill()
    node.start()
    processes.until(appends(30), len(processes.lines))

    dead, since = latest(processes), len(processes.lines)
    processes.kill(dead)
    processes.until(lambda lines: any("leads in" in x and n != dead for n, x in lines), since)
    processes.until(appends(10), len(processes.lines))
    processes.close()

    log = events(node.server, "example-election")
    claims = [one["epoch"] for one in log.values() if one["what"] == "I lead"]
    counts = [one for one in log.values() if one["what"] == "count"]
    assert claims == sorted(set(claims))
    # Of two leaders at a time both would have counted on from the same number.
    assert [one["count"] for one in counts] == list(range(1, len(counts) + 1))
    epochs = [one["epoch"] for one in counts]
    assert epochs == sorted(epochs)
    assert len({(one["epoch"], one["by"]) for one in counts}) == len(set(epochs)) >= 3
    acknowledged = processes.acknowledged()
    assert len(acknowledged) >= 75
    for name, count, offset in acknowledged:
        assert (log[offset]["by"], log[offset]["count"]) == (name, count)


@pytest.mark.parametrize("processes", ["lock_with_lease.py"], indirect=True)
def test_what_a_lock_guards_has_one_writer_at_a_time(
    node: NodeProcess, processes: Processes
) -> None:
    for name in NAMES:
        processes.start(name)
    processes.until(appends(10))

    # A process is paused again and again, until it was so with the lock in its hand.
    since = len(processes.lines)
    while not any("has it, not" in line for _, line in processes.lines):
        paused, now = latest(processes), len(processes.lines)
        processes.signal(paused, signal.SIGSTOP)
        processes.until(appended_by_others(paused), now)
        processes.signal(paused, signal.SIGCONT)
        processes.until(said_by(paused), now)
        assert len(processes.lines) - since < 10_000

    node.kill()
    node.start()
    processes.until(appends(10), len(processes.lines))
    processes.kill(latest(processes))
    processes.until(appends(10), len(processes.lines))
    processes.close()

    log = events(node.server, "example-lock", 1)
    assert [one["value"] for one in log.values()] == list(range(1, len(log) + 1))
    numbers = [one["number"] for one in log.values()]
    assert numbers == sorted(numbers)
    assert len({(one["number"], one["by"]) for one in log.values()}) == len(set(numbers))
    taken = events(node.server, "example-lock")
    for one in log.values():
        lock = taken[one["number"]]
        assert (lock["what"], lock["by"]) == ("taken", one["by"])
    holder, until_ms = None, 0
    for one in taken.values():
        if one["what"] == "free":
            assert one["by"] == holder
            until_ms = 0
        else:
            assert one["ms"] >= until_ms, "taken while another had the lease"
            holder, until_ms = one["by"], one["ms"] + LEASE_MS
    acknowledged = processes.acknowledged()
    assert len(acknowledged) >= 30
    for name, value, offset in acknowledged:
        assert (log[offset]["by"], log[offset]["value"]) == (name, value)


@pytest.mark.parametrize("processes", ["event_sourcing.py"], indirect=True)
def test_an_account_is_never_overdrawn_and_no_command_happens_twice(
    node: NodeProcess, processes: Processes
) -> None:
    each = 40
    for name in NAMES:
        processes.start(name, each)
    processes.until(appends(20))
    node.kill()
    node.start()
    processes.until(appends(40))
    # It begins anew with the same commands, and does not know which of them were done.
    processes.kill("bob")
    processes.start("bob", each)
    processes.ended()
    processes.close()

    log = events(node.server, "example-account")
    balance = 0
    for one in log.values():
        balance += one["change"]
        assert balance >= 0
    stored = [one["command"] for one in log.values()]
    assert len(stored) == len(set(stored))
    told: dict[str, set[str]] = {}
    for _, line in processes.lines:
        command, _, result = line.partition(": ")
        if re.fullmatch(r"(ann|bob|eve) \d+", command):
            told.setdefault(command, set()).add(result)
    assert set(told) == {f"{name} {number}" for name in NAMES for number in range(each)}
    for command, results in told.items():
        if command in stored:
            offset = next(at for at, one in log.items() if one["command"] == command)
            # Refused at first, it may have found money when it was tried anew.
            assert results - {"refused"} == {f"at {offset}"}
            assert command.startswith("bob") or results == {f"at {offset}"}
        else:
            assert results == {"refused"}
    assert sum(f"{name} {number}" in stored for name in NAMES for number in range(0, each, 3)) == 42
