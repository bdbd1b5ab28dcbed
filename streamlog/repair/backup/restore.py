"""`restore`: metadata from a backup and all that the object store has since.

A backup is older than the bucket: put back as it is, what was committed later would be unknown, be
taken for garbage and deleted, and its ids and offsets given out again. So a restore is a recovery,
with the backup for what the bucket does not tell:

1. Streams come from the backup, or from a newer checkpoint in the bucket, and go on with all
   objects that neither knows.
2. Topics are those whose streams are there; settings and deletions under way are the backup's. Of
   settings that delete records, the meta stream's count where they delete less.
3. Users' values are the backup's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from streamlog.errors import Corrupt, ForeignCluster, InvalidConfig, StreamlogError
from streamlog.kvstore.interface import KVStore, StoredKeyValue
from streamlog.log.api import topic_config
from streamlog.log.api.config import LogConfig
from streamlog.log.api.log_factory import LogKind
from streamlog.log.api.topic_config import TopicConfig
from streamlog.log.broker.broker_record import CONFIG_NAMESPACE, config_key, decode_configs
from streamlog.log.broker.log_defaults import LogDefaults
from streamlog.log.topics import producer_ids
from streamlog.log.topics.topic_record import (
    PARTITION_NAMESPACE,
    TOPIC_NAMESPACE,
    decode_partition,
    decode_topic,
    encode_topic,
)
from streamlog.metadata.keys import id_block, node
from streamlog.metadata.keys.space import prefix_of
from streamlog.objectstore.interface import ObjectStore
from streamlog.repair.backup.deletion_settings import deleting_less
from streamlog.repair.backup.file import Backup
from streamlog.repair.bucket import list_bucket
from streamlog.repair.findings import (
    Finding,
    FindingKind,
    Progress,
    RepairReport,
    Severity,
    no_progress,
)
from streamlog.repair.frozen_kv import FrozenKV
from streamlog.repair.recover.recover import (
    RecoverOptions,
    check_and_hand_over,
    check_target,
    gather,
    newest_known,
)
from streamlog.repair.recover.recovered import Recovered
from streamlog.repair.recover.sources import KnownStreams, read_streams
from streamlog.repair.view import load_view
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Offload
from streamlog.runtime.rand import Random

VALUES = b"u/"
VALUE_AT = 1
"""Behind the version byte."""


async def restore(
    kv: KVStore,
    store: ObjectStore,
    backup: Backup,
    *,
    clock: Clock,
    random: Random,
    offload: Offload,
    options: RecoverOptions | None = None,
    progress: Progress = no_progress,
) -> RepairReport:
    """As `recover`. Errors: also ForeignCluster (a backup of another cluster)."""
    options, report = options or RecoverOptions(), RepairReport()
    report.cluster_id = await check_target(kv, store, overwrite=options.overwrite)
    if backup.head.cluster_id != report.cluster_id:
        raise ForeignCluster(
            f"the backup is of cluster {backup.head.cluster_id}, {store.url} belongs to cluster "
            f"{report.cluster_id}",
            store_cluster=report.cluster_id,
            meta_cluster=backup.head.cluster_id,
        )
    bucket = await list_bucket(store, progress)
    known = await _read_known(backup, store, clock=clock, random=random, offload=offload)
    newer, revision_max = await newest_known(
        store,
        bucket,
        report,
        clock=clock,
        random=random,
        offload=offload,
        after=known.view.revision if known is not None else 0,
    )
    if newer is None and known is not None:
        report.repaired.append(
            f"starts from the backup's revision {backup.head.revision}: trims, deletions, closings "
            "and fencing tokens since then are forgotten, what they removed may come back"
        )
    recovered = await gather(
        store, bucket, newer or known, report, offload=offload, progress=progress
    )
    recovered.revision_max = max(recovered.revision_max, revision_max)
    found = _configs_of_topics(recovered)
    _take_backup(backup, recovered, report)
    _keep_records(found, recovered, options.topic_defaults, report)
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


async def _read_known(
    backup: Backup, store: ObjectStore, *, clock: Clock, random: Random, offload: Offload
) -> KnownStreams | None:
    """The metadata of the backup; None: its checkpoint is gone, so the store has a newer one, or it
    is damaged, which is told when the store's checkpoints are looked at."""
    prefix = prefix_of(backup.head.cluster_id)
    kvs = [
        StoredKeyValue(prefix + kv.key, kv.value, kv.create_revision, kv.mod_revision)
        for kv in backup.kvs
    ]
    frozen = FrozenKV(kvs, backup.head.revision)
    try:
        view = await load_view(
            frozen,
            store,
            backup.head.cluster_id,
            clock=clock,
            random=random,
            offload=offload,
        )
        return await read_streams(view)
    except Corrupt:
        return None


