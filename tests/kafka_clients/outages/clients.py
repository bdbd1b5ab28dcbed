"""The clients' programs as child processes: what they said, and when, as they speak."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, NamedTuple

from streamlog.demo.child import wait_or_kill
from tests.kafka_clients.client_programs import Command, java, python, start, tell
from tests.support.go_clients import go_clients

PROGRAMS = Path(__file__).parent / "programs"
END_S = 30.0


CLIENTS: Mapping[str, Command] = {
    "librdkafka": python("outages.programs.librdkafka"),
    "aiokafka": python("outages.programs.aio"),
    "java": lambda: java(str(PROGRAMS / "Outage.java")),
    "franz-go": lambda: [str(go_clients()), "outage"],
}


class Pace(NamedTuple):
    timeouts: str
    """"default": the clients' own; "short"."""
    interval_ms: int
    record_bytes: int


class Place(NamedTuple):
    topic: str
    partition: int
    offset: int


class Failed(NamedTuple):
    at: float
    value: str
    error: str


class Said(NamedTuple):
    at: float
    role: str
    text: str


class Call(NamedTuple):
    at: float
    """When it ended."""
    name: str
    seconds: float
    error: str


@dataclass
class Client:
    """A running program; its lists grow in a thread of their own. Times are monotonic seconds."""

    name: str
    acked: dict[str, Place] = field(default_factory=dict)
    acked_at: dict[str, list[float]] = field(default_factory=dict)
    """By role."""
    read: dict[str, list[tuple[Place, str]]] = field(default_factory=dict)
    failed: dict[str, list[Failed]] = field(default_factory=dict)
    errors: list[Said] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    flushed: set[str] = field(default_factory=set)
    is_ready: bool = False
    unknown: list[str] = field(default_factory=list)
    """Lines that are none of the program's words."""
    _process: subprocess.Popen[str] | None = None
    _threads: list[threading.Thread] = field(default_factory=list)

    @property
    def topic(self) -> str:
        return self.name

    def start(self, bootstrap: str, pace: Pace) -> None:
        command = [*CLIENTS[self.name](), bootstrap, self.topic, *map(str, pace)]
        self._process = start(command, subprocess.PIPE)
        for listen, stream in (
            (self._listen, self._process.stdout),
            (self._listen_to_log, self._process.stderr),
        ):
            assert stream is not None
            thread = threading.Thread(target=listen, args=(stream,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def tell(self, word: str) -> None:
        assert self._process is not None
        tell(self._process, word)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end(self) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        if process.poll() is None:
            process.stdin.close()
        wait_or_kill(process, END_S)
        for thread in self._threads:
            thread.join(END_S)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()

    def _listen(self, stream: IO[str]) -> None:
        for line in stream:
            self._hear(time.monotonic(), line.rstrip("\n").split("\t"))

    def _listen_to_log(self, stream: IO[str]) -> None:
        for line in stream:
            self.errors.append(Said(time.monotonic(), "log", line.rstrip("\n")))

    def _hear(self, at: float, fields: list[str]) -> None:
        match fields:
            case ["acked", role, partition, offset, value]:
                place = Place(self._topic_of(role), int(partition), int(offset))
                self.acked[value] = place
                self.acked_at.setdefault(role, []).append(at)
            case ["read", role, partition, offset, value]:
                place = Place(self.topic, int(partition), int(offset))
                self.read.setdefault(role, []).append((place, value))
            case ["failed", role, value, error]:
                self.failed.setdefault(role, []).append(Failed(at, value, error))
            case ["error", role, text]:
                self.errors.append(Said(at, role, text))
            case ["call", name, seconds, error]:
                self.calls.append(Call(at, name, float(seconds), error))
            case ["flushed", role]:
                self.flushed.add(role)
            case ["ready"]:
                self.is_ready = True
            case _:
                self.unknown.append("\t".join(fields))

    def _topic_of(self, role: str) -> str:
        return f"{self.topic}-late" if role == "late-writer" else self.topic
