"""Random histories of a node that compacts all the time, is killed, and loses its worker.

Acknowledged batches of every stream are kept beside the engine; what a stream shows from its start
to its end must be those, whatever was compacted, trimmed, deleted or recovered meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import signal
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from prometheus_client import CollectorRegistry

import streamlog
from streamlog.compaction.collect.collector import CollectorConfig
from streamlog.compaction.plan.config import KIB, MIB, CompactionConfig
from streamlog.compaction.workers.process import ProcessExecutor
from streamlog.engine.config import (
    FlushConfig,
    ObjectConfig,
    ReadConfig,
    StreamEngineConfig,
    UploadConfig,
)
from streamlog.errors import StoreUnavailable, StreamlogError
from streamlog.kvstore.interface import KVStore
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.kvstore.rocks.store import RocksKVStore
from streamlog.metadata.config import MetadataConfig
from streamlog.model.batch import CreateStreamOptions, OpenStreamOptions, RecordBatch
from streamlog.model.stream import Stream
from streamlog.objectstore.local.store import LocalObjectStore
from streamlog.repair.findings import RepairReport, Severity
from streamlog.repair.fsck.fsck import FsckOptions, fsck
from streamlog.repair.recover.recover import recover
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SystemRandom
from streamlog.wal.config import WalMode
from streamlog.wiring import Components, OpenEngine

FETCH_BYTES = 16 * KIB
SIZES = (0, 0, 10, 300, 2000, 9000)
COUNTS = (1, 1, 2, 7, 1000, 1 << 20)


@dataclass(slots=True)
class Content:
    """A stream's acknowledged batches as (base, count, payload, attributes), and its start."""

    batches: list[tuple[int, int, bytes, bytes]] = field(default_factory=list)
    end: int = 0
    trimmed: int = 0


