"""Which cluster this is: the same id in the metadata store and in the object store.

1. The metadata store names its cluster under one key; who opens an empty one for an empty object
   store makes the id up, and writes it there first.
2. Then the object store is claimed. A crash in between leaves a metadata store without data, which
   claims the object store at the next start.
3. An object store that is claimed, beside an empty metadata store, is refused: its streams would be
   invisible, and look like garbage.
"""

from __future__ import annotations

from streamlog.errors import Corrupt, ForeignCluster
from streamlog.kvstore.interface import Get, KVStore, Put, RevisionIs
from streamlog.objectstore.cluster_guard import check_cluster_id, claim, read_cluster
from streamlog.objectstore.interface import ObjectStore
from streamlog.runtime.rand import Random

CLUSTER_KEY = b"/streamlog/cluster"
_VERSION = b"\x01"


async def read_cluster_id(kv: KVStore) -> str | None:
    """The metadata store's cluster; None for an empty store. Errors: Corrupt, InvalidName,
    MetadataUnavailable.
    """
    found = await kv.get(CLUSTER_KEY)
    return None if found is None else _decoded(found.value)


async def settle_cluster_id(kv: KVStore, store: ObjectStore, random: Random) -> str:
    """The cluster id, durable in both stores on return.

    Errors: ForeignCluster (names both), UnsupportedVersion, Corrupt, Unavailable.
    """
    found = await kv.get(CLUSTER_KEY)
    if found is None:
        claimed = await read_cluster(store)
        if claimed is not None:
            raise ForeignCluster(
                f"{store.url} holds data of cluster {claimed.cluster_id} and the metadata store is "
                "empty: give the metadata store that belongs to it, or an empty store",
                store_cluster=claimed.cluster_id,
                meta_cluster="",
            )
        value = _VERSION + random.uuid().hex.encode()
        result = await kv.txn(
            (RevisionIs(CLUSTER_KEY, 0),), (Put(CLUSTER_KEY, value),), (Get(CLUSTER_KEY),)
        )
        if not result.succeeded:
            value = result.responses[0][0].value
    else:
        value = found.value
    cluster_id = _decoded(value)
    await claim(store, cluster_id)
    return cluster_id


def _decoded(value: bytes) -> str:
    if value[:1] != _VERSION:
        raise Corrupt(f"the metadata store's cluster id is unreadable: {value[:80]!r}")
    return check_cluster_id(value[1:].decode("ascii", "replace"))
