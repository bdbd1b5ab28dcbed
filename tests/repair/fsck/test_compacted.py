"""fsck and recovery of a store in which objects were compacted, trimmed and deleted."""

from __future__ import annotations

import asyncio
import dataclasses
from random import Random

import pytest

from streamlog.compaction.collect.collector import CollectorConfig
from streamlog.compaction.plan.config import KIB, CompactionConfig
from streamlog.engine.config import ReadConfig, StreamEngineConfig
from streamlog.errors import Corrupt
from streamlog.metadata.config import MetadataConfig
from streamlog.model.batch import CreateStreamOptions
from streamlog.model.stream import Stream
from streamlog.objectstore.keys import data_key
from streamlog.repair.findings import FindingKind
from streamlog.wiring import OpenEngine
from tests.repair.cluster import Cluster, append, read, recovered, run

CONFIG = StreamEngineConfig(
    read=ReadConfig(tail_cache_bytes=0),
    collector=CollectorConfig(deletion_delay_ms=0, collect_interval_ms=10**9),
    metadata=MetadataConfig(checkpoint_interval_ms=10**9),
    compaction=CompactionConfig(
        compaction_process="inline",
        compaction_interval_ms=10**9,
        small_objects_min=4,
        large_objects_min=3,
        small_object_bytes=8 * KIB,
        compacted_part_bytes=KIB,
        stream_object_bytes_min=6 * KIB,
        object_bytes_max=32 * KIB,
        spec_bytes_max=64 * KIB,
    ),
)


class _Story:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.cluster = Cluster(config=CONFIG)
        self.payloads: dict[int, list[bytes]] = {}
        self.starts: dict[int, int] = {}

    async def append(self, streams: list[Stream], count: int) -> None:
        for _ in range(count):
            stream = self.random.choice(streams)
            payload = self.random.randbytes(self.random.choice((10, 300, 2000)))
            await append(stream, payload)
            self.payloads.setdefault(stream.stream_id, []).append(payload)

    async def trim(self, streams: list[Stream]) -> None:
        for stream in streams[::2]:
            start = stream.confirm_offset // 2
            await stream.trim(start)
            self.starts[stream.stream_id] = start

    async def compact(self, opened: OpenEngine) -> None:
        assert opened.compactor is not None
        await opened.drain()
        before = opened.metadata.object_count
        await opened.compactor.compact_all()
        await opened.metadata.checkpoint()
        assert opened.metadata.object_count < before

    async def collect(self, opened: OpenEngine) -> None:
        """Dead objects go."""
        before = await self.cluster.store.list("")
        await opened.collector.tick()
        after = await self.cluster.store.list("")
        assert len(after.objects) < len(before.objects)

    async def check(self, *, trims_are_kept: bool) -> None:
        async with self.cluster.node() as opened:
            for stream_id, payloads in self.payloads.items():
                stream = await opened.streams.open_stream(stream_id)
                trimmed = self.starts.get(stream_id, 0)
                assert stream.start_offset <= trimmed
                if trims_are_kept:
                    assert stream.start_offset == trimmed
                records = await read(stream)
                assert records == dict(list(enumerate(payloads))[stream.start_offset :])
                await append(stream, b"goes on")
                payloads.append(b"goes on")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("checkpoint", ["newest", "older", "none"])
def test_compacted_streams_come_back(seed: int, checkpoint: str) -> None:
    async def scenario() -> None:
        story = _Story(seed)
        cluster = story.cluster
        async with cluster.node(crash=True) as opened:
            options = [CreateStreamOptions()] * 6
            streams = await opened.streams.create_and_open_streams(options)
            await story.append(streams, 60)
            await opened.metadata.checkpoint()
            old = {
                info.key: bytes(await cluster.store.get(info.key))
                for info in (await cluster.store.list("checkpoint/")).objects
            }
            await story.append(streams, 20)
            await story.compact(opened)
            if seed % 2:
                await story.collect(opened)
            if checkpoint == "newest":
                await story.trim(streams)
                await opened.metadata.checkpoint()
            await story.append(streams, 30)
            await story.compact(opened)
            await story.collect(opened)
            await story.append(streams, 10)
        assert (await cluster.fsck()).is_clean
        if checkpoint != "newest":
            files = (await cluster.store.list("checkpoint/")).objects
            await cluster.store.delete([info.key for info in files])
        if checkpoint == "older":
            for key, content in old.items():
                await cluster.store.put(key, [content])
        cluster.lose_metadata()
        report = await recovered(cluster)
        assert not report.of_kind(FindingKind.TRIMMED)
        checked = await cluster.fsck()
        assert checked.is_clean, checked.findings
        await story.check(trims_are_kept=checkpoint == "newest")
        assert (await cluster.fsck()).is_clean

    run(scenario)


