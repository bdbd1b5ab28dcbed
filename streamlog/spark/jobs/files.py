"""Files that are replaced whole. Blocking."""

from __future__ import annotations

import os
from pathlib import Path

from streamlog.runtime.disk.folders import fsync_folder


def replace_file(path: Path, data: bytes) -> None:
    """The data is on disk when this returns; a crash leaves the old file."""
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    fsync_folder(str(path.parent))
