"""What a compat folder holds, how it was made, and what must come out of it in every later release.

Only names that users have, or that stay: the folder is made by the release whose version it shows.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Literal

import streamlog
from streamlog.codec.batch import BatchProducer, Compression
from streamlog.codec.records import encode_values
from streamlog.compaction.plan.config import KIB, CompactionConfig
from streamlog.engine.config import ObjectConfig, StreamEngineConfig, UploadConfig
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.staged_logs import ManifestEntry
from streamlog.metadata.config import MetadataConfig
from streamlog.model.batch import (
    AppendContext,
    CreateStreamOptions,
    OpenStreamOptions,
    RecordBatch,
)
from streamlog.model.kv import Key
from streamlog.model.partition import TopicPartition
from streamlog.model.stream import Stream
from streamlog.runtime.clock import Clock
from streamlog.wal.config import WalConfig
from streamlog.wiring import Components, OpenEngine

Mode = Literal["disk", "object"]
MODES: tuple[Mode, ...] = ("disk", "object")
CODECS = (
    Compression.NONE,
    Compression.GZIP,
    Compression.SNAPPY,
    Compression.LZ4,
    Compression.ZSTD,
)
NEVER_MS = 10**9
YEAR_MS = 365 * 24 * 3_600_000
WRITER = "job"
STAGED = (TopicPartition("packed", 1), TopicPartition("staged", 0), TopicPartition("staged", 1))


def config(mode: Mode) -> StreamEngineConfig:
    return StreamEngineConfig(
        upload=UploadConfig(upload_interval_ms=NEVER_MS),
        object=ObjectConfig(compression="zstd" if mode == "object" else "none"),
        wal=WalConfig(wal_bytes_max=2 << 20, file_bytes=1 << 20),
        metadata=MetadataConfig(checkpoint_interval_ms=NEVER_MS),
        compaction=CompactionConfig(
            compaction_process="inline",
            compaction_interval_ms=NEVER_MS,
            small_objects_min=4,
            small_object_bytes=64 * KIB,
        ),
    )


def opened(folder: Path, mode: Mode, clock: Clock | None = None) -> Any:
    """The data in `folder` as one of `streamlog dev --data` lies."""
    return streamlog.open(
        f"local://{folder}/objects",
        meta=f"rocksdb://{folder}/meta",
        wal=mode,
        wal_dir=folder / "wal",
        config=config(mode),
        components=Components(clock=clock),
    )


def retried(mode: Mode) -> bytes:
    """The batch that an idempotent producer sends last, and may send again."""
    producer = BatchProducer(0, 0, 4)
    values = [b"last of " + mode.encode()]
    return bytes(encode_values(values, timestamp_ms=9, producer=producer).data)


async def make(folder: Path, mode: Mode) -> dict[str, Any]:
    """Fills the folder, ends as a crash does, and says what must come out."""
    async with opened(folder, mode) as engine:
        await engine.logs.create_topic(
            "packed", 2, {"retention.ms": "-1", "internal.segment.bytes": "4000"}
        )
        await engine.logs.create_topic("retried", 1)
        packed = await log_of(engine, "packed", 0)
        for number, codec in enumerate(CODECS):
            values = [b"%s %d %d" % (codec.name.encode(), number, i) * 3 for i in range(6)]
            await produce(packed, values, codec)
        other = await log_of(engine, "packed", 1)
        for number in range(4):
            await produce(other, [b"other %d" % number], Compression.NONE)
        await packed.roll()
        await other.delete_records(2)
        producer_id, epoch = await engine.logs.init_producer_id()
        assert (producer_id, epoch) == (0, 0)
        log = await log_of(engine, "retried", 0)
        for sequence in range(4):
            batch = encode_values(
                [b"%d" % sequence], timestamp_ms=sequence, producer=BatchProducer(0, 0, sequence)
            )
            await (await log.append(batch.data))
        stream = await engine.streams.create_and_open_stream(
            CreateStreamOptions(tags={"name": "trimmed"})
        )
        await fill(stream, range(12), token=True)
        await stream.trim(5)
        closed = await engine.streams.create_and_open_stream(
            CreateStreamOptions(tags={"name": "closed"})
        )
        await fill(closed, range(3))
        await closed.close()
        await engine.logs.create_topic("staged", 2)
        assert await commit(engine, 0, await staged(engine, "first"))
        await engine.drain()
        await engine.compactor.compact_all()
        await engine.metadata.checkpoint()
        await engine.kv.put_kv(Key(b"user/key", "mine"), b"\0value\xff")
        await fill(stream, range(12, 16))
        await produce(packed, [b"after the checkpoint"], Compression.ZSTD)
        assert await commit(engine, 1, await staged(engine, "second"))
        waiting = await staged(engine, "third")
        await engine.drain()
        await engine.compactor.compact_all()
        # With wal=disk this, and nothing else, is in the WAL alone.
        await fill(stream, range(16, 18))
        await (await log.append(retried(mode)))
        expected = {**await content(engine), "waiting": waiting}
        await engine.kill()
    return expected


async def staged(engine: OpenEngine, attempt: str) -> int:
    """The id of an object with batches for several partitions, which nobody sees."""
    assert engine.logs.staged is not None
    batches = {
        partition: encode_values(
            [b"%s %s %d" % (attempt.encode(), str(partition).encode(), i) for i in range(3)],
            timestamp_ms=1_700_000_000_000,
            compression=Compression.ZSTD,
        ).data
        for partition in STAGED
    }
    found = await engine.logs.staged.stage(WRITER, attempt, batches, expires_ms=100 * YEAR_MS)
    return found.staged.object_id


async def commit(engine: OpenEngine, epoch: int, object_id: int) -> bool:
    """Whether it came now; False: it had come before."""
    assert engine.logs.staged is not None
    manifest = [ManifestEntry(object_id, STAGED)]
    return not (await engine.logs.staged.commit(WRITER, epoch, manifest)).was_committed


async def content(engine: OpenEngine) -> dict[str, Any]:
    """All that can be read, as JSON."""
    topics = {}
    for info in engine.logs.list_topics():
        logs = [await log_of(engine, info.name, number) for number in range(info.partitions)]
        topics[info.name] = {
            "configs": dict(info.configs),
            "partitions": [await _log(log) for log in logs],
        }
    streams = {}
    for row in await engine.streams.list_streams():
        if "name" in row.tags:
            stream = await engine.streams.open_stream(row.stream_id, OpenStreamOptions())
            streams[row.tags["name"]] = await _stream(stream)
            if row.tags["name"] == "closed":
                await stream.close()
    value = await engine.kv.get_kv(Key(b"user/key", "mine"))
    assert value is not None
    return {"topics": topics, "streams": streams, "value": _text(value.data)}


async def _log(log: AbstractLog) -> dict[str, Any]:
    found, at = [], log.log_start_offset
    while at < log.high_watermark:
        fetched = await log.fetch(at, 1)
        found.append(_text(b"".join(bytes(part) for part in fetched.parts)))
        at = fetched.next_offset
    return {"start": log.log_start_offset, "end": log.high_watermark, "batches": found}


async def _stream(stream: Stream) -> dict[str, Any]:
    found, at = [], stream.start_offset
    while at < stream.confirm_offset:
        for one in (await stream.fetch(at, stream.confirm_offset, 1)).batches:
            place = [one.base_offset, one.record_count, one.base_timestamp_ms]
            found.append([*place, _text(b"".join(one.parts)), _text(one.attributes)])
            at = one.end_offset
    return {"start": stream.start_offset, "end": stream.confirm_offset, "batches": found}


async def log_of(engine: OpenEngine, topic: str, number: int) -> AbstractLog:
    return await engine.logs.log(TopicPartition(topic, number))


async def produce(log: AbstractLog, values: list[bytes], codec: Compression) -> None:
    batch = encode_values(values, timestamp_ms=1_700_000_000_000, compression=codec)
    await (await log.append(batch.data))


async def fill(stream: Stream, numbers: range, *, token: bool = False) -> None:
    for number in numbers:
        batch = RecordBatch(1, number, (b"payload %d " % number * 9,), b"attributes"[: number % 10])
        await stream.append(batch, AppendContext(fencing_token=b"" if token else None))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
