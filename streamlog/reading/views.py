"""Views of a whole cluster's metadata at one revision: of stopped nodes, or of a running one."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from streamlog.errors import ObjectNotFound, RevisionCompacted, Unavailable
from streamlog.kvstore.interface import KVStore, StoredKeyValue
from streamlog.metadata.keys import checkpoint
from streamlog.metadata.keys.space import prefix_of
from streamlog.objectstore.cluster.guard import check_same, read_cluster
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.repair.backup.file import Backup, decode
from streamlog.repair.frozen_kv import FrozenKV
from streamlog.repair.fsck.fsck import cluster_of
from streamlog.repair.view import MetadataView, load_view
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Offload
from streamlog.runtime.rand import Random

__all__ = ["KVStore", "MetadataView", "ObjectStore", "node_view", "offline_view"]

SNAPSHOT_TRIES = 10
COPY_BYTES = 8 << 20

TakeBackup = Callable[[], Awaitable[bytes]]
"""Returns a backup of a node's metadata, as `Admin.backup` has it."""


async def offline_view(
    kv: KVStore, store: ObjectStore, *, clock: Clock, random: Random, offload: Offload
) -> MetadataView:
    """No node should run meanwhile. Errors: those of fsck."""
    cluster_id = await cluster_of(kv, store)
    return await load_view(kv, store, cluster_id, clock=clock, random=random, offload=offload)


@asynccontextmanager
async def node_view(
    take_backup: TakeBackup, store: ObjectStore, clock: Clock, random: Random, offload: Offload
) -> AsyncIterator[MetadataView]:
    """A running node's metadata as of now, with its checkpoint files copied to this machine's disk.

    The copy is needed because the node deletes checkpoint files once it has newer ones.
    Errors: ForeignCluster, Corrupt, Unavailable, Unauthorized.
    """
    with tempfile.TemporaryDirectory(prefix="streamlog-view-") as folder:
        files = await LocalObjectStore.open(folder, offload, clock)
        try:
            backup, frozen = await _snapshot(take_backup, store, files)
            yield await load_view(
                frozen,
                files,
                backup.head.cluster_id,
                clock=clock,
                random=random,
                offload=offload,
            )
        finally:
            await files.close()


async def _snapshot(
    take_backup: TakeBackup, store: ObjectStore, files: ObjectStore
) -> tuple[Backup, FrozenKV]:
    """The node's keys, and in `files` the checkpoint files that they name."""
    last: Exception | None = None
    for _ in range(SNAPSHOT_TRIES):
        try:
            backup = decode(await take_backup(), "of the node")
        except RevisionCompacted as error:
            last = error
            continue
        cluster_id = backup.head.cluster_id
        check_same(store.url, await read_cluster(store), cluster_id)
        prefix = prefix_of(cluster_id)
        kvs = [
            StoredKeyValue(prefix + kv.key, kv.value, kv.create_revision, kv.mod_revision)
            for kv in backup.kvs
        ]
        frozen = FrozenKV(kvs, backup.head.revision)
        try:
            await _copy_files(frozen, prefix, store, files)
        except ObjectNotFound as error:
            # The node has a newer checkpoint by now, and so will the next backup.
            last = error
            continue
        return backup, frozen
    raise Unavailable(
        f"the node's metadata changed {SNAPSHOT_TRIES} times while it was copied; try again"
    ) from last


async def _copy_files(kv: FrozenKV, prefix: bytes, store: ObjectStore, files: ObjectStore) -> None:
    pointer = await kv.get(checkpoint.key(prefix))
    for file in () if pointer is None else checkpoint.decode(pointer.value).files:
        parts: list[Buffer] = []
        for start in range(0, file.size_bytes, COPY_BYTES):
            length = min(COPY_BYTES, file.size_bytes - start)
            parts.append(await store.get(file.name, start, length))
        await files.put(file.name, parts)
