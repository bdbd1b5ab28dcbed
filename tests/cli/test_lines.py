from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.cli.records.lines import LineReader, LineTooLong


def _lines(data: bytes, path: Path, *, limit: int = 1 << 20, chunk: int = 7) -> list[bytes]:
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        reader = LineReader(fd, line_bytes_max=limit, chunk_bytes=chunk)
        return [line for lines in reader for line in lines]
    finally:
        os.close(fd)


@given(data=st.binary(max_size=200) | st.text("a\n\r\0", max_size=60).map(str.encode))
def test_lines_end_at_lf_only_and_keep_every_byte(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "lines"
    lines = _lines(data, path)
    ended = data if data.endswith(b"\n") or not data else data + b"\n"
    assert b"".join(line + b"\n" for line in lines) == ended
    assert all(b"\n" not in line for line in lines)


@pytest.mark.parametrize("chunk", [1, 3, 7, 1000])
@pytest.mark.parametrize("end", [b"\n", b"", b"\nshort\n"])
def test_a_long_line_is_refused_with_its_number_after_all_before_it(
    tmp_path: Path, chunk: int, end: bytes
) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\n\nthree\n" + b"x" * 21 + end)
    fd = os.open(path, os.O_RDONLY)
    reader = LineReader(fd, line_bytes_max=20, chunk_bytes=chunk)
    given_out: list[bytes] = []

    def read_all() -> None:
        for lines in reader:
            given_out.extend(lines)

    with pytest.raises(LineTooLong) as caught:
        read_all()
    os.close(fd)
    assert caught.value.number == 4
    assert given_out == [b"one", b"", b"three"]


def test_a_line_of_the_limit_is_taken(tmp_path: Path) -> None:
    assert _lines(b"x" * 20 + b"\n", tmp_path / "lines", limit=20) == [b"x" * 20]
