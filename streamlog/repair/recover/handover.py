"""The bucket passes from old metadata to recovered metadata, whose old nodes may still run.

1. Nothing came into the bucket since it was listed. Else a node runs: Conflict, and nothing has
   been changed.
2. cluster.json gets the next lineage. From then on a node on older metadata deletes nothing more,
   and ends at its next look (`metadata.lineage_check_interval_ms`).
3. An old node may have compared its lineage just before: its appends are answered until its next
   look, and a request that deletes may be under way. The recovery waits so long (`grace_ms`).
4. The bucket is listed again: a new object, or one that the metadata needs and is gone, is a
   Conflict.
5. The metadata is written, first its checkpoint in the bucket. Not before 4: the next attempt would
   start from that checkpoint, whose epochs are above those of what the old node stored meanwhile.
6. The store still has this recovery's lineage, and the cluster's name makes the metadata whole.

A Conflict after step 2, or a crash, leaves a bucket that no metadata belongs to: old nodes stop,
and the recovery is run again, under the next lineage. What an old node acknowledged is therefore
in the recovered metadata, or the recovery says that it is not done. That holds for nodes that look
in time: one that was paused for longer than the grace acknowledges until it looks.
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
    """`recovered` was put together from `bucket`; on return nodes may open the metadata.

    Cut short at any place, the recovery can be run again. Errors: Conflict, Unavailable,
    OutcomeUnknown.
    """
    unchanged = "Nothing was written; stop all nodes, then begin again"
    await _check(store, bucket, (), unchanged, progress)
    lineage = await raise_lineage(store, recovered.cluster_id, random)
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
    """Waits so long, and tells how long it has waited: 15 s of silence look like a hang."""
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
    """Nothing came since `bucket` was listed, and `needed` is there. Errors: Conflict."""
    now = await list_bucket(store, progress)
    files, known, there = {info.key for info in bucket.checkpoints}, set(bucket.ids), set(now.ids)
    new = [info.key for info in now.checkpoints if info.key not in files]
    new += [data_key(object_id) for object_id in now.ids if object_id not in known]
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
