"""A list of batches that can be cleaned: an engine without streams and files."""

from __future__ import annotations

from streamlog.codec.batch import BatchProducer, Compression, parse_header, placed, scan
from streamlog.codec.control import ControlType, EndMarker, encode_end_marker
from streamlog.codec.records import BatchBuilder, iterate
from streamlog.errors import Invalid
from streamlog.log.api.cleaning import (
    AbortedRange,
    CleanableLog,
    LastRecordOfProducer,
    SegmentReplacement,
)
from streamlog.log.api.topic_config import TopicConfig
from streamlog.model.partition import TopicPartition
from tests.log.list_log import ListLog, ListSegment

FAR = 1 << 40


def batch(records, producer=(-1, -1, -1), *, is_transactional=False, codec=Compression.NONE):
    """`records`: (timestamp, key, value)."""
    builder = BatchBuilder(1 << 20, compression=codec)
    for stamp, key, value in records:
        assert builder.append(stamp, key, value)
    return bytes(builder.build(BatchProducer(*producer), is_transactional=is_transactional))


def marker(producer_id, epoch, is_commit, stamp=1):
    kind = ControlType.COMMIT if is_commit else ControlType.ABORT
    return encode_end_marker(producer_id, epoch, EndMarker(kind, 0), stamp)


def at(data, offset):
    return b"".join(bytes(part) for part in placed(memoryview(data), offset, 0))


class ListReplacement(SegmentReplacement):
    def __init__(self, log, old) -> None:
        self._log, self._old = log, old
        self._new: list[tuple[int, int, bytes]] = []

    async def append(self, batches):
        for one in scan(batches):
            self._new.append((one.header.base_offset, one.header.next_offset, bytes(one.view)))

    async def commit(self):
        self._log.swaps += 1
        if self._log.swaps == self._log.fails_at_swap:
            raise OSError("the medium is away")
        largest = max((parse_header(data).max_timestamp_ms for *_, data in self._new), default=-1)
        start, end = self._old[0].base_offset, self._old[-1].end_offset
        self._log.forget_aborted(start, end, self._new)
        self._log.swap(self._old, ListSegment.cleaned(start, end, self._new, largest))

    async def abandon(self):
        self._log.abandoned += 1


class CleanableListLog(ListLog, CleanableLog):
    clean_end_offset = property(lambda self: self.clean_end)

    def __init__(self) -> None:
        super().__init__(TopicPartition("t", 0), TopicConfig())
        self.clean_end = -1
        self.aborted: list[AbortedRange] = []
        self.told: list[AbortedRange] = []
        self.last_records: dict[int, LastRecordOfProducer] = {}
        self.swaps = self.abandoned = 0
        self.fails_at_swap = -1

    async def set_clean_end_offset(self, offset):
        self.clean_end = offset

    def forget_aborted(self, start, end, new):
        """Readers are told of aborted transactions whose markers are there."""
        markers = {base for base, _, data in new if parse_header(data).record_count}
        self.told = [
            one
            for one in self.told
            if not start <= one.last_offset < end or one.last_offset in markers
        ]

    async def read_for_cleaning(self, segment, start_offset):
        for _, end, data in list(segment.batches):
            if end > start_offset:
                yield data

    async def aborted_transactions(self, start_offset, end_offset):
        return self.aborted

    def last_records_of_producers(self):
        return self.last_records

    def first_batch_timestamp_ms(self, segment):
        return next((parse_header(data).base_timestamp_ms for *_, data in segment.batches), -1)

    async def replace_segments(self, old):
        if any(one.is_active for one in old):
            raise Invalid("an active segment cannot be replaced")
        return ListReplacement(self, list(old))

    def batches(self):
        return [data for segment in self._segments for _, _, data in segment.batches]

    def records(self):
        """(offset, timestamp, key, value) of all data, aborted or not."""
        return [
            record[:4]
            for data in self.batches()
            if not parse_header(data).is_control
            for record in iterate(data)
        ]
