"""A folder as an object store, in blocking calls: one file per object, its path is its key.

    ROOT/<key>        objects
    ROOT/.tmp/        objects being written, each locked by its writer
    ROOT/.replace     a lock: shared by renames and removals, exclusive for a compare-and-replace

1. A put writes a temporary file, syncs it, renames it (or links it, when the key must be free), and
   syncs the folder: the whole object is there or nothing is. A folder's own entry is synced when
   the folder is first used, also when another process made it.
2. A temporary file that no process has locked is left over from a crash; the next open deletes it.
3. An etag is size, modification time and inode. The time's last six digits come from a checksum of
   the content, because file systems have coarse clocks and reuse inodes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from streamlog.errors import InvalidName, OutcomeUnknown, StoreUnavailable
from streamlog.objectstore.errors import already_exists, changed, check_range, not_found
from streamlog.objectstore.interface import Arrived, ObjectInfo
from streamlog.objectstore.keys import RESERVED
from streamlog.objectstore.local.direct_write import FileStream, FileWriter
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk.folders import fsync_folder, make_folder, typed_os_error

TEMPORARY = ".tmp"
REPLACE_LOCK = ".replace"
READ_BYTES_MAX = 1 << 30


class NewFile(NamedTuple):
    """An object that is being written, under a name of its own."""

    key: str
    temporary: str
    descriptor: int
    stream: FileStream


class LocalFiles:
    """Blocking; any number of threads and processes on one root."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._temporary = os.path.join(root, TEMPORARY)
        self._names = itertools.count()
        host = "".join(c if c.isalnum() else "-" for c in socket.gethostname())[:64]
        self._name_prefix = f"{host}-{os.getpid()}-"
        self._known_folders: set[str] = set()
        self._writer = FileWriter()

    def open(self) -> int:
        """Makes the folders, and deletes half-written objects; their number."""
        with self._typed("opening the object store", self.root):
            self._make(self._temporary)
            # A reader relies on what it finds (cluster.json), also when its writer died before it
            # synced the folder.
            fsync_folder(self.root)
            return self._delete_half_written()

    def _delete_half_written(self) -> int:
        deleted = 0
        for entry in list(os.scandir(self._temporary)):
            try:
                descriptor = os.open(entry.path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(entry.path)
                deleted += 1
            except (BlockingIOError, FileNotFoundError):
                continue
            finally:
                os.close(descriptor)
        return deleted

    # writing

    def put(
        self, key: str, parts: Sequence[Buffer], if_absent: bool, etag: str | None, now_ms: int
    ) -> ObjectInfo:
        """`etag`: replaces only the object that has it."""
        path = self._path(key)
        with self._typed("storing an object", path):
            if etag is not None:
                self.head(key)
            self._make_parent(key, path)
            descriptor, temporary = self._create()
            try:
                self._make_durable(descriptor, self._writer.write(descriptor, parts), now_ms)
                if if_absent:
                    self._link(key, temporary, path)
                else:
                    self._rename(key, temporary, path, etag)
                status = os.fstat(descriptor)
            except BaseException:
                _remove(temporary)
                raise
            finally:
                os.close(descriptor)
        self._sync_folder(path)
        return _info(key, status)

    def begin(self, key: str, about_bytes: int) -> NewFile:
        """An object that comes in pieces: `add`, then `finish` or `give_up`."""
        path = self._path(key)
        with self._typed("storing an object", path):
            self._make_parent(key, path)
            descriptor, temporary = self._create()
            try:
                stream = self._writer.begin(descriptor, about_bytes)
            except BaseException:
                _remove(temporary)
                os.close(descriptor)
                raise
        return NewFile(key, temporary, descriptor, stream)

    def add(self, new: NewFile, parts: Sequence[Buffer]) -> None:
        with self._typed("storing an object", self._path(new.key)):
            new.stream.add([memoryview(part).cast("B") for part in parts if len(part)])

    def finish(self, new: NewFile, now_ms: int) -> ObjectInfo:
        """As `put`. The caller gives up in any case."""
        path = self._path(new.key)
        with self._typed("storing an object", path):
            self._make_durable(new.descriptor, new.stream.end(), now_ms)
            self._rename(new.key, new.temporary, path, None)
            status = os.fstat(new.descriptor)
        self._sync_folder(path)
        return _info(new.key, status)

    def give_up(self, new: NewFile) -> None:
        """Frees what the new file holds; its bytes go, unless it is an object by now."""
        new.stream.drop()
        try:
            _remove(new.temporary)
        finally:
            os.close(new.descriptor)

    def _create(self) -> tuple[int, str]:
        """Makes and locks a temporary file with a unique name."""
        while True:
            path = os.path.join(self._temporary, f"{self._name_prefix}{next(self._names)}")
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            except FileExistsError:
                continue
            except FileNotFoundError:
                self._known_folders.discard(self._temporary)
                self._make(self._temporary)
                continue
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Another process may have deleted it between the creation and the lock.
            if os.fstat(descriptor).st_nlink:
                return descriptor, path
            os.close(descriptor)

    def _make_durable(self, descriptor: int, checksum: int, now_ms: int) -> None:
        """The content is durable on return; the name is not."""
        modified_ns = now_ms * 1_000_000 + checksum % 1_000_000
        os.utime(descriptor, ns=(modified_ns, modified_ns))
        os.fsync(descriptor)

    def _link(self, key: str, temporary: str, path: str) -> None:
        try:
            os.link(temporary, path)
        except FileExistsError:
            # The caller may rely on the object that exists, so its name must be durable.
            self._sync_folder(path)
            raise already_exists(key) from None
        # The object is stored; the next open deletes a name that is left over.
        with contextlib.suppress(OSError):
            os.unlink(temporary)

    def _rename(self, key: str, temporary: str, path: str, etag: str | None) -> None:
        with self._replacing(fcntl.LOCK_SH if etag is None else fcntl.LOCK_EX):
            if etag is not None:
                current = self.head(key)
                if current.etag != etag:
                    raise changed(key, etag, current.etag)
            try:
                os.rename(temporary, path)
            except IsADirectoryError as error:
                raise InvalidName(f"{key} cannot be stored: there are objects below it") from error

    def delete(self, keys: Sequence[str]) -> None:
        changed_folders: dict[str, str] = {}
        with self._typed("deleting objects", self.root):
            self._make(self.root)
        for key in keys:
            path = self._path(key)
            with self._typed("deleting an object", path), self._replacing(fcntl.LOCK_SH):
                try:
                    os.unlink(path)
                except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                    continue
                changed_folders[os.path.dirname(path)] = path
        for path in changed_folders.values():
            self._sync_folder(path)

    @contextmanager
    def _replacing(self, mode: int) -> Iterator[None]:
        lock = os.path.join(self.root, REPLACE_LOCK)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, mode)
            yield
        finally:
            os.close(descriptor)

    # reading

    def get(self, key: str, start: int, length: int | None) -> bytes:
        with self._opened(key, start, length) as (descriptor, count):
            return _read_all(descriptor, start, count)

    def get_pieces(self, key: str, start: int, sizes: Sequence[int], arrived: Arrived) -> None:
        with self._opened(key, start, sum(sizes)) as (descriptor, _):
            for number, size in enumerate(sizes):
                data = _read_all(descriptor, start, size)
                if not arrived(number, data) or len(data) < size:
                    return
                start += size

    @contextmanager
    def _opened(self, key: str, start: int, length: int | None) -> Iterator[tuple[int, int]]:
        """The object's descriptor, and how many of the requested bytes it has."""
        path = self._path(key)
        with self._typed("reading an object", path):
            descriptor = self._open_object(key, path)
            try:
                yield descriptor, check_range(key, start, length, os.fstat(descriptor).st_size)
            finally:
                os.close(descriptor)

    def head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        with self._typed("looking up an object", path):
            info = self._status(key, path)
            if info is None:
                raise not_found(key)
            return info

    def _status(self, key: str, path: str) -> ObjectInfo | None:
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not _is_file(status):
            return None
        return _info(key, status)

    def _open_object(self, key: str, path: str) -> int:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise not_found(key) from None
        if not _is_file(os.fstat(descriptor)):
            os.close(descriptor)
            raise not_found(key)
        return descriptor

    # listing

    def keys(self, prefix: str, after: str) -> Iterator[str]:
        """Keys that start with `prefix` and sort after `after`, in order.

        Each folder is read once, when the listing reaches it.
        """
        folder, _, _ = prefix.rpartition("/")
        return self._walk(folder + "/" if folder else "", prefix, after)

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[str]:
        names: list[str] = []
        path = os.path.join(self.root, folder)
        with self._typed("listing objects", path):
            try:
                entries = list(os.scandir(path))
            except (FileNotFoundError, NotADirectoryError):
                return
            for entry in entries:
                if not entry.name.startswith(".") and (folder or entry.name not in RESERVED):
                    names.append(entry.name + "/" if entry.is_dir() else entry.name)
        # The slash behind a folder's name sorts it where its keys belong.
        for name in sorted(names):
            key = folder + name
            if not name.endswith("/"):
                if key.startswith(prefix) and key > after:
                    yield key
            elif (key.startswith(prefix) or prefix.startswith(key)) and (
                key > after or after.startswith(key)
            ):
                yield from self._walk(key, prefix, after)

    def infos(self, keys: Iterator[str], limit: int) -> list[ObjectInfo]:
        """The next `limit` objects that are still there."""
        infos: list[ObjectInfo] = []
        for key in keys:
            path = self._path(key)
            with self._typed("listing objects", path):
                info = self._status(key, path)
            if info is not None:
                infos.append(info)
            if len(infos) == limit:
                break
        return infos

    # paths, folders, errors

    def _path(self, key: str) -> str:
        return os.path.join(self.root, key)

    def _make(self, folder: str) -> None:
        if folder not in self._known_folders:
            if folder != self.root:
                self._make(self.root)
            make_folder(folder, above=None if folder == self.root else self.root)
            self._known_folders.add(folder)

    def _make_parent(self, key: str, path: str) -> None:
        try:
            self._make(os.path.dirname(path))
        except NotADirectoryError as error:
            if not os.path.isdir(self.root):
                raise
            raise InvalidName(f"{key} cannot be stored: a part of it is another object") from error

    def _sync_folder(self, path: str) -> None:
        folder = os.path.dirname(path)
        try:
            fsync_folder(folder)
        except OSError as error:
            raise OutcomeUnknown(
                f"syncing the folder {folder} failed: {error.strerror}; the change is visible but "
                "may not survive a power cut: do it again"
            ) from error

    @contextmanager
    def _typed(self, doing: str, path: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno == errno.ENOENT:
                # A folder was removed; the next call makes it again.
                self._known_folders.clear()
            raise typed_os_error(error, path, doing, StoreUnavailable) from error


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _is_file(status: os.stat_result) -> bool:
    return (status.st_mode & 0o170000) == 0o100000


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    etag = f"{status.st_size:x}-{status.st_mtime_ns:x}-{status.st_ino:x}"
    return ObjectInfo(key, status.st_size, etag, status.st_mtime_ns // 1_000_000)


def _read_all(descriptor: int, start: int, count: int) -> bytes:
    """Fewer than `count` bytes only at the end of the file."""
    data = os.pread(descriptor, min(count, READ_BYTES_MAX), start)
    if len(data) == count or not data:
        return data
    pieces = [data]
    done = len(data)
    while done < count:
        data = os.pread(descriptor, min(count - done, READ_BYTES_MAX), start + done)
        if not data:
            break
        pieces.append(data)
        done += len(data)
    return b"".join(pieces)
