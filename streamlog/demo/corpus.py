"""A folder of text files as the demonstration's input: one topic for each file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from streamlog.errors import Invalid

FILE_BYTES_MAX = 32 << 20
"""A larger file is cut behind its last whole line within this many bytes."""

FILES_MAX = 64

_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Source:
    """The lines of one file, without their LF; at least one."""

    path: Path
    topic: str
    lines: list[bytes]
    size_bytes: int
    is_whole: bool


def _topic_name(path: Path, taken: set[str]) -> str:
    stem = _NOT_ALLOWED.sub("-", path.stem).strip(".-")[:200] or "file"
    name, number = f"demo-{stem.lower()}", 2
    while name in taken:
        name, number = f"demo-{stem.lower()}-{number}", number + 1
    taken.add(name)
    return name


def _read(path: Path) -> tuple[list[bytes], bool]:
    with path.open("rb") as file:
        data = file.read(FILE_BYTES_MAX)
        is_whole = not file.read(1)
    if not is_whole:
        data = data[: data.rfind(b"\n") + 1]
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines, is_whole


def load(folder: Path, *, line_bytes_max: int) -> list[Source]:
    """The folder's `*.log` and `*.txt` files, or all its files where it has none of these.

    Errors: Invalid if the folder is none, holds no line, or holds a line over line_bytes_max.
    """
    if not folder.is_dir():
        raise Invalid(f"{folder} is not a folder; give one with text files", path=str(folder))
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] != ".")
    chosen = [path for path in files if path.suffix in (".log", ".txt")] or files
    taken: set[str] = set()
    sources = []
    for path in chosen[:FILES_MAX]:
        lines, is_whole = _read(path)
        if not lines:
            continue
        longest = max(range(len(lines)), key=lambda number: len(lines[number]))
        if len(lines[longest]) > line_bytes_max:
            raise Invalid(
                f"{path.name} line {longest + 1} has {len(lines[longest])} bytes; a topic takes "
                f"records up to {line_bytes_max} bytes unless its max.message.bytes is raised",
                path=str(path),
                line=longest + 1,
            )
        size_bytes = sum(map(len, lines)) + len(lines)
        sources.append(Source(path, _topic_name(path, taken), lines, size_bytes, is_whole))
    if not sources:
        raise Invalid(f"{folder} holds no file with a line in it", path=str(folder))
    return sources
