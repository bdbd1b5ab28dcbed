"""A unified log in a stopped Kafka's own folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry

from streamlog.errors import StoreUnavailable, StreamlogError
from streamlog.format.kafka_files.names import META_PROPERTIES
from streamlog.format.kafka_files.properties import decode_meta_properties
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.config import LogConfig
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.metrics import LogMetrics
from streamlog.log.api.topic_config import parse
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import Clock, SystemClock
from streamlog.runtime.disk.system_tree import SystemTree
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SystemRandom
from streamlog.unified.log_folder import FolderOwner, LogFolder
from streamlog.unified.unified_logs import UnifiedLogFactory, handle_of


@asynccontextmanager
async def log_in(
    data: Path,
    partition: TopicPartition,
    configs: Mapping[str, str],
    clock: Clock | None = None,
) -> AsyncIterator[AbstractLog]:
    """The partition's log, opened under Kafka's own name for the folder; closed in order.

    `clock` None: the system's. Errors: those of LogFolder.open and of a log's open.
    """
    offload = ThreadOffload()
    metrics = LogMetrics(CollectorRegistry())
    now = SystemClock() if clock is None else clock
    environment = LogEnvironment(now, SystemRandom(), LogConfig(), metrics, offload)
    found = decode_meta_properties(META_PROPERTIES, (data / META_PROPERTIES).read_bytes())
    owner = FolderOwner(found.cluster_id, found.node_id)
    folder = await LogFolder.open(SystemTree(data), owner, environment, offload)
    topic_id = folder.topic_id_of(partition)
    if topic_id is None:
        raise StoreUnavailable(f"nothing in {data} tells the topic id of {partition}")
    handle = handle_of(topic_id, partition.partition)
    failures: list[StreamlogError] = []
    log = await UnifiedLogFactory(folder).open(
        partition, handle, parse(configs), lambda _, error: failures.append(error)
    )
    try:
        yield log
    finally:
        await log.close()
        await folder.close()
        await offload.close()
        assert not failures
