"""Opening a partition: the meta stream is replayed, then the attributes since its last checkpoint.

1. Opening the meta stream fences the former leader; the stream's epoch is the new leader epoch.
2. The fold of its records tells the data streams, the segments and the state of the producers.
3. Data appended after the checkpoint is known from its attributes; no data is read.
4. Time index entries since the checkpoint are made again. Those that the time stream has already
   stay: they describe durable data, and the search tolerates repeated entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from streamlog.errors import Corrupt
from streamlog.log.api.config import LogConfig
from streamlog.log.api.topic_config import TopicConfig
from streamlog.log.partition.batch_metadata import decode_batch_metadata
from streamlog.log.partition.leader_epoch_cache import LeaderEpochCache
from streamlog.log.partition.producer_state_manager import ProducerLimits, ProducerStateManager
from streamlog.log.shared.meta.log import MetaLog
from streamlog.log.shared.state.tail import LogTail
from streamlog.model.batch import OpenStreamOptions
from streamlog.model.stream import Stream, StreamClient
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.gather import gather_all

BATCHES_AT_ONCE = 500
"""Batches whose attributes are replayed before other tasks get a turn: about 1.5 ms."""


class StreamIds(NamedTuple):
    """The four streams of a shared log."""

    meta: int
    data: int
    time: int
    txn: int


@dataclass(frozen=True, slots=True)
class OpenStreams:
    """`data` holds what is appended; `by_id` every stream that a segment's slice lies on."""

    meta: MetaLog
    data: Stream
    time: Stream
    txn: Stream
    by_id: Mapping[int, Stream]


async def open_streams(
    client: StreamClient,
    meta_stream_id: int,
    clock: Clock,
    config: LogConfig,
    epochs: Mapping[int, int],
) -> OpenStreams:
    """`epochs`: of streams held here already. Errors: those of open_stream, Corrupt."""

    async def opened(stream_id: int) -> Stream:
        return await client.open_stream(stream_id, OpenStreamOptions(epoch=epochs.get(stream_id)))

    meta = await MetaLog.replay(
        await opened(meta_stream_id), clock, config.meta_compaction_bytes, config.message_bytes_max
    )
    described = meta.description
    streams = await gather_all(opened(stream_id) for stream_id in sorted(meta.other_stream_ids))
    by_id = {stream.stream_id: stream for stream in streams}
    return OpenStreams(
        meta,
        by_id[described.data_stream_id],
        by_id[described.time_stream_id],
        by_id[described.txn_stream_id],
        by_id,
    )


def _limits(config: LogConfig) -> ProducerLimits:
    return ProducerLimits(
        config.producer_id_expiration_ms,
        config.producer_batches_remembered,
        config.producer_ids_max,
        config.producer_idle_ms_min,
    )


async def recover_tail(
    streams: OpenStreams, config: LogConfig, topic_config: TopicConfig
) -> LogTail:
    """The log's state at the end of its data. Errors: Corrupt, and those of the streams."""
    state = streams.meta.state
    active = state.active
    if active is None:
        raise Corrupt(
            f"meta stream {streams.meta.stream.stream_id} has no open segment to append to"
        )
    data, time = streams.data, streams.time
    shift = active.data.start_offset - active.base_offset
    if state.truncate(data.confirm_offset - shift, time.next_offset):
        # An operator gave up acknowledged data for lost; the records that describe it go, too.
        await streams.meta.compact()
        active = state.active
        assert active is not None
        shift = active.data.start_offset - active.base_offset
    producers = ProducerStateManager(_limits(config))
    tail = LogTail(producers, LeaderEpochCache(), data, shift)
    tail.restore(state, active, time.confirm_offset)
    checkpoint = state.checkpoint
    start = checkpoint.offset if checkpoint else active.base_offset
    start = max(start + shift, data.start_offset)
    batches = await data.attributes(start, data.confirm_offset)
    for position, batch in enumerate(batches):
        if position % BATCHES_AT_ONCE == BATCHES_AT_ONCE - 1:
            await asyncio.sleep(0)
        metadata = decode_batch_metadata(batch.attributes)
        tail.account(batch.base_offset - shift, batch.record_count, metadata, topic_config)
    tail.accounted_end = tail.end_offset
    for segment in tail.segments:
        segment.largest_visible = segment.largest
    return tail
