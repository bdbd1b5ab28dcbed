"""Locating: an object that dies after its range was sent makes the caller try again."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.errors import MetadataUnavailable
from streamlog.metadata.interface import CommitEntry, StreamEpoch
from streamlog.metadata.lookup.locating import LocateSection, Locating
from tests.metadata.world import World, append, create


def test_an_object_that_dies_between_its_two_look_ups_is_no_corruption() -> None:
    async def main() -> None:
        async with World().tenure(1) as metadata:
            (stream,) = await create(metadata)
            await append(metadata, stream, 3)
            locating = Locating(metadata, [LocateSection(0, stream, 0, 0, 3, 100)])
            runs = [run async for part in locating.ranges() for run in part]
            assert [list(run.ends) for run in runs] == [[3]]
            await metadata.commit(CommitEntry(destroys=[StreamEpoch(stream, 1)]))
            await metadata.checkpoint()
            with pytest.raises(MetadataUnavailable, match="died") as raised:
                _ = [table async for table in locating.objects()]
            assert raised.value.is_retryable

    asyncio.run(main())
