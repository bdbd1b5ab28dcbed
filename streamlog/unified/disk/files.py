"""Small files of a log folder, read and replaced as a whole. It blocks: call it through Offload."""

from __future__ import annotations

from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk.growing import GrowingFolder

TEMPORARY = ".tmp"


def read_file(folder: GrowingFolder, name: str) -> bytes:
    """Errors: FileNotFoundError, OSError."""
    file = folder.open_to_read(name)
    try:
        return file.read(0, file.size())
    finally:
        file.close()


def read_if_there(folder: GrowingFolder, name: str) -> bytes | None:
    """Errors: OSError."""
    try:
        return read_file(folder, name)
    except FileNotFoundError:
        return None


def has_folders(folder: GrowingFolder) -> bool:
    """Whether there are folders in it; of one that lies in memory alone: no. Errors: OSError."""
    inside = folder.path_of(TEMPORARY)
    return inside is not None and any(one.is_dir() for one in inside.parent.iterdir())


def write_new(folder: GrowingFolder, name: str, data: Buffer) -> None:
    """The file with this content alone; durable but for its name, which needs the folder's sync.

    A crash before that leaves the old file, or the new one. Errors: OSError.
    """
    folder.rename(write_temporary(folder, name, data), name)


def write_temporary(folder: GrowingFolder, name: str, data: Buffer) -> str:
    """The name of a durable file with this content, which is to be renamed; the one that has the
    name is as before, also behind an error. Errors: OSError."""
    temporary = name + TEMPORARY
    remove_if_there(folder, temporary)
    file = folder.create(temporary)
    try:
        file.append([data])
        file.sync()
    finally:
        file.close()
    return temporary


def keep_same(folder: GrowingFolder, name: str, data: Buffer) -> bool:
    """Makes a file with this content durable where it is there; as `write_new`, in a third of the
    time. Returns whether it was. Errors: OSError."""
    try:
        file = folder.open(name)
    except FileNotFoundError:
        return False
    try:
        if file.size() != len(data) or file.read(0, len(data)) != data:
            return False
        # Whoever wrote it may have died after a sync that failed.
        file.write_again(0)
        file.sync()
    finally:
        file.close()
    return True


def replace_file(folder: GrowingFolder, name: str, data: Buffer) -> None:
    """As `write_new`; durable on return."""
    write_new(folder, name, data)
    folder.sync()


def remove_if_there(folder: GrowingFolder, name: str) -> None:
    """Errors: OSError."""
    try:
        folder.remove(name)
    except FileNotFoundError:
        return
