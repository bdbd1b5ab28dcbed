"""A run: clients work, something is taken from the node for a while and given back, all goes on.

1. All clients write, read and administer; a phase begins and ends with each fault, which lasts
   until the node has noticed it.
2. Within the first fault writers and readers start that find the outage there.
3. After each fault, by itself: every writer is acknowledged something new, each call of the admin
   clients is answered well, the node is ready.
4. At the end writers stop, and `checks.py` holds what they were told against what the log has.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.kafka_clients.outages.clients import CLIENTS, Client, Pace, Place
from tests.kafka_clients.outages.stored import StoredRecord, stored_records
from tests.kafka_clients.outages.world import Health, World, health, world
from tests.kafka_clients.tap import Exchange

LOOK_S = 0.05
WRITERS = ("writer", "late-writer")
READERS = ("reader", "late-reader")


class Stuck(AssertionError):
    """Something did not go on by itself."""


class Fault(NamedTuple):
    name: str
    """Of `world.FAULTS`."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Plan:
    wal: str
    faults: Sequence[Fault]
    pace: Pace
    warm_records: int
    """Acknowledged to each writer before the first fault."""
    patience_s: float
    """How long anything may take once the node has all that it needs."""
    clients: Sequence[str] = tuple(CLIENTS)
    """Of `CLIENTS`."""
    late_at: float = 1 / 3
    """The part of the first fault after which the late ones start. Their first batches must not be
    over their time (30 s; 3 s where it is short) just when the fault is over: docs/kafka.md names
    what comes then as a weakness."""

    @property
    def is_short(self) -> bool:
        return self.pace.timeouts == "short"


SHORT_PACE = Pace("short", interval_ms=50, record_bytes=8000)
LONG_PACE = Pace("default", interval_ms=250, record_bytes=5000)


@dataclass
class Phase:
    """`exchanged`: by client, what its tap saw."""

    name: str
    begins_at: float
    exchanged: Mapping[str, Counter[Exchange]]
    ends_at: float = 0.0
    recovered: dict[str, float] = field(default_factory=dict)
    """What had to go on, by the seconds that it took (phases behind a fault)."""


@dataclass
class Outcome:
    plan: Plan
    clients: Mapping[str, Client]
    phases: list[Phase]
    health: list[Health]
    stored: Mapping[Place, StoredRecord]
    node_log: str
    tap_failures: list[str]
    stuck: str
    """What did not go on by itself; then nothing of what the log has is known."""


def run(plan: Plan, folder: Path, say: Callable[[str], None] = lambda text: None) -> Outcome:
    """`say` is told each phase as it begins.

    Errors: what the node and the clients' programs fail with at their start.
    """
    stored: Mapping[Place, StoredRecord] = {}
    stuck = ""
    with ExitStack() as stack:
        now = stack.enter_context(world(folder, plan.wal, plan.clients, is_short=plan.is_short))
        clients = {name: Client(name) for name in plan.clients}
        for client in clients.values():
            stack.callback(client.end)
            client.start(now.taps[client.name].address, plan.pace)
        phases: list[Phase] = []
        try:
            _pass_through(plan, now, clients, partial(_phase, now, phases, say), say)
            say("no more is written")
            stored = _finish(plan, now, clients)
        except Stuck as error:
            stuck = str(error)
        failures = [failure for tap in now.taps.values() for failure in tap.failures]
        log = now.node.log_path.read_text()
    return Outcome(plan, clients, phases, now.watch.seen, stored, log, failures, stuck)


def _pass_through(
    plan: Plan,
    now: World,
    clients: Mapping[str, Client],
    phase_of: Callable[[str], AbstractContextManager[Phase]],
    say: Callable[[str], None],
) -> None:
    """All phases. Errors: Stuck."""
    with phase_of("before"):
        _warm(plan, clients)
    for number, fault in enumerate(plan.faults):
        begin, end = now.faults[fault.name]
        with phase_of(fault.name):
            since = time.monotonic()
            begin()
            _pass(clients, fault.seconds * plan.late_at)
            if number == 0:
                for client in clients.values():
                    client.tell("late")
            _pass(clients, fault.seconds * (1 - plan.late_at))
            _until(clients, plan.patience_s, "the node notices", partial(_is_noticed, now, since))
            end()
        with phase_of(f"after {fault.name}") as phase:
            _recover(plan, now, clients, phase, say)


