"""The metadata that the engine's tests fake does what the real one does."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest

from streamlog.metadata.interface import (
    CommitEntry,
    CreateEntry,
    Metadata,
    NewObject,
    ObjectRow,
    RangeRow,
    StreamEpoch,
    StreamRow,
    TokenEntry,
    TrimEntry,
)
from streamlog.model.batch import StreamState
from tests.engine.fakes import FakeMetadata
from tests.engine.harness import run
from tests.metadata.world import World
from tests.support.object_ids import take_id

STEPS = 60
Range = tuple[int, int, int]
"""First offset, end, and the number of the object."""


class Side:
    """One implementation. Objects are numbered as they were taken: ids differ between the two."""

    def __init__(self, metadata: Metadata, steal: Callable[[int], Awaitable[None]]) -> None:
        self.metadata = metadata
        self.steal = steal
        self._numbers: dict[int, int] = {}

    async def new_object(self, *ranges: RangeRow) -> NewObject:
        object_id = await take_id(self.metadata)
        self._numbers[object_id] = len(self._numbers)
        return NewObject(ObjectRow(object_id, 1000, 900, 100, 7), ranges)

    async def commit(self, entry: CommitEntry) -> frozenset[int]:
        return (await self.metadata.commit(entry)).stripped

    async def ranges(self, row: StreamRow) -> list[Range]:
        live = await self.metadata.locate(row.stream_id, row.start, row.end)
        return [
            (live_range.start, live_range.end, self._numbers[live_range.object.object_id])
            for live_range in live
        ]


async def step(draw: random.Random, sides: list[Side]) -> None:
    """The same change on both sides, chosen by what the first one shows; answers are compared."""
    rows = sides[0].metadata.streams()
    own = [row for row in rows if row.holder == sides[0].metadata.tenure]
    kind = draw.choice(("create", "append", "append", "stale", "token", "trim", "move", "end"))
    if kind == "create" or not own:
        ids = [await side.metadata.allocate_stream_ids(1) for side in sides]
        assert ids[0] == ids[1]
        entries = [CommitEntry(creates=[CreateEntry(ids[0][0], 1, {"name": "x"})])] * 2
    else:
        row = draw.choice(own)
        stream_id, epoch, is_open = row.stream_id, row.epoch, row.state is StreamState.OPEN
        entry = CommitEntry()
        if kind in ("append", "stale"):
            if not is_open:
                return
            end = row.end + draw.randint(1, 9)
            made = RangeRow(stream_id, epoch - (kind == "stale"), row.end, end)
            entries = [CommitEntry(objects=[await side.new_object(made)]) for side in sides]
            await commit(sides, entries)
            return
        if kind == "token":
            entry = CommitEntry(tokens=[TokenEntry(stream_id, epoch, draw.randbytes(2))])
        elif kind == "trim":
            start = draw.randint(row.start, row.end)
            entry = CommitEntry(trims=[TrimEntry(stream_id, epoch, start)])
        elif kind == "move":
            if is_open:
                for side in sides:
                    await side.steal(stream_id)
                return
            opened = [await side.metadata.open_streams([(stream_id, None)]) for side in sides]
            assert opened[0] == opened[1]
            return
        elif is_open:
            entry = CommitEntry(closes=[StreamEpoch(stream_id, epoch)])
        else:
            entry = CommitEntry(destroys=[StreamEpoch(stream_id, epoch)])
        entries = [entry] * 2
    await commit(sides, entries)


async def commit(sides: list[Side], entries: list[CommitEntry]) -> None:
    answers = [await side.commit(entry) for side, entry in zip(sides, entries, strict=True)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("seed", range(8))
def test_the_fake_metadata_answers_as_the_real_one(seed: int) -> None:
    async def scenario() -> None:
        world, fake = World(), FakeMetadata(stream_id_min=1 << 16)
        async with world.tenure() as real, world.tenure(2) as other:

            async def steal(stream_id: int) -> None:
                await other.take_streams([(stream_id, None)])
                await real.catch_up()

            async def steal_fake(stream_id: int) -> None:
                fake.steal(stream_id)

            sides = [Side(real, steal), Side(fake.as_metadata, steal_fake)]
            draw = random.Random(seed)
            for _ in range(STEPS):
                await step(draw, sides)
                assert real.streams() == fake.streams()
                for row in real.streams():
                    assert await sides[0].ranges(row) == await sides[1].ranges(row)

    run(scenario)
