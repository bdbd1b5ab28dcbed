"""One appended batch with its offsets, as WAL, object files and the tail cache share it."""

from __future__ import annotations

from typing import NamedTuple

from streamlog.runtime.buffers import Parts, parts_size


class StreamEntry(NamedTuple):
    """Offsets base_offset to base_offset + record_count (exclusive) of a stream, under `epoch`.

    `payload_crc32c` covers the joined `parts`.
    """

    stream_id: int
    epoch: int
    base_offset: int
    record_count: int
    base_timestamp_ms: int
    parts: Parts
    attributes: bytes
    payload_crc32c: int

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.record_count

    @property
    def size_bytes(self) -> int:
        return parts_size(self.parts)
