"""Indexes that were damaged where a plug-in of this program keeps them: it notices each change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import pytest

from streamlog.errors import Corrupt, ObjectNotFound, UnsupportedVersion
from streamlog.format.sealed import seal
from streamlog.testing.tiers.segments import SegmentMaker
from streamlog.tiered.api import IndexType, RemoteLogSegmentMetadata
from streamlog.tiered.api.segments import CUSTOM_METADATA_BYTES_MAX
from streamlog.tiered.storage.index_checksums import (
    IndexChecksum,
    decode_checksums,
    encode_checksums,
)
from tests.support.damage import cut, one_bit_changed
from tests.tiered.damage.places import PLACES, ChangeablePlace, OpenPlace

GOLDEN = Path(__file__).parents[2] / "golden"
STEP = 7
"""Every seventh bit comes to each bit of a byte."""
CHECKSUMS = {
    IndexType.OFFSET: IndexChecksum(8, 0x01020304),
    IndexType.TIMESTAMP: IndexChecksum(12, 0x05060708),
    IndexType.PRODUCER_SNAPSHOT: IndexChecksum(6, 0xFFFFFFFF),
    IndexType.TRANSACTION: IndexChecksum(1 << 31, 0),
    IndexType.LEADER_EPOCH: IndexChecksum(0, 1),
}

Body = Callable[[ChangeablePlace, RemoteLogSegmentMetadata], Awaitable[None]]


def run(place: OpenPlace, folder: Path, body: Body, *, has_aborted: bool = True) -> None:
    """`body` gets a segment that was copied, as its metadata is afterwards."""

    async def main() -> None:
        make = SegmentMaker()
        data = make.data(has_aborted=has_aborted)
        metadata = make.metadata(data, start_offset=4_711)
        async with place(folder) as opened:
            custom = await opened.storage.copy_log_segment_data(metadata, data)
            await body(opened, replace(metadata, custom_metadata=custom))

    asyncio.run(main())


@pytest.mark.parametrize("kind", IndexType)
@pytest.mark.parametrize("place", PLACES)
def test_no_change_of_an_index_is_returned(
    place: OpenPlace, kind: IndexType, tmp_path: Path
) -> None:
    async def body(opened: ChangeablePlace, metadata: RemoteLogSegmentMetadata) -> None:
        stored, storage = await opened.get(metadata, kind), opened.storage
        lengths = islice(cut(stored), 0, None, STEP)
        for data in chain(one_bit_changed(stored, STEP), lengths, [stored + b"\0"]):
            await opened.put(metadata, kind, data)
            with pytest.raises(Corrupt, match=kind.value) as raised:
                await storage.fetch_index(metadata, kind)
            assert str(metadata.remote_log_segment_id) in str(raised.value)
            with pytest.raises(Corrupt, match=kind.value):
                storage.check_index(metadata, kind, data)
        await opened.put(metadata, kind, stored)
        assert bytes(await storage.fetch_index(metadata, kind)) == stored
        storage.check_index(metadata, kind, stored)

    run(place, tmp_path, body)


@pytest.mark.parametrize("place", PLACES)
def test_a_list_of_aborted_transactions_that_is_gone_is_none_that_never_was(
    place: OpenPlace, tmp_path: Path
) -> None:
    async def gone(opened: ChangeablePlace, metadata: RemoteLogSegmentMetadata) -> None:
        await opened.put(metadata, IndexType.TRANSACTION, None)
        with pytest.raises(Corrupt, match=r"TRANSACTION index .* is gone") as raised:
            await opened.storage.fetch_index(metadata, IndexType.TRANSACTION)
        assert raised.value.fields["object_key"] == str(metadata.remote_log_segment_id)
        with pytest.raises(Corrupt, match="TRANSACTION"):
            opened.storage.check_index(metadata, IndexType.TRANSACTION, b"")

    async def never_was(opened: ChangeablePlace, metadata: RemoteLogSegmentMetadata) -> None:
        with pytest.raises(ObjectNotFound):
            await opened.storage.fetch_index(metadata, IndexType.TRANSACTION)
        opened.storage.check_index(metadata, IndexType.TRANSACTION, b"")

    run(place, tmp_path / "gone", gone)
    run(place, tmp_path / "never", never_was, has_aborted=False)


@pytest.mark.parametrize("kind", [one for one in IndexType if one is not IndexType.TRANSACTION])
@pytest.mark.parametrize("place", PLACES)
def test_another_index_that_is_gone_is_not_found(
    place: OpenPlace, kind: IndexType, tmp_path: Path
) -> None:
    async def body(opened: ChangeablePlace, metadata: RemoteLogSegmentMetadata) -> None:
        await opened.put(metadata, kind, None)
        with pytest.raises(ObjectNotFound):
            await opened.storage.fetch_index(metadata, kind)

    run(place, tmp_path, body)


@pytest.mark.parametrize("custom", [None, b""])
@pytest.mark.parametrize("place", PLACES)
def test_segments_without_checksums_are_read_as_they_are(
    place: OpenPlace, custom: bytes | None, tmp_path: Path
) -> None:
    """Of a release that remembered nothing, or of Kafka's class."""

    async def body(opened: ChangeablePlace, metadata: RemoteLogSegmentMetadata) -> None:
        older = replace(metadata, custom_metadata=custom)
        for kind in IndexType:
            stored = await opened.get(metadata, kind)
            assert bytes(await opened.storage.fetch_index(older, kind)) == stored
            opened.storage.check_index(older, kind, stored)
        await opened.put(metadata, IndexType.TRANSACTION, None)
        with pytest.raises(ObjectNotFound):
            await opened.storage.fetch_index(older, IndexType.TRANSACTION)

    run(place, tmp_path, body)


@pytest.mark.parametrize("place", PLACES)
def test_checksums_that_were_damaged_vouch_for_no_index(place: OpenPlace, tmp_path: Path) -> None:
    async def body(opened: ChangeablePlace, metadata: RemoteLogSegmentMetadata) -> None:
        custom = metadata.custom_metadata
        assert custom is not None
        segment = str(metadata.remote_log_segment_id)
        changed = (*one_bit_changed(custom), *cut(custom))
        for damaged in changed:
            if not damaged:
                continue  # None at all: of an older segment.
            with pytest.raises(Corrupt, match=segment):
                await opened.storage.fetch_index(
                    replace(metadata, custom_metadata=damaged), IndexType.LEADER_EPOCH
                )

    run(place, tmp_path, body)


def test_golden_checksums() -> None:
    data = encode_checksums(CHECKSUMS)
    assert data == (GOLDEN / "remote_index_checksums_v1.bin").read_bytes()
    assert decode_checksums(data, "segment") == CHECKSUMS
    assert len(data) == 51 <= CUSTOM_METADATA_BYTES_MAX
    with pytest.raises(UnsupportedVersion):
        decode_checksums(seal(b"\x02" + data[1:-4]), "segment")
    with pytest.raises(Corrupt, match="kind 9"):
        decode_checksums(seal(data[:2] + b"\x09" + data[3:-4]), "segment")
    with pytest.raises(Corrupt):
        decode_checksums(seal(data[:-4] + b"\0"), "segment")
