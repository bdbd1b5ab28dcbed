"""A folder of files that grow: what a log in local files asks of a disk.

The write-ahead log's files have a fixed size and each write is durable on return (`interface.py`).
The files here grow by appends, and durability is asked for apart: of a file's content by the file's
`sync`, of the folder's names by the folder's. One sync then covers many appends.

Calls block and go through `Offload`. `SystemFolder` is a real folder; `TornFolder` of
`streamlog.testing` loses and tears what was not synced.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from streamlog.runtime.buffers import Buffer


class GrowingFile(Protocol):
    """An open file with one writer. Positions are bytes from its start."""

    def append(self, parts: Sequence[Buffer]) -> int:
        """Writes the parts one after another at the end; returns the position of the first byte.

        After an error `size` is as before. The file may hold a prefix of them behind it, which
        whoever opens the file later would see: `truncate` to the size removes it, and so does a
        longer append. Errors: OSError (ENOSPC among them).
        """
        ...

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer at the end of the file."""
        ...

    def read_now(self, position: int, length: int) -> Buffer | None:
        """As `read`, from memory alone, so that it may be called on the event loop; None where that
        is not known, or not possible."""
        ...

    def truncate(self, size: int) -> None:
        """Cuts the file to `size` bytes, at most its size; durable after `sync`. The time of the
        last change stays, where the system lets it: what is left is no younger.

        Errors: OSError; ValueError where the file would grow.
        """
        ...

    def write_again(self, position: int) -> None:
        """Writes what is there from the position to the end once more, in its place.

        The next `sync` brings it to the medium then, also where a write-back failed in a process
        that has ended since: its pages are readable and clean, and a sync alone would pass over
        them. A power cut during it loses nothing that is on the medium. The time of the last change
        stays, where the system lets it. Errors: OSError.
        """
        ...

    def sync(self) -> None:
        """Content and size as they are now survive a power cut, on return.

        After an error nothing since the last sync that succeeded is certain, and a later sync that
        succeeds does not make it so: the system keeps the pages of a failed write-back, readable
        and clean. Truncate to what was synced and append it again, or `write_again`. Errors:
        OSError.
        """
        ...

    def size(self) -> int: ...

    def close(self) -> None:
        """A second call does nothing, and other calls raise an OSError from now on. No other call
        is under way meanwhile."""
        ...


class GrowingFolder(Protocol):
    """A folder. Names are single path components.

    A new, renamed or removed name is durable after `sync`. Until then a power cut may undo any
    number of the last changes, the newest first.
    """

    def list(self) -> list[str]:
        """The names of its files, sorted."""
        ...

    def path_of(self, name: str) -> Path | None:
        """Where the file lies or would lie; None: in memory alone. Errors: ValueError (a name that
        is no single path component)."""
        ...

    def free_bytes(self) -> int:
        """Room for growth, as far as the operating system knows."""
        ...

    def create(self, name: str) -> GrowingFile:
        """A new, empty file. Errors: FileExistsError, OSError."""
        ...

    def open(self, name: str) -> GrowingFile:
        """Errors: FileNotFoundError, OSError."""
        ...

    def open_to_read(self, name: str) -> GrowingFile:
        """As `open`, for `read`, `read_now` and `size` alone: also where nothing may be written, as
        on a file system that an error has turned read-only. Errors: FileNotFoundError, OSError."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces a file that has the new name. Errors: FileNotFoundError, OSError."""
        ...

    def remove(self, name: str) -> None:
        """Errors: FileNotFoundError, OSError."""
        ...

    def sync(self) -> None:
        """The names as they are now survive a power cut, on return. Errors: OSError."""
        ...
