"""Lineage: which of several metadata stores the bucket belongs to now.

A recovery or a restore makes new metadata for a bucket whose old metadata may still have a node
running on it. Cluster and object ids are the same in both, so nothing else tells them apart, and a
node on the old metadata would delete objects that the new metadata needs.

1. `cluster.json` holds a lineage (a number and a random id); so does the metadata, under `g`.
2. A recovery replaces cluster.json by one with the next number (`raise_lineage`), before it relies
   on the bucket being left alone, and writes that lineage into the metadata that it makes.
3. A node compares the two before it opens, before each deletion, every few seconds, and when an
   object or checkpoint file is missing or damaged: nodes on newer metadata may have deleted it.
   Where cluster.json names another lineage, the node's metadata was overtaken: `LineageFenced`.

The random id tells two recoveries apart that reached the same number: on a store that ignores
If-Match the last writer wins, and the other one finds a foreign id when it looks again.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from streamlog.errors import (
    Conflict,
    Corrupt,
    Invalid,
    LineageFenced,
    ObjectNotFound,
    OutcomeUnknown,
    StreamlogError,
    Unavailable,
    ValueConflict,
)
from streamlog.objectstore.cluster.guard import (
    ClusterFile,
    Lineage,
    check_same,
    encode,
    read_cluster,
)
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import CLUSTER_KEY
from streamlog.runtime.rand import Random

log = logging.getLogger(__name__)


def check_lineage(url: str, stored: Lineage, mine: Lineage) -> None:
    """`stored` is what cluster.json says. Errors: LineageFenced where `mine` was overtaken."""
    if stored == mine or stored.number < mine.number:
        return
    raise LineageFenced(
        f"{url} belongs to lineage {stored.number} and this metadata is of lineage {mine.number}"
        f"{' of another id' if stored.number == mine.number else ''}: a recover or "
        "restore made newer metadata for the same objects. Nothing more is written or deleted "
        "here. Stop this node and start it with the newer metadata; where that recover or restore "
        "was cut short, run it again; if this metadata is the right one, back it up and restore it",
        store_lineage=stored.number,
        meta_lineage=mine.number,
    )


class LineageCheck:
    """Finds out whether a metadata store was overtaken; asked before an action that is final."""

    def __init__(self, store: ObjectStore, cluster_id: str, lineage: Lineage) -> None:
        self._store = store
        self._cluster_id = cluster_id
        self.lineage = lineage

    async def check(self) -> bool:
        """False: cluster.json is another cluster's or cannot be read, so nothing may be deleted.

        One GET. An absent cluster.json, or one with an older lineage, stops no node. Errors:
        LineageFenced (stop for good), StoreUnavailable.
        """
        try:
            cluster = await read_cluster(self._store)
        except Unavailable:
            raise
        except StreamlogError as error:
            # No other answer of a store is a reason to end a node.
            log.error("cluster.json cannot be read: %s", error)
            return False
        if cluster is None:
            return True
        if cluster.cluster_id != self._cluster_id:
            log.error(
                "cluster.json names the cluster %s, not %s", cluster.cluster_id, self._cluster_id
            )
            return False
        check_lineage(self._store.url, cluster.lineage, self.lineage)
        return True

    async def watch(self) -> None:
        """One look of a running node. If the store does not answer, the next look asks again.

        Errors: LineageFenced.
        """
        try:
            await self.check()
        except Unavailable as error:
            log.info("the lineage was not compared", extra={"reason": str(error)})

    async def reason_for(self, error: StreamlogError) -> StreamlogError:
        """The error to raise in place of `error`, with which a read of a stored file failed.

        For Corrupt: LineageFenced if this metadata was overtaken, because nodes on the newer
        metadata delete files that only this metadata names; StoreUnavailable if the lineage cannot
        be read now. Every other error, and damage within the own lineage, stays as it is.
        """
        if not isinstance(error, Corrupt):
            return error
        try:
            await self.check()
        except StreamlogError as reason:
            return reason
        return error


async def raise_lineage(
    store: ObjectStore, cluster_id: str, random: Random, *, knows_deletions: bool = True
) -> Lineage:
    """Gives the store to new metadata; the new lineage of the store.

    Nodes on any earlier metadata stop at their next look. `knows_deletions`: whether the new
    metadata does, unless an earlier recovery did not. Errors: Conflict (another recovery did
    it at the same moment), Invalid (no cluster.json), ForeignCluster, Corrupt, UnsupportedVersion,
    OutcomeUnknown, StoreUnavailable.
    """
    try:
        # The etag is at most as new as the content: a change in between refuses the replacement.
        etag = (await store.head(CLUSTER_KEY)).etag
    except ObjectNotFound:
        raise Invalid(f"{store.url} has no cluster.json; check the prefix") from None
    cluster = await read_cluster(store)
    if cluster is None:
        raise Conflict(f"cluster.json vanished from {store.url} meanwhile; look who deleted it")
    check_same(store.url, cluster, cluster_id)
    knows_deletions = cluster.lineage.knows_deletions and knows_deletions
    raised = Lineage(cluster.lineage.number + 1, random.uuid().hex, knows_deletions)
    await _replace(store, etag, replace(cluster, lineage=raised))
    await confirm_lineage(store, cluster_id, raised)
    return raised


async def restate_lineage(store: ObjectStore, cluster: ClusterFile, mine: Lineage) -> None:
    """Raises an old copy of cluster.json, put back by hand, to the metadata's lineage.

    Errors: as `raise_lineage`.
    """
    etag = (await store.head(CLUSTER_KEY)).etag
    again = await read_cluster(store)
    if again != cluster:
        raise Conflict(f"cluster.json of {store.url} was changed meanwhile; try again")
    await _replace(store, etag, replace(cluster, lineage=mine))
    log.warning(
        "cluster.json was an older copy; it names the metadata's lineage again",
        extra={"store": store.url, "found": cluster.lineage.number, "lineage": mine.number},
    )


async def confirm_lineage(store: ObjectStore, cluster_id: str, mine: Lineage) -> None:
    """The store still belongs to `mine`. Errors: Conflict where another recovery has it by now."""
    cluster = await read_cluster(store)
    if cluster is None or cluster.cluster_id != cluster_id or cluster.lineage != mine:
        number = "no cluster.json" if cluster is None else f"lineage {cluster.lineage.number}"
        raise Conflict(
            f"{store.url} has {number} by now, not lineage {mine.number} of this recovery: another "
            "recover or restore runs for the same objects. Stop all but one, then run that one "
            "again",
        )


async def _replace(store: ObjectStore, etag: str, cluster: ClusterFile) -> None:
    content = (encode(cluster),)
    try:
        await store.put_if_match(CLUSTER_KEY, content, etag)
    except (ValueConflict, ObjectNotFound) as error:
        raise Conflict(
            f"cluster.json of {store.url} was replaced meanwhile: another recover or restore runs "
            "for the same objects. Stop all but one, then run that one again"
        ) from error
    except OutcomeUnknown:
        # Only this writer uses the id, so the file tells whether the write took effect.
        current = await read_cluster(store)
        if current != cluster:
            raise
    except Invalid as error:
        # The store does not know If-Match. The last of two racers wins, and both look afterwards.
        log.warning(
            "the store refuses If-Match: make sure that no other recover or restore runs",
            extra={"store": store.url, "reason": str(error)},
        )
        await store.put(CLUSTER_KEY, content)
