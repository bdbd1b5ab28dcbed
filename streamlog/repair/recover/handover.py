"""Hands the bucket over from old metadata to recovered metadata, while old nodes may still run.

1. Check that nothing came into the bucket since it was listed. Otherwise a node runs: Conflict, and
   nothing has been changed.
2. Give cluster.json the next lineage. From then on a node on older metadata deletes nothing more,
   and ends at its next look (`metadata.lineage_check_interval_ms`).
3. Wait for `grace_ms`: an old node may have compared its lineage just before, so that it answers
   appends until its next look, and may have a deleting request under way.
4. List the bucket again: a new object is a Conflict, and so is a missing object that the metadata
   needs.
5. Write the metadata, first its checkpoint in the bucket. Not before step 4: another attempt would
   start from that checkpoint, whose epochs are above those of objects that the old node stored
   meanwhile.
6. Check that the store still has this recovery's lineage; then write the cluster's name, which
   makes the metadata whole.

A Conflict after step 2, or a crash, leaves a bucket that no metadata belongs to: old nodes stop,
and the recovery is run again, under the next lineage. So the recovered metadata has everything that
an old node acknowledged, or the recovery reports that it is not done. This holds for nodes that
look in time: a node that was paused for longer than the grace acknowledges until it looks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from streamlog.errors import Conflict
from streamlog.kvstore.interface import KVStore
from streamlog.objectstore.cluster.lineage import confirm_lineage, raise_lineage
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.repair.bucket import Bucket, list_bucket
from streamlog.repair.findings import Progress
from streamlog.repair.recover.recovered import Recovered
from streamlog.repair.recover.write_metadata import write_metadata
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Offload
from streamlog.runtime.rand import Random

WAIT_TOLD_EVERY_MS = 1000


async def hand_over(
    kv: KVStore,
    store: ObjectStore,
    recovered: Recovered,
    bucket: Bucket,
    *,
    clock: Clock,
    random: Random,
    offload: Offload,
    grace_ms: int,
    progress: Progress,
) -> None:
    """`recovered` was gathered from `bucket`; on return nodes may open the metadata.

    After an interruption at any point the recovery can be run again. Errors: Conflict,
    Unavailable, OutcomeUnknown.
    """
    unchanged = "Nothing was written; stop all nodes, then begin again"
    await _check(store, bucket, (), unchanged, progress)
    lineage = await raise_lineage(
        store, recovered.cluster_id, random, knows_deletions=recovered.knows_deletions
    )
    recovered.knows_deletions = lineage.knows_deletions
    await _wait_for_old_nodes(grace_ms, progress)
    needed = sorted({*recovered.objects, *recovered.staged_objects()} & set(bucket.ids))
    stopping = "A node ran on the old metadata and stops by now: begin again"
    await _check(store, bucket, needed, stopping, progress)
    await write_metadata(
        kv,
        store,
        recovered,
        bucket.checkpoints,
        lineage=lineage,
        clock=clock,
        offload=offload,
        before_naming=lambda: confirm_lineage(store, recovered.cluster_id, lineage),
    )


async def _wait_for_old_nodes(grace_ms: int, progress: Progress) -> None:
    """Waits for `grace_ms`, and reports progress, because 15 s of silence look like a hang."""
    for waited_ms in range(0, grace_ms, WAIT_TOLD_EVERY_MS):
        progress(
            "seconds waited for nodes on the old metadata to stop",
            waited_ms // 1000,
            -(-grace_ms // 1000),
        )
        await asyncio.sleep(min(WAIT_TOLD_EVERY_MS, grace_ms - waited_ms) / 1000)


async def _check(
    store: ObjectStore, bucket: Bucket, needed: Iterable[int], advice: str, progress: Progress
) -> None:
    """Checks that nothing came since `bucket` was listed, and that `needed` exists.

    Errors: Conflict.
    """
    now = await list_bucket(store, progress)
    files, listed, there = {info.key for info in bucket.checkpoints}, set(bucket.ids), set(now.ids)
    new = [info.key for info in now.checkpoints if info.key not in files]
    new += [data_key(object_id) for object_id in now.ids if object_id not in listed]
    if new:
        raise Conflict(
            f"{len(new)} objects came into {store.url} meanwhile, {new[0]} among them: a node runs "
            f"on it with other metadata. {advice}"
        )
    gone = [data_key(object_id) for object_id in needed if object_id not in there]
    if gone:
        raise Conflict(
            f"{len(gone)} objects that the metadata needs went from {store.url} meanwhile, "
            f"{gone[0]} among them. {advice}"
        )
