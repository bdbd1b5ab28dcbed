"""A unified log with a remote tier in one process: real parts but for the store, which a test may
break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from uuid import UUID

from prometheus_client import CollectorRegistry

from streamlog.codec.batch import scan
from streamlog.codec.records import iterate
from streamlog.errors import ObjectNotFound
from streamlog.log.api.abstract_log import AbstractLog, Isolation
from streamlog.log.api.config import LogConfig
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.log_factory import TopicIdentity
from streamlog.log.api.metrics import LogMetrics
from streamlog.log.api.topic_config import TopicConfig, parse
from streamlog.log.partition.retention import expired, is_roll_due
from streamlog.model.kv import Key
from streamlog.model.partition import TopicPartition
from streamlog.runtime.concurrency.catch_up_throttle import NO_THROTTLE, ReadThrottle
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.basic_kv import BasicKV
from streamlog.testing.clocks import ManualClock
from streamlog.testing.logs.log_conformance import append, encoded
from streamlog.testing.torn_folder import TornTree
from streamlog.tiered.api import (
    IndexType,
    LogSegmentData,
    RemoteLogMetadataManager,
    RemoteLogSegmentMetadata,
    RemoteStorageManager,
    TopicIdPartition,
)
from streamlog.tiered.config import RemoteLogConfig
from streamlog.tiered.copying.stranger_purge import TopicNames
from streamlog.tiered.metadata.kv_manager import KVRemoteLogMetadataManager
from streamlog.tiered.metadata.kv_records import segment_key
from streamlog.tiered.opening import (
    TierPlugins,
    TierRuntime,
    open_remote_log_manager,
)
from streamlog.tiered.remote_log_manager import RemoteLogManager, TierQuotas
from streamlog.unified.log_folder import FolderOwner, LogFolder
from streamlog.unified.unified_log import UnifiedLog
from streamlog.unified.unified_logs import UnifiedLogFactory
from tests.unified.harness import HeldOffload

PARTITION = TopicPartition("t", 0)
OWNER = FolderOwner("cluster", 1)
TIERED = {
    "remote.storage.enable": "true",
    "log.type": "unified",
    "internal.segment.bytes": "1000",
    "index.interval.bytes": "200",
    "file.delete.delay.ms": "0",
    "retention.ms": "-1",
}


class BreakableStorage(RemoteStorageManager):
    """Keeps segments in memory. `strike` is called first by each call, and may raise or wait."""

    def __init__(self) -> None:
        self.segments: dict[UUID, dict[str, bytes]] = {}
        self.strike: Callable[[str], object] = lambda _: None
        self.gets = 0

    async def _struck(self, call: str) -> None:
        result = self.strike(call)
        if asyncio.iscoroutine(result):
            await result

    async def copy_log_segment_data(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        files: dict[str, bytes] = {}
        self.segments[metadata.remote_log_segment_id.id] = files
        await self._struck("copy")
        log = data.log_segment
        files["LOG"] = bytes(await log.read(0, log.size_bytes))
        for index_type, content in data.indexes():
            if not isinstance(content, bytes):
                content = bytes(await content.read(0, content.size_bytes))
            files[index_type.value] = content
        await self._struck("copied")
        return None

    async def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> bytes:
        self.gets += 1
        await self._struck("fetch")
        return self._file(metadata, "LOG")[start_position : end_position + 1]

    async def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: IndexType) -> bytes:
        await self._struck("index")
        return self._file(metadata, index_type.value)

    def _file(self, metadata: RemoteLogSegmentMetadata, name: str) -> bytes:
        try:
            return self.segments[metadata.remote_log_segment_id.id][name]
        except KeyError as error:
            raise ObjectNotFound(f"{metadata.remote_log_segment_id} has no {name}") from error

    async def delete_log_segment_data(self, metadata: RemoteLogSegmentMetadata) -> None:
        await self._struck("delete")
        self.segments.pop(metadata.remote_log_segment_id.id, None)


class VirtualClock(ManualClock):
    """Moves as the loop's timers do."""

    def now_ms(self) -> int:
        return 1_700_000_000_000 + round(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def advance(self, elapsed_ms: int) -> None:
        raise AssertionError("time passes by itself")


class OpenQuota:
    """Has room always; a test may close it."""

    def __init__(self) -> None:
        self.is_open = True
        self.recorded = 0

    async def before_segment(
        self, size_bytes: int, *, may_wait: bool, is_wanted: Callable[[], bool]
    ) -> bool:
        if self.is_open:
            self.record(size_bytes)
        return self.is_open

    async def until_room(self, deadline: float) -> bool:
        return self.is_open

    @contextmanager
    def reading(self) -> Iterator[bool]:
        yield self.is_open

    def has_room(self) -> bool:
        return self.is_open

    def set_rate(self, rate: int) -> None:
        raise AssertionError("nobody changes it")

    def record(self, size_bytes: int) -> None:
        self.recorded += size_bytes


class TieredLogUnderTest:
    """One node after the other over one folder tree, one KV store and one remote storage."""

    log: UnifiedLog
    folder: LogFolder
    manager: RemoteLogManager

    def __init__(
        self,
        tree: TornTree,
        configs: Mapping[str, str],
        config: RemoteLogConfig,
        plugin: RemoteStorageManager | None = None,
        clock: ManualClock | None = None,
        throttle: ReadThrottle = NO_THROTTLE,
        new_metadata: Callable[[], RemoteLogMetadataManager] | None = None,
    ) -> None:
        self.tree = tree
        self.configs = {**TIERED, **configs}
        self.config = config
        self.kv = BasicKV()
        self.new_metadata = new_metadata or (lambda: KVRemoteLogMetadataManager(self.kv))
        """Each node has one of its own."""
        self.storage = BreakableStorage()
        self.plugin: RemoteStorageManager = self.storage if plugin is None else plugin
        """What the manager copies to."""
        self.clock = clock or ManualClock()
        self.throttle = throttle
        self.random = SeededRandom(1)
        self.copy_quota, self.fetch_quota = OpenQuota(), OpenQuota()
        self.names: TopicNames | None = None
        """Of topics, for the node that is opened next: it purges then."""
        self.handle = 0
        self.topic_id = UUID(int=0)

    @property
    def partition(self) -> TopicIdPartition:
        topic_id = self.folder.topic_id_of(PARTITION) or self.topic_id
        self.topic_id = topic_id
        return TopicIdPartition(topic_id, *PARTITION)

    @property
    def topic_config(self) -> TopicConfig:
        return parse(self.configs)

    async def start(self) -> None:
        await self.open_node()
        self.topic_id = self.random.uuid()
        topic = TopicIdentity("t", self.topic_id, "attempt")
        (self.handle,) = await self.factory.create(topic, [0], self.topic_config)
        await self.open()

    def quotas(self, registry: CollectorRegistry) -> TierQuotas:
        """Of the node that is opened next."""
        return TierQuotas(self.copy_quota, self.fetch_quota)

    async def open_node(self) -> None:
        self.offload = HeldOffload()
        registry = self.registry = CollectorRegistry()
        environment = LogEnvironment(
            self.clock,
            self.random,
            LogConfig(),
            LogMetrics(registry),
            self.offload,
            self.throttle,
        )
        self.folder = await LogFolder.open(self.tree, OWNER, environment, self.offload)
        self.metadata = self.new_metadata()
        self.manager = await open_remote_log_manager(
            TierPlugins(self.plugin, self.metadata),
            self.quotas(registry),
            TierRuntime(
                self.clock,
                self.random,
                self.offload,
                registry,
                self.tree,
                1,
                self.throttle,
            ),
            self.config,
        )
        await self.manager.start(self.names)
        self.factory = UnifiedLogFactory(self.folder, self.manager)

    async def open(self) -> None:
        opened = await self.factory.open(PARTITION, self.handle, self.topic_config, _ignore)
        assert isinstance(opened, UnifiedLog)
        self.log = opened

    async def configure(self, **configs: str) -> None:
        self.configs |= {name.replace("_", "."): text for name, text in configs.items()}
        await self.log.configure(self.topic_config)

    async def copy(self) -> None:
        """One round of tasks, to their end."""
        await self.manager.run_tasks()

    async def retain(self) -> None:
        """What the log manager does of the local part."""
        now_ms, copied = self.clock.now_ms(), self.log.copied_end_offset
        for step in expired(self.log, self.topic_config, now_ms, copied):
            await self.log.delete_oldest_segments(step.end_offset, step.reason)
        if is_roll_due(self.log, self.topic_config, now_ms):
            await self.log.roll()

    async def reopened(self) -> None:
        await self.log.close()
        await self.folder.close()
        await self.manager.close()
        await self.open_node()
        await self.open()

    async def crashed(self) -> None:
        self.offload.is_dead = True
        await self.log.kill()
        await self.folder.kill()
        await self.manager.close()
        self.tree.crash()
        await self.open_node()
        await self.open()

    async def stop(self) -> None:
        await self.log.close()
        await self.folder.close()
        await self.manager.close()


@asynccontextmanager
async def tiered_log(
    tree: TornTree,
    configs: Mapping[str, str] | None = None,
    config: RemoteLogConfig | None = None,
    plugin: RemoteStorageManager | None = None,
    clock: ManualClock | None = None,
    throttle: ReadThrottle = NO_THROTTLE,
    new_metadata: Callable[[], RemoteLogMetadataManager] | None = None,
) -> AsyncIterator[TieredLogUnderTest]:
    configs, config = configs or {}, config or RemoteLogConfig()
    under_test = TieredLogUnderTest(tree, configs, config, plugin, clock, throttle, new_metadata)
    await under_test.start()
    try:
        yield under_test
    finally:
        await under_test.stop()


async def filled_and_copied(t: TieredLogUnderTest, count: int) -> dict[int, bytes]:
    """Values by offset. All but those of the last segment are in both tiers."""
    wanted: dict[int, bytes] = {}
    for number in range(count):
        value = b"%06d" % number * 16
        info = await append(t.log, encoded([value], at_ms=t.clock.now_ms()))
        wanted[info.base_offset] = value
    await t.copy()
    return wanted


async def filled_and_moved(t: TieredLogUnderTest, count: int) -> dict[int, bytes]:
    """Values by offset. All but those of the last segments are in the remote tier alone."""
    wanted = await filled_and_copied(t, count)
    await t.configure(local_retention_bytes="0")
    await t.retain()
    return wanted


async def lose_metadata(t: TieredLogUnderTest, numbers: slice) -> dict[Key, bytes]:
    """The metadata store loses what it has of these segments, in the order of offsets; returns
    what it had."""
    listed = await t.metadata.list_remote_log_segments(t.partition)
    lost: dict[Key, bytes] = {}
    for key in (segment_key(one.remote_log_segment_id) for one in listed[numbers]):
        value = await t.kv.get_kv(key)
        assert value is not None
        lost[key] = value.data
        await t.kv.del_kv(key)
    await t.metadata.on_partition_leadership_changes([t.partition], [])
    return lost


async def values(
    log: AbstractLog, offset: int = 0, isolation: Isolation = Isolation.READ_UNCOMMITTED
) -> dict[int, bytes]:
    """Offset → value of every record from the offset on, whatever transactions aborted."""
    found: dict[int, bytes] = {}
    while offset < log.high_watermark:
        fetched = await log.fetch(offset, 1500, isolation=isolation)
        if not fetched.size_bytes:
            continue
        for batch in scan(b"".join(fetched.parts)):
            if not batch.header.is_control:
                found |= {one[0]: one[3] or b"" for one in iterate(batch.view)}
        offset = fetched.next_offset
    return found


def _ignore(_log: AbstractLog, _error: Exception) -> None:
    """A log that fails is opened again by the test."""
