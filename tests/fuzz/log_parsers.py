"""Meta streams, batch metadata, the time index, topics."""

from __future__ import annotations

from uuid import UUID

from streamlog.codec.control import (
    ControlType,
    EndMarker,
    decode_end_marker,
    encode_end_marker,
)
from streamlog.codec.crc import crc32c
from streamlog.errors import Corrupt, CorruptMessage, InvalidRecord, UnsupportedVersion
from streamlog.format import remote_index
from streamlog.format.kafka_files.time_index import TimeEntry, decode_entries, encode_entries
from streamlog.format.kafka_files.transaction_index import (
    AbortedTxn,
    decode_aborted,
    encode_aborted,
)
from streamlog.format.remote_index import RemoteIndexEntry
from streamlog.log.partition.batch_metadata import (
    LogBatchMetadata,
    decode_batch_metadata,
    encode_batch_metadata,
)
from streamlog.log.partition.producer_state_entry import ProducerBatch, ProducerStateEntry
from streamlog.log.shared.meta.codec import (
    OPEN_END,
    Checkpoint,
    CleanedStreams,
    CleanEnd,
    Description,
    FencingToken,
    LeaderEpoch,
    LogStart,
    SegmentOpened,
    SegmentRemoved,
    SegmentSealed,
    SegmentsReplaced,
    decode_entry,
    encode_entry,
)
from streamlog.log.shared.meta.pieces import encoded_entries
from streamlog.log.shared.meta.state import MetaState
from streamlog.log.topics.topic_record import (
    TopicRecord,
    decode_partition,
    decode_topic,
    encode_partition,
    encode_topic,
)
from streamlog.model.batch import StreamSlice
from tests.fuzz.parser import Parser

_ID = UUID("12345678-1234-4678-9234-567812345678")


def _slices(*ends: int) -> list[StreamSlice]:
    return [StreamSlice(10 + i, i, end) for i, end in enumerate(ends)]


_RECORDS = (
    Description("größe", _ID, 3, 11, 12, 13, {"retention.ms": "5", "a": "ü"}),
    LeaderEpoch(1, 0),
    SegmentSealed(0, 100, 5000, 10, 99, 1234, *_slices(100, 5, 2)),
    SegmentOpened(100, 1_700_000_000_000, *_slices(OPEN_END, OPEN_END, OPEN_END)),
    Checkpoint(
        150,
        100,
        900,
        101,
        -1,
        1235,
        7,
        140,
        139,
        33,
        (ProducerStateEntry.of(1, 0, 1235, (ProducerBatch(2**31 - 1, 1, 100, 102),)),),
    ),
    LogStart(50),
    FencingToken(b"token"),
    CleanedStreams(21, 22, 23),
    SegmentsReplaced(SegmentSealed(0, 100, 500, 10, 99, 1234, *_slices(100, 5, 2))),
    CleanEnd(100),
    SegmentRemoved(0),
)
_TRANSACTIONS = Checkpoint(
    150,
    100,
    900,
    101,
    -1,
    1235,
    7,
    140,
    139,
    33,
    (
        ProducerStateEntry.of(3, 7, 11, (ProducerBatch(5, 5, 140, 140),))._replace(
            coordinator_epoch=4, txn_first_offset=140
        ),
        ProducerStateEntry(2**40, 32000, 10, b"", 2**31 - 1, -1),
    ),
    txn_stream_end=77,
)
_MARKER = EndMarker(ControlType.ABORT, 9)


def mend_entry(data: bytes) -> bytes:
    if len(data) < 16:
        return data
    head = data[:8] + (len(data) - 16).to_bytes(4, "big")
    crc = crc32c(data[16:], crc32c(head))
    return head + crc.to_bytes(4, "big") + data[16:]


def _folded(data: bytes) -> object:
    """Decoded, and applied as opening a partition does."""
    state = MetaState()
    state.apply_entry(decode_entry(data))
    return state.records()


PARSERS = (
    Parser(
        "meta_entry",
        decode_entry,
        (
            encode_entry(_RECORDS, is_snapshot=True),
            encode_entry(_RECORDS[1:2]),
            *encoded_entries(_RECORDS, bytes_max=300),
            *encoded_entries([_TRANSACTIONS]),
        ),
        mend=mend_entry,
        is_sealed=True,
    ),
    Parser(
        "meta_state",
        _folded,
        (encode_entry(_RECORDS, is_snapshot=True), *encoded_entries([_TRANSACTIONS])),
        mend=mend_entry,
    ),
    Parser(
        "batch_metadata",
        decode_batch_metadata,
        (
            encode_batch_metadata(LogBatchMetadata(0x0C, 7, 1000, 1, 2, 42, 3, 17, 10)),
            encode_batch_metadata(LogBatchMetadata(0x30, 7, 78, 1, 2, 42, 3, -1, 1, _MARKER)),
        ),
    ),
    Parser(
        "aborted_txn",
        decode_aborted,
        (encode_aborted([AbortedTxn(1, 2, 3, 4), AbortedTxn(2**40, 0, 2**40, 9)]),),
    ),
    Parser(
        "remote_index_entry",
        remote_index.decode_entry,
        (
            remote_index.encode_entry(RemoteIndexEntry(0, 9, 1_000, 2_000, 4_096, b"s3://a@0")),
            remote_index.encode_entry(RemoteIndexEntry(2**40, 2**40, -1, -1, 0, b"")),
        ),
    ),
    Parser(
        "end_marker",
        decode_end_marker,
        (encode_end_marker(42, 3, _MARKER, 1_700_000_000_000),),
        (CorruptMessage, InvalidRecord),
    ),
    Parser(
        "time_index",
        decode_entries,
        (encode_entries([TimeEntry(-1, 0), TimeEntry(1_700_000_000_000, 2**31 - 1)]),),
        (Corrupt,),
    ),
    Parser(
        "topic",
        lambda data: decode_topic("t", data),
        (encode_topic(TopicRecord(_ID, 4, {"retention.ms": "7"}, (9, 2**40))),),
    ),
    Parser(
        "partition",
        lambda data: decode_partition(b"t/0", data),
        (encode_partition(77),),
        (Corrupt, UnsupportedVersion),
    ),
)
