"""Runs each client's program once against each broker, and keeps what it said."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.kafka_server import die_with_parent
from tests.kafka_clients.brokers import Broker
from tests.kafka_clients.client_programs import (
    PROGRAMS,
    ROOT,
    Command,
    environment,
    java,
    python,
)
from tests.kafka_clients.tap import Exchange
from tests.support.go_clients import go_clients

TIMEOUT_S = 170


CLIENTS: Mapping[str, Command] = {
    "librdkafka": python("programs.librdkafka"),
    "aiokafka": python("programs.aio"),
    "java": lambda: java(str(PROGRAMS / "Driver.java")),
    "franz-go": lambda: [str(go_clients()), "franz-go"],
    "kafka-python": python("programs.kafka_python"),
    "sarama": lambda: [str(go_clients("sarama")), "sarama"],
}
"""Command lines to which the address and the topics' prefix are added."""


class Outcome(NamedTuple):
    error: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """`cases` by name; `exchanged` is what the tap saw; `output` what the program wrote besides."""

    cases: Mapping[str, Outcome]
    exchanged: frozenset[Exchange]
    output: str


class Runs:
    """A program is run when its outcome is first asked for."""

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], Run] = {}

    def of(self, client: str, broker: Broker) -> Run:
        key = client, broker.name
        if key not in self._runs:
            self._runs[key] = _run(client, broker)
        return self._runs[key]


def _run(client: str, broker: Broker) -> Run:
    command = [*CLIENTS[client](), broker.bootstrap, f"case-{client}"]
    with broker.tap.recording() as seen:
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                cwd=ROOT,
                env=environment(),
                timeout=TIMEOUT_S,
                check=False,
                preexec_fn=die_with_parent,
            )
            out, err = done.stdout, f"exit code {done.returncode}: {done.stderr[-2000:]}"
        except subprocess.TimeoutExpired as late:
            out, err = _text(late.stdout), f"it hung: {_text(late.stderr)[-2000:]}"
    return Run(outcomes(out), frozenset(seen), err)


def outcomes(output: str) -> dict[str, Outcome]:
    """By case, in a program's output."""
    told = [json.loads(line) for line in output.splitlines()]
    return {one["case"]: Outcome(one["error"], one["seconds"]) for one in told}


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""
