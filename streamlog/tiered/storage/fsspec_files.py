"""Files of remote segments in a file system of fsspec, in blocking calls."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

from streamlog.errors import InvalidConfig, StoreUnavailable, StreamlogError
from streamlog.objectstore.errors import not_found
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.disk.folders import fsync_folder, make_folder

log = logging.getLogger(__name__)

_SECRET = re.compile("pass|pwd|secret|token|key|sas|cred|auth|connection_string", re.IGNORECASE)
"""In names of options. One that is none costs a word of an error's text."""
INSTALL = "pip install 'streamlog-engine[fsspec]'"


def check_url(url: str) -> None:
    """Errors: InvalidConfig, where the file system is not known, or needs a package that is not
    installed."""
    protocol, found, rest = url.rpartition("::")[2].partition("://")
    if not found:
        raise _unusable(url, "it is no URL, such as hdfs://namenode:8020/tier")
    if ":" in rest.partition("/")[0].rpartition("@")[0]:
        raise _unusable(url, "a URL holds no password: make it one of the storage_options")
    try:
        import fsspec
    except ImportError as error:
        raise _unusable(url, f"it needs the package fsspec: {INSTALL}") from error
    try:
        fsspec.get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        raise _unusable(url, str(error)) from error


class FsspecFiles:
    """Any number of threads. It connects when it is first used.

    Errors of all calls: StoreUnavailable; InvalidConfig, where a package is missing.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self._url = url
        self._options = options
        self._lock = threading.Lock()
        self._connected: tuple[Any, str, bool] | None = None
        self._typed = TypedErrors(secrets_in(options))

    def make(self, folder: str) -> None:
        with self._typed("making a folder", folder):
            files, root, is_local = self._connect()
            if is_local:
                make_folder(f"{root}/{folder}")
            else:
                files.makedirs(f"{root}/{folder}", exist_ok=True)

    def begin(self, folder: str, name: str) -> FsspecFileInWork:
        """A new, empty file, also where one has the name."""
        with self._typed("writing a file", name):
            files, root, is_local = self._connect()
            return FsspecFileInWork(
                files.open(f"{root}/{folder}/{name}", "wb"), name, is_local, self._typed
            )

    def sync(self, folder: str) -> None:
        """Names of new files are durable on return, if they are for the file system to say."""
        with self._typed("syncing a folder", folder):
            _, root, is_local = self._connect()
            if is_local:
                fsync_folder(f"{root}/{folder}")

    def read(self, folder: str, name: str, start: int, length: int | None) -> Buffer:
        """Fewer than `length` bytes at the file's end; None: all from there.

        Errors: ObjectNotFound.
        """
        with self._typed("reading a file", name):
            files, root, _ = self._connect()
            path = f"{root}/{folder}/{name}"
            try:
                return _read(files, path, start, length)
            except FileNotFoundError:
                # A listing that the file system keeps may be older than the file.
                files.invalidate_cache()
            try:
                return _read(files, path, start, length)
            except FileNotFoundError:
                raise not_found(path) from None

    def delete(self, folder: str, names: Sequence[str]) -> None:
        """Files that are not there are no error."""
        with self._typed("deleting files", folder):
            files, root, is_local = self._connect()
            for name in names:
                with suppress(FileNotFoundError):
                    files.rm_file(f"{root}/{folder}/{name}")
            if is_local:
                with suppress(FileNotFoundError):
                    fsync_folder(f"{root}/{folder}")

    def delete_folder(self, folder: str) -> None:
        """With what is in it. One that is not there is no error."""
        with self._typed("deleting a folder", folder):
            files, root, is_local = self._connect()
            files.invalidate_cache()
            # Not `rmdir`, which does nothing in WebHDFS.
            with suppress(FileNotFoundError):
                files.rm(f"{root}/{folder}", recursive=True)
            if is_local:
                with suppress(FileNotFoundError):
                    fsync_folder(root)

    def list(self, folder: str = "") -> list[ListedEntry]:
        """What lies in a folder, "": in that of the URL; nothing where there is no such folder.

        It is as it was when the call came, or later: a listing that the library keeps is forgotten.
        """
        with self._typed("listing a folder", folder):
            files, root, _ = self._connect()
            path = f"{root}/{folder}" if folder else root
            files.invalidate_cache()
            try:
                listed = files.ls(path, detail=True)
            except FileNotFoundError:
                return []
            return [entry for info in listed if (entry := _entry(files, info)) is not None]

    def _connect(self) -> tuple[Any, str, bool]:
        """The file system, the path of the URL in it, and whether it is this machine's."""
        from fsspec.core import url_to_fs
        from fsspec.implementations.local import LocalFileSystem

        with self._lock:
            if self._connected is None:
                try:
                    files, path = url_to_fs(self._url, **self._options)
                except ImportError as error:
                    raise _unusable(self._url, str(error)) from error
                self._connected = files, path.rstrip("/"), isinstance(files, LocalFileSystem)
            return self._connected


