"""`open_metadata`: a new tenure of a node, following the shared metadata."""

from __future__ import annotations

from typing import Literal

from prometheus_client import CollectorRegistry

from streamlog.errors import StreamlogError
from streamlog.kvstore.interface import KVStore
from streamlog.metadata.backoff import Retry
from streamlog.metadata.checkpoint.files import BlockReader
from streamlog.metadata.checkpoint.loader import Loader, MetadataState
from streamlog.metadata.compaction.compactors import Compactors
from streamlog.metadata.compaction.garbage import Garbage
from streamlog.metadata.config import MetadataConfig
from streamlog.metadata.interface import Recovery
from streamlog.metadata.journal.checkpointer import Checkpointer
from streamlog.metadata.journal.committer import Committer
from streamlog.metadata.journal.follower import Follower
from streamlog.metadata.journal.id_allocator import BlockTaker, ObjectIdAllocator, StreamIds
from streamlog.metadata.journal.object_ids import ObjectIds
from streamlog.metadata.journal.record_sender import RecordSender
from streamlog.metadata.keys import lineage, recovery
from streamlog.metadata.keys.space import prefix_of
from streamlog.metadata.lookup.lookup import Lookup
from streamlog.metadata.metrics import MetadataMetrics
from streamlog.metadata.ownership.liveness import Liveness
from streamlog.metadata.ownership.registration import check_node_id, register
from streamlog.metadata.ownership.transfer import OwnershipTransfer
from streamlog.metadata.ownership.versions import check_versions
from streamlog.metadata.session import MetadataSession
from streamlog.objectstore.cluster.guard import Lineage
from streamlog.objectstore.cluster.lineage import LineageCheck
from streamlog.objectstore.interface import ObjectStore
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Offload
from streamlog.runtime.rand import Random


async def open_metadata(
    kv: KVStore,
    store: ObjectStore,
    *,
    cluster_id: str,
    node_id: int,
    wal_mode: Literal["object", "disk"],
    clock: Clock,
    random: Random,
    offload: Offload,
    registry: CollectorRegistry,
    config: MetadataConfig | None = None,
    address: str = "",
) -> MetadataSession:
    """Registers a new tenure, which seals the node's earlier one, and loads the metadata.

    The tenure holds no streams yet: once the local WAL durably names it, call `take_over_previous`.
    `kv` and `store` stay the caller's to close.

    Errors: InvalidName (the cluster id), Invalid (the node id), MetadataUnavailable,
    StoreUnavailable, Corrupt, UnsupportedVersion, LineageFenced.
    """
    check_node_id(node_id)
    config = config or MetadataConfig()
    prefix = prefix_of(cluster_id)
    retry = Retry(config, clock, random)
    metrics = MetadataMetrics(registry)
    await _look(kv, prefix, retry)
    registered = await register(
        kv,
        prefix,
        node_id,
        has_disk_wal=wal_mode == "disk",
        address=address,
        window=config.put_window,
        config=config,
        clock=clock,
        retry=retry,
    )
    check = LineageCheck(store, cluster_id, await _lineage(kv, prefix, retry))
    loader = Loader(kv, store, prefix, offload)
    state = await _load(loader, check, retry)
    rebuilt = await _recovery(kv, prefix, retry)
    follower = Follower(
        kv, prefix, loader, state, registered.tenure, check, retry, offload, metrics
    )
    reader = BlockReader(store, config.block_cache_bytes)
    ids = ObjectIds(registered.object_block, config.put_window)
    tenure = registered.tenure
    sender = RecordSender(
        kv, prefix, follower, tenure, registered.fence, clock=clock, retry=retry, metrics=metrics
    )
    committer = Committer(sender, follower, ids, config=config, offload=offload, metrics=metrics)
    blocks = BlockTaker(kv, prefix, tenure, retry)
    allocator = ObjectIdAllocator(ids, blocks, retry, committer.ask_for_floor)
    committer.allocator = allocator
    lookup = Lookup(follower, reader)
    compactors = Compactors(
        kv,
        prefix,
        registered.fence,
        follower=follower,
        lookup=lookup,
        config=config,
        clock=clock,
        retry=retry,
        offload=offload,
        metrics=metrics,
    )
    metadata = MetadataSession(
        cluster_id,
        kv,
        prefix,
        registered.fence,
        rebuilt,
        follower=follower,
        committer=committer,
        ownership=OwnershipTransfer(
            kv, prefix, follower, registered.fence, clock=clock, random=random, retry=retry
        ),
        checkpointer=Checkpointer(
            kv,
            store,
            prefix,
            follower,
            reader,
            config=config,
            clock=clock,
            random=random,
            offload=offload,
            retry=retry,
            metrics=metrics,
            lineage=check,
        ),
        lookup=lookup,
        garbage=Garbage(
            kv,
            prefix,
            follower,
            lookup,
            ids,
            allocator,
            compactors,
            config=config,
            clock=clock,
            metrics=metrics,
        ),
        liveness=Liveness(kv, prefix, registered.tenure, registered.lease_id, config.lease_ttl_ms),
        allocator=allocator,
        stream_ids=StreamIds(blocks),
        compactors=compactors,
        clock=clock,
        retry=retry,
        lineage=check,
    )
    metadata.start()
    return metadata


async def _look(kv: KVStore, prefix: bytes, retry: Retry) -> None:
    backoff = retry.bounded()
    while True:
        try:
            return await check_versions(kv, prefix)
        except StreamlogError as error:
            await backoff.after(error)


async def _load(loader: Loader, check: LineageCheck, retry: Retry) -> MetadataState:
    backoff = retry.bounded()
    while True:
        try:
            return await loader.load()
        except StreamlogError as error:
            await backoff.after(await check.reason_for(error))


async def _recovery(kv: KVStore, prefix: bytes, retry: Retry) -> Recovery | None:
    backoff = retry.bounded()
    while True:
        try:
            return await read_recovery(kv, prefix)
        except StreamlogError as error:
            await backoff.after(error)


async def _lineage(kv: KVStore, prefix: bytes, retry: Retry) -> Lineage:
    backoff = retry.bounded()
    while True:
        try:
            return await lineage.read(kv, prefix)
        except StreamlogError as error:
            await backoff.after(error)


async def read_recovery(kv: KVStore, prefix: bytes) -> Recovery | None:
    """Errors: Corrupt, UnsupportedVersion, MetadataUnavailable."""
    found = await kv.get(recovery.key(prefix))
    return None if found is None else recovery.decode(found.value)
