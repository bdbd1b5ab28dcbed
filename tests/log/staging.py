"""Staged writes to the partitions of an open engine, and what the partitions hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamlog.codec.batch import BatchProducer, scan
from streamlog.codec.records import BatchBuilder, decode
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.staged_logs import ManifestEntry, StagedBatches, StagedLogs
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import join
from streamlog.wiring import OpenEngine
from tests.support.log_insides import tail_of

NOW_MS = 1_700_000_000_000


def encoded(
    values: Sequence[bytes], *, at_ms: int = NOW_MS, producer: BatchProducer | None = None
) -> bytes:
    builder = BatchBuilder(1 << 20)
    builder.extend(values, timestamp_ms=at_ms)
    return bytes(builder.build() if producer is None else builder.build(producer))


def staged_of(engine: OpenEngine) -> StagedLogs:
    assert engine.logs.staged is not None
    return engine.logs.staged


def entry(staged: StagedBatches) -> ManifestEntry:
    return ManifestEntry(staged.staged.object_id, [part.partition for part in staged.parts])


async def topic(
    engine: OpenEngine, partitions: int = 1, configs: Mapping[str, str] | None = None
) -> list[TopicPartition]:
    await engine.logs.create_topic("t", partitions, configs or {})
    return [TopicPartition("t", n) for n in range(partitions)]


async def stage(
    engine: OpenEngine, attempt: str, batches: Mapping[TopicPartition, bytes]
) -> StagedBatches:
    return await staged_of(engine).stage("w", attempt, batches)


async def contents(log: AbstractLog) -> list[tuple[int, bytes | None]]:
    """(offset, value) of every record; each batch is scanned with its CRC."""
    records: list[tuple[int, bytes | None]] = []
    position = log.log_start_offset
    while position < log.high_watermark:
        fetched = await log.fetch(position, 1 << 20)
        for batch in scan(join(fetched.parts)):
            assert batch.header.leader_epoch == epoch_of(log, batch.header.base_offset)
            for offset, _, _, value, _ in decode(batch.view):
                if offset >= position:
                    records.append((offset, value))
        position = fetched.next_offset
    return records


def epoch_of(log: AbstractLog, offset: int) -> int:
    return tail_of(log).epochs.epoch_at(offset)
