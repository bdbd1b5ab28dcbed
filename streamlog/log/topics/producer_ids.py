"""Producer ids: unique in the cluster, taken from the KV store in blocks.

Namespace `_producer`, key `next`: version u8 (1), u64 the first free id. A block is taken by
compare-and-set; ids that a crash leaves over are never used.
"""

from __future__ import annotations

import asyncio

from streamlog.errors import Invalid, ValueConflict
from streamlog.log.api.wire import FieldReader, FieldWriter
from streamlog.model.kv import Key, KVClient

KEY = Key(b"next", "_producer")
VERSION = 1
EPOCH_MAX = (1 << 15) - 2
"""The last epoch of a producer id; the next one comes with a new id."""


def encode(first_free: int) -> bytes:
    w = FieldWriter()
    w.u8(VERSION)
    w.u64(first_free)
    return bytes(w.data)


def decode(value: bytes) -> int:
    """The first free id. Errors: Corrupt."""
    r = FieldReader(value, "the producer id counter")
    version = r.u8()
    if version != VERSION:
        raise r.corrupt(f"has version {version}")
    first_free = r.u64()
    r.end()
    return first_free


class ProducerIds:
    def __init__(self, kv: KVClient, block_size: int) -> None:
        self._kv = kv
        self._block_size = block_size
        self._next = 0
        self._end = 0
        self._taking = asyncio.Lock()

    async def init(
        self, producer_id: int | None = None, producer_epoch: int | None = None
    ) -> tuple[int, int]:
        """A new id with epoch 0, or the given id with its next epoch.

        Errors: Invalid for an id that was never given out, as far as this node knows: of the ids
        in other nodes' blocks it cannot tell.
        """
        if producer_id is None or producer_id < 0:
            return await self._new(), 0
        if producer_epoch is None or producer_epoch < 0:
            raise Invalid("a producer that names its id names its epoch, too")
        is_taken = producer_id < self._end or producer_id < (await self._read())[0]
        if not is_taken or self._next <= producer_id < self._end:
            raise Invalid(f"producer id {producer_id} was never given out; ask for a new one")
        if producer_epoch >= EPOCH_MAX:
            return await self._new(), 0
        return producer_id, producer_epoch + 1

    async def _new(self) -> int:
        async with self._taking:
            while self._next == self._end:
                await self._take_block()
            self._next += 1
            return self._next - 1

    async def pass_over(self, first_free: int) -> None:
        """Ids below `first_free` are given to nobody from now on: logs that were taken over know
        producers of those ids, whose batches would be taken for a new producer's."""
        async with self._taking:
            self._next = self._end = 0
            while True:
                first, revision = await self._read()
                if first >= first_free or await self._write(first_free, revision):
                    return

    async def _take_block(self) -> None:
        """Takes nothing if another node was faster."""
        first, revision = await self._read()
        if await self._write(first + self._block_size, revision):
            self._next, self._end = first, first + self._block_size

    async def _write(self, first_free: int, revision: int) -> bool:
        """False, and nothing changes, if another node was faster."""
        try:
            await self._kv.compare_and_set_kv(KEY, encode(first_free), revision)
        except ValueConflict:
            return False
        return True

    async def _read(self) -> tuple[int, int]:
        """(first free id, revision)."""
        value = await self._kv.get_kv(KEY)
        if value is None:
            return 0, 0
        return decode(value.data), value.revision
