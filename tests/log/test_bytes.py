"""The log layer's bytes: golden files for each, round trips, damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.codec.control import ControlType, EndMarker
from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.format.kafka_files.time_index import TimeEntry, decode_entries, encode_entries
from streamlog.format.kafka_files.transaction_index import (
    AbortedTxn,
    decode_aborted,
    encode_aborted,
)
from streamlog.log.api.log_factory import LogKind
from streamlog.log.broker.broker_record import config_key, decode_configs, encode_configs
from streamlog.log.broker.client_configs import quota_name
from streamlog.log.partition.batch_metadata import (
    LogBatchMetadata,
    decode_batch_metadata,
    encode_batch_metadata,
)
from streamlog.log.partition.producer_state_entry import ProducerBatch, ProducerStateEntry
from streamlog.log.shared.meta.codec import (
    BEING_CREATED,
    OPEN_END,
    Checkpoint,
    CleanedStreams,
    CleanEnd,
    Description,
    FencingToken,
    LeaderEpoch,
    LogStart,
    MetaEntry,
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
    TopicState,
    decode_partition,
    decode_topic,
    encode_partition,
    encode_topic,
    partition_key,
    topic_key,
)
from streamlog.model.batch import ATTRIBUTES_BYTES_MAX, StreamSlice
from streamlog.model.partition import TopicPartition

GOLDEN = Path(__file__).parent.parent / "golden"
TOPIC_ID = UUID("12345678-1234-4678-9234-567812345678")


def golden(name: str, data: bytes) -> bytes:
    """The file's bytes; a new file is written where there is none, and the test fails once."""
    path = GOLDEN / name
    if not path.exists():
        path.write_bytes(data)
        pytest.fail(f"{name} was missing and has been written; look at it and commit it")
    return path.read_bytes()


def slices(*ends: int) -> list[StreamSlice]:
    return [StreamSlice(10 + i, i, end) for i, end in enumerate(ends)]


RECORDS = (
    Description("größe", TOPIC_ID, 3, 11, 12, 13, {"retention.ms": "5", "a": "ü"}),
    LeaderEpoch(1, 0),
    LeaderEpoch(7, 100),
    SegmentSealed(0, 100, 5000, 10, 99, 1234, *slices(100, 5, 2)),
    SegmentOpened(100, 1_700_000_000_000, *slices(OPEN_END, OPEN_END, OPEN_END)),
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
        (
            ProducerStateEntry.of(1, 0, 1235, (ProducerBatch(2**31 - 1, 1, 100, 102),)),
            ProducerStateEntry.of(
                2**40, 32000, 9, tuple(ProducerBatch(i, i, i, i) for i in range(32))
            ),
        ),
    ),
    LogStart(50),
    SegmentRemoved(0),
)
TRANSACTIONS = Checkpoint(
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
        ProducerStateEntry.of(1, 0, 9, (ProducerBatch(0, 1, 100, 101),)),
        ProducerStateEntry(2**40, 32000, 10, b"", 2**31 - 1, -1),
        ProducerStateEntry.of(3, 7, 11, (ProducerBatch(5, 5, 140, 140),))._replace(
            coordinator_epoch=4, txn_first_offset=140
        ),
    ),
    txn_stream_end=77,
)
MARKER = LogBatchMetadata(
    0x30,
    7,
    78,
    1_700_000_000_000,
    1_700_000_000_001,
    42,
    3,
    -1,
    1,
    EndMarker(ControlType.COMMIT, 9),
)
ABORTED = [AbortedTxn(4_000_000_000_001, 5, 1 << 33, 1 << 34), AbortedTxn(0, 0, 1, 2)]
METADATA = LogBatchMetadata(0x0C, 7, 1000, 1_700_000_000_000, 1_700_000_000_001, 42, 3, 17, 10)
TOPIC = TopicRecord(TOPIC_ID, 4, {"retention.ms": "7"}, (9, 2**40), TopicState.LIVE)


def test_golden_meta_entry():
    data = encode_entry(RECORDS, is_snapshot=True)
    assert data == golden("log_meta_v1.bin", data)
    assert decode_entry(data) == MetaEntry(RECORDS, True)


def test_golden_fencing_token():
    records = (FencingToken(b"one"), FencingToken(bytes(range(64))), FencingToken(b""))
    data = encode_entry(records)
    assert data == golden("log_meta_token.bin", data)
    assert decode_entry(data) == MetaEntry(records)


