"""A folder of the doctor's own, to examine in place of one that has nothing in it yet.

A store and a metadata store make files as they are opened, before any check writes a key. Where the
doctor runs as another user than the node, as root above all, the node could not open those files.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PREFIX = ".streamlog-doctor-"


def make_spare(folder: Path, name: str) -> Path | None:
    """Makes the folder `name` where `folder` will be: in it if it is empty, else above it.

    `name` begins with PREFIX: folders of other doctors, which run or were killed, are no files
    here; nor is what a fresh file system has. None: `folder` itself is to be examined: it has
    files, or a file is in its way. Blocking. Errors: OSError.
    """
    folder = folder.absolute()
    if folder.is_dir() and not all(map(_is_nothing, os.listdir(folder))):
        return None
    place = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not place.is_dir():
        return None
    spare = place / name
    spare.mkdir(0o700)
    return spare


def _is_nothing(name: str) -> bool:
    return name.startswith(PREFIX) or name == "lost+found"


def remove_spare(spare: Path) -> str:
    """Removes the folder with all that is in it. Returns why it could not. Blocking."""
    try:
        shutil.rmtree(spare)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return ""
