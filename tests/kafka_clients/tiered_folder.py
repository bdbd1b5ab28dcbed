"""A Kafka with its own LocalTieredStorage, and a library's node that takes over when it is stopped.

Both work in Kafka's data folder, where `__remote_log_metadata` lies too, and in one folder of
remote segments. Kafka makes the topics; the node takes their ids.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from streamlog.errors import StreamlogError
from streamlog.format.kafka_files.names import META_PROPERTIES
from streamlog.format.kafka_files.properties import decode_meta_properties
from streamlog.log.api.config import LogConfig
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.internal_topics import REMOTE_LOG_METADATA
from streamlog.log.api.leadership import Leadership
from streamlog.log.api.log_factory import LogFactories, LogKind
from streamlog.log.api.metrics import LogMetrics
from streamlog.log.api.topic_config import TopicConfig, parse
from streamlog.log.manager import LogManager
from streamlog.log.partition.retention import expired
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SystemRandom
from streamlog.testing.basic_kv import BasicKV
from streamlog.tiered.api import RemoteLogSegmentMetadata, TopicIdPartition
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.metadata.topic_manager import (
    TOPIC_CONFIGS,
    TopicBasedRemoteLogMetadataManager,
)
from streamlog.tiered.opening import TierPlugins, TierRuntime, open_remote_log_manager
from streamlog.tiered.quotas.remote_quota import remote_quota
from streamlog.tiered.remote_log_manager import RemoteLogManager, TierQuotas
from streamlog.tiered.storage.local_tiered_storage import DIR, LocalTieredStorage
from streamlog.unified.log_folder import FolderOwner, LogFolder
from streamlog.unified.unified_log import UnifiedLog
from streamlog.unified.unified_logs import UnifiedLogFactory, handle_of
from tests.support.kafka_jars import tiered_storage_jar
from tests.support.kafka_server import FEATURES, KafkaServer

METADATA_PARTITIONS = 3
TIER_FOLDER = "kafka-tiered-storage"
OFTEN_MS = 500
TOPIC = {
    "remote.storage.enable": "true",
    "segment.bytes": str(1 << 20),
    "index.interval.bytes": "4096",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "file.delete.delay.ms": "0",
}
"""Closed segments are copied, and go here as soon as they are."""
_TASKS_MS = 10**9
"""A test runs the node's tasks itself."""


def tiering_kafka(folder: Path, remote: Path, retention_check_ms: int = OFTEN_MS) -> KafkaServer:
    """Copies a segment, and looks for what may go, a moment after it can."""
    remote.mkdir(exist_ok=True)
    storage = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
    settings = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": storage,
        "remote.log.storage.manager.class.path": tiered_storage_jar(),
        "rsm.config.dir": remote,
        "remote.log.metadata.manager.listener.name": "INTERNAL",
        "rlmm.config.remote.log.metadata.topic.num.partitions": METADATA_PARTITIONS,
        "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
        "remote.log.manager.task.interval.ms": 1000,
        "log.initial.task.delay.ms": OFTEN_MS,
        "log.retention.check.interval.ms": retention_check_ms,
    }
    return KafkaServer(folder, None, FEATURES, settings)


@dataclass(frozen=True, slots=True)
class NodeInFolder:
    """A partition's log in both tiers, and who keeps the remote one."""

    log: UnifiedLog
    tiers: RemoteLogManager
    metadata: TopicBasedRemoteLogMetadataManager
    partition: TopicIdPartition
    config: TopicConfig

    async def copy(self) -> None:
        """Copies, expires, and deletes here what is copied: one round of each."""
        await self.tiers.run_tasks()
        assert self.tiers.alarms() == []
        now_ms = SystemClock().now_ms()
        for step in expired(self.log, self.config, now_ms, self.log.copied_end_offset):
            await self.log.delete_oldest_segments(step.end_offset, step.reason)

    async def segments(self) -> list[RemoteLogSegmentMetadata]:
        return list(await self.metadata.list_remote_log_segments(self.partition))


@asynccontextmanager
async def node_in(
    data: Path, remote: Path, partition: TopicPartition, configs: Mapping[str, str]
) -> AsyncIterator[NodeInFolder]:
    """Over the folders of a stopped Kafka; closed in order. The log fails in no test."""
    failures: list[StreamlogError] = []
    async with AsyncExitStack() as built:
        offload = ThreadOffload()
        built.push_async_callback(offload.close)
        registry, clock, random = CollectorRegistry(), SystemClock(), SystemRandom()
        environment = LogEnvironment(clock, random, LogConfig(), LogMetrics(registry), offload)
        found = decode_meta_properties(META_PROPERTIES, (data / META_PROPERTIES).read_bytes())
        owner, tree = FolderOwner(found.cluster_id, found.node_id), SystemTree(data)
        folder = await LogFolder.open(tree, owner, environment, offload)
        built.push_async_callback(folder.close)
        metadata_logs = await _metadata_logs(folder, environment, found.node_id)
        built.push_async_callback(metadata_logs.close)
        metadata = TopicBasedRemoteLogMetadataManager(metadata_logs, clock)
        storage = LocalTieredStorage()
        storage.configure({DIR: str(remote)})
        config = RemoteLogConfig(task_interval_ms=_TASKS_MS)
        tiers = await open_remote_log_manager(
            TierPlugins(storage, metadata),
            TierQuotas(
                *(
                    remote_quota(name, config.copy_bytes_per_second, 11, 1, clock, registry)
                    for name in ("copy", "fetch")
                )
            ),
            TierRuntime(clock, random, offload, registry, tree, found.node_id),
            config,
        )
        built.push_async_callback(tiers.close)
        topic_id = folder.topic_id_of(partition)
        assert topic_id is not None
        topic_config = parse({**configs, "log.type": "unified"})
        log = await UnifiedLogFactory(folder, tiers).open(
            partition,
            handle_of(topic_id, partition.partition),
            topic_config,
            lambda _, error: failures.append(error),
        )
        assert isinstance(log, UnifiedLog)
        built.push_async_callback(log.close)
        yield NodeInFolder(
            log, tiers, metadata, TopicIdPartition(topic_id, *partition), topic_config
        )
    assert failures == []


async def _metadata_logs(
    folder: LogFolder, environment: LogEnvironment, node_id: int
) -> LogManager:
    """Kafka's own topic of metadata, as the node's: internal topics are of the first kind."""
    # No record of topics has Kafka's: without this the manager would put their folders aside.
    for known in folder.partitions():
        assert await folder.claim(*known)
    factories = LogFactories({LogKind.SHARED: UnifiedLogFactory(folder)})
    logs = await LogManager.open(factories, BasicKV(), environment, Leadership(node_id))
    topic_id = folder.topic_id_of(TopicPartition(REMOTE_LOG_METADATA, 0))
    assert topic_id is not None
    await logs.create_internal_topic(
        REMOTE_LOG_METADATA, METADATA_PARTITIONS, TOPIC_CONFIGS, topic_id
    )
    return logs
