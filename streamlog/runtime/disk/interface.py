"""A folder of fixed-size files: all that the write-ahead log asks of a disk.

Calls block and go through `Offload` (Lane.WAL). `SystemDisk` is a real folder; the simulator has
one that tears unsynced writes and loses them at a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from streamlog.runtime.buffers import Buffer


class DiskFile(Protocol):
    """An open file. Positions are bytes from its start."""

    def write_sync(self, position: int, parts: Sequence[Buffer]) -> None:
        """Writes the parts one after another at `position`; durable on return.

        After an error any prefix, suffix or mixture of old and new bytes may be there.
        Errors: OSError (ENOSPC among them).
        """
        ...

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer at the end of the file."""
        ...

    def sync(self) -> None:
        """Everything written before is durable on return."""
        ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A folder. Names are single path components."""

    def list(self) -> list[str]: ...

    def free_bytes(self) -> int:
        """Room for new files, as far as the operating system knows."""
        ...

    def create(self, name: str, size: int) -> DiskFile:
        """A new file, written in full with zeros and durable, its folder entry too.

        Errors: FileExistsError; OSError, after which the file may be there.
        """
        ...

    def open(self, name: str) -> DiskFile: ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; durable on return."""
        ...

    def remove(self, name: str) -> None:
        """Durable on return."""
        ...
