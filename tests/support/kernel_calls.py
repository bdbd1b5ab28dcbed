"""Records what a piece of code asks the kernel to do with files, in order.

A call is a line: its name, the paths it is about relative to a root (`.` for the root itself), and
`dsync` for a write that is durable on return. Reads and closes are left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

RWF_DSYNC = os.RWF_DSYNC


class KernelCalls:
    """`lines` holds the calls since the last `take`; paths outside the root are absolute."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self._paths: dict[int, str] = {}
        self.lines: list[str] = []

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines

    def name(self, path: str | os.PathLike[str] | int) -> str:
        text = self._paths.get(path, f"#{path}") if isinstance(path, int) else os.fspath(path)
        if text == self._root:
            return "."
        return text.removeprefix(self._root + "/")

    def opened(self, descriptor: int, path: str | os.PathLike[str], flags: int) -> None:
        self._paths[descriptor] = os.fspath(path)
        if flags & os.O_CREAT:
            self.lines.append(f"create {self.name(path)}")


@contextmanager
def recorded(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelCalls]:
    calls = KernelCalls(root)
    with monkeypatch.context() as patch:
        original_open, original_pwritev = os.open, os.pwritev

        def open_(path: Any, flags: int, *args: Any, **options: Any) -> int:
            descriptor = original_open(path, flags, *args, **options)
            calls.opened(descriptor, path, flags)
            return descriptor

        def pwritev(descriptor: int, parts: Any, position: int, flags: int = 0) -> int:
            written = original_pwritev(descriptor, parts, position, flags)
            dsync = " dsync" if flags & RWF_DSYNC else ""
            calls.lines.append(f"write {calls.name(descriptor)}{dsync}")
            return written

        patch.setattr(os, "open", open_)
        patch.setattr(os, "pwritev", pwritev)
        for name, said, paths in (
            ("pwrite", "write", 1),
            ("writev", "write", 1),
            ("ftruncate", "cut", 1),
            ("fsync", "fsync", 1),
            ("fdatasync", "fdatasync", 1),
            ("mkdir", "mkdir", 1),
            ("unlink", "unlink", 1),
            ("rename", "rename", 2),
            ("link", "link", 2),
        ):
            patch.setattr(os, name, _recording(calls, getattr(os, name), said, paths))
        yield calls


def _recording(
    calls: KernelCalls, original: Callable[..., Any], said: str, paths: int
) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        calls.lines.append(" ".join([said, *(calls.name(path) for path in args[:paths])]))
        return result

    return call
