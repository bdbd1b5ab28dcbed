"""A child process is gone when its parent has ended it, whatever it does with SIGTERM."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from streamlog.demo.child import kill, terminate, wait_or_kill

STUBBORN = "trap '' TERM; echo ready; read line"
OBEDIENT = "echo ready; read line"
LONG_S, SHORT_S = 60, 0.05


@contextmanager
def shell(script: str) -> Iterator[subprocess.Popen[bytes]]:
    """A shell that has run its script up to `read`."""
    with subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process


def test_a_child_that_heeds_sigterm_is_not_killed() -> None:
    with shell(OBEDIENT) as process:
        assert terminate(process, LONG_S)
        assert process.returncode == -signal.SIGTERM


def test_a_child_that_ignores_sigterm_is_killed() -> None:
    with shell(STUBBORN) as process:
        assert not terminate(process, SHORT_S)
        assert process.returncode == -signal.SIGKILL


def test_a_child_that_ends_by_itself_is_not_killed_and_one_that_does_not_is() -> None:
    with shell(OBEDIENT) as process:
        assert not wait_or_kill(process, SHORT_S)
        assert process.returncode == -signal.SIGKILL
    with shell(OBEDIENT) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert wait_or_kill(process, LONG_S)
        assert process.returncode == 1  # `read` found no line.


def test_a_child_that_has_ended_can_be_ended_again() -> None:
    with shell(OBEDIENT) as process:
        kill(process)
        kill(process)
        assert terminate(process, LONG_S)
