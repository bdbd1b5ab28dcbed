"""Reads from the page cache alone, by the compiled function and without it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamlog.runtime import writer_threads
from streamlog.runtime.disk import descriptors
from streamlog.runtime.disk.descriptors import read_now

DATA = bytes(range(256)) * 8192


@pytest.fixture(params=["compiled", "in Python"], autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (descriptors.in_c is not None) == writer_threads.ARE_THERE
    if request.param == "in Python":
        monkeypatch.setattr(descriptors, "in_c", None)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.mark.parametrize(("position", "length"), [(0, 0), (0, 1), (7, 1 << 20), (0, len(DATA))])
def test_what_is_in_memory_is_read(file: int, position: int, length: int) -> None:
    assert os.pread(file, len(DATA), 0) == DATA
    found = read_now(file, position, length)
    assert found is not None
    assert bytes(found) == DATA[position : position + length]


def test_what_is_not_all_there_is_nothing(file: int) -> None:
    assert read_now(file, len(DATA) - 1, 2) is None
    assert read_now(file, len(DATA) + 1, 1) is None
    # None on a disk; what a file system in memory holds is always there.
    os.fsync(file)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    assert read_now(file, 0, len(DATA)) in (None, DATA)


def test_an_error_is_left_to_those_who_come_again() -> None:
    assert read_now(-1, 0, 1) is None
