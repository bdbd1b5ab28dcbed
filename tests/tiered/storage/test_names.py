"""Names of remote files: golden ones, and those that no file gets."""

from __future__ import annotations

from uuid import UUID

import pytest

from streamlog.errors import InvalidName
from streamlog.testing.tiers.segments import SegmentMaker
from streamlog.tiered.api.segments import RemoteLogSegmentMetadata
from streamlog.tiered.api.storage_manager import IndexType
from streamlog.tiered.storage.names import (
    KINDS,
    FileKind,
    local_name,
    object_name,
    parsed_folder,
    parsed_object_name,
    partition_folder,
    segment_key,
)

TOPIC_ID = UUID("2d682b32-656b-4f46-bfff-b6b849ab2e3c")
SEGMENT_ID = UUID("6c2a97f5-4fbe-4bee-94f1-45cc0bd236e5")


def segment(
    topic: str = "Topic_1.x", partition: int = 7, start_offset: int = 123_456
) -> RemoteLogSegmentMetadata:
    make = SegmentMaker()
    return make.metadata(
        make.data(10),
        topic=topic,
        topic_id=TOPIC_ID,
        partition=partition,
        start_offset=start_offset,
        segment_id=SEGMENT_ID,
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (None, "segment"),
        (IndexType.OFFSET, "OFFSET"),
        (IndexType.TIMESTAMP, "TIMESTAMP"),
        (IndexType.PRODUCER_SNAPSHOT, "PRODUCER_SNAPSHOT"),
        (IndexType.TRANSACTION, "TRANSACTION"),
        (IndexType.LEADER_EPOCH, "LEADER_EPOCH"),
    ],
)
def test_golden_object_names(kind: FileKind, name: str) -> None:
    assert object_name(segment(), kind) == f"00000000000000123456.bCqX9U--S-6U8UXMC9I25Q.{name}"
    assert segment_key("tiers/c1", segment(), kind) == (
        "tiers/c1/2d682b32656b4f46bfffb6b849ab2e3c/7/"
        f"00000000000000123456.6c2a97f54fbe4bee94f145cc0bd236e5.{name.lower()}"
    )


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [
        (None, "log"),
        (IndexType.OFFSET, "index"),
        (IndexType.TIMESTAMP, "timeindex"),
        (IndexType.PRODUCER_SNAPSHOT, "snapshot"),
        (IndexType.TRANSACTION, "txnindex"),
        (IndexType.LEADER_EPOCH, "leader_epoch_checkpoint"),
    ],
)
def test_golden_names_of_local_tiered_storage(kind: FileKind, suffix: str) -> None:
    assert local_name(segment(), kind) == f"00000000000000123456-bCqX9U--S-6U8UXMC9I25Q.{suffix}"


def test_golden_folder_of_a_partition() -> None:
    folder = partition_folder(segment().topic_id_partition)
    assert folder == "Topic_1.x-7-LWgrMmVrT0a__7a4SasuPA"


@pytest.mark.parametrize("topic", ["Topic_1.x", "a-7", "-", "7-7-", "x" * 249])
def test_a_folder_and_a_name_tell_whose_they_are(topic: str) -> None:
    of = segment(topic, partition=70).topic_id_partition
    assert parsed_folder(partition_folder(of)) == of
    assert {parsed_object_name(object_name(segment(), kind)) for kind in KINDS} == {SEGMENT_ID}


@pytest.mark.parametrize(
    "folder",
    [
        "LWgrMmVrT0a__7a4SasuPA",
        "t-7-LWgrMmVrT0a__7a4SasuP",
        "t-7-LWgrMmVrT0a__7a4SasuPB",
        "t-07-LWgrMmVrT0a__7a4SasuPA",
        "t-LWgrMmVrT0a__7a4SasuPA",
        "..-7-LWgrMmVrT0a__7a4SasuPA",
        "ä-7-LWgrMmVrT0a__7a4SasuPA",
        "t-7-LWgrMmVrT0a__7a4SasuPA\n",
    ],
)
def test_another_folder_is_no_partitions(folder: str) -> None:
    assert parsed_folder("t-7-LWgrMmVrT0a__7a4SasuPA") is not None
    assert parsed_folder(folder) is None


@pytest.mark.parametrize(
    "name",
    [
        "00000000000000123456.bCqX9U--S-6U8UXMC9I25Q.log",
        "00000000000000123456.bCqX9U--S-6U8UXMC9I25Q.offset",
        "00000000000000123456-bCqX9U--S-6U8UXMC9I25Q.segment",
        "0000000000000123456.bCqX9U--S-6U8UXMC9I25Q.segment",
        "00000000000000123456.bCqX9U--S-6U8UXMC9I25R.segment",
        "00000000000000123456.bCqX9U--S-6U8UXMC9I25Q.segment.tmp",
    ],
)
def test_another_name_is_no_segments(name: str) -> None:
    assert parsed_object_name(name) is None


def test_names_sort_as_offsets_do() -> None:
    offsets = (0, 9, 10, 1 << 31, (1 << 63) - 1001)
    names = [object_name(segment(start_offset=offset), None) for offset in offsets]
    assert names == sorted(names)
    assert names[-1].startswith("09223372036854774807.")


def test_every_file_of_a_segment_has_a_name_of_its_own() -> None:
    assert set(KINDS) == {None, *IndexType}
    for names in (
        [object_name(segment(), kind) for kind in KINDS],
        [local_name(segment(), kind) for kind in KINDS],
        [segment_key("tiers", segment(), kind) for kind in KINDS],
    ):
        assert len(set(names)) == 6


@pytest.mark.parametrize("topic", ["", ".", "..", "../x", "a/b", "a\0b", "ä", "x" * 250])
def test_a_topic_that_leads_out_of_the_folder_gets_no_name(topic: str) -> None:
    with pytest.raises(InvalidName):
        partition_folder(segment(topic).topic_id_partition)


def test_a_negative_partition_gets_no_name() -> None:
    below = segment(partition=-1)
    with pytest.raises(InvalidName):
        partition_folder(below.topic_id_partition)
    with pytest.raises(InvalidName):
        segment_key("tiers", below, None)


@pytest.mark.parametrize("prefix", ["", "../x", "Tiers", "/tiers"])
def test_a_prefix_that_is_no_beginning_of_a_key_gives_no_key(prefix: str) -> None:
    with pytest.raises(InvalidName):
        segment_key(prefix, segment(), None)
