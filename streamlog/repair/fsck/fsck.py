"""`fsck` checks that the store has all objects that the metadata names, right, and no others.

Order: fsck lists the bucket, then reads the metadata at one revision. So a listed object that the
metadata does not know was not committed in between. Nodes should be stopped; while nodes run, their
changes show as findings that the next run does not have.

Memory: 16 bytes an object, 60 bytes a stream, and the ranges that `ObjectChecks` holds at a time.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from streamlog.engine.cluster import CLUSTER_KEY, cluster_id_of
from streamlog.errors import Corrupt, ForeignCluster, Invalid, UnsupportedVersion
from streamlog.kvstore.interface import KVStore
from streamlog.metadata.keys import lineage
from streamlog.metadata.keys.space import prefix_of
from streamlog.objectstore.cluster.guard import (
    ClusterFile,
    Lineage,
    check_same,
    claim,
    read_cluster,
)
from streamlog.objectstore.cluster.lineage import LineageCheck, check_lineage, restate_lineage
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.repair.bucket import Bucket, list_bucket
from streamlog.repair.findings import (
    Finding,
    FindingKind,
    Progress,
    RepairReport,
    Severity,
    no_progress,
)
from streamlog.repair.fsck.bucket import Unneeded, check_bucket, is_elsewhere, no_cluster_file
from streamlog.repair.fsck.keys import check_keys
from streamlog.repair.fsck.objects import ObjectChecks
from streamlog.repair.fsck.topics import check_topics
from streamlog.repair.view import load_view
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Offload
from streamlog.runtime.rand import Random

DELETE_BATCH = 500
ORPHANS_SHARE = 100
"""One object in this many may be an orphan before `--repair` asks for `--force`."""


@dataclass(frozen=True, slots=True)
class FsckOptions:
    """`repair`: do all repairs that cannot lose data. `force`: even suspiciously many of them."""

    deep: bool = False
    repair: bool = False
    force: bool = False


async def fsck(
    kv: KVStore,
    store: ObjectStore,
    *,
    clock: Clock,
    random: Random,
    offload: Offload,
    options: FsckOptions | None = None,
    progress: Progress = no_progress,
) -> RepairReport:
    """Errors: Invalid (the metadata store is empty), ForeignCluster, LineageFenced (a recovery made
    newer metadata, whose objects would look like waste), UnsupportedVersion, StoreUnavailable,
    MetadataUnavailable, Conflict (nodes are running).
    """
    options, report = options or FsckOptions(), RepairReport()
    report.cluster_id = await cluster_of(kv, store)
    mine = await lineage.read(kv, prefix_of(report.cluster_id))
    claimed = await read_cluster(store)
    if claimed is not None:
        check_lineage(store.url, claimed.lineage, mine)
        if claimed.lineage != mine:
            await _old_copy(store, claimed, mine, report, options)
    bucket = await list_bucket(store, progress)
    try:
        view = await load_view(
            kv, store, report.cluster_id, clock=clock, random=random, offload=offload
        )
    except Corrupt as error:
        if not bucket.has_cluster_file:
            report.add(no_cluster_file(is_elsewhere=not bucket.ids))
            if options.repair and bucket.ids:
                # Without it recover has no cluster to rebuild.
                await claim(store, report.cluster_id, mine)
                report.repaired.append("wrote cluster.json")
        report.add(_unreadable(error, bucket))
        return report
    report.revision = view.revision
    keys = await check_keys(view, report)
    await check_topics(view, report)
    checks = ObjectChecks(view, store, offload, report, progress, deep=options.deep)
    try:
        await checks.run()
        unneeded = await check_bucket(view, bucket, store, checks.live, keys, report)
    except Corrupt as error:
        report.add(_unlisted(error))
        unneeded = Unneeded()
    if options.repair:
        await _repair(store, bucket, unneeded, report, options, checks.live, mine)
    return report


async def cluster_of(kv: KVStore, store: ObjectStore) -> str:
    """The cluster of both stores. Errors: Invalid (there is none), ForeignCluster, Corrupt."""
    named, claimed = await kv.get(CLUSTER_KEY), await read_cluster(store)
    if named is None:
        if claimed is None:
            raise Invalid("metadata and store are empty: there is no cluster here")
        raise ForeignCluster(
            f"{store.url} holds data of cluster {claimed.cluster_id} and the metadata store is "
            "empty: give the metadata store that belongs to it, or rebuild it with streamlog "
            "recover",
            store_cluster=claimed.cluster_id,
            meta_cluster="",
        )
    cluster_id = cluster_id_of(named.value)
    check_same(store.url, claimed, cluster_id)
    return cluster_id


async def _old_copy(
    store: ObjectStore,
    claimed: ClusterFile,
    mine: Lineage,
    report: RepairReport,
    options: FsckOptions,
) -> None:
    if options.repair:
        await restate_lineage(store, claimed, mine)
        report.repaired.append("wrote the metadata's lineage into cluster.json, an older copy")
        return
    report.add(
        Finding(
            FindingKind.CLUSTER_FILE,
            Severity.ERROR,
            f"cluster.json names lineage {claimed.lineage.number}, the metadata is of lineage "
            f"{mine.number}: somebody put an old copy back, and older metadata would be taken for "
            "the right one",
            "streamlog fsck --repair writes it again, and so does the next start of a node",
            key="cluster.json",
        )
    )


def _unreadable(error: Corrupt | UnsupportedVersion, bucket: Bucket) -> Finding:
    return Finding(
        FindingKind.METADATA_UNREADABLE,
        Severity.ERROR,
        f"the metadata cannot be read, so nothing else was checked: {error}",
        "restore it from a backup, or rebuild it with streamlog recover"
        if bucket.ids
        else "the store has no objects: look whether it is the right one; do not replace the "
        "metadata before",
        key=str(error.fields.get("object_key", "")),
    )


def _unlisted(error: Corrupt) -> Finding:
    return Finding(
        FindingKind.CHECKPOINT_CORRUPT,
        Severity.ERROR,
        f"which objects the metadata needs cannot be read, so not all were checked: {error}",
        "rebuild the metadata with streamlog recover",
        key=str(error.fields.get("object_key", "")),
    )


async def _repair(
    store: ObjectStore,
    bucket: Bucket,
    unneeded: Unneeded,
    report: RepairReport,
    options: FsckOptions,
    live: array[int],
    mine: Lineage,
) -> None:
    """Repairs only if the metadata is right: otherwise the objects that it does not know may be the
    only copy of the data."""
    if is_elsewhere(bucket, live):
        report.repaired.append("changed nothing: this is probably not the store of this cluster")
        return
    if not bucket.has_cluster_file:
        await claim(store, report.cluster_id, mine)
        report.repaired.append("wrote cluster.json")
    if not await LineageCheck(store, report.cluster_id, mine).check():
        report.repaired.append("deleted nothing: cluster.json is not this metadata's")
        return
    if any(
        report.by_kind[str(kind)]
        for kind in (
            FindingKind.OBJECT_NEWER,
            FindingKind.KEY_MISMATCH,
            FindingKind.KEY_UNREADABLE,
            FindingKind.CHECKPOINT_CORRUPT,
            FindingKind.STREAM_RANGES,
        )
    ):
        report.repaired.append("deleted nothing: the metadata is not to be trusted")
        return
    bound = max(len(live) // ORPHANS_SHARE, unneeded.windows)
    if len(unneeded.orphans) > bound and not options.force:
        report.repaired.append(
            f"deleted no orphans: {len(unneeded.orphans)} are more than the {bound} that can be "
            "explained; make sure that this is the right metadata, then use --force"
        )
    else:
        await _delete(store, [data_key(i) for i in unneeded.orphans], "orphans", report)
    await _delete(store, unneeded.files, "checkpoint files", report)


async def _delete(store: ObjectStore, keys: list[str], what: str, report: RepairReport) -> None:
    for low in range(0, len(keys), DELETE_BATCH):
        await store.delete(keys[low : low + DELETE_BATCH])
    if keys:
        report.repaired.append(f"deleted {len(keys)} {what}")
