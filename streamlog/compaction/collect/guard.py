"""Checks before a deletion that the metadata is right and whole.

The collector deletes objects that the metadata does *not* know. A metadata store that is empty, of
another cluster, or an old copy would make everything garbage. So the guard objects when

1. the store's cluster.json does not name the metadata's cluster;
2. the metadata knows no object, and the store has one that is neither a candidate nor an upload
   under way (where the metadata never knew a stream, candidates count as well);
3. there are more candidates than crashes can explain: max(1 % of the objects, W × tenures);
4. the store has an object past the window of a sealed tenure: the tenure could only have stored it
   after it committed more than the metadata knows;
5. cluster.json names an older lineage than the metadata: somebody put an old copy back.
A newer lineage is no objection: it ends the node (LineageFenced), even with `force`, because the
newer metadata needs objects that are garbage to this one.
Objections 1, 4 and 5 depend on the store alone and may pass: somebody puts the right file back, or
removes the strange object. Objections 2 and 3 stay until the process ends: empty metadata that was
written to since no longer looks empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from streamlog.errors import Corrupt, InvalidName, ObjectNotFound, UnsupportedVersion
from streamlog.metadata.interface import GarbageSource, Orphans, SessionInfo, StreamView
from streamlog.metadata.keys.id_block import OBJECTS
from streamlog.objectstore.cluster.guard import Lineage, read_cluster
from streamlog.objectstore.cluster.lineage import check_lineage
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import DATA_PREFIX, data_key
from streamlog.objectstore.keys import object_id as object_id_of

PAGE = 1000
SHARE = 100
"""One object in this many may be an orphan."""


class Objection(NamedTuple):
    """`may_pass`: the next run checks it again."""

    reason: str
    may_pass: bool


class CollectorMetadata(SessionInfo, StreamView, GarbageSource, Protocol):
    """What may be deleted, and whether the metadata is right for this store."""


class Guard:
    def __init__(
        self, metadata: CollectorMetadata, store: ObjectStore, per_tenure_max: int, probed_ids: int
    ) -> None:
        """`probed_ids`: how many ids past a window are looked up in the store."""
        self._metadata = metadata
        self._store = store
        self._per_tenure_max = per_tenure_max
        self._probed_ids = probed_ids

    async def objection(self, candidates: Sequence[Orphans], before_ms: int) -> Objection | None:
        """Why nothing may be deleted; None: the run may delete.

        An object stored after `before_ms` may be an upload under way. Errors: Unavailable,
        LineageFenced.
        """
        ids = {object_id for orphans in candidates for object_id in orphans.object_ids}
        if not ids and not self._metadata.dead_objects(1):
            return None
        if reason := await self._of_cluster():
            return Objection(reason, may_pass=True)
        reason = self._of_count(len(ids), len(candidates))
        if reason := reason or await self._of_emptiness(ids, before_ms):
            return Objection(reason, may_pass=False)
        if reason := await self._of_age(candidates, ids):
            return Objection(reason, may_pass=True)
        return None

    async def _of_cluster(self) -> str:
        try:
            cluster = await read_cluster(self._store)
        except (Corrupt, UnsupportedVersion) as error:
            return str(error)
        if cluster is not None and cluster.cluster_id == self._metadata.cluster_id:
            return self._of_lineage(cluster.lineage)
        owner = f"belongs to cluster {cluster.cluster_id}" if cluster else "has no cluster.json"
        return f"{self._store.url} {owner}, the metadata to {self._metadata.cluster_id}"

    def _of_lineage(self, stored: Lineage) -> str:
        mine = self._metadata.lineage.lineage
        check_lineage(self._store.url, stored, mine)
        if stored == mine:
            return ""
        return (
            f"cluster.json of {self._store.url} names lineage {stored.number}, the metadata is of "
            f"lineage {mine.number}: it is an old copy; the next start of the node mends it"
        )

    async def still_may_delete(self) -> bool:
        """Asked before each deleting request; one GET. Errors: Unavailable, LineageFenced."""
        return await self._metadata.lineage.check()

    def _of_count(self, orphans: int, tenures: int) -> str:
        bound = max(self._metadata.object_count // SHARE, self._per_tenure_max * tenures)
        if orphans <= bound:
            return ""
        return f"{orphans} objects would be deleted as orphans, at most {bound} can be explained"

    async def _of_emptiness(self, ids: set[int], before_ms: int) -> str:
        if self._metadata.object_count:
            return ""
        # An empty metadata store hands out ids from the start, so candidates prove nothing then.
        has_history = self._metadata.has_history
        for info in (await self._store.list(DATA_PREFIX, limit=PAGE)).objects:
            try:
                object_id = object_id_of(info.key)
            except InvalidName:
                continue
            if info.modified_ms > before_ms:
                continue
            if not (has_history and await self._is_explained(object_id, ids)):
                return "the metadata knows no object, and the store has some"
        return ""

    async def _is_explained(self, object_id: int, ids: set[int]) -> bool:
        """Asks in the order in which an object changes its state, because the list is a bit old."""
        metadata = self._metadata
        if object_id in ids or metadata.is_uploading(object_id) or metadata.is_swept(object_id):
            return True
        return await metadata.object(object_id) is not None or metadata.is_dead(object_id)

    async def _of_age(self, candidates: Sequence[Orphans], ids: set[int]) -> str:
        for orphans in candidates:
            last = orphans.last_of_window
            if last is None:
                continue
            for object_id in range(last + 1, last + 1 + self._probed_ids):
                if object_id >> OBJECTS.block_bits != last >> OBJECTS.block_bits:
                    break
                if object_id in ids or self._metadata.is_dead(object_id):
                    continue
                if await self._metadata.object(object_id) is not None:
                    continue
                # The object may have died a moment ago.
                if await self._exists(object_id) and not self._metadata.is_dead(object_id):
                    return (
                        f"tenure {orphans.tenure} stored object {object_id}, which it could not "
                        "before it committed more than the metadata knows: the metadata is older "
                        "than the store"
                    )
        return ""

    async def _exists(self, object_id: int) -> bool:
        try:
            await self._store.head(data_key(object_id))
        except ObjectNotFound:
            return False
        return True