def test_golden_records_of_cleanings():
    new = SegmentSealed(0, 100, 700, 10, 99, 1234, *slices(100, 5, 2))
    records = (BEING_CREATED, CleanedStreams(21, 22, 23), SegmentsReplaced(new), CleanEnd(100))
    data = encode_entry(records)
    assert data == golden("log_meta_cleaned.bin", data)
    assert decode_entry(data) == MetaEntry(records)


def test_a_snapshot_has_the_fencing_token_and_nothing_of_older_ones():
    state = MetaState()
    state.apply_entry(MetaEntry((*RECORDS[:-1], FencingToken(b"old"), FencingToken(b"new"))))
    assert state.records()[-1] == FencingToken(b"new")
    again = MetaState()
    again.apply_entry(MetaEntry((FencingToken(b"older"),)))
    again.apply_entry(MetaEntry(tuple(state.records()), is_snapshot=True))
    assert (again.fencing_token, again.records()) == (b"new", state.records())
    state.apply(FencingToken(b""))
    assert not any(isinstance(record, FencingToken) for record in state.records())


def test_golden_meta_entries_that_take_effect_together():
    entries = list(encoded_entries(RECORDS, is_snapshot=True, bytes_max=500))
    data = b"".join(entries)
    assert data == golden("log_meta_v2.bin", data)
    assert len(entries) > 2
    decoded = [decode_entry(entry) for entry in entries]
    assert [entry.is_continued for entry in decoded] == [True] * (len(decoded) - 1) + [False]
    assert [entry.is_continuing for entry in decoded] == [False] + [True] * (len(decoded) - 1)
    whole, dealt = MetaState(), MetaState()
    whole.apply_entry(MetaEntry(RECORDS[:-1], is_snapshot=True))
    for entry in encoded_entries(RECORDS[:-1], is_snapshot=True, bytes_max=500):
        assert len(entry) <= 500 or b"\x00\x20" in entry, "a producer with 32 batches is larger"
        dealt.apply_entry(decode_entry(entry))
    assert dealt.records() == whole.records()


def test_a_group_of_meta_entries_without_its_end_has_no_effect():
    begun = [decode_entry(entry) for entry in encoded_entries(RECORDS, bytes_max=500)]
    state = MetaState()
    state.apply_entry(MetaEntry(RECORDS[:-1]))
    before = state.records()
    for count in range(1, len(begun)):
        for entry in begun[:count]:
            state.apply_entry(entry)
        assert state.records() == before
        state.apply_entry(MetaEntry(()))
        assert state.records() == before
        with pytest.raises(Corrupt):
            state.apply_entry(begun[count])


def test_golden_attributes():
    data = encode_batch_metadata(METADATA)
    assert data == golden("log_attributes_v1.bin", data)
    assert decode_batch_metadata(data) == METADATA
    assert len(data) == 45 <= ATTRIBUTES_BYTES_MAX


def test_golden_attributes_of_markers():
    data = encode_batch_metadata(MARKER)
    assert data == golden("log_attributes_v2.bin", data)
    assert decode_batch_metadata(data) == MARKER
    assert len(data) == 50 <= ATTRIBUTES_BYTES_MAX
    for bad in (data[:-1], data + b"x", data[:45] + b"\x02" + data[46:], b"\x01" + data[1:]):
        with pytest.raises(Corrupt):
            decode_batch_metadata(bad)


def test_golden_meta_entry_with_transactions():
    entries = list(encoded_entries([TRANSACTIONS]))
    data = b"".join(entries)
    assert data == golden("log_meta_transactions_v1.bin", data)
    for bytes_max in (1 << 20, 200):
        state = MetaState()
        for entry in encoded_entries([TRANSACTIONS], bytes_max=bytes_max):
            state.apply_entry(decode_entry(entry))
        assert state.checkpoint == TRANSACTIONS


def test_a_checkpoint_without_transactions_has_the_bytes_that_it_always_had():
    assert list(encoded_entries(RECORDS, is_snapshot=True)) == [
        encode_entry(RECORDS, is_snapshot=True)
    ]
    only_end = replace(TRANSACTIONS, producers=())
    state = MetaState()
    for entry in encoded_entries([only_end]):
        state.apply_entry(decode_entry(entry))
    assert state.checkpoint == only_end


