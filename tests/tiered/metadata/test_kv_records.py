"""Bytes of remote segments in the KV store: golden files, damage, round trips."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from streamlog.errors import Corrupt, UnsupportedVersion
from streamlog.format.sealed import seal
from streamlog.tiered.api import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    TopicIdPartition,
)
from streamlog.tiered.metadata.kv_records import (
    decode_deletion,
    decode_segment,
    deletion_key,
    encode_deletion,
    encode_segment,
    segment_key,
)
from tests.support.damage import one_bit_changed

GOLDEN = Path(__file__).parents[2] / "golden"
PARTITION = TopicIdPartition(UUID(int=0x1234 << 64), "größe", 7)
SEGMENT = RemoteLogSegmentMetadata(
    RemoteLogSegmentId(PARTITION, UUID(int=0x5678)),
    100,
    199,
    1_700_000_000_000,
    3,
    1_700_000_000_001,
    1 << 30,
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
    {2: 100, 5: 150},
    b"custom",
    True,
)
DELETION = RemotePartitionDeleteMetadata(
    PARTITION, RemotePartitionDeleteState.DELETE_PARTITION_STARTED, 1_700_000_000_002, 3
)


def test_golden_segment_and_deletion() -> None:
    key, data = segment_key(SEGMENT.remote_log_segment_id), encode_segment(SEGMENT)
    assert data == (GOLDEN / "remote_segment_v2.bin").read_bytes()
    assert decode_segment(key.name, data) == SEGMENT
    assert (key.namespace, len(key.name)) == ("_remote_log", 36)
    key, data = deletion_key(PARTITION), encode_deletion(DELETION)
    assert data == (GOLDEN / "remote_deletion_v2.bin").read_bytes()
    assert decode_deletion(key.name, data) == DELETION
    assert (key.namespace, len(key.name)) == ("_remote_log_deletion", 20)


def test_version_1_which_has_no_checksum_is_read() -> None:
    segment = (GOLDEN / "remote_segment_v1.bin").read_bytes()
    name = segment_key(SEGMENT.remote_log_segment_id).name
    assert segment[0] == 1
    assert decode_segment(name, segment) == SEGMENT
    deletion = (GOLDEN / "remote_deletion_v1.bin").read_bytes()
    assert deletion[0] == 1
    assert decode_deletion(deletion_key(PARTITION).name, deletion) == DELETION


def test_a_record_of_version_1_with_an_impossible_range_is_corrupt() -> None:
    segment = bytearray((GOLDEN / "remote_segment_v1.bin").read_bytes())
    start_at = segment.index((100).to_bytes(8, "big"))
    segment[start_at + 6] = 1
    with pytest.raises(Corrupt, match=str(SEGMENT.remote_log_segment_id.id)):
        decode_segment(segment_key(SEGMENT.remote_log_segment_id).name, bytes(segment))


def test_no_single_bit_of_a_record_changes_unnoticed() -> None:
    segment, name = encode_segment(SEGMENT), segment_key(SEGMENT.remote_log_segment_id).name
    where = f"{PARTITION.topic_id}-{PARTITION.partition}"
    for changed in one_bit_changed(segment):
        with pytest.raises(Corrupt, match=where) as raised:
            decode_segment(name, changed)
        assert str(SEGMENT.remote_log_segment_id.id) in str(raised.value)
    for changed in one_bit_changed(encode_deletion(DELETION)):
        with pytest.raises(Corrupt, match=where):
            decode_deletion(deletion_key(PARTITION).name, changed)


@pytest.mark.parametrize("custom", [None, b"", b"x" * 128])
@pytest.mark.parametrize("state", RemoteLogSegmentState)
def test_every_state_comes_back(state: RemoteLogSegmentState, custom: bytes | None) -> None:
    segment = replace(SEGMENT, state=state, custom_metadata=custom, is_txn_index_empty=False)
    name = segment_key(segment.remote_log_segment_id).name
    assert decode_segment(name, encode_segment(segment)) == segment


def test_bytes_that_are_cut_or_newer_are_refused() -> None:
    key, data = segment_key(SEGMENT.remote_log_segment_id), encode_segment(SEGMENT)
    for length in range(len(data)):
        with pytest.raises(Corrupt):
            decode_segment(key.name, data[:length])
    with pytest.raises(Corrupt):
        decode_segment(key.name, data + b"x")
    with pytest.raises(Corrupt):
        decode_segment(key.name[:-1], data)
    with pytest.raises(Corrupt, match="unknown state 9"):
        decode_segment(key.name, seal(data[:1] + b"\x09" + data[2:-4]))
    with pytest.raises(UnsupportedVersion):
        decode_segment(key.name, seal(b"\x03" + data[1:-4]))
    with pytest.raises(Corrupt):
        decode_deletion(key.name, encode_deletion(DELETION))
    for length in range(len(encode_deletion(DELETION))):
        with pytest.raises(Corrupt):
            decode_deletion(deletion_key(PARTITION).name, encode_deletion(DELETION)[:length])
