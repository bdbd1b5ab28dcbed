"""Object stores that a process opens for reading, beside the node that writes them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from streamlog.engine.config import StreamEngineConfig
from streamlog.objectstore.cluster.guard import read_cluster
from streamlog.objectstore.interface import ObjectStore
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Offload
from streamlog.runtime.rand import SystemRandom
from streamlog.wiring import open_object_store


async def open_store(url: str, clock: Clock, offload: Offload) -> ObjectStore:
    """The caller closes the store. Errors: Invalid, Unavailable."""
    return await open_object_store(
        url, StreamEngineConfig(), clock, SystemRandom(), offload, CollectorRegistry()
    )


async def cluster_in(store: ObjectStore) -> str:
    """The id of the cluster that has claimed the store; "" if none has."""
    claimed = await read_cluster(store)
    return "" if claimed is None else claimed.cluster_id
