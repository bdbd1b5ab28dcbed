"""A file that a command makes: it has its name only once it is whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import click

from streamlog.runtime.disk.folders import fsync_folder


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that gets its name, durably, once it is whole and synced.

    Each process writes a separate file: two commands with one name leave the later one, whole. A
    symbolic link stays one: the file that it points to is replaced.

    Errors: UsageError where the name is that of a device, a pipe or a folder, which the file would
    take the place of.
    """
    if path.exists() and not path.is_file():
        raise click.UsageError(f"{path} is no regular file: give the name of one, or a new name")
    path = Path(os.path.realpath(path))
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        fsync_folder(str(path.absolute().parent))
    finally:
        part.unlink(missing_ok=True)
