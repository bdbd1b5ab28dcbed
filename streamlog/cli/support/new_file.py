"""A file that a command makes: it has its name only once it is whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from streamlog.runtime.disk.folders import fsync_folder


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """A file that gets its name, durably, once it is whole and synced.

    Each process writes a separate file: two commands with one name leave the later one, whole.
    """
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
