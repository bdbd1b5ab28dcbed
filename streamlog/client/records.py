"""What a consumer returns: records, and batches that decode when asked."""

from __future__ import annotations

from typing import NamedTuple

from streamlog.codec.batch import BatchHeader
from streamlog.codec.records import Headers, RecordReader, iterate


class ConsumerRecord(NamedTuple):
    """One record. `timestamp_ms` is -1 where it has none; None as value is a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class FetchedBatch:
    """A stored record batch; its bytes are decoded when they are asked for, each time anew.

    `base_offset` (inclusive) is the first offset that was asked for and lies in it, `next_offset`
    follows its last; `record_count` counts the records between. `data` is the whole batch as
    stored, a view into the answer.
    """

    __slots__ = (
        "_check_crc",
        "base_offset",
        "data",
        "header",
        "high_watermark",
        "next_offset",
        "partition",
        "record_count",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        header: BatchHeader,
        data: memoryview,
        *,
        from_offset: int,
        high_watermark: int,
        check_crc: bool,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.header = header
        self.data = data
        self.base_offset = max(header.base_offset, from_offset)
        self.next_offset = header.next_offset
        self.high_watermark = high_watermark
        self._check_crc = check_crc
        self.record_count = header.record_count
        if from_offset > header.base_offset:
            self.record_count = len(self.records())

    def starting_at(self, offset: int) -> FetchedBatch:
        """The same batch without the records below `offset`."""
        return FetchedBatch(
            self.topic,
            self.partition,
            self.header,
            self.data,
            from_offset=offset,
            high_watermark=self.high_watermark,
            check_crc=self._check_crc,
        )

    @property
    def _is_whole(self) -> bool:
        return self.base_offset == self.header.base_offset

    def _reader(self) -> RecordReader:
        return iterate(self.data, verify_crc=self._check_crc)

    def values(self) -> list[bytes | None]:
        """Errors: CorruptMessage, InvalidRecord."""
        if self._is_whole:
            return self._reader().values()
        return [record.value for record in self.records()]

    def records(self) -> list[ConsumerRecord]:
        """Errors: CorruptMessage, InvalidRecord."""
        found = self._reader().list_as(ConsumerRecord, self.topic, self.partition)
        if self._is_whole:
            return found
        return [record for record in found if record.offset >= self.base_offset]

    def __len__(self) -> int:
        return self.record_count

    def __repr__(self) -> str:
        return (
            f"FetchedBatch({self.topic}-{self.partition}, offsets {self.base_offset} to "
            f"{self.next_offset - 1}, {self.record_count} records, {len(self.data)} bytes)"
        )
