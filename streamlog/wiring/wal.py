"""Opens the write-ahead log, and locks its folder."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path

from streamlog.engine.config import StreamEngineConfig
from streamlog.kvstore.opening import lock_paths as kv_lock_paths
from streamlog.kvstore.url import parse_meta_url
from streamlog.objectstore.url import LocalUrl, StoreUrl
from streamlog.runtime.disk.system_disk import SystemDisk
from streamlog.runtime.offload import Lane
from streamlog.wal.log import WriteAheadLog
from streamlog.wiring.locked_folder import open_locked
from streamlog.wiring.plan import Components, EnginePlan, Runtime

WAL_LOCK_NAME = "wal-lock"


async def open_wal(
    plan: EnginePlan,
    config: StreamEngineConfig,
    components: Components,
    runtime: Runtime,
    built: AsyncExitStack,
) -> WriteAheadLog | None:
    """With wal=object: the log that an earlier run with wal=disk left behind, or None."""
    disk = components.disk
    if disk is None:
        if plan.wal_dir is None or (plan.wal == "object" and not plan.wal_dir.is_dir()):
            return None
        # It has a lock of its own: the metadata store's lock does not keep out a process that uses
        # other metadata with this folder.
        what = "the write-ahead log's folder"
        disk = await open_locked(
            plan.wal_dir, WAL_LOCK_NAME, SystemDisk, what, runtime.offload, Lane.WAL, built
        )
    shares_disk = not plan.is_remote and (
        components.disk is not None
        or await runtime.offload.run(Lane.WAL, _is_same_disk, plan.store, plan.wal_dir)
    )
    upload = config.upload
    uploads_bytes = upload.upload_bytes_target * upload.uploads_in_flight_max
    wal = await WriteAheadLog.open(
        disk,
        runtime.offload,
        config.wal,
        runtime.registry,
        runtime.random,
        uploads_bytes=uploads_bytes if shares_disk else None,
    )
    built.push_async_callback(wal.close)
    return wal


def lock_paths(meta: str, wal_dir: str) -> list[str]:
    """The lock files of an open engine's local folders; `wal_dir` is empty without one."""
    paths = kv_lock_paths(parse_meta_url(meta))
    return [*paths, str(Path(wal_dir) / WAL_LOCK_NAME)] if wal_dir else paths


def _is_same_disk(store: StoreUrl, folder: Path | None) -> bool:
    """Whether a local store's objects lie in the same file system as `folder`. Blocking."""
    if not isinstance(store, LocalUrl) or folder is None:
        return False
    return os.stat(store.path).st_dev == os.stat(folder).st_dev
