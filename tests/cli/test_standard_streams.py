"""Streams that are closed, or in non-blocking mode, as a shell or a parent may leave them."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, Command

Done = Callable[..., bytes]
WAIT_S = 30


def without(descriptor: int) -> list[str]:
    """A shell that closes the descriptor and becomes the command behind these arguments.

    Not `preexec_fn`: it runs in a fork of this process, whose gRPC threads may abort it there.
    """
    return ["/bin/sh", "-c", f'exec "$@" {descriptor}>&-', "sh"]


def closed(environment: dict[str, str], descriptor: int, *arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a command without that stream."""
    ended = subprocess.run(
        [*without(descriptor), *COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        check=False,
        timeout=WAIT_S,
    )
    return ended.returncode, ended.stderr.decode()


@pytest.mark.parametrize("command", ["produce shut", "kv put shut", "stream append 1"])
def test_a_closed_stdin_is_a_clear_error(environment: dict[str, str], command: str) -> None:
    code, stderr = closed(environment, 0, *command.split())
    assert (code, stderr.count("\n")) == (1, 1), stderr
    assert "stdin is closed" in stderr


@pytest.mark.parametrize(
    "command", ["status", "topic list --json", "consume shut --until-end", "kv watch"]
)
def test_a_closed_stdout_is_a_clear_error(
    done: Done, environment: dict[str, str], command: str
) -> None:
    done("produce", "shut", stdin=b"line\n")
    code, stderr = closed(environment, 1, *command.split())
    assert (code, stderr.count("\n")) == (1, 1), stderr
    assert "stdout is closed" in stderr


@pytest.mark.parametrize("command", ["status", "consume full --until-end"])
def test_a_full_disk_behind_stdout_is_named(
    done: Done, environment: dict[str, str], command: str
) -> None:
    done("produce", "full", stdin=b"line\n")
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [*COMMAND, *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            env=environment,
            check=False,
        )
    assert ended.returncode == 1
    stderr = "streamlog: the output cannot be written: No space left on device\n"
    assert ended.stderr.decode() == stderr


def test_a_command_without_output_needs_no_stdout(environment: dict[str, str]) -> None:
    assert closed(environment, 1, "topic", "create", "no-stdout")[0] == 0


def test_a_closed_stderr_loses_only_the_messages(environment: dict[str, str]) -> None:
    for arguments, code in ((("status",), 0), (("topic", "describe", "none"), 1)):
        ended = subprocess.run(
            [*without(2), *COMMAND, *arguments],
            stdout=subprocess.PIPE,
            env=environment,
            check=False,
        )
        assert ended.returncode == code
        assert bool(ended.stdout) == (code == 0)


def test_pipes_in_non_blocking_mode_carry_everything(
    done: Done, environment: dict[str, str]
) -> None:
    data = b"".join(b"%07d\n" % number for number in range(100_000))
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    process = subprocess.Popen([*COMMAND, "produce", "eagain"], stdin=reading, env=environment)
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(data)
    assert process.wait(WAIT_S) == 0
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    process = subprocess.Popen(
        [*COMMAND, "consume", "eagain", "--until-end"], stdout=writing, env=environment
    )
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == data
    assert process.wait(WAIT_S) == 0


def test_consume_into_a_file_shows_its_progress_to_a_person(
    done: Done, environment: dict[str, str]
) -> None:
    done("produce", "watched", stdin=b"a\nb\n")
    screen, terminal = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "consume", "watched", "--until-end"],
        stdout=subprocess.PIPE,
        stderr=terminal,
        env=environment,
    )
    out, _ = process.communicate(timeout=WAIT_S)
    os.close(terminal)
    shown = os.read(screen, 1000)
    os.close(screen)
    assert out == b"a\nb\n"
    assert b"2 records, 4 B" in shown


@pytest.mark.parametrize(
    ("command", "topic", "told"),
    [
        ("produce typed", "typed", b"1 records are stored in typed\n"),
        ("log append appended --partition 0", "appended", b"offsets 0 to 0\n"),
    ],
)
def test_lines_from_a_terminal_are_told_how_to_end(
    run: Command, environment: dict[str, str], command: str, topic: str, told: bytes
) -> None:
    run("topic", "create", topic)
    keyboard, terminal = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *command.split()], stdin=terminal, stderr=subprocess.PIPE, env=environment
    )
    os.close(terminal)
    assert process.stderr is not None
    assert b"Ctrl-D" in process.stderr.readline()
    os.write(keyboard, b"one\n\x04")
    assert process.stderr.readline() == told
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    os.close(keyboard)
    assert run("consume", topic, "--until-end").stdout == b"one\n"


def test_an_error_whose_reader_went_away_ends_the_command(environment: dict[str, str]) -> None:
    reading, writing = os.pipe()
    with subprocess.Popen(
        [*COMMAND, "topic", "describe", "not-there"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=writing,
        env=environment,
    ) as process:
        os.close(writing)
        os.close(reading)
        assert process.wait(WAIT_S) == 141


@pytest.mark.parametrize("words", [("ended",), ("not-there-yet", "--follow")])
def test_a_reader_that_went_away_ends_a_command_that_waits(
    run: Command, environment: dict[str, str], words: tuple[str, ...]
) -> None:
    """No further write would tell it, as in `consume TOPIC | head -1` of a topic at rest."""
    assert run("produce", "ended", stdin=b"one\n").returncode == 0
    with subprocess.Popen(
        [*COMMAND, "consume", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"waiting for" in process.stderr.readline()
        process.stdout.close()
        assert process.wait(WAIT_S) == 141


def test_a_reader_that_went_away_ends_a_watch(environment: dict[str, str]) -> None:
    with subprocess.Popen(
        [*COMMAND, "kv", "watch"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(WAIT_S) == 141


def test_a_closed_stdout_ends_the_wait_for_a_topic(environment: dict[str, str]) -> None:
    code, stderr = closed(environment, 1, "consume", "never-there", "--follow")
    assert code == 1
    assert "stdout is closed" in stderr


def test_ctrl_c_ends_a_command_whose_output_nobody_reads(
    run: Command, environment: dict[str, str]
) -> None:
    assert run("produce", "unread", stdin=b"x" * 100 + b"\n" * 5000).returncode == 0
    command = [*COMMAND, "log", "dump", "unread", "--partition", "0", "--records"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        # The rest is more than a pipe holds.
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(WAIT_S / 3) == 130
        finally:
            process.kill()


def test_ctrl_c_right_behind_a_write_writes_no_record_twice(
    done: Done, environment: dict[str, str], tmp_path: Path
) -> None:
    """The signal comes after the kernel took the records and before the command knows of it."""
    done("produce", "once", stdin=b"one\ntwo\n")
    interrupting = tmp_path / "interrupting.py"
    interrupting.write_text(
        "import os, signal\n"
        "from streamlog.cli import main\n"
        "write = os.write\n"
        "def write_and_interrupt(descriptor, data):\n"
        "    written = write(descriptor, data)\n"
        "    if descriptor == 1:\n"
        "        os.write = write\n"
        "        signal.raise_signal(signal.SIGINT)\n"
        "    return written\n"
        "os.write = write_and_interrupt\n"
        "main.main()\n"
    )
    ended = subprocess.run(
        [sys.executable, str(interrupting), "consume", "once", "--follow"],
        stdout=subprocess.PIPE,
        env=environment,
        check=False,
        timeout=WAIT_S,
    )
    assert (ended.returncode, ended.stdout) == (130, b"one\ntwo\n")
