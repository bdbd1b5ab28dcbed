"""How the clients' programs are started: their command lines, and those that run beside a test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tests.support.kafka_jars import class_path
from tests.support.kafka_server import QUICK

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).resolve().parents[2]
Command = Callable[[], list[str]]
"""A command line; whatever it needs is fetched and built with the call."""


def java(*arguments: str, heap: str = "-Xmx256m") -> list[str]:
    """A command line of the Java client's libraries."""
    logging = f"-Dlog4j2.configurationFile={PROGRAMS / 'log4j2.properties'}"
    return ["java", heap, *QUICK, logging, "-cp", class_path(), *arguments]


def dumped_segments(*arguments: str) -> str:
    """What Kafka's DumpLogSegments says. Errors: AssertionError with its complaint."""
    ended = subprocess.run(
        java("kafka.tools.DumpLogSegments", *arguments),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def python(module: str) -> Command:
    """`module`: below `tests.kafka_clients`."""
    return lambda: [sys.executable, "-m", f"tests.kafka_clients.{module}"]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def start(command: list[str], errors: int | IO[bytes]) -> subprocess.Popen[str]:
    """A program that is told words, and says some, until its input ends; so it ends with the test.

    Not `preexec_fn`: it runs in a fork of this process, whose gRPC threads may end it there.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        cwd=ROOT,
        env=environment(),
    )


def tell(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
