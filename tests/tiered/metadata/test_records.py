"""Records are Kafka's byte for byte, and what is no record is refused with a typed error."""

from __future__ import annotations

import random
from pathlib import Path
from uuid import UUID

import pytest

from streamlog.errors import Corrupt, Invalid, StreamlogError, UnsupportedVersion
from streamlog.tiered.api import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from streamlog.tiered.metadata.placement import metadata_partition_of
from streamlog.tiered.metadata.records import RemoteLogRecord, decode, encode, partition_of

GOLDEN = Path(__file__).parent / "golden" / "records.txt"
"""Written by Kafka 4.1.1's own classes (`RemoteLogBytes.java` beside it)."""
PARTITION = TopicIdPartition(UUID("00112233-4455-6677-8899-aabbccddeeff"), "orders-ü", 7)
SEGMENT_ID = RemoteLogSegmentId(PARTITION, UUID("fedcba98-7654-3210-0123-456789abcdef"))
ONE, SEVERAL = {3: 1000}, {3: 1000, 5: 1500, 9: 1999}
COPIED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


def segment(epochs: dict[int, int], is_txn_index_empty: bool = False) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        SEGMENT_ID,
        1000,
        1999,
        1_700_000_000_123,
        2,
        1_700_000_000_456,
        104_857_600,
        RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        epochs,
        is_txn_index_empty=is_txn_index_empty,
    )


def update(
    state: RemoteLogSegmentState, custom: bytes | None = None
) -> RemoteLogSegmentMetadataUpdate:
    return RemoteLogSegmentMetadataUpdate(SEGMENT_ID, 1_700_000_001_000, state, 3, custom)


EXPECTED: dict[str, RemoteLogRecord] = {
    "segment_plain": segment(ONE),
    "segment_several_epochs": segment(SEVERAL),
    "segment_many_epochs": segment({epoch: 1000 + epoch for epoch in range(200)}),
    "segment_txn_index_empty": segment(SEVERAL, is_txn_index_empty=True),
    "segment_custom_finished": segment(SEVERAL, True).updated(update(COPIED, b"\1\2\3")),
    "segment_custom_empty": segment(ONE).updated(update(COPIED, b"")),
    "update_copied": update(COPIED),
    "update_copied_custom": update(COPIED, bytes(range(128))),
    "update_delete_started": update(RemoteLogSegmentState.DELETE_SEGMENT_STARTED),
    "update_delete_finished": update(RemoteLogSegmentState.DELETE_SEGMENT_FINISHED),
    **{
        f"partition_{state.name.lower()}": RemotePartitionDeleteMetadata(
            PARTITION, state, 1_700_000_002_000, 4
        )
        for state in RemotePartitionDeleteState
    },
}


def golden() -> dict[str, bytes]:
    lines = [line.split() for line in GOLDEN.read_text().splitlines()]
    return {words[0]: bytes.fromhex(words[1]) for words in lines if len(words) == 2}


def golden_partitions() -> list[list[str]]:
    lines = [line.split() for line in GOLDEN.read_text().splitlines()]
    return [words[1:] for words in lines if words[0] == "partition_of"]


def test_every_golden_record_is_expected() -> None:
    assert golden().keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_bytes_are_kafkas(name: str) -> None:
    data = golden()[name]
    assert encode(EXPECTED[name]) == data
    assert decode(data) == EXPECTED[name]
    assert partition_of(EXPECTED[name]) == PARTITION


def test_metadata_partitions_are_kafkas() -> None:
    cases = golden_partitions()
    assert len(cases) == 90
    for topic_id, partition, count, number in cases:
        found = metadata_partition_of(
            TopicIdPartition(UUID(topic_id), "any", int(partition)), int(count)
        )
        assert found == int(number), (topic_id, partition, count)


