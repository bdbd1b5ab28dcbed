"""What was seen in a run, as text: each phase by client, and the node beside it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from tests.kafka_clients.outages.checks import UNKNOWN_OFFSET, sent_again
from tests.kafka_clients.outages.clients import Client
from tests.kafka_clients.outages.run import Outcome, Phase
from tests.kafka_clients.wire import APIS

TEXT_MAX = 230


def report(outcome: Outcome) -> str:
    began = outcome.phases[0].begins_at
    lines = [f"wal={outcome.plan.wal}, {len(outcome.stored)} records stored"]
    for phase in outcome.phases:
        lines.append(
            f"\n== {phase.name}: {phase.begins_at - began:.0f} s to {phase.ends_at - began:.0f} s"
        )
        for what, seconds in phase.recovered.items():
            lines.append(f"   after {seconds:6.1f} s: {what}")
        lines += _node(outcome, phase)
        for client in outcome.clients.values():
            lines += _client(client, phase)
    for client in outcome.clients.values():
        again = sent_again(client, outcome.stored)
        nowhere = sum(place.offset == UNKNOWN_OFFSET for place in client.acked.values())
        lines.append(
            f"{client.name}: {len(client.acked)} records acknowledged, {nowhere} of them without "
            f"an offset; {again} stored again by their producer under a new epoch"
        )
    lines.append("\n== log of the node")
    lines += [f"   {count:5} x {text}" for text, count in _alike(outcome.node_log.splitlines())]
    return "\n".join(lines) + "\n"


def _node(outcome: Outcome, phase: Phase) -> Iterator[str]:
    seen = [one for one in outcome.health if phase.begins_at <= one.at < phase.ends_at]
    if not seen:
        return
    resident = [one.resident_bytes >> 20 for one in seen]
    yield (
        f"   node: {resident[0]} MiB at first, {max(resident)} at most, {resident[-1]} at last; "
        f"{max(one.threads for one in seen)} threads at most"
    )
    reasons: dict[str, float] = {}
    for one in seen:
        reasons.setdefault(_plain(one.reason), one.at - phase.begins_at)
    for reason, after in reasons.items():
        yield f"   /readyz after {after:5.1f} s: {reason}"


def _client(client: Client, phase: Phase) -> Iterator[str]:
    yield f"   {client.name}"
    codes = Counter[tuple[str, int]]()
    for exchange, count in phase.exchanged[client.name].items():
        codes[APIS.get(exchange.api, str(exchange.api)), exchange.error] += count
    said = ", ".join(f"{api} {error} ({count})" for (api, error), count in sorted(codes.items()))
    yield f"      codes: {said}"
    for role, times in client.acked_at.items():
        within = sum(phase.begins_at <= at < phase.ends_at for at in times)
        yield f"      {role}: {within} acknowledged"
    for role, failed in client.failed.items():
        yield from _texts(phase, [(one.at, f"{role} failed: {one.error}") for one in failed])
    yield from _texts(phase, [(one.at, f"{one.role} sees: {one.text}") for one in client.errors])
    yield from _texts(
        phase,
        [
            (call.at, f"call {call.name}: {call.error or 'well'} ({_rough(call.seconds)})")
            for call in client.calls
        ],
    )


def _rough(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 1 else "below 1 s"


def _texts(phase: Phase, said: list[tuple[float, str]]) -> Iterator[str]:
    within = [(at, _plain(text)) for at, text in said if phase.begins_at <= at < phase.ends_at]
    first: dict[str, float] = {}
    for at, text in within:
        first.setdefault(text, at)
    for text, count in Counter(text for _, text in within).items():
        yield f"      {count:5} x, first after {first[text] - phase.begins_at:5.1f} s: {text}"


def _plain(text: str) -> str:
    """Without what differs from one time to the next."""
    text = re.sub(r"\d{4}-\d\d-\d\d[T ][0-9:.,]+Z?", "TIME", text)
    text = re.sub(r"(?<=[A-Za-z-])\d{3,}|(?<=:)\d{4,5}\b|\b\d{3,}\b", "#", text)
    return text[:TEXT_MAX]


def _alike(lines: list[str]) -> list[tuple[str, int]]:
    counted = Counter(re.sub(r"[0-9a-f]{6,}", "#", _plain(line)) for line in lines)
    return list(counted.items())[:80]
