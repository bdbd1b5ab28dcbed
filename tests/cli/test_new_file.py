"""Files that commands make: what has their name already, and what is left when they end early."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from streamlog.cli.support.new_file import new_file
from tests.cli.conftest import Command
from tests.cli.started import start

SEGMENT = "log dump filed --partition 0 --segment FILE"
BACKUP = "backup --out FILE"
WAIT_S = 30
AS_PID_1 = """
import os, signal, sys
from pathlib import Path
from streamlog.cli.support.new_file import new_file

number = int(sys.argv[2])
signal.signal(number, signal.SIG_DFL)
# The kernel gives PID 1 no signal whose action is the default one.
signal.raise_signal = lambda number: None
with new_file(Path(sys.argv[1])):
    os.kill(os.getpid(), number)
"""

KILLED = """
import os, signal, sys
from pathlib import Path
from streamlog.cli.support.new_file import new_file

with new_file(Path(sys.argv[1])) as file:
    file.write(b"part")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _words(command: str, file: Path) -> list[str]:
    return [str(file) if word == "FILE" else word for word in command.split()]


@pytest.mark.parametrize("command", [SEGMENT, BACKUP])
def test_a_file_that_cannot_be_made_is_named_also_in_json(run: Command, command: str) -> None:
    run("produce", "filed", stdin=b"a\n")
    words = _words(command, Path("/proc/none"))
    ended = run(*words)
    assert ended.returncode == 1
    assert ended.stderr == b"streamlog: [Errno 2] No such file or directory: '/proc/none'\n"
    ended = run(*words, "--json")
    assert ended.returncode == 1
    error = json.loads(ended.stderr)["error"]
    assert error["message"] == "[Errno 2] No such file or directory: '/proc/none'"


def test_a_file_on_a_full_disk_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left") as raised, new_file(tmp_path / "file"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert raised.value.filename == str(tmp_path / "file")
    assert not list(tmp_path.iterdir())
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="No space left") as raised, new_file(link):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert raised.value.filename == str(link)


@pytest.mark.parametrize("command", [SEGMENT, BACKUP])
def test_what_is_no_regular_file_is_refused_and_stays(
    run: Command, tmp_path: Path, command: str
) -> None:
    run("produce", "filed", stdin=b"a\n")
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        ended = run(*_words(command, path))
        assert ended.returncode == 2
        assert f"{path} is no regular file" in ended.stderr.decode()
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, pipe]


@pytest.mark.parametrize("command", [SEGMENT, BACKUP])
def test_a_symbolic_link_stays_one(run: Command, tmp_path: Path, command: str) -> None:
    run("produce", "filed", stdin=b"a\n")
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder / "file")
    for _ in range(2):
        ended = run(*_words(command, link))
        assert ended.returncode == 0, ended.stderr
        assert link.is_symlink()
        assert (folder / "file").stat().st_size > 0
        (folder / "file").write_bytes(b"")
    assert sorted(tmp_path.iterdir()) == [folder, link]
    assert list(folder.iterdir()) == [folder / "file"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_no_part_of_a_file(
    environment: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        process = start(environment, *_words(BACKUP, tmp_path / "file"), "--server", server)
        assert process.stderr is not None
        assert b"has not answered" in process.stderr.readline()
        assert [path.suffix for path in tmp_path.iterdir()] == [".part"]
        process.send_signal(number)
        process.communicate(timeout=WAIT_S)
    assert process.returncode == -number
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [SEGMENT, BACKUP])
def test_what_a_killed_command_leaves_is_named_by_the_next_one(
    run: Command, tmp_path: Path, command: str
) -> None:
    run("produce", "filed", stdin=b"a\n")
    file = tmp_path / "f[1]"
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, str(file)], capture_output=True, timeout=WAIT_S, check=False
    )
    assert (ended.returncode, ended.stderr) == (-signal.SIGKILL, b"")
    [left] = tmp_path.iterdir()
    assert left.read_bytes() == b"part"
    (tmp_path / "f[1].tar.01234567.part").touch()
    ended = run(*_words(command, file))
    assert ended.returncode == 0
    named = [line for line in ended.stderr.decode().splitlines() if ".part" in line]
    assert [line.split()[0] for line in named] == [str(left)]
    assert left.read_bytes() == b"part", "another command may write it"


def test_a_name_may_be_long(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 241)
    with new_file(path) as file:
        file.write(b"whole")
    assert path.read_bytes() == b"whole"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_first_process_of_a_container(
    tmp_path: Path, number: signal.Signals
) -> None:
    words = [sys.executable, "-c", AS_PID_1, str(tmp_path / "file"), str(int(number))]
    ended = subprocess.run(words, capture_output=True, timeout=WAIT_S, check=False)
    assert (ended.returncode, ended.stderr) == (128 + number, b"")
    assert list(tmp_path.iterdir()) == []


def test_two_containers_that_write_one_file_leave_the_later_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    path = tmp_path / "file"
    with new_file(path) as slow:
        slow.write(b"slow" * 2)
        slow.flush()
        with new_file(path) as fast:
            fast.write(b"fast")
        assert path.read_bytes() == b"fast"
        slow.write(b"slow")
        slow.flush()
        assert path.read_bytes() == b"fast"
    assert path.read_bytes() == b"slow" * 3
    assert list(tmp_path.iterdir()) == [path]
