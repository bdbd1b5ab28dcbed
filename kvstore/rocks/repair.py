"""Cuts a torn end off the metadata's newest log, so that RocksDB opens again. Blocking.

Every write of the store is synced before the next one begins, so that a power cut tears only the
last record, which was never acknowledged. Only that record is cut, and only if nothing shows that
it is not the last: no older log is damaged, no later record follows, and bytes of it are missing.
One case looks the same: a disk that loses whole pages of the last record that *was* synced, and
returns zeros for them.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from streamlog.errors import Corrupt, MetadataUnavailable
from streamlog.kvstore.rocks.log import read_end
from streamlog.kvstore.rocks.store import LOCK_NAME
from streamlog.runtime.disk.folders import fsync_folder, make_folder, typed_os_error
from streamlog.runtime.disk.lockfile import hold

COPIES = "repair"
"""Folder within the metadata's folder for copies of the logs that were cut."""
_LOG_NAME = re.compile(r"([0-9]+)\.log")


@dataclass(frozen=True, slots=True)
class TornTail:
    """Bytes `start` to `end` of `file`: one write that was never acknowledged. `records`: the whole
    writes before it in this file, which stay."""

    file: str
    start: int
    end: int
    records: int


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """No node uses the metadata meanwhile. Errors: DataInUse, MetadataUnavailable."""
    if not os.path.isfile(os.path.join(folder, "CURRENT")):
        raise MetadataUnavailable(
            f"there is no RocksDB in {folder}; give the metadata's folder, DATA/meta of a node "
            "with --data DATA",
            path=folder,
        )
    with hold(os.path.join(folder, LOCK_NAME), MetadataUnavailable):
        yield


def find_torn_tail(folder: str) -> TornTail | None:
    """The torn end of the newest log; None if no log is damaged.

    Errors: Corrupt (file and bytes) for damage that is not a torn end; MetadataUnavailable.
    """
    try:
        names = sorted(
            (name for name in os.listdir(folder) if _LOG_NAME.fullmatch(name)),
            key=lambda name: int(name.removesuffix(".log")),
        )
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                data = file.read()
            end = read_end(data)
            if end.end == len(data):
                continue
            why = end.why_kept
            if name != names[-1]:
                why = f"the newer log {names[-1]} was begun after it"
            if why:
                raise _not_torn(folder, name, end.end, len(data), why)
            return TornTail(name, end.end, len(data), end.records)
    except OSError as error:
        raise typed_os_error(
            error, folder, "reading the metadata's logs", MetadataUnavailable
        ) from error
    return None


def cut(folder: str, tail: TornTail) -> str:
    """Cuts the torn end off, after a durable copy of the log; the copy's path.

    Errors: DiskFull, MetadataUnavailable.
    """
    path = os.path.join(folder, tail.file)
    try:
        make_folder(os.path.join(folder, COPIES))
        kept = _copy(path, os.path.join(folder, COPIES, tail.file))
        with open(path, "r+b") as file:
            file.truncate(tail.start)
            os.fsync(file.fileno())
    except OSError as error:
        raise typed_os_error(
            error, path, "cutting the metadata's log", MetadataUnavailable
        ) from error
    return kept


def _copy(path: str, wanted: str) -> str:
    with open(path, "rb") as file:
        data = file.read()
    number = 0
    while True:
        kept = f"{wanted}.{number}"
        try:
            with open(kept, "xb") as copy:
                copy.write(data)
                copy.flush()
                os.fsync(copy.fileno())
        except FileExistsError:
            number += 1
            continue
        fsync_folder(os.path.dirname(kept))
        return kept


def _not_torn(folder: str, name: str, start: int, end: int, why: str) -> Corrupt:
    return Corrupt(
        f"{os.path.join(folder, name)}: bytes {start} to {end} are damaged, and not as a power cut "
        f"tears the last write: {why}. Acknowledged metadata may be among it, so nothing was cut. "
        "Restore the folder from a copy, or rebuild the metadata from the object store "
        "(`streamlog restore` with a backup, else `streamlog recover`)",
        object_key=os.path.join(folder, name),
        start=start,
        end=end,
    )
