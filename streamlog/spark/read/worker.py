"""The state of a Python worker between tasks: an event loop in a thread, and open stores.

A task creates it; it is never pickled. Spark forks workers before any task runs in them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from streamlog.errors import ForeignCluster, StoreUnavailable
from streamlog.reading.blocks import ObjectStore
from streamlog.reading.urls import is_node_memory, local_folder
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import Lane, ThreadOffload
from streamlog.spark.cluster.cluster import ServerCluster
from streamlog.spark.cluster.pin_keeper import RENEWALS_PER_TTL, renew
from streamlog.spark.garbage_freeze import freeze_gc
from streamlog.spark.plan.types import ReadPlace

T = TypeVar("T")
GETS_IN_FLIGHT_MAX = 8

_lock = threading.Lock()
_worker: Worker | None = None


def _renew_once(place: ReadPlace) -> None:
    assert place.server is not None
    assert place.pin_id is not None
    cluster = ServerCluster(place.server, place.isolation, tls=place.tls)
    try:
        renew(cluster, place.pin_id)
    finally:
        cluster.close()


class Worker:
    """One per process; use `worker()`."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self.offload = ThreadOffload({Lane.GET: GETS_IN_FLIGHT_MAX, Lane.STORE: GETS_IN_FLIGHT_MAX})
        self._stores: dict[str, tuple[ObjectStore, str]] = {}
        self._clock = SystemClock()
        thread = threading.Thread(target=self._loop.run_forever, name="streamlog-io", daemon=True)
        thread.start()

    @contextmanager
    def keeping(self, place: ReadPlace) -> Iterator[None]:
        """Renews the plan's pin while a task runs; a short task renews nothing."""
        if place.pin_id is None or place.server is None:
            yield
            return
        renewing = asyncio.run_coroutine_threadsafe(self._renew(place), self._loop)
        try:
            yield
        finally:
            renewing.cancel()

    async def _renew(self, place: ReadPlace) -> None:
        interval_ms = place.pin_ttl_ms / RENEWALS_PER_TTL
        if self._clock.now_ms() - place.planned_ms < interval_ms:
            await asyncio.sleep(interval_ms / 1000)
        while True:
            await asyncio.get_running_loop().run_in_executor(None, _renew_once, place)
            await asyncio.sleep(interval_ms / 1000)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs `work` on the loop's thread and returns its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def call(self, function: Any, *args: Any) -> None:
        """Calls `function` soon, on the loop's thread."""
        self._loop.call_soon_threadsafe(function, *args)

    def store(self, url: str, cluster_id: str) -> ObjectStore:
        """The store, open, and of that cluster.

        Errors: StoreUnavailable, Unauthorized, ForeignCluster.
        """
        opened = self._stores.get(url)
        if opened is None:
            opened = self._stores[url] = self.run(self._open(url))
            freeze_gc("store")
        store, claimed_by = opened
        if claimed_by != cluster_id:
            from streamlog.reading.stores import cluster_in

            # A worker may outlive a cluster, and another cluster may use the place now.
            claimed_by = self.run(cluster_in(store))
            self._stores[url] = store, claimed_by
        if claimed_by != cluster_id:
            raise ForeignCluster(
                f"{store.url} holds cluster {claimed_by or '(none)'}, the topics are of "
                f"{cluster_id}; set the option store to where this machine finds the node's store",
                store_cluster=claimed_by,
                meta_cluster=cluster_id,
            )
        return store

    async def _open(self, url: str) -> tuple[ObjectStore, str]:
        if is_node_memory(url):
            raise StoreUnavailable("a store in a node's memory can be read through the node alone")
        folder = local_folder(url)
        loop = asyncio.get_running_loop()
        if folder is not None and not await loop.run_in_executor(None, folder.is_dir):
            raise StoreUnavailable(f"{url} is no folder on this machine")
        # Imports the whole engine, so only tasks that read objects wait for it.
        from streamlog.reading import stores

        store = await stores.open_store(url, self._clock, self.offload)
        try:
            return store, await stores.cluster_in(store)
        except BaseException:
            await store.close()
            raise


def worker() -> Worker:
    """The worker of this process."""
    global _worker
    with _lock:
        if _worker is None or _worker.pid != os.getpid():
            freeze_gc("worker")
            _worker = Worker()
        return _worker
