"""What a consumer returns: records, and batches that decode when asked."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from streamlog.codec.batch import HEADER_BYTES, BatchHeader, scan
from streamlog.codec.compression import DECOMPRESSED_BYTES_MAX, decompress
from streamlog.codec.records import Headers, RecordReader
from streamlog.errors import CorruptMessage, Field, InvalidRecord, StreamlogError


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

    `base_offset` (inclusive) is the first offset of the batch that the fetch asked for,
    `next_offset` (exclusive) its end; `record_count` counts the records between. `data` is the
    whole batch as stored, a view into the answer. It expands to `decoded_bytes_max` at most.

    Errors of decoding: CorruptMessage, InvalidRecord. They name topic, partition and the first
    offset, and where to seek to go on: fields `topic`, `partition`, `offset`, `next_offset`.
    """

    __slots__ = (
        "_check_crc",
        "_decoded_bytes_max",
        "_record_count",
        "base_offset",
        "data",
        "header",
        "high_watermark",
        "next_offset",
        "partition",
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
        decoded_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.header = header
        self.data = data
        self.base_offset = max(header.base_offset, from_offset)
        self.next_offset = header.next_offset
        self.high_watermark = high_watermark
        self._check_crc = check_crc
        self._decoded_bytes_max = decoded_bytes_max
        is_whole = self.base_offset == header.base_offset
        self._record_count = header.record_count if is_whole else None

    @property
    def record_count(self) -> int:
        """How many records are from `base_offset` on.

        Where the fetch began inside the batch, that takes decoding. Errors: those of decoding.
        """
        if self._record_count is None:
            self._record_count = len(self.records())
        return self._record_count

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
            decoded_bytes_max=self._decoded_bytes_max,
        )

    @property
    def _is_whole(self) -> bool:
        return self.base_offset == self.header.base_offset

    def _reader(self) -> tuple[RecordReader, int]:
        """The decompressed records and their size in bytes."""
        batches = scan(self.data, verify_crc=self._check_crc)
        if len(batches) != 1:
            raise CorruptMessage(f"one record batch was expected, but {len(batches)} are there")
        header, view = batches[0]
        data = decompress(header.codec, view[HEADER_BYTES:], self._decoded_bytes_max)
        return RecordReader(header, data, header.base_offset), len(data)

    def decoded(self) -> DecodedBatch:
        """Decompresses; records are made as they are taken. Errors: those of decoding."""
        try:
            return DecodedBatch(self, *self._reader())
        except (CorruptMessage, InvalidRecord) as error:
            raise self.unreadable(error) from error

    def values(self) -> list[bytes | None]:
        """Errors: those of decoding."""
        if not self._is_whole:
            return [record.value for record in self.records()]
        try:
            return self._reader()[0].values()
        except (CorruptMessage, InvalidRecord) as error:
            raise self.unreadable(error) from error

    def records(self) -> list[ConsumerRecord]:
        """Errors: those of decoding."""
        return self.decoded().take(self.header.record_count)

    def unreadable(self, error: StreamlogError) -> StreamlogError:
        """The error with the batch's offsets and with what to do."""
        text = (
            f"{self.topic}-{self.partition}: the record batch at offsets {self.base_offset} to "
            f"{self.next_offset - 1} cannot be decoded: {error.message}; seek to "
            f"{self.next_offset} to go on behind it, or to {self.base_offset} to fetch it again"
        )
        fields: dict[str, Field] = dict(
            topic=self.topic,
            partition=self.partition,
            offset=self.base_offset,
            next_offset=self.next_offset,
        )
        return type(error)(text, **{**error.fields, **fields})

    def __len__(self) -> int:
        return self.record_count

    def __repr__(self) -> str:
        return (
            f"FetchedBatch({self.topic}-{self.partition}, offsets {self.base_offset} to "
            f"{self.next_offset - 1}, {len(self.data)} bytes)"
        )


class DecodedBatch:
    """The records of a batch, made as they are taken. `left` counts those not made yet."""

    __slots__ = ("_batch", "_error", "_reader", "left", "size_bytes")

    def __init__(self, batch: FetchedBatch, reader: RecordReader, size_bytes: int) -> None:
        self._batch = batch
        self._reader = reader
        self._error: StreamlogError | None = None
        self.size_bytes = size_bytes
        self.left = batch.header.record_count

    def take(self, count: int) -> list[ConsumerRecord]:
        """The next `count` records, without those below the offset that was asked for.

        Errors: those of decoding, again at each further call.
        """
        if self._error is not None:
            raise self._error.with_traceback(None)
        batch = self._batch
        is_whole_batch = self.left == batch.header.record_count and self.left <= count
        try:
            if is_whole_batch:
                records = self._reader.list_as(ConsumerRecord, batch.topic, batch.partition)
            else:
                tp = (batch.topic, batch.partition)
                records = [
                    tuple.__new__(ConsumerRecord, tp + record)
                    for record in islice(self._reader, min(count, self.left))
                ]
        except (CorruptMessage, InvalidRecord) as error:
            self._error = batch.unreadable(error)
            raise self._error from error
        self.left -= min(count, self.left)
        if batch.base_offset > batch.header.base_offset:
            records = [record for record in records if record.offset >= batch.base_offset]
        return records
