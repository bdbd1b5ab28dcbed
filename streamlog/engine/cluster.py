"""Ensures that metadata store and object store belong to the same cluster.

1. The metadata store has the cluster id under one key. A node that finds both stores empty makes
   an id up, and writes it there first.
2. Then it claims the object store. After a crash in between, the next start claims it.
3. Every other key of the cluster is written after that. So metadata that has one had a store, and
   a store that nobody claimed is another one (a folder that is not mounted, a wrong prefix), or has
   lost `cluster.json`. It is refused: to claim it would take an empty folder for the data.
4. A claimed object store beside an empty metadata store is refused: its streams would be invisible,
   and its objects would look like garbage.
5. Both stores must have the same lineage: otherwise a recovery has made newer metadata for the
   objects.
"""

from __future__ import annotations

from streamlog.errors import Corrupt, ForeignCluster, UnsupportedVersion
from streamlog.kvstore.interface import Get, KVStore, Put, RevisionIs, prefix_end
from streamlog.metadata.keys import lineage
from streamlog.metadata.keys.space import prefix_of
from streamlog.objectstore.cluster.guard import check_cluster_id, claim, read_cluster
from streamlog.objectstore.cluster.lineage import check_lineage, restate_lineage
from streamlog.objectstore.interface import ObjectStore
from streamlog.runtime.rand import Random

CLUSTER_KEY = b"/streamlog/cluster"
_VERSION = b"\x01"


async def read_cluster_id(kv: KVStore) -> str | None:
    """The metadata store's cluster; None for an empty store. Errors: Corrupt, InvalidName,
    MetadataUnavailable.
    """
    stored = await kv.get(CLUSTER_KEY)
    return None if stored is None else cluster_id_of(stored.value)


async def ensure_cluster_id(kv: KVStore, store: ObjectStore, random: Random) -> str:
    """The cluster id. On return it is durable in both stores, and their lineage is the same.

    Errors: ForeignCluster (names both; or the metadata is in use and nobody claimed the store),
    LineageFenced (names both), UnsupportedVersion, Corrupt, Conflict (cluster.json changes at this
    moment), Unavailable.
    """
    stored = await kv.get(CLUSTER_KEY)
    if stored is None:
        owner = await read_cluster(store)
        if owner is not None:
            # Another node that is starting may have written the id and claimed the store since.
            stored = await kv.get(CLUSTER_KEY)
        if owner is not None and stored is None:
            raise ForeignCluster(
                f"{store.url} holds data of cluster {owner.cluster_id} and the metadata store is "
                "empty: look whether --meta is right (a node with --data D keeps it in D/meta), or "
                "give an empty store; only if the metadata is lost, rebuild it with streamlog "
                "recover",
                store_cluster=owner.cluster_id,
                meta_cluster="",
            )
    if stored is None:
        value = encode_cluster_id(random.uuid().hex)
        result = await kv.txn(
            (RevisionIs(CLUSTER_KEY, 0),), (Put(CLUSTER_KEY, value),), (Get(CLUSTER_KEY),)
        )
        if not result.succeeded:
            value = result.responses[0][0].value
    else:
        value = stored.value
    cluster_id = cluster_id_of(value)
    await _check_not_elsewhere(kv, store, cluster_id)
    mine = await lineage.read(kv, prefix_of(cluster_id))
    claimed = await claim(store, cluster_id, mine)
    check_lineage(store.url, claimed.lineage, mine)
    if claimed.lineage != mine:
        await restate_lineage(store, claimed, mine)
    return cluster_id


async def is_in_use(kv: KVStore, cluster_id: str) -> bool:
    """Whether a node of the cluster has ever opened the metadata. Errors: MetadataUnavailable."""
    prefix = prefix_of(cluster_id)
    return bool((await kv.range(prefix, prefix_end(prefix), limit=1)).kvs)


async def _check_not_elsewhere(kv: KVStore, store: ObjectStore, cluster_id: str) -> None:
    """Errors: ForeignCluster where the metadata is in use and nobody claimed the store."""
    if await read_cluster(store) is not None:
        return
    if not await is_in_use(kv, cluster_id):
        return
    if await read_cluster(store) is not None:
        # Another node claimed the store in between, then wrote the key.
        return
    raise ForeignCluster(
        f"{store.url} has no cluster.json, and the metadata of cluster {cluster_id} is in use: its "
        "objects lie elsewhere. Mount the folder, or give the bucket and the prefix that belong to "
        "this metadata. If the objects are there and only cluster.json is lost, streamlog fsck "
        "--repair writes it again",
        store_cluster="",
        meta_cluster=cluster_id,
    )


def encode_cluster_id(cluster_id: str) -> bytes:
    """The value under CLUSTER_KEY."""
    return _VERSION + cluster_id.encode()


def cluster_id_of(value: bytes) -> str:
    """The inverse of `encode_cluster_id`. Errors: Corrupt, UnsupportedVersion."""
    if value[:1] > _VERSION:
        raise UnsupportedVersion(
            "the metadata store was made by a newer version of streamlog; use that one",
            found=value[0],
            supported=_VERSION[0],
        )
    if value[:1] != _VERSION:
        raise Corrupt(f"the metadata store's cluster id is unreadable: {value[:80]!r}")
    return check_cluster_id(value[1:].decode("ascii", "replace"))
