"""GETs whose pieces arrive one by one, on threads, twice, damaged, or not at all."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence

import pytest

from streamlog.engine.config import MIB, ReadConfig
from streamlog.engine.engine import Engine
from streamlog.errors import Closed, Corrupt, StoreUnavailable
from streamlog.model.stream import Stream
from streamlog.objectstore.interface import Arrived, tell_pieces
from streamlog.objectstore.keys import data_key
from tests.engine.harness import QUICK, FlakyStore, World, damaged_range, read_all, run, until
from tests.engine.read.large_objects import PAYLOAD, store_object
from tests.support.replacing import replace_method

SIZE = 12 * MIB
BATCHES = SIZE // len(PAYLOAD)
PIECE = 2 * MIB
CONFIG = dataclasses.replace(QUICK, read=ReadConfig(get_piece_bytes=PIECE))

Tell = Callable[[int], Awaitable[bool]]
"""Passes the piece to `arrived` on a thread; returns its result."""


class SteeredStore(FlakyStore):
    """`script(number of the GET, number of pieces, tell)` is what happens in a large GET."""

    def __init__(self, script: Callable[[int, int, Tell], Awaitable[None]]) -> None:
        super().__init__()
        self._script = script
        self.large: list[tuple[int, int]] = []
        """First byte and length of each piece."""

    async def get_pieces(
        self, key: str, start: int, sizes: Sequence[int], arrived: Arrived
    ) -> None:
        data = memoryview(await super().get(key, start, sum(sizes)))
        starts = [sum(sizes[:number]) for number in range(len(sizes))]

        async def tell(number: int) -> bool:
            piece = data[starts[number] : starts[number] + sizes[number]]
            return await asyncio.to_thread(arrived, number, piece)

        number = len(self.large)
        self.large.append((start, sum(sizes)))
        await self._script(number, len(sizes), tell)


async def in_order(number: int, pieces: int, tell: Tell) -> None:
    for piece in range(pieces):
        if not await tell(piece):
            return


Script = Callable[[int, int, Tell], Awaitable[None]]
Scenario = Callable[[World, SteeredStore, Stream, Engine], Awaitable[None]]


def with_object(
    script: Script, scenario: Scenario, make: Callable[[Script], SteeredStore] = SteeredStore
) -> None:
    """`scenario` on a stream of one object that no cache has."""

    async def main() -> None:
        world = World("object", CONFIG)
        world.store = store = make(script)
        await store_object(world, 1, [(1, 0)], BATCHES)
        async with world.engine() as (streams, engine):
            await scenario(world, store, await streams.open_stream(1), engine)
            # Read ahead, maybe, and never asked for.
            await until(lambda: engine.blocks.blocks.reserved_bytes == 0)

    run(main)


def test_blocks_are_handed_out_while_the_rest_of_their_get_is_under_way() -> None:
    gate = asyncio.Event()

    async def halting(number: int, pieces: int, tell: Tell) -> None:
        assert pieces == 7
        for piece in range(pieces):
            if piece == 3:
                await gate.wait()
            await tell(piece)

    async def scenario(world: World, store: SteeredStore, stream: Stream, engine: Engine) -> None:
        position = 0
        while position < 4 * MIB // len(PAYLOAD):
            batches = (await stream.fetch(position, BATCHES, MIB)).batches
            position = batches[-1].end_offset
        assert len(store.large) == 1
        assert engine.blocks.blocks.reserved_bytes > SIZE // 2
        rest = asyncio.ensure_future(stream.fetch(position, BATCHES, SIZE))
        await asyncio.sleep(0)
        assert not rest.done()
        gate.set()
        assert (await rest).batches[-1].end_offset == BATCHES

    with_object(halting, scenario)


def test_repeated_and_concurrent_pieces_change_nothing() -> None:
    async def twice(number: int, pieces: int, tell: Tell) -> None:
        # As two requests would, one of which began later.
        await asyncio.gather(in_order(number, pieces - 2, tell), in_order(number, pieces, tell))

    async def scenario(world: World, store: SteeredStore, stream: Stream, engine: Engine) -> None:
        assert await read_all(stream, hint=SIZE) == [PAYLOAD] * BATCHES
        blocks = engine.blocks.blocks
        assert SIZE <= blocks.size_bytes < 1.01 * SIZE

    with_object(twice, scenario)


def test_a_fetch_returns_the_batches_before_a_failure() -> None:
    async def failing_once(number: int, pieces: int, tell: Tell) -> None:
        if number == 0:
            for piece in range(3):
                await tell(piece)
            raise StoreUnavailable("cut", operation="get")
        await in_order(number, pieces, tell)

    async def scenario(world: World, store: SteeredStore, stream: Stream, engine: Engine) -> None:
        batches = (await stream.fetch(0, BATCHES, SIZE)).batches
        assert [bytes(stored.parts[0]) for stored in batches] == [PAYLOAD] * BATCHES
        # The second GET asked for the rest alone.
        (_, first), (start, second) = store.large
        assert 2 * PIECE < start < 3 * PIECE
        assert start + second <= first + MIB

    with_object(failing_once, scenario)


def test_a_failure_before_the_first_piece_is_raised_to_the_caller() -> None:
    async def failing(number: int, pieces: int, tell: Tell) -> None:
        raise StoreUnavailable("away", operation="get")

    async def scenario(world: World, store: SteeredStore, stream: Stream, engine: Engine) -> None:
        with pytest.raises(StoreUnavailable, match="away"):
            await stream.fetch(0, BATCHES, MIB)
        assert engine.blocks.blocks.size_bytes == 0

    with_object(failing, scenario)


def test_a_damaged_piece_ends_the_get_and_fails_no_other_piece() -> None:
    sent_pieces: list[tuple[int, int]] = []

    async def noted(number: int, pieces: int, tell: Tell) -> None:
        for piece in range(pieces):
            sent_pieces.append((number, piece))
            if not await tell(piece):
                return

    async def scenario(world: World, store: SteeredStore, stream: Stream, engine: Engine) -> None:
        key = data_key(1)
        whole = bytes(await store.get(key))
        damaged = bytearray(whole)
        damaged[5 * MIB] ^= 1
        await store.put(key, [bytes(damaged)])
        before = (await stream.fetch(0, BATCHES, SIZE)).batches
        assert 4 * MIB < len(before) * len(PAYLOAD) <= 5 * MIB
        # Once more, to see what is wrong, and that was all.
        assert sent_pieces == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
        with pytest.raises(Corrupt) as caught:
            await stream.fetch(before[-1].end_offset, BATCHES, SIZE)
        assert 5 * MIB in damaged_range(caught.value)
        behind = 6 * MIB // len(PAYLOAD)
        after = (await stream.fetch(behind, BATCHES, SIZE)).batches
        assert after[-1].end_offset == BATCHES
        # Nothing of the damage stays behind.
        await store.put(key, [whole])
        assert await read_all(stream, hint=SIZE) == [PAYLOAD] * BATCHES

    with_object(noted, scenario)


def test_one_intact_copy_of_a_piece_suffices() -> None:
    async def scenario(world: World, store: SteeredStore, stream: Stream, engine: Engine) -> None:
        assert await read_all(stream, hint=SIZE) == [PAYLOAD] * BATCHES

    class OnceDamaged(SteeredStore):
        async def get_pieces(
            self, key: str, start: int, sizes: Sequence[int], arrived: Arrived
        ) -> None:
            if not self.large:
                assert arrived(0, bytes(sizes[0])) is False
            await super().get_pieces(key, start, sizes, arrived)

    with_object(in_order, scenario, OnceDamaged)


def test_an_object_that_ends_too_soon_is_corrupt() -> None:
    async def ending(number: int, pieces: int, tell: Tell) -> None:
        await tell(0)

    async def scenario(world: World, store: SteeredStore, stream: Stream, engine: Engine) -> None:
        before = (await stream.fetch(0, BATCHES, SIZE)).batches
        assert 0 < len(before) * len(PAYLOAD) <= PIECE
        with pytest.raises(Corrupt, match="0 bytes instead of"):
            await stream.fetch(SIZE // 2 // len(PAYLOAD), BATCHES, MIB)

    # From the second piece of a GET on there is nothing, whatever it asks for.
    async def nothing_later(number: int, pieces: int, tell: Tell) -> None:
        if number == 0:
            await ending(number, pieces, tell)

    with_object(nothing_later, scenario)


def test_closing_the_engine_fails_waiting_readers_and_ends_the_get() -> None:
    tells: list[Tell] = []

    async def halting(number: int, pieces: int, tell: Tell) -> None:
        await tell(0)
        tells.append(tell)
        await asyncio.Event().wait()

    async def main() -> None:
        world = World("object", CONFIG)
        world.store = SteeredStore(halting)
        await store_object(world, 1, [(1, 0)], BATCHES)
        async with world.engine() as (streams, _):
            stream = await streams.open_stream(1)
            await stream.fetch(0, BATCHES, len(PAYLOAD))
            waiting = asyncio.ensure_future(stream.fetch(BATCHES // 2, BATCHES, MIB))
            await until(lambda: bool(tells))
            assert not waiting.done()
        with pytest.raises(Closed):
            await waiting
        # The request's thread goes on for a while.
        assert tells
        assert not any([await tell(1) for tell in tells])

    run(main)


def test_a_load_cancelled_before_its_first_step_fails_with_closed() -> None:
    async def main() -> None:
        world = World("object", CONFIG)
        world.store = SteeredStore(in_order)
        await store_object(world, 1, [(1, 0)], BATCHES)
        async with world.engine(crash=True) as (streams, _):
            stream = await streams.open_stream(1)
            await stream.attributes(0, 1)
            # The index is here, so that the fetch comes to its load at once.
            waiting = asyncio.ensure_future(stream.fetch(0, BATCHES, SIZE))
            await asyncio.sleep(0)
        with pytest.raises(Closed):
            await asyncio.wait_for(waiting, 30)

    run(main)


def test_blocks_in_one_buffer_are_dropped_together() -> None:
    """Some stores receive a whole GET before they pass its first piece on."""

    class WholeStore(SteeredStore):
        async def get_pieces(
            self, key: str, start: int, sizes: Sequence[int], arrived: Arrived
        ) -> None:
            # A copy: what the store itself keeps is not what is measured.
            data = bytearray(await self.get(key, start, sum(sizes)))
            await asyncio.to_thread(tell_pieces, data, sizes, arrived)

    async def main() -> None:
        bound = 8 * MIB
        read = ReadConfig(
            get_piece_bytes=256 * 1024, block_cache_bytes=bound, read_ahead_bytes_max=2 * MIB
        )
        world = World("object", dataclasses.replace(QUICK, read=read))
        world.store = WholeStore(in_order)
        for number in range(1, 9):
            await store_object(world, number, [(number, 0)], 16)
        async with world.engine() as (streams, engine):
            opened = [await streams.open_stream(number) for number in range(1, 9)]
            for number, stream in enumerate(opened):
                await stream.fetch(0, 16, 2 * MIB)
                # One block of each is looked at again and again.
                for other in opened[:number]:
                    await other.fetch(0, 1, 1)
            loaded = [blocks for blocks, _ in engine.blocks.blocks._loaded.values()]
            views = [
                part for blocks in loaded for stored in blocks.batches for part in stored.parts
            ]
            held = {id(part.obj): part.obj for part in views if isinstance(part, memoryview)}
            assert held
            assert sum(map(len, held.values())) <= bound + 2 * MIB  # type: ignore[arg-type]

    run(main)


@pytest.mark.parametrize("is_folded", [False, True])
def test_ranges_found_once_serve_until_their_object_is_gone(is_folded: bool) -> None:
    async def scenario(world: World, store: SteeredStore, stream: Stream, engine: Engine) -> None:
        located: list[int] = []
        locate = world.metadata.locate

        async def counted(stream_id: int, start: int, end: int, *, limit: int = 64) -> object:
            located.append(start)
            return await locate(stream_id, start, end, limit=limit)

        replace_method(world.metadata, "locate", counted)
        position = 0
        while position < BATCHES // 2:
            position = (await stream.fetch(position, BATCHES, MIB)).batches[-1].end_offset
        assert len(located) <= 2
        # A compaction replaces the object, and the old one goes.
        ranges = world.metadata.ranges.pop(1)
        await store_object(world, 2, [(1, 0)], BATCHES)
        replaced = world.metadata.ranges[1]
        if not is_folded:
            world.metadata.ranges[1] = ranges
        world.metadata.while_catching_up = lambda: world.metadata.ranges.update({1: replaced})
        await store.delete([data_key(1)])
        engine.blocks.forget(1)
        assert await read_all(stream, start=position, hint=MIB) == [PAYLOAD] * (BATCHES - position)
        # The metadata store may be away: what the node knows by itself is not asked for.
        assert world.metadata.caught_up == (0 if is_folded else 1)

    with_object(in_order, scenario)
