"""Which cluster this is: the same id in the metadata store and in the object store.

1. The metadata store names its cluster under one key; who opens an empty one for an empty object
   store makes the id up, and writes it there first.
2. Then the object store is claimed. A crash in between leaves a metadata store without data, which
   claims the object store at the next start.
3. An object store that is claimed, beside an empty metadata store, is refused: its streams would be
   invisible, and look like garbage.
4. Both are of one lineage, else a recovery made newer metadata for the same objects.
"""

from __future__ import annotations

from streamlog.errors import Corrupt, ForeignCluster, UnsupportedVersion
from streamlog.kvstore.interface import Get, KVStore, Put, RevisionIs
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
    found = await kv.get(CLUSTER_KEY)
    return None if found is None else cluster_id_of(found.value)


async def ensure_cluster_id(kv: KVStore, store: ObjectStore, random: Random) -> str:
    """The cluster id, durable in both stores on return, which are of one lineage.

    Errors: ForeignCluster (names both), LineageFenced (names both), UnsupportedVersion, Corrupt,
    Conflict (cluster.json changes at this moment), Unavailable.
    """
    found = await kv.get(CLUSTER_KEY)
    if found is None:
        owner = await read_cluster(store)
        if owner is not None:
            # A node that started at the same moment may have named the cluster, then claimed.
            found = await kv.get(CLUSTER_KEY)
        if owner is not None and found is None:
            raise ForeignCluster(
                f"{store.url} holds data of cluster {owner.cluster_id} and the metadata store is "
                "empty: give the metadata store that belongs to it, or an empty store",
                store_cluster=owner.cluster_id,
                meta_cluster="",
            )
    if found is None:
        value = encode_cluster_id(random.uuid().hex)
        result = await kv.txn(
            (RevisionIs(CLUSTER_KEY, 0),), (Put(CLUSTER_KEY, value),), (Get(CLUSTER_KEY),)
        )
        if not result.succeeded:
            value = result.responses[0][0].value
    else:
        value = found.value
    cluster_id = cluster_id_of(value)
    mine = await lineage.read(kv, prefix_of(cluster_id))
    claimed = await claim(store, cluster_id, mine)
    check_lineage(store.url, claimed.lineage, mine)
    if claimed.lineage != mine:
        await restate_lineage(store, claimed, mine)
    return cluster_id


def encode_cluster_id(cluster_id: str) -> bytes:
    """The value under CLUSTER_KEY."""
    return _VERSION + cluster_id.encode()


def cluster_id_of(value: bytes) -> str:
    """What `encode_cluster_id` made. Errors: Corrupt, UnsupportedVersion."""
    if value[:1] > _VERSION:
        raise UnsupportedVersion(
            "the metadata store was made by a newer version of streamlog; use that one",
            found=value[0],
            supported=_VERSION[0],
        )
    if value[:1] != _VERSION:
        raise Corrupt(f"the metadata store's cluster id is unreadable: {value[:80]!r}")
    return check_cluster_id(value[1:].decode("ascii", "replace"))
