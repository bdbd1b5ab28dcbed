"""`recover`: a lost metadata store, rebuilt from the object store alone.

1. The newest checkpoint in the store that is whole gives streams, trims, tags and tokens.
2. Objects that it does not know are read at their ends, and their ranges go on from there.
3. Meta streams tell of topics, and, where no checkpoint does, what of their streams was trimmed.
4. The bucket gets the next lineage, so that a node which still runs on the old metadata ends
   (`handover`). All is written as one checkpoint, under epochs and ids that were never used.

Back is every record that was acknowledged with wal=object. What the store does not hold is lost:
user values, and trims, deletions, closings and tokens since the checkpoint. Nothing is deleted.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.engine.cluster import CLUSTER_KEY, cluster_id_of, is_in_use
from streamlog.errors import AlreadyExists, Corrupt, ForeignCluster, Invalid, StreamlogError
from streamlog.kvstore.interface import KVStore
from streamlog.log.api import topic_config
from streamlog.log.api.topic_config import TopicConfig
from streamlog.metadata.keys.space import prefix_of
from streamlog.objectstore.cluster.guard import check_same, read_cluster
from streamlog.objectstore.interface import ObjectStore
from streamlog.repair.bucket import Bucket, list_bucket
from streamlog.repair.findings import (
    Finding,
    FindingKind,
    Progress,
    RepairReport,
    Severity,
    no_progress,
)
from streamlog.repair.recover.handover import hand_over
from streamlog.repair.recover.recovered import Recovered
from streamlog.repair.recover.sources import KnownStreams, find_candidates, read_candidate
from streamlog.repair.recover.streams import StreamRecovery
from streamlog.repair.recover.topics import TopicRecovery
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Offload
from streamlog.runtime.rand import Random


@dataclass(frozen=True, slots=True)
class RecoverOptions:
    """`overwrite`: metadata of the same cluster may be there, and is replaced.

    `accept_data_loss`: go on without objects that cannot be read. `grace_ms`: how long it waits for
    nodes on the old metadata to notice that they were overtaken (`handover`); 0 only where none can
    be running. `topic_defaults`: what the nodes' own settings give topics that set nothing; a
    restore compares with them.
    """

    dry_run: bool = False
    overwrite: bool = False
    accept_data_loss: bool = False
    grace_ms: int = 0
    topic_defaults: TopicConfig = topic_config.DEFAULTS


async def recover(
    kv: KVStore,
    store: ObjectStore,
    *,
    clock: Clock,
    random: Random,
    offload: Offload,
    options: RecoverOptions | None = None,
    progress: Progress = no_progress,
) -> RepairReport:
    """No node should run. One that runs on the old metadata is ended, and none opens that again.

    After an interruption it can be run again; no node opens the metadata before it is done.

    Errors: Invalid (nothing to recover), AlreadyExists (the metadata store is in use),
    ForeignCluster, Corrupt (objects that cannot be read), Conflict (a node or another recovery
    runs), Unavailable, OutcomeUnknown.
    """
    options, report = options or RecoverOptions(), RepairReport()
    report.cluster_id = await check_target(kv, store, overwrite=options.overwrite)
    bucket = await list_bucket(store, progress)
    known, revision_max = await newest_known(
        store, bucket, report, clock=clock, random=random, offload=offload
    )
    recovered = await gather(store, bucket, known, report, offload=offload, progress=progress)
    if not recovered.node_epochs and await is_in_use(kv, report.cluster_id):
        # No object and no checkpoint names a node of the cluster.
        report.add(_all_gone(store.url))
    recovered.revision_max = max(recovered.revision_max, revision_max)
    report.repaired.append(
        "what was set at run time for brokers (streamlog config alter) and the quotas of clients "
        "are in no object: set them again"
    )
    await check_and_hand_over(
        kv,
        store,
        recovered,
        bucket,
        report,
        options,
        clock=clock,
        random=random,
        offload=offload,
        progress=progress,
    )
    return report


async def check_target(kv: KVStore, store: ObjectStore, *, overwrite: bool) -> str:
    """The cluster id of the store, after a check that the metadata store may be written.

    Errors: Invalid, AlreadyExists, ForeignCluster.
    """
    claimed = await read_cluster(store)
    if claimed is None:
        raise Invalid(
            f"{store.url} has no cluster.json: there is nothing to recover; check the prefix"
        )
    prefix_of(claimed.cluster_id)
    named = await kv.get(CLUSTER_KEY)
    if named is not None:
        check_same(store.url, claimed, cluster_id_of(named.value))
        if not overwrite:
            raise AlreadyExists(
                f"the metadata store holds the metadata of cluster {claimed.cluster_id} already; "
                "--overwrite replaces it (after a backup, say)"
            )
    return claimed.cluster_id


def _all_gone(url: str) -> Finding:
    return Finding(
        FindingKind.OBJECT_MISSING,
        Severity.ERROR,
        f"{url} has no objects of this cluster, and the metadata that would be replaced is in use",
        "look whether this is the right store, with its folder mounted",
    )


async def gather(
    store: ObjectStore,
    bucket: Bucket,
    known: KnownStreams | None,
    report: RepairReport,
    *,
    offload: Offload,
    progress: Progress,
) -> Recovered:
    """Streams and topics; nothing is written. Errors: Corrupt, StoreUnavailable."""
    recovered = Recovered(report.cluster_id)
    streams = StreamRecovery(store, offload, bucket, known, recovered, report, progress)
    await streams.run()
    await TopicRecovery(store, offload, recovered, streams, report, progress).run()
    streams.finish()
    report.counts["streams"] = len(recovered.streams)
    report.counts["records"] = sum(
        stream.end - stream.start for stream in recovered.streams.values()
    )
    return recovered


async def check_and_hand_over(
    kv: KVStore,
    store: ObjectStore,
    recovered: Recovered,
    bucket: Bucket,
    report: RepairReport,
    options: RecoverOptions,
    *,
    clock: Clock,
    random: Random,
    offload: Offload,
    progress: Progress,
) -> None:
    """The end of `recover` and `restore`: writes the recovered metadata, unless this is a dry run.

    Errors: Corrupt (data is lost, and the loss is not accepted); those of `hand_over`.
    """
    _check_losses(report, options)
    if options.dry_run:
        return
    await hand_over(
        kv,
        store,
        recovered,
        bucket,
        clock=clock,
        random=random,
        offload=offload,
        grace_ms=options.grace_ms,
        progress=progress,
    )
    report.revision = await kv.revision()


def _check_losses(report: RepairReport, options: RecoverOptions) -> None:
    """Errors: Corrupt, unless the loss is accepted or nothing is written."""
    errors = report.by_severity[Severity.ERROR]
    if not errors or options.dry_run or options.accept_data_loss:
        return
    first = next(finding for finding in report.findings if finding.severity is Severity.ERROR)
    raise Corrupt(
        f"{errors} findings say that data is lost, the first: {first.detail}. Nothing was written; "
        "--dry-run lists them, --accept-data-loss goes on without that data",
        object_key=first.key,
    )


async def newest_known(
    store: ObjectStore,
    bucket: Bucket,
    report: RepairReport,
    *,
    clock: Clock,
    random: Random,
    offload: Offload,
    after: int = 0,
) -> tuple[KnownStreams | None, int]:
    """The metadata as of the newest usable checkpoint past revision `after`; None: there is none.
    And the highest revision of any checkpoint whose trailer tells it, usable or not: the next one
    has to be above it, because the newest is the one that nodes and recoveries go by.

    The report names the checkpoint that was taken, and those that cannot be used. Errors:
    StoreUnavailable.
    """
    candidates, useless = await find_candidates(store, bucket.checkpoints, report.cluster_id)
    for reason in useless:
        report.add(_useless(reason))
    revision_max = max((candidate.checkpoint.revision for candidate in candidates), default=0)
    for candidate in candidates:
        if candidate.checkpoint.revision <= after:
            return None, revision_max
        try:
            known = await read_candidate(
                candidate, store, report.cluster_id, clock=clock, random=random, offload=offload
            )
        except Corrupt as error:
            report.add(_useless(error))
            continue
        age_s = max(clock.now_ms() - candidate.info.modified_ms, 0) // 1000
        report.repaired.append(
            f"starts from the checkpoint {candidate.info.key}, {age_s} s old: trims, deletions, "
            "closings and fencing tokens since then are forgotten, what they removed may come back"
        )
        return known, revision_max
    if after:
        return None, revision_max
    report.repaired.append(
        "there is no whole checkpoint: trims, deletions, closings, tags and fencing tokens are "
        "forgotten"
    )
    return None, revision_max


def _useless(reason: StreamlogError) -> Finding:
    if isinstance(reason, ForeignCluster):
        return Finding(
            FindingKind.OBJECT_FOREIGN,
            Severity.WARNING,
            str(reason),
            "it is left out; look whose it is",
        )
    return Finding(
        FindingKind.CHECKPOINT_CORRUPT,
        Severity.WARNING,
        f"a checkpoint is of no use: {reason}",
        "an older one is taken, or none; more of what was trimmed may come back",
    )
