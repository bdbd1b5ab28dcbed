"""Ids for new objects and streams, from blocks that the metadata store hands to the tenure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from streamlog.errors import Internal, StreamlogError, TenureFenced
from streamlog.kvstore.interface import Get, KVStore, Put, RevisionIs, ValueIs
from streamlog.metadata.backoff import Retry
from streamlog.metadata.interface import Tenure
from streamlog.metadata.keys import fence, id_block
from streamlog.metadata.keys.id_block import IdKind
from streamlog.metadata.object_ids import ObjectIds
from streamlog.runtime.progress import Due

log = logging.getLogger(__name__)


class BlockTaker:
    """Takes blocks by a transaction on the counter and the own fence."""

    def __init__(self, kv: KVStore, prefix: bytes, tenure: Tenure, retry: Retry) -> None:
        self._kv = kv
        self._prefix = prefix
        self._tenure = tenure
        self._retry = retry

    async def take(self, kind: IdKind) -> int:
        """A block that is this tenure's alone. One whose answer was lost stays unused.

        Errors: TenureFenced, MetadataUnavailable.
        """
        backoff = self._retry.bounded()
        counter_key = id_block.counter_key(self._prefix, kind)
        tenure = self._tenure
        fence_key = fence.key(self._prefix, tenure)
        while True:
            try:
                read = await self._kv.txn([], [Get(counter_key), Get(fence_key)])
                counters, fences = read.responses
                if not fences or not fence.decode(fences[0].value).is_live:
                    raise TenureFenced(
                        f"tenure {tenure} was sealed: it takes no more ids; start the process again"
                    )
                block = 1 + (id_block.decode_counter(counters[0].value) if counters else 0)
                result = await self._kv.txn(
                    [
                        RevisionIs(counter_key, counters[0].mod_revision if counters else 0),
                        ValueIs(fence_key, fences[0].value),
                    ],
                    [
                        Put(counter_key, id_block.encode_counter(block)),
                        Put(
                            id_block.block_key(self._prefix, kind, block),
                            id_block.encode_owner(tenure),
                        ),
                    ],
                )
            except StreamlogError as error:
                await backoff.after(error)
                continue
            if result.succeeded:
                return block
            await backoff.wait()


class StreamIds:
    """Stream ids of the own blocks, each given out once."""

    def __init__(self, blocks: BlockTaker) -> None:
        self._blocks = blocks
        self._lock = asyncio.Lock()
        self._next = 0
        self._end = 0

    async def take(self, count: int) -> list[int]:
        """Errors: as BlockTaker.take."""
        found: list[int] = []
        async with self._lock:
            while len(found) < count:
                if self._next == self._end:
                    block = await self._blocks.take(id_block.STREAMS)
                    self._next = block << id_block.STREAMS.block_bits
                    self._end = self._next + id_block.STREAMS.block_ids
                taken = min(count - len(found), self._end - self._next)
                found += range(self._next, self._next + taken)
                self._next += taken
        return found


class ObjectIdAllocator:
    """Waits while the window is used up; asks for a record when that would open it."""

    def __init__(
        self, ids: ObjectIds, blocks: BlockTaker, ask_for_record: Callable[[], None]
    ) -> None:
        self._ids = ids
        self._blocks = blocks
        self._ask_for_record = ask_for_record
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._failure: StreamlogError | None = None
        self.waits_for_sweep = False
        """Nothing can be stored before ids are swept that were given up."""

    def progress(self) -> Due | None:
        """An object id that is asked for and not to be had."""
        if not self._lock.locked():
            return None
        return Due(self._ids.taken, f"an object id: {self._ids.standing}")

    async def take(self) -> int:
        """First come, first served. Errors: as BlockTaker.take; what ended the tenure."""
        async with self._lock:
            while True:
                if self._failure is not None:
                    raise self._failure
                if self._ids.has_room:
                    break
                if self._ids.can_raise_floor:
                    self._ask_for_record()
                elif self._ids.is_held_by_orphan and not self.waits_for_sweep:
                    self.waits_for_sweep = True
                    log.warning(
                        "uploads wait until %d objects that were given up are deleted: no more may "
                        "be uncommitted (metadata.put_window)",
                        len(self._ids.orphans),
                    )
                self._changed.clear()
                await self._changed.wait()
            if self.waits_for_sweep:
                self.waits_for_sweep = False
                log.warning("uploads go on")
            if self._ids.needs_block:
                self._ids.add_block(await self._blocks.take(id_block.OBJECTS))
            return self._ids.take()

    def changed(self) -> None:
        """The window moved, or its floor could."""
        self._changed.set()

    def fail(self, error: StreamlogError) -> None:
        self._failure = self._failure or error
        self._changed.set()


def check_count(count: int) -> None:
    if not 0 < count <= 1 << 20:
        raise Internal(f"{count} stream ids are asked for at once; at most {1 << 20}")
