"""`cluster.json`: which cluster a store belongs to, so that no other one writes into it.

    {"cluster_id": "<text>", "format_version": 1}
    {"cluster_id": "<text>", "format_version": 2, "lineage": <int>, "lineage_id": "<32 hex>"}
    as the second, with "knows_deletions": false

The first node of a cluster writes version 1. Each `recover` or `restore` replaces the file by
version 2 with the next lineage (`lineage.py`); version 1 is lineage 0. A release that knows only
version 1 refuses the file then, and so deletes nothing that the recovered metadata needs. A newer
format version is refused before anything else is read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from streamlog.errors import (
    AlreadyExists,
    Corrupt,
    ForeignCluster,
    InvalidName,
    ObjectNotFound,
    StoreUnavailable,
    UnsupportedVersion,
)
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import CLUSTER_KEY

FORMAT_VERSION = 2
LINEAGE_VERSION = 2
"""From this version on there is a lineage."""
SIZE_BYTES_MAX = 4096

_CLUSTER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_LINEAGE_ID = re.compile(r"[0-9a-f]{32}\Z")
_LINEAGE_MAX = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Lineage:
    """How many recoveries made metadata for the store; `id`: of the last one, 32 hex digits.

    0 with an empty id: no recovery did. `knows_deletions`: each of them knew which streams had been
    destroyed. Where one did not, no later one can, whatever its checkpoint says, because that may
    come from the first.
    """

    number: int = 0
    id: str = ""
    knows_deletions: bool = field(default=True, compare=False)


FIRST = Lineage()


@dataclass(frozen=True, slots=True)
class ClusterFile:
    cluster_id: str
    lineage: Lineage = FIRST


def check_cluster_id(cluster_id: str) -> str:
    """`cluster_id`; it stands in metadata keys and object footers. Errors: InvalidName."""
    if not _CLUSTER_ID.match(cluster_id):
        raise InvalidName(
            f"{cluster_id[:80]!r} is no cluster id: 1 to 64 of A-Z a-z 0-9 . _ -, the first of "
            "them a letter or digit"
        )
    return cluster_id


def encode(cluster: ClusterFile) -> bytes:
    content: dict[str, str | int] = {"cluster_id": cluster.cluster_id, "format_version": 1}
    if cluster.lineage != FIRST:
        content["format_version"] = LINEAGE_VERSION
        content |= {"lineage": cluster.lineage.number, "lineage_id": cluster.lineage.id}
        if not cluster.lineage.knows_deletions:
            content["knows_deletions"] = False
    return json.dumps(content).encode() + b"\n"


def decode(data: bytes) -> ClusterFile:
    """Errors: UnsupportedVersion, Corrupt."""
    try:
        content = json.loads(data)
        version, cluster_id = content["format_version"], content["cluster_id"]
    # RecursionError: thousands of brackets. No content may crash a node.
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise _corrupt(len(data)) from error
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise UnsupportedVersion(
            f"the store has format version {version}, this release knows up to {FORMAT_VERSION}; "
            "use a newer release",
            found=version,
            supported=FORMAT_VERSION,
        )
    if not isinstance(version, int) or version < 1 or not isinstance(cluster_id, str):
        raise _corrupt(len(data))
    lineage = FIRST
    if version >= LINEAGE_VERSION:
        number, lineage_id = content.get("lineage"), content.get("lineage_id")
        is_number = type(number) is int and 0 < number <= _LINEAGE_MAX
        if not is_number or not isinstance(lineage_id, str) or not _LINEAGE_ID.match(lineage_id):
            raise _corrupt(len(data))
        knows_deletions = content.get("knows_deletions", True)
        if not isinstance(knows_deletions, bool):
            raise _corrupt(len(data))
        lineage = Lineage(number, lineage_id, knows_deletions)
    try:
        return ClusterFile(check_cluster_id(cluster_id), lineage)
    except InvalidName as error:
        raise _corrupt(len(data)) from error


def _corrupt(size_bytes: int) -> Corrupt:
    return Corrupt(
        f"{CLUSTER_KEY} is not what streamlog wrote; put it back from a backup, or use "
        "another prefix",
        object_key=CLUSTER_KEY,
        start=0,
        end=size_bytes,
    )


async def read_cluster(store: ObjectStore) -> ClusterFile | None:
    """The store's cluster; None for a store that no cluster has claimed.

    Errors: UnsupportedVersion, Corrupt, StoreUnavailable.
    """
    try:
        data = await store.get(CLUSTER_KEY, 0, SIZE_BYTES_MAX)
    except ObjectNotFound:
        return None
    return decode(bytes(data))


async def claim(store: ObjectStore, cluster_id: str, lineage: Lineage = FIRST) -> ClusterFile:
    """Reads or creates the file: on return the store belongs to `cluster_id`.

    A new file gets `lineage`. The caller compares the lineage of a file that exists.

    Errors: ForeignCluster (store_cluster, meta_cluster), UnsupportedVersion, Corrupt,
    StoreUnavailable.
    """
    mine = ClusterFile(check_cluster_id(cluster_id), lineage)
    cluster = await read_cluster(store)
    if cluster is None:
        try:
            await store.put(CLUSTER_KEY, (encode(mine),), if_absent=True)
        except AlreadyExists as error:
            cluster = await read_cluster(store)
            if cluster is None:
                raise StoreUnavailable(
                    f"{store.url} says that {CLUSTER_KEY} exists, and does not have it; try again",
                    operation="get",
                ) from error
        else:
            return mine
    check_same(store.url, cluster, cluster_id)
    return cluster


def check_same(url: str, cluster: ClusterFile | None, cluster_id: str) -> None:
    """Errors: ForeignCluster where the store's cluster is not `cluster_id`."""
    if cluster is None or cluster.cluster_id == cluster_id:
        return
    raise ForeignCluster(
        f"{url} belongs to cluster {cluster.cluster_id}, the metadata to cluster {cluster_id}; "
        "give the store and the metadata of one cluster",
        store_cluster=cluster.cluster_id,
        meta_cluster=cluster_id,
    )
