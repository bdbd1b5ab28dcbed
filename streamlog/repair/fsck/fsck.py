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
from streamlog.errors import Corrupt, ForeignCluster, Invalid
from streamlog.kvstore.interface import KVStore
from streamlog.metadata.keys import lineage
from streamlog.metadata.keys.space import prefix_of
from streamlog.objectstore.cluster.guard import (
    ClusterFile,
    Lineage,
    check_same,
    read_cluster,
)
from streamlog.objectstore.cluster.lineage import LineageCheck, check_lineage
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.repair.bucket import list_bucket
from streamlog.repair.findings import (
    Finding,
    FindingKind,
    Progress,
    RepairReport,
    Severity,
    no_progress,
)
from streamlog.repair.fsck.bucket import Unneeded, check_bucket
from streamlog.repair.fsck.cluster_file import ClusterFileRepair, StoreLook, look_without_view
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
    """`repair`: do all repairs that cannot lose data. `force`: even suspiciously many of them.

    `cluster_id`: the metadata's cluster as somebody typed it, who knows that the store is this
    cluster's: a lost cluster.json is written although nothing in the store proves it.
    """

    deep: bool = False
    repair: bool = False
    force: bool = False
    cluster_id: str | None = None


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
    """Errors: Invalid (the metadata store is empty, or of another cluster than the options say),
    ForeignCluster, LineageFenced (a recovery made newer metadata, whose objects would look like
    waste), UnsupportedVersion, StoreUnavailable, MetadataUnavailable, Conflict (nodes are running).
    """
    options, report = options or FsckOptions(), RepairReport()
    report.cluster_id = await cluster_of(kv, store)
    if options.cluster_id not in (None, report.cluster_id):
        raise Invalid(f"the metadata is of cluster {report.cluster_id}, not {options.cluster_id}")
    mine = await lineage.read(kv, prefix_of(report.cluster_id))
    claimed = await read_cluster(store)
    if claimed is not None:
        check_lineage(store.url, claimed.lineage, mine)
    cluster_file = ClusterFileRepair(store, claimed, mine, report)
    is_certain = options.cluster_id is not None
    bucket = await list_bucket(store, progress)
    try:
        view = await load_view(
            kv, store, report.cluster_id, clock=clock, random=random, offload=offload
        )
    except Corrupt as error:
        look = await look_without_view(kv, store, offload, bucket, report)
        await cluster_file.run(look, repair=options.repair, is_certain=is_certain)
        report.add(_unreadable(error, is_elsewhere=claimed is None and bool(look.doubt(report))))
        return report
    report.revision = view.revision
    keys = await check_keys(view, report)
    await check_topics(view, report)
    checks = ObjectChecks(view, store, offload, report, progress, deep=options.deep)
    try:
        await checks.run()
        unneeded = await check_bucket(view, bucket, store, offload, checks, keys, report)
        own = len(checks.live) - len(checks.damaged)
        look = StoreLook(own, bool(checks.live), unneeded.unreadable_files)
    except Corrupt as error:
        report.add(_unlisted(error))
        unneeded = Unneeded()
        look = await look_without_view(kv, store, offload, bucket, report)
    await cluster_file.run(look, repair=options.repair, is_certain=is_certain)
    if options.repair:
        await _repair(store, unneeded, report, options, checks.live, claimed, look, mine)
    return report


async def cluster_of(kv: KVStore, store: ObjectStore) -> str:
    """The cluster of both stores. Errors: Invalid (there is none), ForeignCluster, Corrupt."""
    named, claimed = await kv.get(CLUSTER_KEY), await read_cluster(store)
    if named is None:
        if claimed is None:
            raise Invalid("metadata and store are empty: there is no cluster here")
        raise ForeignCluster(
            f"{store.url} holds data of cluster {claimed.cluster_id} and the metadata store is "
            "empty: look whether --meta is right (a node with --data D keeps it in D/meta); only "
            "if the metadata is lost, rebuild it with streamlog recover",
            store_cluster=claimed.cluster_id,
            meta_cluster="",
        )
    cluster_id = cluster_id_of(named.value)
    check_same(store.url, claimed, cluster_id)
    return cluster_id


def _unreadable(error: Corrupt, *, is_elsewhere: bool) -> Finding:
    return Finding(
        FindingKind.METADATA_UNREADABLE,
        Severity.ERROR,
        f"the metadata cannot be read, so nothing else was checked: {error}",
        "look whether this is the right store; do not replace the metadata before"
        if is_elsewhere
        else "restore it from a backup, or rebuild it with streamlog recover",
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
    unneeded: Unneeded,
    report: RepairReport,
    options: FsckOptions,
    live: array[int],
    claimed: ClusterFile | None,
    look: StoreLook,
    mine: Lineage,
) -> None:
    """Deletes only if the metadata is right, and the store its own: otherwise the objects that it
    does not know may be the only copy of the data."""
    if claimed is None:
        # The next run has the file to go by.
        report.repaired.append("deleted nothing: the store had no cluster.json")
        return
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
    if report.by_kind[str(FindingKind.OBJECT_FOREIGN)] or (look.names_objects and not look.own):
        report.repaired.append("deleted nothing: this is probably not the store of this cluster")
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