class RandomHistory:
    def __init__(self, seed: int, path: Path, *, in_process: bool) -> None:
        self.random = Random(seed)
        self.path = path
        self.in_process = in_process
        self.contents: dict[int, Content] = {}
        self.committed = 0.0
        """Compactions in lives that were looked at to their end."""
        self.kills = 0
        pick = self.random.choice
        self.wal: WalMode = pick(["disk", "object"])
        self.config = StreamEngineConfig(
            flush=FlushConfig(flush_interval_ms=pick([0, 5])),
            upload=UploadConfig(
                upload_interval_ms=pick([2, 10]), upload_bytes_target=pick([4, 16]) * KIB
            ),
            object=ObjectConfig(
                compression=pick(["none", "zstd"]), block_target_bytes=pick([1, 8, 512]) * KIB
            ),
            read=ReadConfig(
                tail_cache_bytes=0, block_cache_bytes=64 * KIB, index_cache_bytes=16 * KIB
            ),
            collector=CollectorConfig(
                deletion_delay_ms=pick([0, 40]), collect_interval_ms=pick([20, 150])
            ),
            metadata=MetadataConfig(
                checkpoint_interval_ms=pick([30, 150]),
                delta_bytes_min=pick([0, 2 * KIB, 256 * KIB]),
                orphan_resweep_ms=pick([0, 24 * 3600 * 1000]),
            ),
            compaction=CompactionConfig(
                compaction_process="process" if in_process else "inline",
                compaction_interval_ms=pick([1, 30, 200]),
                compaction_memory_bytes=4 * MIB,
                small_objects_min=pick([2, 4, 8]),
                large_objects_min=pick([2, 3]),
                small_object_bytes=pick([4, 32, 1024]) * KIB,
                compacted_part_bytes=pick([1, 4, 64]) * KIB,
                stream_object_bytes_min=pick([2, 24, 1024]) * KIB,
                object_bytes_max=pick([2, 16, 128]) * KIB,
                spec_bytes_max=pick([1, 16, 96, 2048]) * KIB,
                block_target_bytes=pick([1, 4, 64]) * KIB,
                dead_share_min=pick([0.05, 0.5]),
            ),
        )

    async def run(self, lives: int, steps: int) -> None:
        for life in range(lives):
            async with self._engine() as opened:
                streams = [
                    await opened.streams.open_stream(stream_id, OpenStreamOptions())
                    for stream_id in self.contents
                ]
                await self._check(streams)
                reading = asyncio.ensure_future(self._read_all_the_time(streams))
                try:
                    for _ in range(steps):
                        await self._step(opened, streams)
                        if reading.done():
                            reading.result()
                    if life % 2:
                        await self._compact(opened)
                    await self._check(streams)
                finally:
                    reading.cancel()
                self._look_for_failures(opened)
                if self.random.random() < 0.6:
                    await opened.kill()
            if self.wal == "object" and self.random.random() < 0.5:
                await self._recover_a_copy()
        async with self._engine() as opened:
            streams = [
                await opened.streams.open_stream(stream_id, OpenStreamOptions())
                for stream_id in self.contents
            ]
            await self._compact(opened)
            await opened.metadata.checkpoint()
            await self._check(streams)
            self._look_for_failures(opened)
        await self._fsck_and_recover()

    def _engine(self) -> AbstractAsyncContextManager[OpenEngine]:
        return streamlog.open(
            f"local://{self.path}",
            wal=self.wal,
            config=self.config,
            components=Components(registry=CollectorRegistry()),
        )

    async def _compact(self, opened: OpenEngine) -> None:
        await opened.drain()
        assert opened.compactor is not None
        while True:
            try:
                await opened.compactor.compact_all()
            except StoreUnavailable:
                # Its process was killed.
                continue
            return

    def _look_for_failures(self, opened: OpenEngine) -> None:
        get = opened.registry.get_sample_value
        prefix = "streamlog_compaction_"
        for outcome in ("failed", "corrupt", "conflict", "fenced"):
            assert not get(f"{prefix}specs_total", {"outcome": outcome}), outcome
        assert not get(f"{prefix}quarantined_objects")
        assert not get(f"{prefix}stopped")
        assert not get("streamlog_collector_stopped")
        self.committed += get(f"{prefix}specs_total", {"outcome": "committed"}) or 0

    async def _step(self, opened: OpenEngine, streams: list[Stream]) -> None:
        random = self.random
        kind = random.random()
        if not streams or (kind < 0.03 and len(streams) < 12):
            for stream in await opened.streams.create_and_open_streams(
                [CreateStreamOptions()] * random.randint(1, 4)
            ):
                streams.append(stream)
                self.contents[stream.stream_id] = Content()
        elif kind < 0.80:
            await self._append(streams)
        elif kind < 0.90:
            await self._trim(random.choice(streams))
        elif kind < 0.92 and len(streams) > 2:
            stream = streams.pop(random.randrange(len(streams)))
            del self.contents[stream.stream_id]
            await stream.destroy()
        elif kind < 0.94:
            self._kill_worker(opened)
        elif kind < 0.96:
            await self._check([random.choice(streams)])
        elif kind < 0.98:
            await opened.metadata.checkpoint()
        else:
            await asyncio.sleep(random.choice([0.001, 0.01, 0.05]))

    async def _append(self, streams: list[Stream]) -> None:
        """A few at once, so that uploads hold several streams and batches."""
        random = self.random
        waiting, added = [], []
        hot = random.sample(streams, min(len(streams), random.choice([1, 3, 12])))
        for _ in range(random.choice([1, 2, 12])):
            stream = random.choice(hot)
            payload = random.randbytes(random.choice(SIZES) // 2) * 2
            attributes = random.randbytes(random.choice([0, 0, 3, 64]))
            count = random.choice(COUNTS)
            added.append((stream, stream.next_offset, count, payload, attributes))
            batch = RecordBatch(count, random.randint(0, 1 << 40), (payload,), attributes)
            waiting.append(asyncio.ensure_future(stream.append(batch)))
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        for (stream, base, count, payload, attributes), ack in zip(added, waiting, strict=True):
            assert ack.result().base_offset == base
            content = self.contents[stream.stream_id]
            content.batches.append((base, count, payload, attributes))
            content.end = base + count

    async def _trim(self, stream: Stream) -> None:
        random, content = self.random, self.contents[stream.stream_id]
        wanted = content.trimmed
        if content.batches:
            base, count, _, _ = random.choice(content.batches)
            wanted = random.choice([base, base + count // 2, base + count, content.end])
        content.trimmed = max(content.trimmed, wanted)
        await stream.trim(wanted)

    def _kill_worker(self, opened: OpenEngine) -> None:
        if not self.in_process:
            return
        assert opened.compactor is not None
        executor = opened.compactor._executor.own
        assert isinstance(executor, ProcessExecutor)
        if executor.pid is not None:
            self.kills += 1
            # It may have ended by an earlier kill that nobody has noticed yet.
            with contextlib.suppress(ProcessLookupError):
                os.kill(executor.pid, signal.SIGKILL)

    async def _read_all_the_time(self, streams: list[Stream]) -> None:
        """Reads what is confirmed, in small pieces, while it is compacted and deleted."""
        random = Random(1)
        while True:
            await asyncio.sleep(0.002)
            stream = random.choice(streams) if streams else None
            content = self.contents.get(stream.stream_id) if stream else None
            if stream is None or content is None or not content.batches:
                continue
            base, count, payload, _ = random.choice(content.batches)
            if base < content.trimmed:
                continue
            try:
                fetched = await stream.fetch(base, base + count, 1)
            except StreamlogError:
                assert base < content.trimmed or stream.stream_id not in self.contents
                continue
            one = fetched.batches[0]
            assert (one.base_offset, one.record_count) == (base, count)
            assert b"".join(one.parts) == payload

    async def _check(self, streams: list[Stream], *, is_recovered: bool = False) -> None:
        """What was trimmed of late may come back by recovery, as it was."""
        for stream in streams:
            content = self.contents[stream.stream_id]
            start, end = stream.start_offset, content.end
            assert start <= content.trimmed if is_recovered else start == content.trimmed
            assert stream.confirm_offset == end
            stored = []
            at = start
            while at < end:
                result = await stream.fetch(at, end, FETCH_BYTES)
                stored += [
                    (b.base_offset, b.record_count, b"".join(b.parts), b.attributes)
                    for b in result.batches
                ]
                at = result.batches[-1].end_offset
            wanted = [one for one in content.batches if one[0] + one[1] > start]
            assert stored == wanted, stream.stream_id
            attributes = await stream.attributes(start, end)
            assert [(one.base_offset, one.attributes) for one in attributes] == [
                (one[0], one[3]) for one in wanted
            ]

    async def _fsck_and_recover(self) -> None:
        clock, random, offload = SystemClock(), SystemRandom(), ThreadOffload()
        try:
            store = await LocalObjectStore.open(self.path, offload, clock)
            kv = await RocksKVStore.open(str(self.path / "meta"), clock, offload)
            try:
                report = await fsck(
                    kv,
                    store,
                    clock=clock,
                    random=random,
                    offload=offload,
                    options=FsckOptions(deep=True),
                )
            finally:
                await kv.close()
            _complain(report)
            new = MemoryKVStore(clock)
            report = await recover(new, store, clock=clock, random=random, offload=offload)
            assert not report.has_errors, report.findings
            await self._check_recovered(new, self.path)
        finally:
            await offload.close()

    async def _recover_a_copy(self) -> None:
        """As if the metadata were lost now: inputs, outputs and orphans lie in the bucket."""
        copy = self.path.with_name("copy")
        clock, random, offload = SystemClock(), SystemRandom(), ThreadOffload()
        try:
            shutil.copytree(self.path, copy, ignore=shutil.ignore_patterns("meta", "wal"))
            store = await LocalObjectStore.open(copy, offload, clock)
            kv = MemoryKVStore(clock)
            report = await recover(kv, store, clock=clock, random=random, offload=offload)
            assert not report.has_errors, report.findings
            await self._check_recovered(kv, copy)
        finally:
            await offload.close()
            shutil.rmtree(copy)

    async def _check_recovered(self, kv: KVStore, path: Path) -> None:
        async with streamlog.open(
            f"local://{path}",
            wal="object",
            config=dataclasses.replace(
                self.config, compaction=CompactionConfig(compaction_process="off")
            ),
            components=Components(registry=CollectorRegistry(), kv=kv),
        ) as opened:
            streams = [
                await opened.streams.open_stream(stream_id, OpenStreamOptions())
                for stream_id in self._written()
            ]
            await self._check(streams, is_recovered=True)

    def _written(self) -> list[int]:
        """An empty stream is in no object: only a checkpoint knows of it."""
        return [stream_id for stream_id, content in self.contents.items() if content.batches]


def _complain(report: RepairReport) -> None:
    bad = [one for one in report.findings if one.severity > Severity.NOTE]
    assert not bad, bad[:5]
