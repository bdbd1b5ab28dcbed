"""A lock names its holder, ends with it, and cannot be taken twice."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamlog.errors import DataInUse, StoreUnavailable
from streamlog.runtime.disk.lockfile import check_free, hold

CHILD = """
import sys
from streamlog.runtime.disk.lockfile import hold
lock = hold(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""

JAVA = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""
"""Takes the lock of Java's FileChannel."""


def test_a_second_holder_is_told_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold(str(path)) as lock:
        content = json.loads(path.read_text())
        assert (content["pid"], content["host"]) == (os.getpid(), socket.gethostname())
        assert {"started", "command"} <= content.keys()
        with pytest.raises(DataInUse) as raised:
            hold(str(path))
        assert raised.value.pid == os.getpid()
        assert raised.value.host == socket.gethostname()
        assert raised.value.path == str(path)
        assert str(os.getpid()) in str(raised.value)
    lock.release()
    hold(str(path)).release()


@contextmanager
def held_by(program: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """A child process that takes the lock, and is killed at the end."""
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdin is not None
    try:
        assert child.stdout.readline() == "held\n"
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        child.stdin.close()


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with held_by(CHILD, path) as child:
        with pytest.raises(DataInUse) as raised:
            hold(str(path))
        assert raised.value.pid == child.pid
    with hold(str(path)):
        assert json.loads(path.read_text())["pid"] == os.getpid()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": "x"}', b"\xff" * 5000])
def test_a_holder_that_has_not_written_its_name_still_holds_the_lock(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "lock"
    with hold(str(path)):
        path.write_bytes(content)
        with pytest.raises(DataInUse) as raised:
            hold(str(path))
        assert raised.value.pid == 0


def test_a_lock_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match="a file stands where a folder is needed"):
        hold(str(tmp_path / "file" / "lock"))


def test_a_kafka_that_has_the_lock_keeps_others_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    hold(str(path)).release()  # Whom the file names has ended.
    with held_by(JAVA, path):
        for taking in (hold, check_free):
            with pytest.raises(DataInUse, match="such as a Kafka") as raised:
                taking(str(path))
            assert raised.value.pid == 0
    check_free(str(path))
    hold(str(path)).release()


def test_the_lock_keeps_a_kafka_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold(str(path)), path.open("a") as file:
        with pytest.raises(BlockingIOError):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.open("a").close()  # The process's other locks of a file end with any descriptor of it.
        with pytest.raises(BlockingIOError):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
