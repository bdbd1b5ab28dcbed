"""A folder of folders of growing files: what a log folder asks of a disk.

Calls block and go through `Offload`. `SystemTree` is a real one; `TornTree` of `streamlog.testing`
loses and tears what was not synced.
"""

from __future__ import annotations

from typing import Protocol

from streamlog.runtime.disk.growing import GrowingFolder


class FolderTree(Protocol):
    """One level of folders. Names are single path components."""

    @property
    def top(self) -> GrowingFolder:
        """The files beside the folders."""
        ...

    def folders(self) -> list[str]:
        """The names of its folders, sorted."""
        ...

    def make(self, name: str) -> GrowingFolder:
        """A new folder, or the one that is there; its name is durable. Errors: OSError."""
        ...

    def open(self, name: str) -> GrowingFolder:
        """Errors: FileNotFoundError, OSError."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Durable on return. Errors: FileNotFoundError, FileExistsError, OSError."""
        ...

    def remove(self, name: str) -> None:
        """Removes the folder with all that is in it; does nothing where it is gone.

        A call that is cut off leaves a part of it. Errors: OSError.
        """
        ...
