"""The command as a user has to type it: `streamlog`, or its path where it is not on the PATH."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

NAME = "streamlog"


def command_name() -> str:
    """For hints that users copy, such as `.venv/bin/streamlog`."""
    typed = Path(sys.argv[0])
    if typed.name != NAME or not typed.is_file():
        return NAME
    on_path = shutil.which(NAME)
    if on_path is not None and os.path.samefile(on_path, typed):
        return NAME
    absolute = Path(os.path.abspath(typed))
    here = Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)
