"""What a Python worker keeps between tasks: an event loop in a thread, and open stores.

Made inside a task, never pickled. Spark forks workers before any task runs in them.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from streamlog.engine.config import StreamEngineConfig
from streamlog.errors import ForeignCluster, StoreUnavailable
from streamlog.objectstore.cluster.guard import read_cluster
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.url import LocalUrl, MemoryUrl, parse_store_url
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import Lane, ThreadOffload
from streamlog.runtime.rand import SystemRandom
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
    cluster = ServerCluster(place.server, place.isolation)
    try:
        renew(cluster, place.pin_id)
    finally:
        cluster.close()


class Worker:
    """One for each process; use `worker()`."""

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
        """Renews the plan's pin while a task goes on; costs nothing where it is short."""
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
        """The result of `work` on the loop's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def call(self, function: Any, *args: Any) -> None:
        """On the loop's thread, soon."""
        self._loop.call_soon_threadsafe(function, *args)

    def store(self, url: str, cluster_id: str) -> ObjectStore:
        """Open, and of that cluster. Errors: StoreUnavailable, Unauthorized, ForeignCluster."""
        known = self._stores.get(url)
        if known is None:
            known = self._stores[url] = self.run(self._open(url))
            freeze_gc("store")
        store, found = known
        if found != cluster_id:
            # A worker may outlive a cluster, and its place be another's by now.
            found = self.run(_cluster_in(store))
            self._stores[url] = store, found
        if found != cluster_id:
            raise ForeignCluster(
                f"{store.url} holds cluster {found or '(none)'}, the topics are of {cluster_id}; "
                "set the option store to where this machine finds the node's store",
                store_cluster=found,
                meta_cluster=cluster_id,
            )
        return store

    async def _open(self, url: str) -> tuple[ObjectStore, str]:
        parsed = parse_store_url(url)
        if isinstance(parsed, MemoryUrl):
            raise StoreUnavailable("a store in a node's memory can be read through the node alone")
        if isinstance(parsed, LocalUrl) and not await asyncio.get_running_loop().run_in_executor(
            None, Path(parsed.path).is_dir
        ):
            raise StoreUnavailable(f"{url} is no folder on this machine")
        # It brings the whole engine, which only who reads objects is to wait for.
        from streamlog.wiring import open_object_store

        store = await open_object_store(
            url,
            StreamEngineConfig(),
            self._clock,
            SystemRandom(),
            self.offload,
            CollectorRegistry(),
        )
        try:
            return store, await _cluster_in(store)
        except BaseException:
            await store.close()
            raise


async def _cluster_in(store: ObjectStore) -> str:
    """Empty: none has claimed it."""
    claimed = await read_cluster(store)
    return "" if claimed is None else claimed.cluster_id


def worker() -> Worker:
    """This process's."""
    global _worker
    with _lock:
        if _worker is None or _worker.pid != os.getpid():
            freeze_gc("worker")
            _worker = Worker()
        return _worker