@contextmanager
def _phase(
    now: World, phases: list[Phase], say: Callable[[str], None], name: str
) -> Iterator[Phase]:
    with ExitStack() as stack:
        exchanged = {
            client: stack.enter_context(tap.recording()) for client, tap in now.taps.items()
        }
        phase = Phase(name, time.monotonic(), exchanged)
        phases.append(phase)
        say(name)
        try:
            yield phase
        finally:
            phase.ends_at = time.monotonic()


def _until(
    clients: Mapping[str, Client], give_up_s: float, what: str, condition: Callable[[], bool]
) -> float:
    """The seconds that it took. Errors: Stuck."""
    began = time.monotonic()
    while not condition():
        for client in clients.values():
            if not client.is_running:
                raise Stuck(f"{client.name} ended: {client.errors[-5:]}")
        if time.monotonic() - began > give_up_s:
            raise Stuck(f"{what}: not within {give_up_s:.0f} s; {_last_words(clients)}")
        time.sleep(LOOK_S)
    return time.monotonic() - began


def _last_words(clients: Mapping[str, Client]) -> str:
    return "; ".join(
        f"{client.name}: {client.errors[-1:]} {client.calls[-1:]}" for client in clients.values()
    )


def _pass(clients: Mapping[str, Client], seconds: float) -> None:
    """Lets time go by; a client's program that ends is found at once."""
    ends_at = time.monotonic() + seconds
    _until(clients, seconds + 60, "time", lambda: time.monotonic() >= ends_at)


def _is_noticed(now: World, since: float) -> bool:
    return any(not one.is_ready for one in reversed(now.watch.seen) if one.at > since)


def _warm(plan: Plan, clients: Mapping[str, Client]) -> None:
    for client in clients.values():
        works = partial(_works, client, plan.warm_records)
        _until(clients, plan.patience_s, f"{client.name} writes and reads", works)
        _calls_are_well(plan, clients, client, time.monotonic())


def _works(client: Client, records: int) -> bool:
    return len(client.acked) >= records and _has_read(client, "reader", records)


def _has_read(client: Client, role: str, records: int) -> bool:
    return len(client.read.get(role, ())) >= records


def _is_acked_since(client: Client, role: str, since: float) -> bool:
    return client.acked_at.get(role, [0.0])[-1] > since


def _calls_are_well(
    plan: Plan, clients: Mapping[str, Client], client: Client, since: float
) -> float:
    """Each call of the admin client has ended without an error once; the seconds that it took."""

    def missing() -> set[str]:
        well = {call.name for call in client.calls if call.at > since and not call.error}
        return CALLS - well

    return _until(
        clients, plan.patience_s, f"{client.name}'s calls are answered", lambda: not missing()
    )


CALLS = {
    *("create_topic", "alter_configs", "describe_configs"),
    *("list_offsets", "delete_records", "list_topics"),
}


def _recover(
    plan: Plan,
    now: World,
    clients: Mapping[str, Client],
    phase: Phase,
    say: Callable[[str], None],
) -> None:
    """Errors: Stuck."""
    since = phase.begins_at

    def goes_on(what: str, condition: Callable[[], bool]) -> None:
        left_s = plan.patience_s - (time.monotonic() - since)
        _until(clients, max(left_s, 1.0), what, condition)
        phase.recovered[what] = time.monotonic() - since
        say(f"after {phase.recovered[what]:.1f} s: {what}")

    for client in clients.values():
        for role in WRITERS:
            goes_on(f"{client.name} {role}", partial(_is_acked_since, client, role, since))
    goes_on("ready", lambda: health(now.node).is_ready)
    for client in clients.values():
        _calls_are_well(plan, clients, client, since)
        phase.recovered[f"{client.name} calls"] = time.monotonic() - since
        say(f"after {time.monotonic() - since:.1f} s: {client.name} calls")


def _finish(plan: Plan, now: World, clients: Mapping[str, Client]) -> Mapping[Place, StoredRecord]:
    """What the log has, after the last record was written and read. Errors: Stuck."""
    for client in clients.values():
        client.tell("stop")
    for client in clients.values():
        _until(
            clients,
            plan.patience_s,
            f"{client.name} has an answer to each record",
            partial(client.flushed.issuperset, WRITERS),
        )
    stored = stored_records(next(iter(now.taps.values())).target, plan.clients)
    for client in clients.values():
        count = sum(place.topic == client.topic for place in stored)
        for role in READERS:
            _until(
                clients,
                plan.patience_s,
                f"{client.name}'s {role} reads to the end",
                partial(_has_read, client, role, count),
            )
    for client in clients.values():
        client.end()
    return stored
