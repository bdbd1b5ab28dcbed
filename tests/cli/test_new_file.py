"""Files that commands make: what has their name already, and what is left when they end early."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.conftest import Command

SEGMENT = "log dump filed --partition 0 --segment FILE"
BACKUP = "backup --out FILE"


def _words(command: str, file: Path) -> list[str]:
    return [str(file) if word == "FILE" else word for word in command.split()]


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
