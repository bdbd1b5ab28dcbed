"""A node raises an alarm when its work does not move, and ends it by itself; virtual time."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

import streamlog
from streamlog.compaction.collect.collector import CollectorConfig
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.engine.config import AppendConfig, FlushConfig, StreamEngineConfig
from streamlog.errors import (
    DiskFull,
    MetadataUnavailable,
    StoreUnavailable,
    StreamlogError,
    Unauthorized,
)
from streamlog.kvstore.interface import (
    Compare,
    Operation,
    Put,
    StoredKeyValue,
    TxnResult,
    Watch,
    WatchBatch,
)
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.metadata.config import MetadataConfig
from streamlog.model.batch import CreateStreamOptions
from streamlog.model.kv import Key
from streamlog.model.partition import TopicPartition
from streamlog.objectstore.interface import ObjectInfo
from streamlog.objectstore.keys import DATA_PREFIX
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.logs.log_conformance import append, encoded, refused
from streamlog.testing.torn_disk import TornDisk
from streamlog.testing.torn_folder import TornTree
from streamlog.testing.torn_media import DiskFault
from streamlog.wal.config import WalConfig, WalMode
from streamlog.wiring import Components, OpenEngine
from tests.engine.harness import batch, error_of
from tests.engine.remote import InlineOffload, LoopClock, virtually

CONFIG = StreamEngineConfig(
    append=AppendConfig(drain_timeout_ms=1000),
    collector=CollectorConfig(deletion_delay_ms=1000, collect_interval_ms=1000),
    compaction=CompactionConfig(
        compaction_process="inline", compaction_interval_ms=1000, small_objects_min=2
    ),
    wal=WalConfig(wal_bytes_max=1 << 20, file_bytes=64 << 10),
    metadata=MetadataConfig(put_window=2, orphan_resweep_ms=5000),
)
ANSWER_S, STALL_S = 10.0, 60.0
PROBE_S = 10.0
LATE_S = 3.0
"""Ticks come once a second, and two must see the same."""

Befall = Callable[[str, str], Awaitable[None]]
"""(operation, key) → fails, hangs, or lets the request through."""
Matches = Callable[[str, str], bool]


async def _none(operation: str, key: str) -> None:
    """Lets everything through."""


class TroubledStore(MemoryObjectStore):
    trouble: Befall = staticmethod(_none)

    async def put(
        self, key: str, parts: Sequence[Buffer], *, if_absent: bool = False
    ) -> ObjectInfo:
        await self.trouble("put", key)
        return await super().put(key, parts, if_absent=if_absent)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        await self.trouble("get", key)
        return await super().get(key, start, length)

    async def head(self, key: str) -> ObjectInfo:
        await self.trouble("head", key)
        return await super().head(key)

    async def delete(self, keys: Sequence[str]) -> None:
        await self.trouble("delete", keys[0] if keys else "")
        await super().delete(keys)


class TroubledKV(MemoryKVStore):
    trouble: Befall = staticmethod(_none)

    async def txn(
        self,
        compares: Sequence[Compare],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
    ) -> TxnResult:
        await self.trouble(
            "txn", " ".join(str(operation.key) for operation in then if isinstance(operation, Put))
        )
        return await super().txn(compares, then, otherwise)

    def watch(self, start: bytes, end: bytes, *, from_revision: int) -> Watch:  # type: ignore[override]
        return TroubledWatch(self, super().watch(start, end, from_revision=from_revision))

    async def keep_alive(self, lease_id: int) -> None:
        await self.trouble("keep_alive", "")
        await super().keep_alive(lease_id)

    async def get(self, key: bytes, *, revision: int | None = None) -> StoredKeyValue | None:
        await self.trouble("get", str(key))
        return await super().get(key, revision=revision)


@dataclass
class World:
    """What outlives an engine."""

    mode: WalMode = "object"
    config: StreamEngineConfig = CONFIG
    store_url: str = "memory://"
    clock: LoopClock = field(default_factory=LoopClock)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.store = TroubledStore(self.clock)
        self.kv = TroubledKV(self.clock)
        self.disk = TornDisk(SeededRandom(2))
        self.logs = TornTree(SeededRandom(2))

    @asynccontextmanager
    async def engine(self) -> AsyncIterator[OpenEngine]:
        self.registry = CollectorRegistry()
        components = Components(
            clock=self.clock,
            random=SeededRandom(1),
            offload=InlineOffload(),
            registry=self.registry,
            store=self.store,
            kv=self.kv,
            disk=self.disk if self.mode == "disk" else None,
            log_tree=self.logs,
        )
        async with streamlog.open(
            self.store_url,
            meta="memory://",
            wal=self.mode,
            config=self.config,
            components=components,
        ) as engine:
            try:
                yield engine
            finally:
                self.store.trouble = self.kv.trouble = _none
                self.disk.plan_faults = None
                self.logs.plan_faults(None)

    def gauge(self, name: str) -> float | None:
        return self.registry.get_sample_value("streamlog_alarm", {"alarm": name})


async def names(engine: OpenEngine) -> set[str]:
    return {alarm.partition(":")[0] for alarm in (await engine.status()).alarms}


async def raised_after(engine: OpenEngine, name: str, most_s: float) -> float:
    """Seconds until the alarm is raised; status, log and gauge agree on it."""
    clock = engine.clock
    began = clock.monotonic()
    while name not in await names(engine):
        assert clock.monotonic() - began <= most_s, await names(engine)
        await asyncio.sleep(0.25)
    reason = engine.not_ready_reason()
    assert reason is not None
    assert f"{name}: " in reason
    return clock.monotonic() - began


async def passes(engine: OpenEngine, most_s: float) -> None:
    """All is well again, without a restart."""
    clock = engine.clock
    began = clock.monotonic()
    while await names(engine):
        assert clock.monotonic() - began <= most_s, await names(engine)
        await asyncio.sleep(0.25)
    assert engine.not_ready_reason() is None
    assert engine.engine.failure is None


class Trouble:
    """Requests that match fail with `error`, or hang without one, during the block."""

    def __init__(self, matches: Matches, error: StreamlogError | None = None) -> None:
        self._matches = matches
        self._error = error
        self.over = asyncio.Event()

    async def __call__(self, operation: str, key: str) -> None:
        if self.over.is_set() or not self._matches(operation, key):
            return
        if self._error is None:
            await self.over.wait()
        else:
            raise type(self._error)(self._error.message, **self._error.fields)


def everything(operation: str, key: str) -> bool:
    return True


class TroubledWatch:
    """Changes come once the trouble lets them through."""

    def __init__(self, kv: TroubledKV, watch: Watch) -> None:
        self._kv = kv
        self._watch = watch

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> WatchBatch:
        batch = await self._watch.__anext__()
        await self._kv.trouble("watch", "")
        return batch

    async def aclose(self) -> None:
        await self._watch.aclose()


def is_data_put(operation: str, key: str) -> bool:
    return operation == "put" and key.startswith(DATA_PREFIX)


def is_data_get(operation: str, key: str) -> bool:
    return operation == "get" and key.startswith(DATA_PREFIX)


def is_checkpoint_put(operation: str, key: str) -> bool:
    return operation == "put" and key.startswith("checkpoint/")


REFUSED = StoreUnavailable("connection refused", operation="head")
KV_REFUSED = MetadataUnavailable("no route to the metadata")
hanging_or_refusing = pytest.mark.parametrize("is_hanging", [True, False])


@hanging_or_refusing
@pytest.mark.parametrize("is_idle", [True, False])
def test_a_silent_store_raises_an_alarm(
    is_hanging: bool, is_idle: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()

    async def scenario() -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            await asyncio.sleep(100)
            assert (await engine.status()).alarms == ()
            assert world.gauge("store_unavailable") == 0
            world.store.trouble = trouble = Trouble(everything, None if is_hanging else REFUSED)
            append = None
            if not is_idle:
                append = asyncio.ensure_future(stream.append(batch(b"waits")))
            # An idle node must first have asked.
            after_s = await raised_after(engine, "store_unavailable", PROBE_S + ANSWER_S + LATE_S)
            assert after_s >= ANSWER_S
            assert world.gauge("store_unavailable") == 1
            (alarm, *_) = (await engine.status()).alarms
            assert "(since " in alarm
            assert "memory://" in alarm
            await asyncio.sleep(1000)
            assert "store_unavailable" in await names(engine)
            trouble.over.set()
            await passes(engine, 10 * LATE_S)
            if append is not None:
                await append
            assert world.gauge("store_unavailable") == 0

    with caplog.at_level(logging.WARNING):
        virtually(scenario)
    alarms = [
        record.message for record in caplog.records if "alarm store_unavailable" in record.message
    ]
    assert len([alarm for alarm in alarms if "has passed" in alarm]) == 1
    # Once at its beginning, then now and then.
    assert 4 <= len(alarms) <= 6


def test_a_slow_store_raises_no_alarm() -> None:
    world = World()

    async def slow(operation: str, key: str) -> None:
        await asyncio.sleep(25 if operation == "put" else 2)

    async def scenario() -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            world.store.trouble = slow
            for number in range(10):
                await stream.append(batch(b"%d" % number))
                assert await names(engine) == set()

    virtually(scenario)


def test_a_batch_that_waits_for_the_put_rate_is_not_late() -> None:
    """At the least rate the second upload may begin 100 s after the first."""
    config = dataclasses.replace(CONFIG, flush=FlushConfig(put_rate_max_per_s=0.01))
    world = World(config=config, store_url="s3://bucket/prefix")

    async def scenario() -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            await stream.append(batch(b"first"))
            began = world.clock.monotonic()
            append = asyncio.ensure_future(stream.append(batch(b"second")))
            while not append.done():
                await asyncio.sleep(1)
                assert await names(engine) == set()
            assert world.clock.monotonic() - began >= 99

    virtually(scenario)


@hanging_or_refusing
def test_silent_metadata_raises_an_alarm(is_hanging: bool) -> None:
    world = World()

    async def scenario() -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            world.kv.trouble = trouble = Trouble(everything, None if is_hanging else KV_REFUSED)
            append = asyncio.ensure_future(stream.append(batch(b"waits")))
            after_s = await raised_after(engine, "metadata_unavailable", ANSWER_S + LATE_S + 5)
            assert after_s >= ANSWER_S
            await raised_after(engine, "commits", STALL_S)
            trouble.over.set()
            await passes(engine, 10 * LATE_S)
            await append

    virtually(scenario)


def test_an_idle_node_raises_an_alarm_for_silent_metadata() -> None:
    world = World()

    async def scenario() -> None:
        async with world.engine() as engine:
            await asyncio.sleep(100)
            world.kv.trouble = trouble = Trouble(everything)
            await raised_after(engine, "metadata_unavailable", PROBE_S + ANSWER_S + LATE_S)
            trouble.over.set()
            await passes(engine, LATE_S)

    virtually(scenario)


def writes_meet(fault: DiskFault) -> Callable[[str, str], DiskFault | None]:
    return lambda call, name: fault if call in ("create", "write") else None


def test_a_full_wal_disk_raises_an_alarm() -> None:
    world = World("disk")

    async def scenario() -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            await stream.append(batch(b"before"))
            world.disk.plan_faults = writes_meet(DiskFault.FULL)
            append = asyncio.ensure_future(stream.append(batch(b"waits")))
            await raised_after(engine, "disk_full", LATE_S)
            world.disk.plan_faults = None
            await append
            await passes(engine, LATE_S)

    virtually(scenario)


def test_a_full_log_folder_raises_an_alarm() -> None:
    world = World()

    async def scenario() -> None:
        async with world.engine() as engine:
            await engine.logs.create_topic("t", 1, configs={"log.type": "unified"})
            partition = TopicPartition("t", 0)
            await append(await engine.logs.log(partition), encoded([b"before"]))
            world.logs.plan_faults(writes_meet(DiskFault.FULL))
            await refused(
                DiskFull, append(await engine.logs.log(partition), encoded([b"too much"]))
            )
            await raised_after(engine, "disk_full", LATE_S)
            assert "torn tree" in str(engine.not_ready_reason())
            world.logs.plan_faults(None)
            await append(await engine.logs.log(partition), encoded([b"after"]))
            await passes(engine, LATE_S)

    virtually(scenario)


@pytest.mark.parametrize("are_opens_refused", [True, False])
def test_a_log_folder_that_fails_raises_an_alarm(are_opens_refused: bool) -> None:
    """Writes, or all calls, fail for another reason than room: the partition is given up, opened
    again for each append, and goes on by itself. Other partitions write meanwhile."""
    world = World()

    def plan(call: str, _name: str) -> DiskFault | None:
        return DiskFault.IO_ERROR if are_opens_refused or call == "write" else None

    async def scenario() -> None:
        async with world.engine() as engine:
            for topic in ("t", "other"):
                await engine.logs.create_topic(topic, 1, configs={"log.type": "unified"})
            partition, other = TopicPartition("t", 0), TopicPartition("other", 0)

            async def retried() -> None:
                while True:
                    try:
                        await append(await engine.logs.log(partition), encoded([b"tried"]))
                        return
                    except StoreUnavailable:
                        await append(await engine.logs.log(other), encoded([b"taken"]))
                    await asyncio.sleep(0.5)

            world.logs.open("t-0").plan_faults = plan
            retries = asyncio.ensure_future(retried())
            after_s = await raised_after(engine, "log_writes", ANSWER_S + LATE_S)
            assert after_s >= ANSWER_S
            assert "torn tree" in str(engine.not_ready_reason())
            assert "disk_full" not in await names(engine)
            world.logs.plan_faults(None)
            await retries
            await passes(engine, LATE_S)

    virtually(scenario)


def test_one_failed_write_of_the_log_folder_raises_no_alarm() -> None:
    world = World()

    async def scenario() -> None:
        async with world.engine() as engine:
            await engine.logs.create_topic("t", 1, configs={"log.type": "unified"})
            partition = TopicPartition("t", 0)
            opened = await engine.logs.log(partition)
            world.logs.plan_faults(writes_meet(DiskFault.IO_ERROR))
            await refused(StoreUnavailable, append(opened, encoded([b"lost"])))
            world.logs.plan_faults(None)
            for _ in range(100):
                await asyncio.sleep(1)
                assert await names(engine) == set()

    virtually(scenario)


def test_a_wal_disk_that_fails_raises_an_alarm() -> None:
    """Writes fail for another reason than room: the appends wait, and are stored afterwards."""
    world = World("disk")

    async def scenario() -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            await stream.append(batch(b"before"))
            world.disk.plan_faults = writes_meet(DiskFault.IO_ERROR)
            append = asyncio.ensure_future(stream.append(batch(b"waits")))
            after_s = await raised_after(engine, "wal_writes", ANSWER_S + LATE_S)
            assert after_s >= ANSWER_S
            assert "disk_full" not in await names(engine)
            world.disk.plan_faults = None
            await append
            await passes(engine, LATE_S)

    virtually(scenario)


@pytest.mark.parametrize("mode", ["object", "disk"])
def test_hanging_uploads_raise_an_alarm_even_if_the_store_answers(mode: WalMode) -> None:
    world = World(mode)

    async def scenario() -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            world.store.trouble = trouble = Trouble(is_data_put)
            append = asyncio.ensure_future(stream.append(batch(b"waits")))
            after_s = await raised_after(engine, "uploads", STALL_S + LATE_S + 1)
            assert after_s >= STALL_S
            assert "the PUT of data/" in str(engine.not_ready_reason())
            assert "store_unavailable" not in await names(engine)
            if mode == "disk":
                await raised_after(engine, "wal_release", LATE_S)
            trouble.over.set()
            await passes(engine, LATE_S)
            await append

    virtually(scenario)


def test_a_refused_upload_raises_an_alarm_with_the_reason() -> None:
    """Sequenced appends wait through any refusal, and are uploaded when the store takes them."""
    world = World()

    async def scenario() -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            refused = Unauthorized("the key service throttles")
            world.store.trouble = trouble = Trouble(is_data_put, refused)
            append = asyncio.ensure_future(stream.append(batch(b"waits")))
            await raised_after(engine, "uploads", ANSWER_S + LATE_S)
            assert "the key service throttles" in str(engine.not_ready_reason())
            trouble.over.set()
            await append
            await passes(engine, LATE_S)

    virtually(scenario)


def test_one_failure_of_a_slow_put_is_no_refusal() -> None:
    world = World()
    tries = 0

    async def slow(operation: str, key: str) -> None:
        nonlocal tries
        if is_data_put(operation, key):
            tries += 1
            if tries == 1:
                raise REFUSED
            await asyncio.sleep(25)

    async def scenario() -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            world.store.trouble = slow
            append = asyncio.ensure_future(stream.append(batch(b"slow")))
            while not append.done():
                await asyncio.sleep(1)
                assert await names(engine) == set()
            assert tries == 2

    virtually(scenario)


def test_a_full_object_disk_raises_an_alarm() -> None:
    world = World("disk")

    async def scenario() -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            full = DiskFull("no room for an object", path="/objects")
            world.store.trouble = trouble = Trouble(is_data_put, full)
            await stream.append(batch(b"waits for its upload"))
            await raised_after(engine, "disk_full", LATE_S + 1)
            assert "no room for an object" in str(engine.not_ready_reason())
            assert "store_unavailable" not in await names(engine)
            trouble.over.set()
            await passes(engine, 2 * LATE_S)

    virtually(scenario)


def test_a_full_object_disk_does_not_stop_appends_to_a_wal_elsewhere() -> None:
    """The WAL's disk has room: appends go on until its bound is reached."""
    world = World("disk", store_url="s3://bucket/prefix")

    async def scenario() -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            full = DiskFull("no room for an object", path="/objects")
            world.store.trouble = trouble = Trouble(is_data_put, full)
            await stream.append(batch(b"waits for its upload"))
            await raised_after(engine, "disk_full", LATE_S + 1)
            async with asyncio.timeout(STALL_S):
                for _ in range(2 * CONFIG.wal.file_bytes // (16 << 10)):
                    await stream.append(batch(bytes(16 << 10)))
                    await asyncio.sleep(0.1)
            assert "no room for an object" in str(engine.not_ready_reason())
            assert await names(engine) == {"disk_full"}
            trouble.over.set()
            await passes(engine, 2 * LATE_S)

    virtually(scenario)


def test_an_idle_node_raises_an_alarm_for_a_full_metadata_disk() -> None:
    world = World()

    async def scenario() -> None:
        async with world.engine() as engine:
            full = DiskFull("no room for metadata", path="/meta")
            world.kv.trouble = trouble = Trouble(lambda operation, _: operation != "get", full)
            # The lease is written again and again.
            await raised_after(engine, "disk_full", PROBE_S)
            trouble.over.set()
            await passes(engine, PROBE_S)

    virtually(scenario)


def test_a_silent_metadata_watch_raises_an_alarm() -> None:
    world = World()

    async def scenario() -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            world.kv.trouble = trouble = Trouble(lambda operation, _: operation == "watch")
            # A change beside those that are followed: the next commit is not the next revision.
            await engine.kv.put_kv_if_absent(Key(b"k"), b"v")
            append = asyncio.ensure_future(stream.append(batch(b"waits")))
            await raised_after(engine, "metadata_watch", STALL_S + LATE_S)
            trouble.over.set()
            await append
            await passes(engine, LATE_S)

    virtually(scenario)


def test_missing_object_ids_raise_an_alarm() -> None:
    """All possibly uncommitted objects were given up, and the store denies their deletion."""
    world = World()

    async def scenario() -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            world.store.trouble = trouble = Trouble(
                lambda operation, key: operation == "delete" or is_data_put(operation, key), REFUSED
            )
            for _ in range(2):
                create = engine.streams.create_and_open_streams(
                    [CreateStreamOptions()], lambda ids: [(ids[0], batch(b"first"))]
                )
                assert await error_of(create) is not None
            append = asyncio.ensure_future(stream.append(batch(b"waits for an id")))
            await raised_after(engine, "object_ids", STALL_S + LATE_S)
            trouble.over.set()
            await append
            await passes(engine, 10 * LATE_S)

    virtually(scenario)


def test_failing_checkpoints_raise_an_alarm() -> None:
    world = World()

    async def scenario() -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            world.store.trouble = trouble = Trouble(is_checkpoint_put, REFUSED)
            interval_s = CONFIG.metadata.checkpoint_interval_ms / 1000
            began = engine.clock.monotonic()
            while "checkpoints" not in await names(engine):
                assert engine.clock.monotonic() - began < interval_s + STALL_S + LATE_S + 5
                await stream.append(batch(b"x"))
                await asyncio.sleep(1)
            assert "connection refused" in str(engine.not_ready_reason())
            trouble.over.set()
            await passes(engine, 10 * LATE_S)

    virtually(scenario)


def test_a_hanging_compaction_raises_an_alarm() -> None:
    world = World()

    async def scenario() -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            world.store.trouble = trouble = Trouble(is_data_get)
            for number in range(20):
                await stream.append(batch(b"%d" % number))
            after_s = await raised_after(engine, "compaction", STALL_S + 4 * LATE_S)
            assert after_s >= STALL_S
            trouble.over.set()
            await passes(engine, 10 * LATE_S)

    virtually(scenario)


@pytest.mark.parametrize("fails_before", [False, True])
def test_a_large_compaction_step_raises_no_alarm_before_its_time(fails_before: bool) -> None:
    """A spec of 1 MiB may take some 3 minutes at the least rate; what follows it is short. One
    failure before it, which has passed, changes nothing."""
    compaction = dataclasses.replace(
        CONFIG.compaction, compaction_rate_max_bytes_per_s=64 << 10, small_objects_min=16
    )
    world = World(config=dataclasses.replace(CONFIG, compaction=compaction))
    spent: dict[str, float] = {"get": 0, "txn": 0}

    async def slow(operation: str, key: str) -> None:
        if fails_before and not spent["get"] and is_data_get(operation, key):
            spent["get"] += 1
            raise REFUSED
        is_running = world.registry.get_sample_value("streamlog_compaction_running") == 1
        if is_running and is_data_get(operation, key) and spent["get"] < 80:
            spent["get"] += 80
            await asyncio.sleep(80)
        elif not is_running and spent["get"] >= 80 and operation == "txn" and not spent["txn"]:
            spent["txn"] += 8
            await asyncio.sleep(8)

    async def scenario() -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()
            world.store.trouble = world.kv.trouble = slow
            for _ in range(16):
                await stream.append(batch(bytes(64 << 10)))
            began = engine.clock.monotonic()
            while engine.clock.monotonic() - began < 300:
                await asyncio.sleep(1)
                assert await names(engine) == set()
            assert spent["get"] >= 80
            assert spent["txn"] == 8

    virtually(scenario)


def test_a_partition_that_does_not_open_raises_an_alarm() -> None:
    world = World(
        config=dataclasses.replace(CONFIG, compaction=CompactionConfig(compaction_process="off"))
    )

    async def scenario() -> None:
        partition = TopicPartition("t", 0)
        async with world.engine() as engine:
            await engine.logs.create_topic("t", 1)
            await engine.logs.log(partition)
        async with world.engine() as engine:
            world.store.trouble = trouble = Trouble(is_data_get)
            opening = asyncio.ensure_future(engine.logs.log(partition))
            await raised_after(engine, "partition_opens", STALL_S + LATE_S)
            assert "t-0" in str(engine.not_ready_reason())
            trouble.over.set()
            await opening
            await passes(engine, LATE_S)

    virtually(scenario)


def test_partitions_that_open_one_after_another_are_not_late() -> None:
    """Each takes less than a second; at every look some partition is being opened."""
    world = World(
        config=dataclasses.replace(CONFIG, compaction=CompactionConfig(compaction_process="off"))
    )

    async def slow(operation: str, key: str) -> None:
        await asyncio.sleep(0.95)

    async def scenario() -> None:
        async with world.engine() as engine:
            await engine.logs.create_topic("t", 80)
        async with world.engine() as engine:
            world.kv.trouble = slow
            began = world.clock.monotonic()
            for number in range(80):
                await engine.logs.log(TopicPartition("t", number))
                assert await names(engine) == set()
            assert world.clock.monotonic() - began > STALL_S + LATE_S

    virtually(scenario)


def test_a_node_that_was_paused_raises_nothing() -> None:
    """Answers that arrived during the pause are processed before an alarm is raised."""
    world = World("disk")

    class Skipping(LoopClock):
        skipped_s = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.skipped_s

    clock = Skipping()
    world.clock = clock

    async def scenario() -> None:
        async with world.engine() as engine:
            stream = await engine.streams.create_and_open_stream()

            async def slow(operation: str, key: str) -> None:
                await asyncio.sleep(0.5)

            world.store.trouble = slow
            await asyncio.sleep(30)
            await stream.append(batch(b"x"))
            clock.skipped_s += 80
            for _ in range(50):
                await asyncio.sleep(0.1)
                assert await names(engine) == set()

    virtually(scenario)
