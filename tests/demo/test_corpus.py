from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from streamlog.demo.corpus import load
from streamlog.demo.generator import SYSTEMS, generate, write_samples
from streamlog.errors import Invalid


def test_the_same_seed_makes_the_same_bytes() -> None:
    # Frozen: a demonstration that fails somewhere can be repeated elsewhere.
    made = b"".join(generate(system, seed=7, lines=200) for system in SYSTEMS)
    assert made == b"".join(generate(system, seed=7, lines=200) for system in SYSTEMS)
    assert made != b"".join(generate(system, seed=8, lines=200) for system in SYSTEMS)
    assert sha256(made).hexdigest()[:16] == "6330d78b3baeb97f"


def test_samples_hold_what_real_logs_hold(tmp_path: Path) -> None:
    write_samples(tmp_path, lines=2000)
    sources = load(tmp_path, line_bytes_max=1 << 20)
    lines = [line for source in sources for line in source.lines]
    assert len(sources) == len(SYSTEMS)
    assert len(lines) == 2000 * len(SYSTEMS)
    assert b"" in lines
    assert any(line.endswith(b"\r") for line in lines)
    assert any(line.endswith(b" ") for line in lines)
    assert any(b"\t" in line for line in lines)
    assert any(max(line, default=0) > 127 for line in lines)
    assert max(map(len, lines)) > 500


def test_one_topic_for_each_file_with_names_a_topic_may_have(tmp_path: Path) -> None:
    for name in ("a b.log", "a+b.log", "Ünï.log", "…….log"):
        (tmp_path / name).write_bytes(b"x\n")
    (tmp_path / "readme").write_bytes(b"not taken: the folder has .log files\n")
    (tmp_path / "empty.log").write_bytes(b"")
    topics = [source.topic for source in load(tmp_path, line_bytes_max=100)]
    assert len(set(topics)) == 4
    assert all(set(topic) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") for topic in topics)


def test_lines_end_at_lf_and_the_last_needs_none(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"one\r\n\n\x00\xff\nlast")
    (source,) = load(tmp_path, line_bytes_max=100)
    assert source.lines == [b"one\r", b"", b"\x00\xff", b"last"]


def test_a_folder_without_text_lines_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no file with a line"):
        load(tmp_path, line_bytes_max=100)
    with pytest.raises(Invalid, match="not a folder"):
        load(tmp_path / "none", line_bytes_max=100)
    (tmp_path / "x.log").write_bytes(b"short\n" + b"x" * 101 + b"\n")
    with pytest.raises(Invalid, match=r"x\.log line 2 has 101 bytes"):
        load(tmp_path, line_bytes_max=100)
