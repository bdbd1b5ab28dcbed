"""What `open` opens: URLs and modes, checked before anything is touched."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from streamlog.coordinator.markers import MarkerSender
from streamlog.engine.config import StreamEngineConfig
from streamlog.errors import Invalid
from streamlog.kvstore.interface import KVStore
from streamlog.kvstore.url import (
    MemoryMetaUrl,
    MetaUrl,
    RocksUrl,
    check_available,
    parse_meta_url,
)
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.url import (
    LocalUrl,
    MemoryUrl,
    S3Url,
    StoreUrl,
    parse_store_url,
)
from streamlog.runtime.clock import Clock
from streamlog.runtime.disk.interface import Disk
from streamlog.runtime.disk.tree import FolderTree
from streamlog.runtime.offload import Lane, Offload
from streamlog.runtime.rand import Random
from streamlog.wal.config import WalMode


@dataclass(frozen=True, slots=True)
class Components:
    """Parts to use in place of those that `open` would build; they stay open when it closes.

    `registry` shows the engine's metrics while it is open; engines opened in turn may share it.
    """

    clock: Clock | None = None
    random: Random | None = None
    offload: Offload | None = None
    registry: CollectorRegistry | None = None
    disk: Disk | None = None
    store: ObjectStore | None = None
    kv: KVStore | None = None
    markers: MarkerSender | None = None
    """Takes markers of transactions to partitions; None: into the logs of this engine."""
    log_tree: FolderTree | None = None
    """The log folder in place of `log_dir`, held by the caller."""
    log_style: tuple[str, str] = ("text", "info")
    """Format and level of the log lines of child processes."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """What every part is built on."""

    clock: Clock
    random: Random
    offload: Offload
    registry: CollectorRegistry


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """What to open."""

    store: StoreUrl
    meta: MetaUrl
    wal: WalMode
    wal_dir: Path | None
    node_id: int
    log_dir: Path | None = None
    """Folder of the logs that are kept in local files; None: there are none."""
    accepts_data_loss: bool = False
    has_upkeep: bool = True

    @property
    def is_remote(self) -> bool:
        return isinstance(self.store, S3Url)


def plan_engine(
    store: str,
    meta: str | None,
    wal: WalMode | None,
    wal_dir: str | Path | None,
    node_id: int,
    components: Components,
) -> EnginePlan:
    """Fills in defaults. Errors: Invalid (a URL, or arguments that do not go together)."""
    store_url = parse_store_url(store)
    meta_url = meta_url_of(meta, store_url)
    if components.kv is None:
        check_available(meta_url)
    has_own_stores = components.kv is None and components.store is None
    if has_own_stores and isinstance(store_url, MemoryUrl) and isinstance(meta_url, RocksUrl):
        raise Invalid(
            f"the store {store_url} ends with the process, and the metadata in {meta_url} would "
            "name objects that are gone: give --meta memory://, or a store that stays"
        )
    is_local = isinstance(store_url, LocalUrl)
    mode: WalMode = wal or ("disk" if is_local else "object")
    folder = wal_folder(wal_dir, store_url)
    if mode not in ("disk", "object"):
        raise Invalid(f"wal is disk or object, not {mode!r}")
    if mode == "disk" and folder is None and components.disk is None:
        raise Invalid(f"wal=disk with the store {store_url} needs wal_dir, a local folder")
    return EnginePlan(store_url, meta_url, mode, folder, node_id)


def wal_folder(wal_dir: str | Path | None, store: StoreUrl) -> Path | None:
    """`wal_dir`; if None, the folder that goes with `store`, or None where none does."""
    if wal_dir is None and isinstance(store, LocalUrl):
        return Path(store.path) / "wal"
    return None if wal_dir is None else Path(wal_dir)


def checked_log_dir(log_dir: str | Path | None) -> Path | None:
    """Errors: Invalid."""
    if log_dir is None:
        return None
    if isinstance(log_dir, str) and "," in log_dir:
        raise Invalid(
            f"log_dir is one folder, and {log_dir!r} names several: a node keeps its local logs in "
            "one; put several disks behind it (RAID, LVM), or run a node for each"
        )
    return Path(log_dir)


def meta_url_of(meta: str | None, store: StoreUrl) -> MetaUrl:
    """`meta`; if None, the metadata store that goes with `store`. Errors: Invalid."""
    if meta is not None:
        return parse_meta_url(meta)
    match store:
        case MemoryUrl():
            return MemoryMetaUrl()
        case LocalUrl(path):
            return RocksUrl(posixpath.join(path, "meta"))
        case _:
            raise Invalid(
                f"the store {store} needs a meta URL (--meta, node.meta), "
                "such as rocksdb:///abs/path; etcd://host:port/prefix and kv://host:port come in a "
                "later release"
            )


def threads_for(plan: EnginePlan, config: StreamEngineConfig) -> dict[Lane, int]:
    """A remote store gets one thread for each connection, because a request occupies both."""
    if not plan.is_remote:
        return {}
    return {
        Lane.STORE: config.store.puts_in_flight_max,
        Lane.GET: config.store.gets_in_flight_max,
    }
