"""Metadata URL → open KVStore."""

from __future__ import annotations

from pathlib import Path

from streamlog.errors import Internal
from streamlog.kvstore.interface import KVStore
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.kvstore.rocks.store import LOCK_NAME, RocksKVStore
from streamlog.kvstore.url import (
    EtcdUrl,
    MemoryMetaUrl,
    MetaUrl,
    RemoteKVUrl,
    RocksUrl,
    check_available,
)
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Offload


async def open_kv(url: MetaUrl, clock: Clock, offload: Offload) -> KVStore:
    """The caller closes the store.

    Errors: Invalid (not in this release), DataInUse, Corrupt, UnsupportedVersion, DiskFull,
    MetadataUnavailable.
    """
    check_available(url)
    match url:
        case MemoryMetaUrl():
            return MemoryKVStore(clock)
        case RocksUrl(path):
            return await RocksKVStore.open(path, clock, offload)
        case _:
            raise Internal(f"{url} is available, and nothing opens it")


def absent_path(url: MetaUrl) -> str | None:
    """The folder in which `open_kv` would make a new store; None where it opens one."""
    if not isinstance(url, RocksUrl):
        return None
    try:
        # RocksDB's own sign: a folder of something else is none, however full it is.
        (Path(url.path) / "CURRENT").stat()
    except (FileNotFoundError, NotADirectoryError):
        return url.path
    except OSError:
        # `open_kv` tells why the folder cannot be read.
        return None
    return None


def is_shared(url: MetaUrl) -> bool:
    """Whether several processes may have the store open at a time."""
    return isinstance(url, EtcdUrl | RemoteKVUrl)


def lock_paths(url: MetaUrl) -> list[str]:
    """The lock files of a local store; a process that has it open holds them."""
    return [str(Path(url.path) / LOCK_NAME)] if isinstance(url, RocksUrl) else []