def random_record(rng: random.Random) -> RemoteLogRecord:
    topic = "".join(rng.choices("aü😀-._", k=rng.choice((1, 60))))
    partition = TopicIdPartition(UUID(int=rng.getrandbits(128)), topic, rng.getrandbits(31))
    segment_id = RemoteLogSegmentId(partition, UUID(int=rng.getrandbits(128)))
    at, node = rng.getrandbits(63), rng.getrandbits(31)
    custom = rng.choice((None, rng.randbytes(rng.randrange(129))))
    state = rng.choice(list(RemoteLogSegmentState))
    kind = rng.randrange(3)
    if kind == 0:
        start = rng.getrandbits(rng.choice((1, 40, 62)))
        end = start + rng.getrandbits(30)
        epochs = {rng.getrandbits(31): rng.randint(start, end) for _ in range(rng.randint(1, 300))}
        size, is_empty = rng.getrandbits(31), rng.random() < 0.5
        return RemoteLogSegmentMetadata(
            segment_id, start, end, -1, node, at, size, state, epochs, custom, is_empty
        )
    if kind == 1:
        return RemoteLogSegmentMetadataUpdate(segment_id, at, state, node, custom)
    deletion = rng.choice(list(RemotePartitionDeleteState))
    return RemotePartitionDeleteMetadata(partition, deletion, at, node)


def test_random_records_come_back_as_they_were() -> None:
    rng = random.Random(5)
    for _ in range(500):
        record = random_record(rng)
        data = encode(record)
        assert decode(data) == record
        assert decode(memoryview(bytearray(data))) == record


def test_a_record_that_is_cut_short_or_goes_on_is_corrupt() -> None:
    for data in golden().values():
        for end in range(len(data)):
            with pytest.raises(Corrupt):
                decode(data[:end])
        with pytest.raises(Corrupt, match="follow its message"):
            decode(data + b"\0")


def test_bytes_that_were_changed_are_a_record_or_a_typed_error() -> None:
    rng = random.Random(6)
    for data in golden().values():
        for _ in range(300):
            changed = bytearray(data)
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            try:
                decode(changed)
            except StreamlogError as error:
                assert isinstance(error, (Corrupt, UnsupportedVersion))  # noqa: PT017


def test_a_record_without_a_value_is_corrupt() -> None:
    with pytest.raises(Corrupt):
        decode(None)


@pytest.mark.parametrize(
    ("head", "what", "found", "supported"),
    [
        (b"\2\0\0", "frame", 2, 1),
        (b"\0\0\0", "frame", 0, 1),
        (b"\1\3\0", "kind 3", 3, 2),
        (b"\1\x80\x01\0", "kind 128", 128, 2),
        (b"\1\0\1", "kind 0 in version 1", 1, 0),
        (b"\1\2\x81\x01", "kind 2 in version 129", 129, 0),
    ],
)
def test_another_frame_kind_or_version_is_unsupported(
    head: bytes, what: str, found: int, supported: int
) -> None:
    with pytest.raises(UnsupportedVersion, match=what) as caught:
        decode(head + golden()["segment_plain"][3:])
    assert caught.value.fields == {"found": found, "supported": supported}


def test_unknown_states_are_corrupt() -> None:
    for name, at in (("segment_plain", -2), ("update_copied", -2), ("partition_delete_partition_"
                     "marked", -2)):  # fmt: skip
        data = bytearray(golden()[name])
        data[at] = 9
        with pytest.raises(Corrupt):
            decode(data)


@pytest.mark.parametrize(
    "record",
    [
        update(COPIED)._replace(broker_id=1 << 31),
        update(COPIED)._replace(
            remote_log_segment_id=RemoteLogSegmentId(
                PARTITION._replace(topic="x" * 40_000), SEGMENT_ID.id
            )
        ),
    ],
)
def test_what_a_record_cannot_hold_is_refused(record: RemoteLogRecord) -> None:
    with pytest.raises(Invalid, match="beyond what a record holds"):
        encode(record)
