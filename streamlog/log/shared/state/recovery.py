"""Opening a partition: the meta stream is replayed, then the attributes since its last checkpoint.

1. Opening the meta stream fences the former leader; the stream's epoch is the new leader epoch.
2. The fold of its records tells the data streams, the segments and the state of the producers.
3. Data appended after the checkpoint is known from its attributes; no data is read.
4. Time index entries since the checkpoint are made again. Those that the time stream has already
   stay: they describe durable data, and the search tolerates repeated entries.
5. Entries of aborted transactions since the checkpoint are made again, too, and are the same as
   before. So those that the txn stream has behind the checkpoint's are the first of them, and are
   not stored again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from streamlog.errors import Corrupt
from streamlog.format.kafka_files.transaction_index import (
    ENTRY_BYTES,
    AbortedTxn,
    decode_aborted,
)
from streamlog.log.api.config import LogConfig
from streamlog.log.api.topic_config import TopicConfig
from streamlog.log.partition.batch_metadata import decode_batch_metadata
from streamlog.log.partition.leader_epoch_cache import LeaderEpochCache
from streamlog.log.partition.producer_state_manager import ProducerLimits, ProducerStateManager
from streamlog.log.shared.aborted.aborted_batch import aborted_batch
from streamlog.log.shared.meta.log import MetaLog
from streamlog.log.shared.state.tail import LogTail
from streamlog.model.batch import OpenStreamOptions
from streamlog.model.stream import Stream, StreamClient
from streamlog.runtime.buffers import join
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.gather import gather_all

BATCHES_AT_ONCE = 500
"""Batches whose attributes are replayed before other tasks get a turn: about 1.5 ms."""

TXN_READ_BYTES = 1 << 20


class StreamIds(NamedTuple):
    """The four streams of a shared log."""

    meta: int
    data: int
    time: int
    txn: int


@dataclass(frozen=True, slots=True)
class OpenStreams:
    """`data` holds what is appended; `by_id` every stream that a segment's slice lies on.

    The log's first cleaning makes more of them, with `client`.
    """

    client: StreamClient
    meta: MetaLog
    data: Stream
    time: Stream
    txn: Stream
    by_id: dict[int, Stream]


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
        client,
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
        await _drop_lost_aborted(streams)
    tail = await _replayed(streams, config, topic_config)
    if not tail.found_aborted(streams.txn.confirm_offset):
        # The same, for data or entries that no other record describes.
        await _drop_lost_aborted(streams)
        tail = await _replayed(streams, config, topic_config)
        if not tail.found_aborted(streams.txn.confirm_offset):
            raise Corrupt(
                f"txn stream {streams.txn.stream_id} does not have the aborted transactions that "
                "the attributes of the log's data tell"
            )
    for segment in tail.segments:
        segment.largest_visible = segment.largest
    return tail


async def _replayed(streams: OpenStreams, config: LogConfig, topic_config: TopicConfig) -> LogTail:
    """The meta stream's state, and what the attributes behind its checkpoint add to it."""
    state, data = streams.meta.state, streams.data
    active, checkpoint = state.active, state.checkpoint
    assert active is not None
    shift = active.data.start_offset - active.base_offset
    tail = LogTail(ProducerStateManager(_limits(config)), LeaderEpochCache(), data, shift)
    tail.restore(state, active, streams.time.confirm_offset)
    start = checkpoint.offset if checkpoint else active.base_offset
    start = max(start + shift, data.start_offset)
    batches = await data.attributes(start, data.confirm_offset)
    for position, batch in enumerate(batches):
        if position % BATCHES_AT_ONCE == BATCHES_AT_ONCE - 1:
            await asyncio.sleep(0)
        metadata = decode_batch_metadata(batch.attributes)
        tail.account(batch.base_offset - shift, batch.record_count, metadata, topic_config)
    tail.accounted_end = tail.end_offset
    return tail


async def _drop_lost_aborted(streams: OpenStreams) -> None:
    """Gives the open segment a new txn slice, without the entries whose markers were lost.

    The slice before may hold some of them, also before entries that are kept, because an earlier
    open was cut off here: entries are stored before the meta stream names their slice.
    """
    state, txn = streams.meta.state, streams.txn
    active, checkpoint = state.active, state.checkpoint
    assert active is not None
    end_offset = streams.data.confirm_offset - active.data.start_offset + active.base_offset
    start = max(active.txn.start_offset, txn.start_offset)
    kept = [
        entry
        for entry in sorted(await _stored_aborted(txn, start), key=lambda entry: entry.last_offset)
        if active.base_offset <= entry.last_offset < end_offset
    ]
    new_start = txn.next_offset
    room = max(1, streams.meta.entry_bytes_max // ENTRY_BYTES)
    for low in range(0, len(kept), room):
        await txn.append(aborted_batch(kept[low : low + room]))
    checked = 0 if checkpoint is None else checkpoint.offset
    count = sum(entry.last_offset < checked for entry in kept)
    state.restart_txn(new_start, new_start + count)
    await streams.meta.compact()


async def _stored_aborted(txn: Stream, start: int) -> set[AbortedTxn]:
    """The entries of the txn stream from the offset on."""
    entries: set[AbortedTxn] = set()
    while start < txn.confirm_offset:
        batches = (await txn.fetch(start, txn.confirm_offset, TXN_READ_BYTES)).batches
        for batch in batches:
            first = max(start - batch.base_offset, 0)
            entries.update(decode_aborted(join(batch.parts))[first:])
        start = batches[-1].end_offset
    return entries
