"""Opens the metadata store and the object store, and checks that they belong to one cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry

from streamlog.engine.cluster import ensure_cluster_id
from streamlog.engine.config import StreamEngineConfig
from streamlog.errors import Invalid
from streamlog.kvstore.interface import KVStore
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.kvstore.observed import ObservedKVStore
from streamlog.kvstore.opening import absent_path, open_kv
from streamlog.kvstore.opening import is_shared as is_shared_kv
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.observed import observed
from streamlog.objectstore.opening import absent_folder, open_store
from streamlog.objectstore.trust.quick import check_quickly
from streamlog.objectstore.url import MemoryUrl, parse_store_url
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.answers import Answers
from streamlog.runtime.offload import Lane, Offload
from streamlog.runtime.rand import Random
from streamlog.wiring.plan import Components, EnginePlan, Runtime, meta_url_of

IfAbsent = Literal["make", "refuse", "stand in"]
"""A metadata store that is not there is made, or refused, or an empty one in memory stands in."""


@dataclass(frozen=True, slots=True)
class OpenStores:
    """Both stores of one cluster; their `Answers` see every request."""

    cluster_id: str
    store: ObjectStore
    store_answers: Answers
    kv: KVStore
    kv_answers: Answers


async def open_stores(
    plan: EnginePlan,
    config: StreamEngineConfig,
    components: Components,
    runtime: Runtime,
    built: AsyncExitStack,
    *,
    check_store: bool,
    on_step: Callable[[str], None],
) -> OpenStores:
    """Opens the metadata store first: its lock keeps a second process out."""
    clock, random, offload = runtime.clock, runtime.random, runtime.offload
    on_step(f"the metadata store {plan.meta}")
    kv = components.kv
    if kv is None:
        kv = await open_kv(plan.meta, clock, offload)
        built.push_async_callback(kv.close)
    on_step(f"the object store {plan.store}")
    store = components.store
    if store is None:
        store = await open_store(
            plan.store, offload, clock, random, config=config.store, registry=runtime.registry
        )
        built.push_async_callback(store.close)
    if check_store and not isinstance(plan.store, MemoryUrl):
        await check_quickly(store, clock, random)
    store_answers = Answers(f"the object store {store.url}", clock, is_quick=False)
    kv_answers = Answers(f"the metadata store {plan.meta}", clock, is_quick=True)
    store, kv = observed(store, store_answers), ObservedKVStore(kv, kv_answers)
    on_step(f"the cluster's name in {plan.meta} and {plan.store}")
    cluster_id = await ensure_cluster_id(kv, store, random)
    return OpenStores(cluster_id, store, store_answers, kv, kv_answers)


async def open_object_store(
    url: str,
    config: StreamEngineConfig,
    clock: Clock,
    random: Random,
    offload: Offload,
    registry: CollectorRegistry,
) -> ObjectStore:
    """The store alone; the caller closes it. Errors: Invalid, Unavailable."""
    return await open_store(
        parse_store_url(url), offload, clock, random, config=config.store, registry=registry
    )


async def check_is_there(store: str, offload: Offload) -> None:
    """For those who look at a store, which opening would make. Errors: Invalid."""
    path = await offload.run(Lane.STORE, absent_folder, parse_store_url(store))
    if path is not None:
        raise Invalid(f"there is no folder {path}: look whether --store is right")


async def open_metadata_store(
    url: str | None,
    store: str,
    clock: Clock,
    offload: Offload,
    *,
    if_absent: IfAbsent = "make",
) -> KVStore:
    """The metadata store alone; the caller closes it. `url` None: the default beside `store`.

    Errors: Invalid (also of what is refused), DataInUse, Corrupt, UnsupportedVersion, Unavailable.
    """
    meta = meta_url_of(url, parse_store_url(store))
    if if_absent != "make":
        path = await offload.run(Lane.META, absent_path, meta)
        if path is not None and if_absent == "stand in":
            return MemoryKVStore(clock)
        if path is not None:
            raise Invalid(
                f"there is no metadata in {path}: look whether --meta is right (a node with --data "
                "D keeps it in D/meta). Only if it is lost, streamlog recover rebuilds it"
            )
    return await open_kv(meta, clock, offload)


def is_shared(meta: str | None, store: str) -> bool:
    """Whether several processes may open the metadata store. `meta` None: that of `store`."""
    return is_shared_kv(meta_url_of(meta, parse_store_url(store)))
