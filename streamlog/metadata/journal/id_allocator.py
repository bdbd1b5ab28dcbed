"""Ids for new objects and streams, from blocks that the tenure takes in the metadata store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from streamlog.errors import (
    Internal,
    MetadataUnavailable,
    Overloaded,
    StreamlogError,
    TenureFenced,
)
from streamlog.kvstore.interface import Get, Put, RevisionIs, ValueIs
from streamlog.metadata.backoff import MetadataBackoff, RetryPolicy, is_transient
from streamlog.metadata.interface import Tenure
from streamlog.metadata.journal.object_ids import ObjectIds, OwnedIds
from streamlog.metadata.keys import fence, id_block
from streamlog.metadata.keys.id_block import IdKind
from streamlog.metadata.keyspace import KeySpace
from streamlog.runtime.progress import Due

log = logging.getLogger(__name__)


class BlockTaker:
    """Takes blocks of ids, by a transaction on the counter and the own fence."""

    def __init__(self, keys: KeySpace, tenure: Tenure) -> None:
        self._kv = keys.kv
        self._prefix = keys.prefix
        self._tenure = tenure
        self._retry = keys.retry
        self._asked: dict[IdKind, set[int]] = {}
        """Blocks of transactions without an answer: this tenure may own one of them."""
        self._waiting: set[IdKind] = set()

    async def take(self, kind: IdKind, backoff: MetadataBackoff | None = None) -> int:
        """Takes a block for this tenure alone, above those that it took before.

        A block whose answer was lost, or whose caller was cancelled, goes to the next call: a sweep
        counts the tenure's ids through all blocks that it owns, so none of them may stay unused.
        `backoff` None: retries for `operation_timeout_ms`.
        Errors: TenureFenced, MetadataUnavailable.
        """
        backoff = backoff or self._retry.bounded()
        try:
            while True:
                try:
                    block = await self._try(kind)
                except StreamlogError as error:
                    self._note_wait(kind, error)
                    await backoff.after(error)
                    continue
                if block is not None:
                    if self.waits_for(kind):
                        log.warning("a block of %s ids was taken: what waited goes on", kind.name)
                    return block
                await backoff.wait()
        finally:
            self._waiting.discard(kind)

    def waits_for(self, kind: IdKind) -> bool:
        """Whether `take` waits for the metadata store."""
        return kind in self._waiting

    def _note_wait(self, kind: IdKind, error: StreamlogError) -> None:
        if kind not in self._waiting and is_transient(error):
            self._waiting.add(kind)
            log.warning("a new block of %s ids waits for the metadata store: %s", kind.name, error)

    async def _try(self, kind: IdKind) -> int | None:
        """Takes a block; None: another tenure took it first."""
        counter_key = id_block.counter_key(self._prefix, kind)
        tenure = self._tenure
        fence_key = fence.key(self._prefix, tenure)
        asked = sorted(self._asked.get(kind, ()))
        keys = [id_block.block_key(self._prefix, kind, block) for block in asked]
        read = await self._kv.txn([], [Get(counter_key), Get(fence_key), *map(Get, keys)])
        counters, fences, *owners = read.responses
        if not fences or not fence.decode(fences[0].value).is_live:
            raise TenureFenced(
                f"tenure {tenure} was sealed: it takes no more ids; start the process again"
            )
        # After this read no earlier transaction can be applied: the counter has changed, or changes
        # below.
        for asked_block, owner in zip(asked, owners, strict=True):
            if owner and id_block.decode_owner(owner[0].value) == tenure:
                self._asked[kind].clear()
                return asked_block
        block = 1 + (id_block.decode_counter(counters[0].value) if counters else 0)
        self._asked.setdefault(kind, set()).add(block)
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
        if not result.succeeded:
            return None
        self._asked[kind].clear()
        return block


class StreamIdAllocator:
    """Hands out stream ids of this tenure's blocks, each once."""

    def __init__(self, blocks: BlockTaker) -> None:
        self._blocks = blocks
        self._lock = asyncio.Lock()
        self._next = 0
        self._end = 0

    async def take(self, count: int) -> list[int]:
        """Errors: as BlockTaker.take."""
        ids: list[int] = []
        async with self._lock:
            while len(ids) < count:
                if self._next == self._end:
                    block = await self._blocks.take(id_block.STREAMS)
                    self._next = block << id_block.STREAMS.block_bits
                    self._end = self._next + id_block.STREAMS.block_ids
                taken = min(count - len(ids), self._end - self._next)
                ids += range(self._next, self._next + taken)
                self._next += taken
        return ids