def topics_elsewhere(backup: Backup) -> list[str]:
    """Topics whose records lie in a node's log folder, which no backup contains; by name."""
    found = []
    for kv in backup.kvs:
        namespace, _, name = kv.key.removeprefix(VALUES).partition(b"/")
        if kv.key.startswith(VALUES) and namespace.decode("ascii", "replace") == TOPIC_NAMESPACE:
            topic = name.decode()
            if decode_topic(topic, kv.value[VALUE_AT:]).log_kind is not LogKind.SHARED:
                found.append(topic)
    return sorted(found)


def _take_backup(backup: Backup, recovered: Recovered, report: RepairReport) -> None:
    prefix = prefix_of(backup.head.cluster_id)
    recovered.revision_max = max(recovered.revision_max, backup.head.revision)
    old: dict[tuple[str, bytes], bytes] = {}
    for kv in backup.kvs:
        if kv.key.startswith(VALUES):
            namespace, _, name = kv.key[len(VALUES) :].partition(b"/")
            old[namespace.decode("ascii", "replace"), name] = kv.value[VALUE_AT:]
        elif kv.key.startswith(b"n/"):
            node_id = int.from_bytes(kv.key[2:], "big")
            seen = recovered.node_epochs.get(node_id, 0)
            recovered.node_epochs[node_id] = max(seen, node.decode(kv.value).node_epoch)
        elif prefix + kv.key == id_block.counter_key(prefix, id_block.OBJECTS):
            highest = id_block.decode_counter(kv.value) << id_block.OBJECTS.block_bits
            recovered.object_id_max = max(recovered.object_id_max, highest)
        elif prefix + kv.key == id_block.counter_key(prefix, id_block.STREAMS):
            highest = id_block.decode_counter(kv.value) << id_block.STREAMS.block_bits
            recovered.stream_id_max = max(recovered.stream_id_max, highest)
    for (of, name), value in old.items():
        if of in (TOPIC_NAMESPACE, PARTITION_NAMESPACE, producer_ids.KEY.namespace):
            continue
        recovered.values[of, name] = value
        report.counts["values_from_backup"] += 1
    _take_partitions(old, recovered)
    _take_topics(old, recovered, report)
    counter = producer_ids.KEY.namespace, producer_ids.KEY.name
    if counter in old:
        first_free = producer_ids.decode(old[counter])
        recovered.producer_id_max = max(recovered.producer_id_max, first_free)


def _take_partitions(old: dict[tuple[str, bytes], bytes], recovered: Recovered) -> None:
    """Adds empty partitions: the bucket does not tell of them, but their meta streams exist."""
    for (namespace, name), value in old.items():
        if namespace == PARTITION_NAMESPACE and (namespace, name) not in recovered.values:
            try:
                is_there = decode_partition(name, value) in recovered.streams
            except StreamlogError:
                is_there = False
            if is_there:
                recovered.values[namespace, name] = value


