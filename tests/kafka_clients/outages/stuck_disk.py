"""A disk that fails or hangs for one folder of a process, from outside: `stuck_disk.c` beside it.

What the kernel does when a disk goes away under one mount, without the rights to mount anything.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("stuck_disk.c")


class StuckDisk:
    """`environment` is for the process, which has to be started with it; needs a C compiler."""

    def __init__(self, scratch: Path, folder: Path) -> None:
        self._switch = scratch / "stuck"
        library = scratch / "stuck_disk.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", library, SOURCE, "-ldl"], check=True
        )
        self.environment = {
            "LD_PRELOAD": str(library),
            "STUCK_FOLDER": f"{folder.resolve()}/",
            "STUCK_SWITCH": str(self._switch),
        }

    def fail(self) -> None:
        """Writes and syncs in the folder are answered with EIO."""
        self._set("fail")

    def hang(self) -> None:
        """Syncs in the folder wait; writes go into the page cache, as they do at first."""
        self._set("syncs wait")

    def block(self) -> None:
        """Writes wait, too, as when the file system's journal waits for the disk."""
        self._set("both wait")

    def work(self) -> None:
        self._switch.unlink(missing_ok=True)

    def _set(self, mode: str) -> None:
        written = self._switch.with_suffix(".new")
        written.write_text(mode)
        os.replace(written, self._switch)