class ObjectIdAllocator:
    """Hands out object ids; waits while the window is used up.

    It asks for a commit record when one would raise the floor and so open the window.
    """

    def __init__(
        self,
        ids: ObjectIds,
        blocks: BlockTaker,
        retry: RetryPolicy,
        ask_for_record: Callable[[], None],
    ) -> None:
        self._ids = ids
        self._blocks = blocks
        self._retry = retry
        self._ask_for_record = ask_for_record
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self._failure: StreamlogError | None = None
        self.waits_for_sweep = False
        """No object can be stored before ids that were given up are swept."""
        self.sweep_wanted = asyncio.Event()
        """Set when `waits_for_sweep` begins; the collector clears it when it runs."""

    def progress(self) -> Due | None:
        """An object id is due while a caller waits for one."""
        if not self._lock.locked():
            return None
        reason = "a new block of ids" if self.waits_for_block else self._ids.standing
        return Due(self._ids.taken, f"an object id: {reason}")

    def owned(self, *, is_patient: bool) -> OwnedIds:
        """As Metadata.owned_object_id."""
        return OwnedIds(self._take_patiently if is_patient else self._take_in_time, self.give_up)

    def give_up(self, object_ids: Iterable[int]) -> None:
        """As ObjectIds.give_up; wakes waiting callers."""
        self._ids.give_up(object_ids)
        self._changed.set()

    @property
    def open_ids(self) -> frozenset[int]:
        """Taken, neither committed nor given up."""
        return self._ids.uncommitted

    @property
    def waits_for_block(self) -> bool:
        """The metadata store did not answer when a new block was asked for."""
        return self._blocks.waits_for(id_block.OBJECTS)

    async def _take_patiently(self) -> list[int]:
        return [await self._take(self._retry.endless())]

    async def _take_in_time(self) -> list[int]:
        backoff = self._retry.bounded()
        try:
            async with asyncio.timeout(backoff.left_s()):
                return [await self._take(backoff)]
        except TimeoutError as error:
            if self._ids.has_room:
                raise MetadataUnavailable(
                    "the metadata store gave no new block of object ids in time; nothing was "
                    "stored, try again"
                ) from error
            raise Overloaded(
                "as many objects are being stored as may be uncommitted (metadata.put_window), and "
                "none of them came to its end in time; nothing was stored, try again"
            ) from error

    async def _take(self, backoff: MetadataBackoff) -> int:
        """Takes an id, in the order of calls. Errors: as BlockTaker.take; what ended the tenure."""
        async with self._lock:
            try:
                await self._room()
            finally:
                if self.waits_for_sweep:
                    self.waits_for_sweep = False
                    log.warning("uploads wait for deletions no more")
            if self._ids.needs_block:
                self._ids.add_block(await self._blocks.take(id_block.OBJECTS, backoff))
            return self._ids.take()

    async def _room(self) -> None:
        while True:
            if self._failure is not None:
                raise self._failure
            if self._ids.has_room:
                return
            self._note_wait()
            self._changed.clear()
            await self._changed.wait()

    def _note_wait(self) -> None:
        if self._ids.can_raise_floor:
            self._ask_for_record()
        elif self._ids.is_held_by_orphan and not self.waits_for_sweep:
            self.waits_for_sweep = True
            self.sweep_wanted.set()
            log.warning(
                "uploads wait until %d objects that were given up are deleted: no more may "
                "be uncommitted (metadata.put_window)",
                len(self._ids.orphans),
            )

    def changed(self) -> None:
        """Wakes waiting callers: the window moved, or its floor may rise now."""
        self._changed.set()

    def fail(self, error: StreamlogError) -> None:
        self._failure = self._failure or error
        self._changed.set()


def check_count(count: int) -> None:
    if not 0 < count <= 1 << 20:
        raise Internal(f"{count} stream ids are asked for at once; at most {1 << 20}")
