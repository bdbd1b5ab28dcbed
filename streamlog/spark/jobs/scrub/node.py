"""Scrub of a node that runs: what it had at one moment is checked, while it goes on.

1. The driver pins the node's objects, and renews the pin until it is done.
2. Then it takes the node's metadata: its keys at one revision, as for a backup, and a copy of the
   checkpoint files that they name, for the node deletes those when it has newer ones.
3. The walk and the checks are those at rest. What came after the snapshot is for the next scrub.
4. After each wave of tasks the pin must still be there: else an object that is missing may have
   been deleted by right, and the wave counts for nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from streamlog.client import Admin
from streamlog.engine.config import StreamEngineConfig
from streamlog.errors import (
    NotFound,
    ObjectNotFound,
    RevisionCompacted,
    Unavailable,
)
from streamlog.kvstore.interface import KeyValue
from streamlog.metadata.keys import checkpoint
from streamlog.metadata.keys.space import prefix_of
from streamlog.objectstore.cluster.guard import check_same, read_cluster
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.repair.backup.file import Backup, decode
from streamlog.repair.findings import Progress, Report, no_progress
from streamlog.repair.frozen_kv import FrozenKV
from streamlog.repair.view import MetadataView, load_view
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock, SystemClock
from streamlog.runtime.offload import Lane, Offload, ThreadOffload
from streamlog.runtime.rand import Random, SystemRandom
from streamlog.spark.cluster.cluster import Cluster, ServerCluster
from streamlog.spark.cluster.pin_keeper import PinKeeper
from streamlog.spark.jobs.scrub.job import scrub_view
from streamlog.wiring import open_object_store

PIN_TTL_MS = 600_000
SNAPSHOT_TRIES = 10
COPY_BYTES = 8 << 20
ISOLATION = "read_uncommitted"
"""No record is read."""


async def scrub_node(
    spark: Any,
    server: str,
    *,
    store: str | None = None,
    state_file: Path | None = None,
    progress: Progress = no_progress,
    pin_ttl_ms: int = PIN_TTL_MS,
) -> Report:
    """As `scrub` of what the node has in objects now. `store`: where this machine and executors
    find the store, if not where the node does.

    Errors: as of scrub; NotFound (the pin has ended: nothing renewed it in time), Unauthorized.
    """
    clock, random, offload = SystemClock(), SystemRandom(), ThreadOffload()
    cluster = ServerCluster(server, ISOLATION, store=store)
    keeper = PinKeeper(ServerCluster(server, ISOLATION), pin_ttl_ms)
    try:
        url = await offload.run(Lane.CPU, lambda: cluster.store_url)
        opened = await open_object_store(
            url, StreamEngineConfig(), clock, random, offload, CollectorRegistry()
        )
        try:
            pin_id = await offload.run(Lane.CPU, cluster.pin, pin_ttl_ms)
            keeper.keep(pin_id)
            try:
                async with _snapshot(server, opened, clock, random, offload) as view:
                    return await scrub_view(
                        spark,
                        view,
                        opened,
                        url,
                        offload=offload,
                        state_file=state_file,
                        progress=progress,
                        check_kept=lambda: offload.run(Lane.CPU, _check_pin, cluster, pin_id),
                    )
            finally:
                keeper.let_go()
                await offload.run(Lane.CPU, _unpin, cluster, pin_id)
        finally:
            await opened.close()
    finally:
        await offload.run(Lane.CPU, keeper.close)
        cluster.close()
        await offload.close()


def _check_pin(cluster: Cluster, pin_id: int) -> None:
    if not cluster.renew(pin_id):
        raise NotFound(
            f"pin {pin_id} has ended: objects that were to be checked may have been deleted; run "
            "the scrub again"
        )


def _unpin(cluster: Cluster, pin_id: int) -> None:
    try:
        cluster.unpin(pin_id)
    except Unavailable:
        """It ends by itself."""


@asynccontextmanager
async def _snapshot(
    server: str, store: ObjectStore, clock: Clock, random: Random, offload: Offload
) -> AsyncIterator[MetadataView]:
    """Of now, with its checkpoint files on this machine's disk.

    Errors: ForeignCluster, Corrupt, Unavailable, Unauthorized.
    """
    with tempfile.TemporaryDirectory(prefix="streamlog-scrub-") as folder:
        files = await LocalObjectStore.open(folder, offload, clock)
        try:
            found, frozen = await _taken(server, store, files, offload)
            yield await load_view(
                frozen,
                files,
                found.head.cluster_id,
                clock=clock,
                random=random,
                offload=offload,
            )
        finally:
            await files.close()


async def _taken(
    server: str, store: ObjectStore, files: ObjectStore, offload: Offload
) -> tuple[Backup, FrozenKV]:
    """The node's keys, and in `files` the checkpoint files that they name."""
    last: Exception | None = None
    for _ in range(SNAPSHOT_TRIES):
        try:
            found = await offload.run(Lane.CPU, _backup, server)
        except RevisionCompacted as error:
            last = error
            continue
        cluster_id = found.head.cluster_id
        check_same(store.url, await read_cluster(store), cluster_id)
        prefix = prefix_of(cluster_id)
        kvs = [
            KeyValue(prefix + kv.key, kv.value, kv.create_revision, kv.mod_revision)
            for kv in found.kvs
        ]
        frozen = FrozenKV(kvs, found.head.revision)
        try:
            await _copy_files(frozen, prefix, store, files)
        except ObjectNotFound as error:
            # The node has a newer checkpoint by now: so has the next snapshot.
            last = error
            continue
        return found, frozen
    raise Unavailable(
        f"the node's metadata changed {SNAPSHOT_TRIES} times while it was copied; try again"
    ) from last


def _backup(server: str) -> Backup:
    with Admin(server) as admin:
        return decode(b"".join(admin.backup()), f"of {server}")


async def _copy_files(kv: FrozenKV, prefix: bytes, store: ObjectStore, files: ObjectStore) -> None:
    named = await kv.get(checkpoint.key(prefix))
    for file in () if named is None else checkpoint.decode(named.value).files:
        parts: list[Buffer] = []
        for start in range(0, file.size_bytes, COPY_BYTES):
            length = min(COPY_BYTES, file.size_bytes - start)
            parts.append(await store.get(file.name, start, length))
        await files.put(file.name, parts)
