"""What a read-committed reader leaves out of fetched batches. Pure.

Source: Kafka's consumer (CompletedFetch).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from streamlog.codec.batch import ScannedBatch
from streamlog.codec.control import ControlType, decode_end_marker


def committed(
    batches: Iterable[ScannedBatch], aborted: Iterable[tuple[int, int]]
) -> Iterator[ScannedBatch]:
    """The batches without control batches, and without those of aborted transactions.

    `aborted`: (first offset, producer id) of each transaction that the server told with the
    batches. A producer's transactional batches are dropped from there to its ABORT marker.
    Errors: InvalidRecord, CorruptMessage (a damaged marker of such a producer).
    """
    todo = sorted(aborted, reverse=True)
    aborting: set[int] = set()
    for batch in batches:
        header = batch.header
        while todo and todo[-1][0] <= header.last_offset:
            aborting.add(todo.pop()[1])
        if header.is_control:
            if header.producer_id in aborting:
                marker = decode_end_marker(batch.view)
                if marker is not None and marker.control_type is ControlType.ABORT:
                    aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            yield batch
