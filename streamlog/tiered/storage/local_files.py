"""Files of remote segments in a local folder, in blocking calls.

    ROOT/kafka-tiered-storage/<folder>/<name>   files
    ROOT/kafka-tiered-storage.tmp/<name>.<n>    files on their way

1. A copy writes all its files under temporary names and syncs each. Then it renames them and syncs
   the folder: a file that has its name is whole.
2. Temporary files lie beside Kafka's folder: Kafka refuses a folder that has others than its own.
   Those that a crash left begin with their segment's name, and go when it is deleted.
3. A partition's folder stays when its last file goes, as in Kafka.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from streamlog.errors import StoreUnavailable
from streamlog.objectstore.errors import not_found
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk.descriptors import read_whole, write_whole
from streamlog.runtime.disk.folders import fsync_folder, make_folder, typed_os_error

FOLDER = "kafka-tiered-storage"
TEMPORARY = f"{FOLDER}.tmp"


class FolderOfTier:
    """Any number of threads. Errors of all calls: StoreUnavailable, DiskFull."""

    def __init__(self, root: str) -> None:
        self.root = os.path.join(root, FOLDER)
        self.temporary = os.path.join(root, TEMPORARY)

    def read(self, folder: str, name: str, position: int, length: int | None) -> bytes:
        """Fewer than `length` bytes at the end; None: all from there. Errors: ObjectNotFound."""
        path = os.path.join(self.root, folder, name)
        with typed("reading a remote segment", path):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise not_found(path) from None
            try:
                left = max(0, os.fstat(descriptor).st_size - position)
                return read_whole(descriptor, position, left if length is None else length)
            finally:
                os.close(descriptor)

    def delete(self, folder: str, names: Sequence[str], stem: str) -> None:
        """Removes the files, and temporary ones that begin with `stem`; durable on return."""
        path = os.path.join(self.root, folder)
        with typed("deleting a remote segment", path), suppress(FileNotFoundError):
            for name in names:
                _unlink(os.path.join(path, name))
            # Also where nothing was found: a process may have died before it synced.
            fsync_folder(path)
        with typed("deleting what a copy left", self.temporary), suppress(FileNotFoundError):
            left = [name for name in os.listdir(self.temporary) if name.startswith(stem)]
            for name in left:
                _unlink(os.path.join(self.temporary, name))
            if left:
                fsync_folder(self.temporary)


class FilesOnTheirWay:
    """The files of one copy, written one after another. One call at a time.

    Errors of all calls: StoreUnavailable, DiskFull. After one, and after a cancellation, `discard`.
    """

    def __init__(self, tier: FolderOfTier, folder: str, number: int) -> None:
        """`number` is of this copy alone, within the process."""
        self._tier = tier
        self._folder = os.path.join(tier.root, folder)
        self._number = number
        self._descriptor = -1
        self._position = 0
        self._whole: dict[str, str] = {}
        """By name, the temporary path; that of the file in work is among them."""

    def begin(self, name: str) -> None:
        path = os.path.join(self._tier.temporary, f"{name}.{self._number}")
        with typed("copying a segment", path):
            # No power cut has to leave anything of it.
            os.makedirs(self._tier.temporary, exist_ok=True)
            self._whole[name] = path
            # The number may be one of a process that died.
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._descriptor, self._position = os.open(path, flags, 0o644), 0

    def write(self, piece: Buffer) -> None:
        with typed("copying a segment", self._tier.temporary):
            self._position = write_whole(self._descriptor, self._position, [piece])

    def end(self) -> None:
        """The file's bytes are durable on return."""
        with typed("copying a segment", self._tier.temporary):
            os.fsync(self._descriptor)
            self._close()

    def publish(self) -> None:
        """All files have their names, durably, on return."""
        with typed("copying a segment", self._folder):
            make_folder(self._folder)
            for name in tuple(self._whole):
                os.rename(self._whole[name], os.path.join(self._folder, name))
                del self._whole[name]
            fsync_folder(self._folder)

    def discard(self) -> None:
        """Removes what was not published; harmless after `publish`."""
        with typed("removing a copy", self._tier.temporary):
            self._close()
            for name in tuple(self._whole):
                _unlink(self._whole.pop(name))

    def _close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


@contextmanager
def typed(doing: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise typed_os_error(error, path, doing, StoreUnavailable) from error


def _unlink(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