def _take_topics(
    old: dict[tuple[str, bytes], bytes], recovered: Recovered, report: RepairReport
) -> None:
    partitions = {name.rpartition(b"/")[0] for ns, name in recovered.values if ns == "_partition"}
    for (namespace, name), value in old.items():
        if namespace != TOPIC_NAMESPACE:
            continue
        topic = name.decode()
        topic_record = decode_topic(topic, value)
        present = recovered.values.get((namespace, name))
        if present is not None:
            now = decode_topic(topic, present)
            if now.topic_id == topic_record.topic_id:
                if now.partitions > topic_record.partitions:
                    # Partitions that were pending in the backup have their keys by now.
                    topic_record = replace(topic_record, partitions=now.partitions, pending=())
                recovered.values[namespace, name] = encode_topic(topic_record)
            continue
        if name in partitions:
            recovered.values[namespace, name] = value
            continue
        if topic_record.log_kind is not LogKind.SHARED:
            report.add(
                Finding(
                    FindingKind.TOPIC,
                    Severity.NOTE,
                    f"topic {topic} is not restored: it lies in a node's log folder, which no "
                    "backup contains",
                )
            )
            continue
        report.add(
            Finding(
                FindingKind.TOPIC,
                Severity.NOTE,
                f"topic {topic} is in the backup and its streams are gone: it was deleted since",
            )
        )


def _configs_of_topics(recovered: Recovered) -> dict[bytes, Mapping[str, str]]:
    """Topic → its settings by its meta streams."""
    return {
        name: decode_topic(name.decode(), value).configs
        for (namespace, name), value in recovered.values.items()
        if namespace == TOPIC_NAMESPACE
    }


def _keep_records(
    found: Mapping[bytes, Mapping[str, str]],
    recovered: Recovered,
    static: TopicConfig,
    report: RepairReport,
) -> None:
    """Changes the settings by which nodes would delete what they keep by those that were found."""
    defaults = _node_defaults(recovered, static)
    for name, configs in sorted(found.items()):
        topic, key = name.decode(), (TOPIC_NAMESPACE, name)
        topic_record = decode_topic(topic, recovered.values[key])
        try:
            changed = deleting_less(topic_record.configs, configs, defaults)
        except InvalidConfig as error:
            detail = (
                f"topic {topic}: whether its newer settings delete less than the backup's is "
                f"unknown: {error}"
            )
            report.add(Finding(FindingKind.TOPIC, Severity.WARNING, detail))
            continue
        if not changed:
            continue
        recovered.values[key] = encode_topic(
            replace(topic_record, configs={**topic_record.configs, **changed})
        )
        before = topic_config.parse(topic_record.configs, defaults[0], is_stored=True)
        told = ", ".join(
            f"{setting}={value} (by the backup {topic_config.value_of(before, setting)})"
            for setting, value in changed.items()
        )
        detail = (
            f"topic {topic} gets {told}: its meta stream has settings that are newer than the "
            "backup, and the value counts that deletes less"
        )
        advice = "Where the backup's value is the right one, set it by streamlog topic alter."
        report.add(Finding(FindingKind.TOPIC, Severity.WARNING, detail, advice))


def _node_defaults(recovered: Recovered, static: TopicConfig) -> list[TopicConfig]:
    """What topics have that set nothing: on nodes without settings of their own, then on others."""
    stored: dict[bytes, Mapping[str, str]] = {}
    for (namespace, name), value in recovered.values.items():
        if namespace == CONFIG_NAMESPACE:
            try:
                stored[name] = decode_configs(name, value)
            except StreamlogError:
                # Nodes delete nothing of topics that depend on it until someone removes it.
                continue
    of_all = stored.pop(config_key(None).name, {})
    defaults = []
    for of_one in ({}, *stored.values()):
        node_defaults = LogDefaults(LogConfig(topic_defaults=static))
        node_defaults.apply({**of_all, **of_one})
        defaults.append(node_defaults.topic)
    return defaults
