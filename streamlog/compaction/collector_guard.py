"""What the collector makes sure of before it deletes: that the metadata is right, and whole.

Deleting goes by what the metadata does *not* know. A metadata store that is empty, another
cluster's, or an old copy would call everything garbage. So a run is refused when

1. the store's cluster.json does not name the metadata's cluster;
2. the metadata knows no object, and the store has one that is no candidate (where the metadata
   never knew a stream: any one) and no upload of now;
3. there are more candidates than crashes can explain: max(1 % of the objects, W × tenures);
4. an object lies where a sealed tenure could only have put one had it committed more than the
   metadata knows: past its window.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from streamlog.errors import ObjectNotFound
from streamlog.metadata.interface import Metadata, Orphans
from streamlog.metadata.keys.id_block import OBJECTS
from streamlog.objectstore.cluster_guard import read_cluster
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import DATA_PREFIX, data_key

PROBED_IDS = 64
"""Ids looked at past a window: as many as a node keeps open, by default."""
PAGE = 1000
SHARE = 100
"""One object in so many may be an orphan."""


class Guard:
    def __init__(self, metadata: Metadata, store: ObjectStore, per_tenure_max: int) -> None:
        self._metadata = metadata
        self._store = store
        self._per_tenure_max = per_tenure_max

    async def objection(
        self, candidates: Sequence[Orphans], dead: Callable[[], Collection[int]], before_ms: int
    ) -> str:
        """Why nothing may be deleted; empty: go ahead. `dead`: all known now, also those not due.

        What was stored after `before_ms` may be an upload under way. Errors: Unavailable.
        """
        ids = {object_id for orphans in candidates for object_id in orphans.object_ids}
        if not ids and not dead():
            return ""
        return (
            await self._of_cluster()
            or self._of_count(len(ids), len(candidates))
            or await self._of_emptiness(ids, dead, before_ms)
            or await self._of_age(candidates, ids, dead)
        )

    async def _of_cluster(self) -> str:
        found = await read_cluster(self._store)
        if found is not None and found.cluster_id == self._metadata.cluster_id:
            return ""
        owner = f"belongs to cluster {found.cluster_id}" if found else "has no cluster.json"
        return f"{self._store.url} {owner}, the metadata to {self._metadata.cluster_id}"

    def _of_count(self, orphans: int, tenures: int) -> str:
        bound = max(self._metadata.object_count // SHARE, self._per_tenure_max * tenures)
        if orphans <= bound:
            return ""
        return f"{orphans} objects would be deleted as orphans, at most {bound} can be explained"

    async def _of_emptiness(
        self, ids: set[int], dead: Callable[[], Collection[int]], before_ms: int
    ) -> str:
        if self._metadata.object_count:
            return ""
        # Ids are handed out anew by an empty store: that they are candidates says nothing then.
        known = ids.union(dead()) if self._metadata.has_history else set()
        keys = {data_key(object_id) for object_id in known}
        page = await self._store.list(DATA_PREFIX, limit=PAGE)
        if all(info.key in keys or info.modified_ms > before_ms for info in page.objects):
            return ""
        return "the metadata knows no object, and the store has some"

    async def _of_age(
        self, candidates: Sequence[Orphans], ids: set[int], dead: Callable[[], Collection[int]]
    ) -> str:
        known = ids.union(dead())
        for orphans in candidates:
            if orphans.is_living or not orphans.object_ids:
                continue
            last = max(orphans.object_ids)
            for object_id in range(last + 1, last + 1 + PROBED_IDS):
                if object_id >> OBJECTS.block_bits != last >> OBJECTS.block_bits:
                    break
                if object_id in known or await self._metadata.object(object_id) is not None:
                    continue
                # Its death may have been found a moment ago.
                if await self._exists(object_id) and object_id not in dead():
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