def test_trims_without_a_checkpoint_are_seen_by_missing_objects() -> None:
    """Objects were deleted, then all checkpoints were lost: streams start behind the gap."""

    async def scenario() -> None:
        story = _Story(1)
        cluster = story.cluster = Cluster(
            config=dataclasses.replace(
                CONFIG, compaction=CompactionConfig(compaction_process="off")
            )
        )
        async with cluster.node(crash=True) as opened:
            kept, trimmed = await opened.streams.create_and_open_streams(
                [CreateStreamOptions()] * 2
            )
            # Object 1 lives on by its other stream; those after it die with the trim.
            await opened.streams.create_and_open_streams([CreateStreamOptions()])
            await append(kept, b"k")
            await append(trimmed, *(b"%d" % number for number in range(8)))
            first = (await opened.metadata.locate(trimmed.stream_id, 0, 1))[0].object
            await trimmed.trim(6)
            await opened.metadata.checkpoint()
            held = bytes(await cluster.store.get(data_key(first.object_id)))
            await story.collect(opened)
            await cluster.store.put(data_key(first.object_id), [held])
            # So many objects later nothing of the beginning can be uncommitted any more.
            for number in range(1100):
                await append(kept, b"%d" % number)
            trimmed_id, kept_id = trimmed.stream_id, kept.stream_id
        files = (await cluster.store.list("checkpoint/")).objects
        await cluster.store.delete([info.key for info in files])
        cluster.lose_metadata()
        report = await recovered(cluster)
        (finding,) = report.of_kind(FindingKind.TRIMMED)
        assert [(one.start, one.end) for one in finding.lost] == [(0, 1)]
        async with cluster.node() as opened:
            assert await read(await opened.streams.open_stream(trimmed_id)) == {6: b"6", 7: b"7"}
            assert len(await read(await opened.streams.open_stream(kept_id))) == 1101

    run(scenario)


def test_a_trimmed_beginning_in_a_shared_object_does_not_pass_for_the_whole_stream() -> None:
    """An object keeps offset 0 for the sake of another stream; all checkpoints were lost."""

    async def scenario() -> None:
        story = _Story(1)
        cluster = story.cluster = Cluster(
            config=dataclasses.replace(
                CONFIG, compaction=CompactionConfig(compaction_process="off")
            )
        )
        async with cluster.node(crash=True) as opened:
            kept, trimmed = await opened.streams.create_and_open_streams(
                [CreateStreamOptions()] * 2
            )
            await asyncio.gather(append(kept, b"k"), append(trimmed, b"0"))
            first = (await opened.metadata.locate(trimmed.stream_id, 0, 1))[0].object
            assert (await opened.metadata.locate(kept.stream_id, 0, 1))[0].object == first
            await append(trimmed, *(b"%d" % number for number in range(1, 8)))
            await trimmed.trim(6)
            await opened.metadata.checkpoint()
            await story.collect(opened)
            await append(trimmed, b"8", b"9")
            trimmed_id, kept_id = trimmed.stream_id, kept.stream_id
        files = (await cluster.store.list("checkpoint/")).objects
        await cluster.store.delete([info.key for info in files])
        cluster.lose_metadata()
        with pytest.raises(Corrupt, match="taken for trimmed"):
            await recovered(cluster)
        report = await recovered(cluster, accept_data_loss=True)
        (finding,) = report.of_kind(FindingKind.TRIMMED)
        assert [(one.start, one.end) for one in finding.lost] == [(0, 1)]
        assert not report.of_kind(FindingKind.UNACKNOWLEDGED_TAIL)
        async with cluster.node() as opened:
            records = await read(await opened.streams.open_stream(trimmed_id))
            assert records == {6: b"6", 7: b"7", 8: b"8", 9: b"9"}
            assert await read(await opened.streams.open_stream(kept_id)) == {0: b"k"}

    run(scenario)
