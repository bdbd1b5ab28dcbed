"""A lost `cluster.json`, or an old copy of it: told by fsck, and written again by `--repair`.

The file says whose a store is. Where it is lost, the store itself has to prove it, because metadata
beside another cluster's store, or older metadata beside the store of a recovery, finds objects
under the ids that it knows: every cluster counts its ids from the same number. It is proven by
objects that are as the metadata names them, and by no object or checkpoint file of another cluster
or of newer metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from streamlog.errors import StreamlogError
from streamlog.kvstore.interface import KVStore
from streamlog.metadata.keys import checkpoint, id_block
from streamlog.metadata.keys.space import prefix_of
from streamlog.objectstore.cluster.guard import ClusterFile, Lineage, claim
from streamlog.objectstore.cluster.lineage import restate_lineage
from streamlog.objectstore.interface import ObjectStore
from streamlog.repair.bucket import Bucket
from streamlog.repair.findings import Finding, FindingKind, RepairReport, Severity
from streamlog.repair.fsck.bucket import newer
from streamlog.repair.fsck.files import check_files
from streamlog.repair.fsck.keys import Keys
from streamlog.repair.fsck.owners import foreign_object, read_owners
from streamlog.runtime.offload import Offload

T = TypeVar("T")

NEWER = "it has objects or checkpoint files of newer metadata"
FOREIGN = "it has objects or checkpoint files of another cluster"


@dataclass(frozen=True, slots=True)
class StoreLook:
    """What tells whether the store is the metadata's, beside the findings of the report.

    `own`: how many objects are as the metadata names them; where that cannot be read, how many are
    of its cluster. `names_objects`: whether it names any. `unreadable_files`: checkpoint files that
    it does not name.
    """

    own: int
    names_objects: bool
    unreadable_files: int

    def doubt(self, report: RepairReport) -> str:
        """Why the store may be another one; empty where it is proven to be the metadata's."""
        if disproof := _disproof(report):
            return disproof
        if not self.own and self.names_objects:
            return "it has nothing that the metadata names"
        if not self.own:
            return "the metadata names no object that could tell whose it is"
        if report.by_kind[str(FindingKind.OBJECT_WRONG)]:
            return "some of its objects are others than the metadata names"
        if self.unreadable_files:
            return "it has a checkpoint file whose end cannot be read and that nothing names"
        return ""


def _disproof(report: RepairReport) -> str:
    if report.by_kind[str(FindingKind.OBJECT_FOREIGN)]:
        return FOREIGN
    return NEWER if report.by_kind[str(FindingKind.OBJECT_NEWER)] else ""


async def look_without_view(
    kv: KVStore, store: ObjectStore, offload: Offload, bucket: Bucket, report: RepairReport
) -> StoreLook:
    """For metadata that cannot be read: goes by the keys that can, and by all objects' footers.

    Adds findings about objects and files of another cluster or of newer metadata. Errors:
    StoreUnavailable, MetadataUnavailable.
    """
    prefix, cluster_id = prefix_of(report.cluster_id), report.cluster_id
    named = await _read(kv, checkpoint.key(prefix), checkpoint.decode)
    blocks_key = id_block.counter_key(prefix, id_block.OBJECTS)
    blocks = await _read(kv, blocks_key, id_block.decode_counter) or 0
    owners, own = await read_owners(store, offload, bucket, bucket.ids), 0
    told = {one.object_id for one in report.findings}
    for object_id, owner in sorted(owners.items()):
        if owner == cluster_id and object_id >> id_block.OBJECTS.block_bits <= blocks:
            own += 1
        elif object_id not in told:
            report.add(
                newer(object_id, "has an id that this metadata never handed out")
                if owner == cluster_id
                else foreign_object(object_id, owner)
            )
    revision = await kv.revision()
    strays = await check_files(named, revision, cluster_id, Keys(), bucket, store, report)
    return StoreLook(own, True, strays.unreadable)


async def _read(kv: KVStore, key: bytes, decode: Callable[[bytes], T]) -> T | None:
    """None: the key is absent or damaged, which is a finding elsewhere."""
    stored = await kv.get(key)
    if stored is None:
        return None
    try:
        return decode(stored.value)
    except StreamlogError:
        return None


@dataclass(frozen=True, slots=True)
class ClusterFileRepair:
    """`claimed`: the file as it was read; None: it is not there."""

    store: ObjectStore
    claimed: ClusterFile | None
    mine: Lineage
    report: RepairReport

    async def run(self, look: StoreLook, *, repair: bool, is_certain: bool) -> None:
        """Behind all checks. `is_certain`: somebody says that the store is the metadata's.

        Errors: as `claim` and `restate_lineage`.
        """
        if self.claimed is None:
            await self._write_lost(look, repair=repair, is_certain=is_certain)
        elif self.claimed.lineage != self.mine:
            await self._write_old_copy(self.claimed, repair=repair)

    async def _write_lost(self, look: StoreLook, *, repair: bool, is_certain: bool) -> None:
        report, doubt = self.report, look.doubt(self.report)
        report.add(_lost(doubt, is_newer=doubt == NEWER))
        if not repair:
            return
        if doubt and (_disproof(report) or not is_certain):
            report.repaired.append(
                f"wrote no cluster.json, for {self.store.url} is in doubt: {doubt}"
            )
            return
        await claim(self.store, report.cluster_id, self.mine)
        report.repaired.append("wrote cluster.json")

    async def _write_old_copy(self, claimed: ClusterFile, *, repair: bool) -> None:
        report = self.report
        if not repair or _disproof(report):
            report.add(_old_copy(claimed, self.mine))
            return
        await restate_lineage(self.store, claimed, self.mine)
        report.repaired.append("wrote the metadata's lineage into cluster.json, an older copy")


def _lost(doubt: str, *, is_newer: bool) -> Finding:
    if is_newer:
        return _finding(
            f"the store has no cluster.json, and this may not be its metadata: {doubt}",
            "put the newer metadata back, then run streamlog fsck --repair with it; start no node "
            "on this metadata",
        )
    if doubt:
        return _finding(
            "the store has no cluster.json, and is probably not the store of this cluster: "
            + doubt,
            "mount the folder, or give the bucket and the prefix that belong to this metadata; do "
            "not replace the metadata. Only where this is certainly the right store, streamlog "
            "fsck --repair --cluster-id ID (the metadata's cluster) writes the file",
        )
    return _finding(
        "the store has no cluster.json: no node starts on it, and another cluster could take it "
        "for empty",
        "streamlog fsck --repair writes it again",
    )


def _old_copy(claimed: ClusterFile, mine: Lineage) -> Finding:
    return _finding(
        f"cluster.json names lineage {claimed.lineage.number}, the metadata is of lineage "
        f"{mine.number}: somebody put an old copy back, and older metadata would be taken for "
        "the right one",
        "streamlog fsck --repair writes it again, and so does the next start of a node",
    )


def _finding(detail: str, advice: str) -> Finding:
    return Finding(FindingKind.CLUSTER_FILE, Severity.ERROR, detail, advice, key="cluster.json")
