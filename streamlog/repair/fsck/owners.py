"""Whose the objects of the store are: each object's footer names its cluster."""

from __future__ import annotations

from collections.abc import Iterable

from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.repair.bucket import Bucket, read_footer
from streamlog.repair.findings import Finding, FindingKind, RepairReport, Severity
from streamlog.repair.in_flight import in_flight
from streamlog.runtime.offload import Offload


async def read_owners(
    store: ObjectStore, offload: Offload, bucket: Bucket, ids: Iterable[int]
) -> dict[int, str]:
    """Object id → its cluster, without objects whose footer cannot be read.

    Errors: StoreUnavailable.
    """
    owners: dict[int, str] = {}

    async def look(object_id: int) -> None:
        try:
            footer = await read_footer(store, offload, object_id, bucket.size_of(object_id) or 0)
        except (Corrupt, UnsupportedVersion):
            return
        if footer is not None:
            owners[object_id] = footer.identity.cluster_id

    await in_flight(ids, look)
    return owners


def foreign(key: str, message: str, object_id: int | None = None) -> Finding:
    """What the message says is of another cluster: an object, or a checkpoint file."""
    return Finding(
        FindingKind.OBJECT_FOREIGN,
        Severity.WARNING,
        message,
        "look whether this is the store of this metadata, and whose the objects are",
        key=key,
        object_id=object_id,
    )


def foreign_object(object_id: int, owner: str) -> Finding:
    message = f"object {object_id} is of the cluster {owner}"
    return foreign(data_key(object_id), message, object_id)


async def find_foreign(
    store: ObjectStore,
    offload: Offload,
    bucket: Bucket,
    cluster_id: str,
    ids: Iterable[int],
    report: RepairReport,
) -> set[int]:
    """Those of `ids` that are of another cluster; the report names them.

    Errors: StoreUnavailable.
    """
    owners = await read_owners(store, offload, bucket, ids)
    foreign = {object_id for object_id, owner in owners.items() if owner != cluster_id}
    for object_id in sorted(foreign):
        report.add(foreign_object(object_id, owners[object_id]))
    return foreign
