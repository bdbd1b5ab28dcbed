"""One load of an object's blocks: each piece is decoded on the thread that received it, and handed
to the cache on the event loop.

A piece is decoded as soon as it arrives: it is still in the processor's cache, and readers of its
blocks need not wait for the rest.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from streamlog.cache.single_flight import SingleFlightCache
from streamlog.errors import Corrupt, StreamlogError
from streamlog.format.object.block import BlockRow, decode_block
from streamlog.metadata.interface import ObjectRow
from streamlog.model.batch import StoredBatch
from streamlog.objectstore.interface import tell_pieces
from streamlog.objectstore.keys import data_key
from streamlog.runtime.buffers import Buffer

_BATCH_BYTES = 200
"""Memory of one decoded batch beside its payload."""

BlockKey = tuple[int, int]
"""Object id, and position in the object."""


class Block(NamedTuple):
    """A decoded block."""

    batches: Sequence[StoredBatch]
    size_bytes: int
    """Size of the batches' payloads."""

    @property
    def memory_bytes(self) -> int:
        return self.size_bytes + len(self.batches) * _BATCH_BYTES


BlockCache = SingleFlightCache[BlockKey, Block]


class _Decoded(NamedTuple):
    """The blocks of a piece up to the first damaged one, and that one's error."""

    piece: int
    memory: object
    """The buffer that the blocks lie in."""
    size_bytes: int
    blocks: list[Block]
    error: Corrupt | None


class BlockLoad:
    """Loads blocks, in order, that were announced to the cache (`begin`).

    Only `arrived` may run on other threads. The maker must call `close`, however the load ends.
    """

    def __init__(
        self, cache: BlockCache, row: ObjectRow, run: Sequence[BlockRow], piece_bytes: int
    ) -> None:
        self.start = run[0].position
        self.length = run[-1].position + run[-1].length - self.start
        self.received_bytes = 0
        self._cache = cache
        self._row = row
        self._pieces = list(_pieces(run, piece_bytes))
        self._loop = asyncio.get_running_loop()
        self._reserved = 0
        self._decoded: deque[_Decoded] = deque()
        self._is_woken = False
        self._left = dict(enumerate(self._pieces))
        """By piece: the blocks that the cache still waits for."""
        self._errors: dict[int, Corrupt] = {}
        self._memory: object = None
        self._group = object()
        """The cache group of all blocks in `_memory`: the buffer is freed with the last of them."""

    @property
    def sizes(self) -> list[int]:
        """Sizes of the pieces; each ends where the next one begins."""
        starts = [*(piece[0].position for piece in self._pieces), self.start + self.length]
        return [end - start for start, end in pairwise(starts)]

    def reserve(self) -> None:
        """Reserves room in the cache; it is released block by block."""
        self._reserved = self.length
        self._cache.reserve(self.length)

    def arrived(self, number: int, data: Buffer) -> bool:
        """As Arrived; on any thread. The same piece may arrive twice at the same time."""
        if number not in self._left:
            return bool(self._left)
        decoded = self._decode(number, data)
        self._decoded.append(decoded)
        # The GET ends right after the last piece, and wakes the loop by itself.
        if number < len(self._pieces) - 1 and not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._take)
            except RuntimeError:
                # The loop was closed: no reader waits any more.
                return False
        return decoded.error is None

    def decode(self, data: Buffer) -> None:
        """Decodes all of a small load on the loop. Errors: Corrupt."""
        tell_pieces(data, self.sizes, self._arrived_here)
        self.finish()

    def finish(self) -> None:
        """All pieces have arrived. Errors: Corrupt."""
        self._take()
        if self._left:
            number = min(self._left)
            if number not in self._errors:
                # The object ends before it.
                self._finish(self._decode(number, b""))
            raise self._errors[number]

    def close(self, error: StreamlogError) -> None:
        """Ends the load: readers of blocks that have not arrived get `error`."""
        left, self._left = self._left, {}
        self._memory = None
        for number in sorted(left):
            for block in left[number]:
                self._cache.fail((self._row.object_id, block.position), error)
        self._cache.reserve(-self._reserved)
        self._reserved = 0

    def _arrived_here(self, number: int, data: Buffer) -> bool:
        decoded = self._decode(number, data)
        self._finish(decoded)
        return decoded.error is None

    def _take(self) -> None:
        self._is_woken = False
        while self._decoded:
            self._finish(self._decoded.popleft())

    def _finish(self, decoded: _Decoded) -> None:
        """Hands a piece's blocks to the cache, unless the cache has them."""
        number = decoded.piece
        left = self._left.get(number, ())
        if not left:
            return
        blocks = self._pieces[number]
        finished = len(blocks) - len(left)
        if decoded.memory is not self._memory:
            self._memory, self._group = decoded.memory, object()
        for row, block in zip(left, decoded.blocks[finished:], strict=False):
            returned = min(self._reserved, row.length)
            self._reserved -= returned
            self._cache.reserve(-returned)
            key = (self._row.object_id, row.position)
            self._cache.finish(key, block, block.memory_bytes, self._group)
        self.received_bytes += decoded.size_bytes
        if decoded.error is None:
            del self._left[number]
        else:
            self._left[number] = blocks[max(finished, len(decoded.blocks)) :]
            self._errors[number] = decoded.error

    def _decode(self, number: int, data: Buffer) -> _Decoded:
        key, view = data_key(self._row.object_id), memoryview(data)
        blocks: list[Block] = []
        start = self._pieces[number][0].position
        try:
            for block in self._pieces[number]:
                position = block.position - start
                data_of_block = view[position : position + block.length]
                batches = decode_block(data_of_block, block, object_key=key)
                # A stored batch's payload is one piece.
                blocks.append(Block(batches, sum([len(batch.parts[0]) for batch in batches])))
        except Corrupt as error:
            return _Decoded(number, view.obj, len(data), blocks, error)
        return _Decoded(number, view.obj, len(data), blocks, None)


def _pieces(run: Sequence[BlockRow], piece_bytes: int) -> Iterator[list[BlockRow]]:
    """Cuts the run into pieces of about `piece_bytes`; the first is an eighth of that, so that the
    first blocks are available soon."""
    piece: list[BlockRow] = []
    wanted = piece_bytes // 8
    for block in run:
        if piece and block.position - piece[0].position >= wanted:
            yield piece
            piece, wanted = [], piece_bytes
        piece.append(block)
    yield piece
