"""What committed readers of an offline partition must know: where it is stable, what was aborted.

The state is that of the meta stream's last checkpoint, and of the attributes of the batches behind
it, as when a node opens the partition. A node that ended well has written a checkpoint at the end,
so that no attributes are left to read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from streamlog.format.kafka_files.transaction_index import AbortedTxn, decode_aborted
from streamlog.log.partition.batch_metadata import decode_batch_metadata
from streamlog.log.partition.producer_state_manager import ProducerLimits, ProducerStateManager
from streamlog.log.shared.meta.codec import NO_TXN_ENTRIES, SegmentOpened
from streamlog.log.shared.meta.state import MetaState
from streamlog.model.batch import StreamSlice
from streamlog.model.located import AbortedSpan
from streamlog.objectstore.interface import ObjectStore
from streamlog.reading.streams import read_attributes, read_stream_from_batch
from streamlog.repair.view import MetadataView
from streamlog.runtime.buffers import join
from streamlog.runtime.offload import Offload

_NEVER_MS = 1 << 62


@dataclass(frozen=True, slots=True)
class OfflineTransactions:
    """`last_stable_offset` ≤ the partition's end; `aborted` in the order of their markers."""

    last_stable_offset: int
    aborted: Sequence[AbortedTxn] = ()

    def overlapping(self, start: int, end: int) -> list[AbortedSpan]:
        """Those with a record, or their marker, in start (inclusive) to end (exclusive)."""
        return [
            AbortedSpan(*entry[:3])
            for entry in self.aborted
            if entry.first_offset < end and entry.last_offset >= start
        ]


async def transactions_of(
    view: MetadataView, store: ObjectStore, offload: Offload, state: MetaState, end_offset: int
) -> OfflineTransactions:
    """Of the partition with the meta stream's `state`, which ends at `end_offset`.

    Errors: Corrupt, ObjectNotFound, StoreUnavailable.
    """
    active = state.active
    assert active is not None
    aborted: list[AbortedTxn] = []
    for part in _stored_slices(state, active):
        async for entry in _entries(view, store, offload, part):
            if entry.last_offset < end_offset:
                aborted.append(entry)
    producers = ProducerStateManager(ProducerLimits(expiration_ms=_NEVER_MS))
    checkpoint = state.checkpoint
    start = active.base_offset
    if checkpoint is not None:
        producers.restore(checkpoint.producers)
        start = max(start, checkpoint.offset)
    shift = active.data.start_offset - active.base_offset
    async for batch in read_attributes(
        view, store, active.data.stream_id, start + shift, end_offset + shift
    ):
        metadata = decode_batch_metadata(batch.attributes)
        newer = producers.account(batch.base_offset - shift, batch.record_count, metadata)
        if newer is not None:
            aborted.append(newer)
    producers.unstable.durable(end_offset)
    return OfflineTransactions(min(end_offset, producers.unstable.first), aborted)


def _stored_slices(state: MetaState, active: SegmentOpened) -> list[StreamSlice]:
    """Where the entries lie that the checkpoint and the sealed segments know of."""
    slices = [segment.txn for segment in state.sealed]
    checkpoint = state.checkpoint
    is_of_active = checkpoint is not None and checkpoint.active_base_offset == active.base_offset
    if checkpoint is not None and is_of_active and checkpoint.txn_stream_end != NO_TXN_ENTRIES:
        txn = active.txn
        slices.append(StreamSlice(txn.stream_id, txn.start_offset, checkpoint.txn_stream_end))
    return [part for part in slices if part.end_offset > part.start_offset]


async def _entries(
    view: MetadataView, store: ObjectStore, offload: Offload, part: StreamSlice
) -> AsyncIterator[AbortedTxn]:
    """One entry is one record of the stream. A batch may have entries of several segments."""
    async for batch in read_stream_from_batch(
        view, store, offload, part.stream_id, part.start_offset, part.end_offset
    ):
        first = max(part.start_offset - batch.base_offset, 0)
        last = part.end_offset - batch.base_offset
        for entry in decode_aborted(join(batch.parts))[first:last]:
            yield entry