def test_golden_aborted_transactions():
    data = encode_aborted(ABORTED)
    assert data == golden("log_aborted_v0.bin", data)
    # AbortedTxn of Kafka 4.1.1.
    kafka = "0000000003a352944001000000000000000500000002000000000000000400000000"
    assert data[:34].hex() == kafka
    assert decode_aborted(data) == ABORTED
    with pytest.raises(Corrupt):
        decode_aborted(data[:-1])
    with pytest.raises(UnsupportedVersion):
        decode_aborted(b"\x00\x01" + data[2:34])


def test_golden_broker_settings():
    configs = {"log.retention.ms": "5", "node.log_level": "größe"}
    data = encode_configs(configs)
    assert data == golden("log_broker_configs_v1.bin", data)
    assert decode_configs(b"brokers", data) == configs
    assert (config_key(None).name, config_key(7).name) == (b"brokers", b"broker/7")
    assert (quota_name(None), quota_name("é")) == (b"clients", b"client/\xc3\xa9")


def test_golden_time_entries():
    entries = [TimeEntry(-1, 0), TimeEntry(1_700_000_000_000, 2**31 - 1)]
    data = encode_entries(entries)
    assert data == golden("log_time_v1.bin", data)
    assert decode_entries(data) == entries
    with pytest.raises(Corrupt):
        decode_entries(data[:-1])


def test_golden_topic_and_partition():
    data = encode_topic(TOPIC)
    assert data == golden("log_topic_v1.bin", data)
    assert decode_topic("t", data) == TOPIC
    unified_topic = replace(TOPIC, log_kind=LogKind.UNIFIED)
    data = encode_topic(unified_topic)
    assert data == golden("log_topic_v2.bin", data)
    assert decode_topic("t", data) == unified_topic
    once_compacted = replace(unified_topic, was_compacted=True)
    data = encode_topic(once_compacted)
    assert data == golden("log_topic_v3.bin", data)
    assert decode_topic("t", data) == once_compacted
    once_tiered = replace(unified_topic, has_left_tier=True)
    assert encode_topic(once_tiered) == data[:-1] + b"\x02"
    for topic in (once_tiered, replace(once_compacted, has_left_tier=True)):
        assert decode_topic("t", encode_topic(topic)) == topic
    with pytest.raises(Corrupt, match="marks 4"):
        decode_topic("t", data[:-1] + b"\x04")
    key = partition_key(TopicPartition("t.x", 12))
    assert (key.namespace, key.name) == ("_partition", b"t.x/12")
    assert topic_key("t.x").name == b"t.x"
    assert encode_partition(77) == bytes([1, 0, 0, 0, 0, 0, 0, 0, 77])
    unified = encode_partition(77, LogKind.UNIFIED)
    assert unified == bytes([2, 0, 0, 0, 0, 0, 0, 0, 77, 1])
    assert decode_partition(key.name, unified) == 77
    with pytest.raises(Corrupt):
        decode_partition(key.name, unified[:-1] + b"\x09")
    assert decode_partition(key.name, encode_partition(77)) == 77


@given(st.data())
def test_damaged_meta_entries_are_corrupt(data):
    good = encode_entry(RECORDS)
    with pytest.raises((Corrupt, UnsupportedVersion)):
        decode_entry(good[: data.draw(st.integers(0, len(good) - 1))])
    bit = data.draw(st.integers(0, len(good) * 8 - 1))
    bad = bytearray(good)
    bad[bit // 8] ^= 1 << bit % 8
    with pytest.raises((Corrupt, UnsupportedVersion)):
        decode_entry(bad)


@given(st.binary(max_size=80))
def test_noise_gives_typed_errors_only(noise):
    for decode in (
        decode_entry,
        decode_batch_metadata,
        decode_aborted,
        lambda data: decode_topic("t", data),
        lambda data: decode_partition(b"t/0", data),
    ):
        try:
            decode(noise)
        except (Corrupt, UnsupportedVersion):
            continue


def test_newer_versions_are_refused():
    meta, metadata, topic = (
        encode_entry(RECORDS),
        encode_batch_metadata(METADATA),
        encode_topic(TOPIC),
    )
    with pytest.raises(UnsupportedVersion):
        decode_entry(meta[:2] + b"\x03" + meta[3:])
    with pytest.raises(UnsupportedVersion):
        decode_batch_metadata(b"\x03" + metadata[1:])
    with pytest.raises(UnsupportedVersion):
        decode_topic("t", b"\x04" + topic[1:])
    with pytest.raises(UnsupportedVersion):
        decode_partition(b"t/0", b"\x03" + encode_partition(1)[1:])
    with pytest.raises(Corrupt):
        decode_batch_metadata(b"")
