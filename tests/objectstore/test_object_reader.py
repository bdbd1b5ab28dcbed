"""Reads of data objects: what is there, and what the metadata says is there and is not."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.codec.crc import crc32c
from streamlog.errors import Corrupt, ObjectNotFound
from streamlog.format.entry import StreamEntry
from streamlog.format.object.build import BuiltObject, build_object
from streamlog.format.object.footer import ObjectIdentity
from streamlog.objectstore.keys import data_key
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.objectstore.object_reader import ObjectReader, get_exactly, get_tail
from streamlog.runtime.buffers import Buffer, join
from streamlog.runtime.offload import ThreadOffload
from streamlog.testing.clocks import ManualClock

KEY = data_key(1)


class CountingStore(MemoryObjectStore):
    def __init__(self) -> None:
        super().__init__(ManualClock())
        self.gets: list[tuple[int, int | None]] = []

    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        self.gets.append((start, length))
        return await super().get(key, start, length)


def built() -> BuiltObject:
    """Stream 3 has ten batches of one record in several blocks."""
    entries = [
        StreamEntry(3, 1, base, 1, 7, (payload,), b"", crc32c(payload))
        for base in range(10)
        for payload in [bytes([base]) * 1000]
    ]
    return build_object(ObjectIdentity("cluster", 1, 1, 1), entries, block_target_bytes=2500)


def test_a_stream_is_read_by_one_get_beside_the_index() -> None:
    async def main() -> None:
        store, offload, made = CountingStore(), ThreadOffload(), built()
        await store.put(KEY, made.parts)
        reader = ObjectReader(store, offload)
        assert len(await reader.index(made.row)) > 2
        store.gets.clear()
        batches = [batch async for batch in reader.batches(made.row, 3, 2, 9)]
        assert [batch.base_offset for batch in batches] == list(range(2, 9))
        assert [bytes(join(batch.parts)) for batch in batches] == [
            bytes([base]) * 1000 for base in range(2, 9)
        ]
        assert len(store.gets) == 2
        await offload.close()

    asyncio.run(main())


def test_bytes_that_an_object_does_not_have_are_corrupt() -> None:
    async def main() -> None:
        store = CountingStore()
        await store.put(KEY, (b"0123456789",))
        assert bytes(await get_exactly(store, KEY, 4, 6)) == b"456789"
        for start, length in ((4, 7), (10, 1), (20, 5)):
            with pytest.raises(Corrupt, match="ends before byte") as raised:
                await get_exactly(store, KEY, start, length)
            assert raised.value.object_key == KEY
            assert (raised.value.start, raised.value.end) == (start, start + length)
        with pytest.raises(ObjectNotFound):
            await get_exactly(store, data_key(2), 0, 1)

    asyncio.run(main())


@pytest.mark.parametrize("change", [-1, 1])
def test_the_tail_of_an_object_of_another_size_is_corrupt(change: int) -> None:
    async def main() -> None:
        store, made = CountingStore(), built()
        data = bytes(join(made.parts))
        await store.put(KEY, (data,))
        assert await get_tail(store, made.row) == data[made.row.index_position :]
        await store.put(KEY, ((data + b"x")[: len(data) + change],))
        with pytest.raises(Corrupt, match=f"bytes instead of {len(data)}"):
            await get_tail(store, made.row)

    asyncio.run(main())


def test_the_tail_of_an_object_that_ends_before_its_index_is_corrupt() -> None:
    async def main() -> None:
        store, made = CountingStore(), built()
        await store.put(KEY, (b"x",))
        with pytest.raises(Corrupt, match="ends before byte"):
            await get_tail(store, made.row)

    asyncio.run(main())
