"""`open_metadata`: opens a session under a new tenure of a node."""

from __future__ import annotations

from typing import Literal

from prometheus_client import CollectorRegistry

from streamlog.errors import StreamlogError
from streamlog.kvstore.interface import KVStore
from streamlog.metadata.backoff import RetryPolicy
from streamlog.metadata.checkpoint.files import CheckpointReader
from streamlog.metadata.checkpoint.loader import Loader, MetadataState
from streamlog.metadata.compaction.compactors import Compactors
from streamlog.metadata.compaction.garbage import Garbage
from streamlog.metadata.config import MetadataConfig
from streamlog.metadata.interface import Recovery
from streamlog.metadata.journal.checkpointer import Checkpointer
from streamlog.metadata.journal.committer import Committer
from streamlog.metadata.journal.follower import Follower
from streamlog.metadata.journal.id_allocator import BlockTaker, ObjectIdAllocator, StreamIdAllocator
from streamlog.metadata.journal.object_ids import ObjectIds
from streamlog.metadata.journal.record_sender import RecordSender
from streamlog.metadata.keys import lineage, recovery
from streamlog.metadata.keys.space import prefix_of
from streamlog.metadata.keyspace import KeySpace, Tools
from streamlog.metadata.lookup.lookup import Lookup
from streamlog.metadata.metrics import MetadataMetrics
from streamlog.metadata.ownership.liveness import Liveness
from streamlog.metadata.ownership.registration import Registration, check_node_id, register
from streamlog.metadata.ownership.transfer import OwnershipTransfer
from streamlog.metadata.ownership.versions import check_versions
from streamlog.metadata.session import MetadataSession, SessionIdentity, SessionParts
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

    The tenure holds no streams yet: call `take_over_previous` once the local WAL durably names it.
    `kv` and `store` stay the caller's to close.

    Errors: InvalidName (the cluster id), Invalid (the node id), MetadataUnavailable,
    StoreUnavailable, Corrupt, UnsupportedVersion, LineageFenced.
    """
    check_node_id(node_id)
    config = config or MetadataConfig()
    tools = Tools(config, clock, random, offload, MetadataMetrics(registry))
    keys = KeySpace(kv, prefix_of(cluster_id), RetryPolicy(config, clock, random))
    # Before anything is written, so that metadata of a newer release stays as it is.
    await keys.retry.bounded().run(lambda: check_versions(kv, keys.prefix))
    registered = await register(
        keys,
        node_id,
        has_disk_wal=wal_mode == "disk",
        address=address,
        window=config.put_window,
        tools=tools,
    )
    check = LineageCheck(store, cluster_id, await _lineage(keys))
    loader = Loader(kv, store, keys.prefix, offload)
    state = await _load(loader, check, keys.retry)
    identity = SessionIdentity(cluster_id, registered.fence, await _recovery(keys), check)
    follower = Follower(keys, loader, state, registered.tenure, check, tools)
    parts = _build_parts(keys, store, registered, follower, check, tools)
    metadata = MetadataSession(identity, parts, keys, clock)
    metadata.start()
    return metadata


def _build_parts(
    keys: KeySpace,
    store: ObjectStore,
    registered: Registration,
    follower: Follower,
    check: LineageCheck,
    tools: Tools,
) -> SessionParts:
    tenure, own_fence, config = registered.tenure, registered.fence, tools.config
    reader = CheckpointReader(store, config.block_cache_bytes)
    lookup = Lookup(follower, reader)
    ids = ObjectIds(registered.object_block, config.put_window)
    sender = RecordSender(keys, follower, tenure, own_fence, tools)
    committer = Committer(sender, follower, ids, tools)
    blocks = BlockTaker(keys, tenure)
    allocator = ObjectIdAllocator(ids, blocks, keys.retry, committer.ask_for_floor)
    committer.allocator = allocator
    compactors = Compactors(keys, own_fence, follower, lookup, tools)
    return SessionParts(
        follower=follower,
        lookup=lookup,
        committer=committer,
        allocator=allocator,
        stream_ids=StreamIdAllocator(blocks),
        ownership=OwnershipTransfer(keys, follower, own_fence, tools),
        checkpointer=Checkpointer(keys, store, follower, reader, check, tools),
        compactors=compactors,
        garbage=Garbage(keys, follower, lookup, ids, allocator, compactors, tools),
        liveness=Liveness(keys, tenure, registered.lease_id, config.lease_ttl_ms),
    )


async def _load(loader: Loader, check: LineageCheck, retry: RetryPolicy) -> MetadataState:
    backoff = retry.bounded()
    while True:
        try:
            return await loader.load()
        except StreamlogError as error:
            # A file may be missing because nodes on newer metadata deleted it.
            await backoff.after(await check.reason_for(error))


async def _recovery(keys: KeySpace) -> Recovery | None:
    return await keys.retry.bounded().run(lambda: read_recovery(keys.kv, keys.prefix))


async def _lineage(keys: KeySpace) -> Lineage:
    return await keys.retry.bounded().run(lambda: lineage.read(keys.kv, keys.prefix))


async def read_recovery(kv: KVStore, prefix: bytes) -> Recovery | None:
    """Errors: Corrupt, UnsupportedVersion, MetadataUnavailable."""
    entry = await kv.get(recovery.key(prefix))
    return None if entry is None else recovery.decode(entry.value)
