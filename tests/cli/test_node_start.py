"""A command waits for its node to listen: a moment, or as long as --timeout says."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from streamlog.cli import main, remote

SERVER = "127.0.0.1:1"
COMMANDS = ["status", "consume t", "kv list", "kv watch", "stream fetch 1", "topic list"]


class VirtualTime:
    """Seconds that pass in sleeps alone."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> VirtualTime:
    """Time of a machine where nothing listens at any address."""

    def refuse(*_: Any) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    time = VirtualTime()
    monkeypatch.setattr(remote, "time", time)
    monkeypatch.setattr(socket, "create_connection", refuse)
    return time


@pytest.mark.parametrize(
    ("given", "seconds"), [("", 3.0), ("--timeout 0.5", 0.5), ("--timeout 40", 40)]
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_waits_for_its_node_to_start(
    capsys: pytest.CaptureFixture[str],
    waited: VirtualTime,
    command: str,
    given: str,
    seconds: float,
) -> None:
    began_s = waited.now_s
    assert main.run([*command.split(), "--server", SERVER, *given.split()]) == 1
    assert f"no node answers at {SERVER} within {seconds:g} s" in capsys.readouterr().err
    assert abs(waited.now_s - began_s - seconds) <= 2 * remote.LISTEN_PAUSE_S
