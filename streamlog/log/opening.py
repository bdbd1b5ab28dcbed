"""Opens a LogManager with the kinds of log that the program has: shared logs on streams, and those
that the caller adds.

The only module of the log layer that knows a concrete kind; the manager, retention and the server's
services know AbstractLog.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from prometheus_client import CollectorRegistry

from streamlog.errors import NotFound
from streamlog.log.api.config import LogConfig
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.leadership import Leadership
from streamlog.log.api.log_factory import LogFactories, LogFactory, LogKind
from streamlog.log.api.metrics import LogMetrics
from streamlog.log.manager import LogManager
from streamlog.log.shared.shared_logs import SharedLogFactory
from streamlog.log.stream_tags import partition_of_data
from streamlog.model.kv import KVClient
from streamlog.model.partition import TopicPartition
from streamlog.model.staging import StagedStreams
from streamlog.model.stream import StreamClient
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.catch_up_throttle import NO_THROTTLE, ReadThrottle
from streamlog.runtime.offload import Offload
from streamlog.runtime.rand import Random

MoreKinds = Callable[[LogEnvironment], Awaitable[Mapping[LogKind, LogFactory]]]


async def open_logs(
    streams: StreamClient,
    kv: KVClient,
    *,
    clock: Clock,
    random: Random,
    registry: CollectorRegistry,
    config: LogConfig | None = None,
    offload: Offload | None = None,
    staged: StagedStreams | None = None,
    node_id: int = 1,
    others: MoreKinds | None = None,
    throttle: ReadThrottle = NO_THROTTLE,
    upkeep: bool = True,
) -> LogManager:
    """Logs over `streams`, topics in `kv`; background work runs until the manager is closed.

    `staged`: staged writes, if the medium has them. `others` makes the factories of other kinds,
    which share `throttle` with the streams. `upkeep`: as of LogManager.open.
    Errors: those of reading the topics from `kv`.
    """
    config = config or LogConfig()
    metrics = LogMetrics(registry)
    environment = LogEnvironment(clock, random, config, metrics, offload, throttle)
    by_kind: dict[LogKind, LogFactory] = {LogKind.SHARED: SharedLogFactory(streams, environment)}
    if others is not None:
        by_kind |= await others(environment)
    factories = LogFactories(by_kind)
    manager = await LogManager.open(factories, kv, environment, Leadership(node_id), upkeep=upkeep)
    if staged is not None:
        manager.take_staged(staged, _partition_of(streams))
    return manager


def _partition_of(
    streams: StreamClient,
) -> Callable[[int], Awaitable[TopicPartition | None]]:
    async def find(stream_id: int) -> TopicPartition | None:
        try:
            return partition_of_data((await streams.describe_stream(stream_id)).tags)
        except NotFound:
            return None

    return find