class ListedEntry(NamedTuple):
    """A file or folder. `modified_ms` None: of a folder, or the file system does not say it."""

    name: str
    is_folder: bool
    size_bytes: int
    modified_ms: int | None


def _entry(files: Any, info: Mapping[str, Any]) -> ListedEntry | None:
    """None: it went meanwhile, or is neither file nor folder."""
    path, kind = str(info["name"]), info["type"]
    name = path.rstrip("/").rpartition("/")[2]
    if kind == "directory":
        return ListedEntry(name, True, 0, None)
    if kind != "file":
        return None
    try:
        return ListedEntry(name, False, int(info["size"] or 0), _modified_ms(files, path, info))
    except FileNotFoundError:
        return None


def _modified_ms(files: Any, path: str, info: Mapping[str, Any]) -> int | None:
    """From the listing, where its field for it is known, else by a call for the file."""
    if isinstance(hdfs_ms := info.get("modificationTime"), int):
        return hdfs_ms
    for field in ("mtime", "LastModified", "last_modified"):
        if (found := _ms(info.get(field))) is not None:
            return found
    try:
        return _ms(files.modified(path))
    except NotImplementedError:
        return None


def _ms(told: object) -> int | None:
    """A time that has no zone is none: nobody knows when it was."""
    if isinstance(told, datetime) and told.tzinfo is not None:
        return round(told.timestamp() * 1000)
    if isinstance(told, int | float) and not isinstance(told, bool):
        return round(told * 1000)
    return None


class FsspecFileInWork:
    """A file that is written from its start to its end. One call at a time."""

    def __init__(self, file: Any, name: str, is_local: bool, typed: TypedErrors) -> None:
        self._file = file
        self._typed = typed
        self._name = name
        self._is_local = is_local
        self._is_closed = False

    def write(self, piece: Buffer) -> None:
        """Errors: StoreUnavailable."""
        with self._typed("writing a file", self._name):
            self._file.write(piece)

    def finish(self) -> None:
        """Errors: StoreUnavailable."""
        with self._typed("writing a file", self._name):
            if self._is_local:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._is_closed = True
            self._file.close()

    def give_up(self) -> None:
        """Frees what an unfinished file holds; a part of it may stay. Harmless after `finish`."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._file.close()
        except Exception as error:  # noqa: BLE001 - the copy has failed, and is deleted or repeated
            shown = self._typed.shown(error)
            log.warning("closing %s after a failed copy failed, too: %s", self._name, shown)


def _read(files: Any, path: str, start: int, length: int | None) -> bytes:
    # Not `cat_file`, which pyarrow's file systems cannot begin within a file.
    with files.open(path, "rb") as file:
        file.seek(start)
        return _read_whole(file, length)


def _read_whole(file: Any, length: int | None) -> bytes:
    if length is None:
        return bytes(file.read())
    pieces: list[bytes] = []
    while length > 0:
        piece = file.read(length)
        if not piece:
            break
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


def _unusable(url: str, reason: str) -> InvalidConfig:
    shown = url.rpartition("@")[2][:200]
    return InvalidConfig(f"the remote storage cannot use url={shown}: {reason}", name="url")


class TypedErrors:
    """What file systems raise is as different as they are, and may tell how they were reached: a
    token is a part of WebHDFS's URLs."""

    def __init__(self, secrets: Collection[str]) -> None:
        self._secrets = sorted({*secrets, *map(quote_plus, secrets), *map(quote, secrets)}, key=len)

    @contextmanager
    def __call__(self, doing: str, path: str) -> Iterator[None]:
        """Errors: StoreUnavailable, in place of what is no StreamlogError."""
        try:
            yield
        except StreamlogError:
            raise
        except Exception as error:  # noqa: BLE001 - it is raised again, without its secrets
            message = f"{doing} of a remote segment failed: {path}: {self.shown(error)}"
            # A log of the cause would tell the secret, too.
            cause = None if self._has_secret(repr(error)) else error
            raise StoreUnavailable(message) from cause

    def shown(self, error: BaseException) -> str:
        """The error in words, without secrets."""
        text = repr(error)
        for secret in reversed(self._secrets):
            text = text.replace(secret, "***")
        return text

    def _has_secret(self, text: str) -> bool:
        return any(secret in text for secret in self._secrets)


def secrets_in(options: object, is_secret: bool = False) -> list[str]:
    """Texts that nobody but the file system may see, by the names of options, at any depth."""
    if isinstance(options, str):
        return [options] if is_secret and options else []
    if isinstance(options, Mapping):
        return [
            text
            for name, value in options.items()
            for text in secrets_in(value, is_secret or _SECRET.search(str(name)) is not None)
        ]
    if isinstance(options, list):
        return [text for value in options for text in secrets_in(value, is_secret)]
    return []
