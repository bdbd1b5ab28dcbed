"""When a stored batch was appended, for the answer to a producer that sends it again."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Protocol

from streamlog.errors import StreamlogError
from streamlog.log.partition.batch_metadata import decode_batch_metadata
from streamlog.model.batch import StreamSlice
from streamlog.model.stream import Stream

UNKNOWN_MS = -1


class SegmentOfData(Protocol):
    @property
    def base_offset(self) -> int: ...
    @property
    def data(self) -> StreamSlice: ...


async def append_time_of(
    segments: Sequence[SegmentOfData], streams: Mapping[int, Stream], last_offset: int
) -> int:
    """The log-append time of the durable batch that ends with the offset; -1 where it has none.

    Also -1 where its attributes are deleted, or cannot be read now: the batch is stored, and its
    producer must hear so. Where a cleaning has removed the batch, the next one has its offsets.
    """
    index = bisect_right(segments, last_offset, key=lambda segment: segment.base_offset) - 1
    if index < 0:
        return UNKNOWN_MS
    segment = segments[index]
    position = last_offset + segment.data.start_offset - segment.base_offset
    try:
        stream = streams[segment.data.stream_id]
        (batch,) = await stream.attributes(position, position + 1)
        if batch.base_offset + batch.record_count != position + 1:
            return UNKNOWN_MS
        metadata = decode_batch_metadata(batch.attributes)
    except StreamlogError:
        return UNKNOWN_MS
    # Only a batch with log-append time has both from the same look at the clock.
    is_stamped = metadata.max_timestamp_ms == metadata.append_time_ms
    return metadata.append_time_ms if is_stamped else UNKNOWN_MS
