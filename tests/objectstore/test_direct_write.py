"""FileWriter: what is in the file is what was given, whichever way it went."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from streamlog.codec.crc import crc32c
from streamlog.objectstore.local import direct_write
from streamlog.objectstore.local.direct_write import BUFFER_BYTES, DIRECT_BYTES_MIN, FileWriter
from streamlog.runtime.rand import SeededRandom


def pieces(total: int) -> list[bytes]:
    """Parts of many sizes, none of them aligned."""
    random = SeededRandom(total)
    data = random.bytes(total)
    cuts = [0]
    while cuts[-1] < total:
        cuts.append(min(total, cuts[-1] + 1 + int(200_000 * random.random())))
    return [data[a:b] for a, b in itertools.pairwise(cuts)]


def stored(writer: FileWriter, path: Path, parts: Sequence[bytes]) -> bytes:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        checksum = writer.write(descriptor, parts)
        if sum(map(len, parts)) < DIRECT_BYTES_MIN:
            assert checksum == crc32c(b"".join(parts))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return path.read_bytes()


SIZES = (
    0, 1, 4096, DIRECT_BYTES_MIN - 1, DIRECT_BYTES_MIN, DIRECT_BYTES_MIN + 1, BUFFER_BYTES - 1,
    BUFFER_BYTES, BUFFER_BYTES + 1, 3 * BUFFER_BYTES, 3 * BUFFER_BYTES + 4097,
)  # fmt: skip


@pytest.mark.parametrize("size", SIZES)
def test_all_bytes_and_no_more(tmp_path: Path, size: int) -> None:
    parts = pieces(size)
    assert stored(FileWriter(), tmp_path / "file", parts) == b"".join(parts)


@pytest.mark.parametrize("fails_at", [0, 1])
def test_a_file_system_without_direct_writes_gets_ordinary_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    inner = os.pwrite
    calls: list[int] = []

    def pwrite(descriptor: int, data: bytes, position: int) -> int:
        calls.append(position)
        if len(calls) > fails_at:
            raise OSError(errno.EINVAL, "no direct writes here")
        return inner(descriptor, data, position)

    monkeypatch.setattr(os, "pwrite", pwrite)
    writer = FileWriter()
    for number in range(2):
        parts = pieces(2 * BUFFER_BYTES + 7 + number)
        assert stored(writer, tmp_path / str(number), parts) == b"".join(parts)
    assert len(calls) == (fails_at + 1 if direct_write._O_DIRECT else 0)


def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(os, "writev", full)
    with pytest.raises(OSError, match="full"):
        stored(FileWriter(), tmp_path / "file", pieces(BUFFER_BYTES))
