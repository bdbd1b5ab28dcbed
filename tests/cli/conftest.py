"""One real node for all tests of the command line, and a way to run commands against it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streamlog.demo.node import NodeProcess

Command = Callable[..., "subprocess.CompletedProcess[bytes]"]
COMMAND = [sys.executable, "-m", "streamlog.cli"]


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path_factory.mktemp("node"), wal="disk")
    node.start()
    yield node
    node.stop()


@pytest.fixture(scope="session")
def environment(node: NodeProcess) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STREAMLOG_")}
    return kept | {"STREAMLOG_SERVER": node.server}


@pytest.fixture(scope="session")
def run(environment: dict[str, str]) -> Command:
    """Runs one command line; `stdin` is bytes or a file's path."""

    def run_command(
        *arguments: str | int, stdin: bytes | Path = b""
    ) -> subprocess.CompletedProcess[bytes]:
        command = [*COMMAND, *map(str, arguments)]
        if isinstance(stdin, Path):
            with stdin.open("rb") as file:
                return subprocess.run(
                    command, stdin=file, capture_output=True, env=environment, check=False
                )
        return subprocess.run(
            command, input=stdin, capture_output=True, env=environment, check=False
        )

    return run_command


@pytest.fixture(scope="session")
def done(run: Command) -> Callable[..., bytes]:
    """As `run`, for a command that must succeed; its stdout."""

    def run_well(*arguments: str | int, stdin: bytes | Path = b"") -> bytes:
        ended = run(*arguments, stdin=stdin)
        assert ended.returncode == 0, ended.stderr.decode()
        return ended.stdout

    return run_well
