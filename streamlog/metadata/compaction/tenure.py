"""A compactor's own tenure: it has its own fence, head, lease and id window, and the node's fold.

1. One record is in flight at a time: a compaction, or a record that only raises the floor.
2. A compaction that another one overtook (the compaction counter has changed) is committed all the
   same, unless one of its inputs was replaced meanwhile: then Conflict; its outputs are given up.
3. A cancelled call's commit still runs to its end: a record's bytes stay the same until its answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from streamlog.errors import Closed, Conflict, Internal, Invalid, StreamlogError
from streamlog.format.records import commit as commit_record
from streamlog.format.records import compaction as compaction_record
from streamlog.format.records.commit import CommitRecord
from streamlog.metadata.compaction_interface import Replacement
from streamlog.metadata.fold.replacement import check_replaced, record_of
from streamlog.metadata.interface import Committed, Tenure
from streamlog.metadata.journal.follower import Follower
from streamlog.metadata.journal.id_allocator import BlockTaker
from streamlog.metadata.journal.object_ids import ObjectIds, OwnedIds
from streamlog.metadata.journal.record_sender import FrozenRecord, RecordSender
from streamlog.metadata.keys.id_block import OBJECTS
from streamlog.metadata.keyspace import KeySpace, Tools
from streamlog.metadata.lookup.lookup import Lookup
from streamlog.metadata.ownership.liveness import Liveness
from streamlog.metadata.ownership.own_seal import seal_own
from streamlog.metadata.ownership.registration import Registration
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.steps import run_cooperatively
from streamlog.runtime.offload import Lane

log = logging.getLogger(__name__)

ENCODE_INLINE_ROWS = 1024
"""Records of up to this many rows are encoded on the loop: about 0.3 ms."""


class OwnCompactionTenure:
    """The CompactionTenure that `MetadataSession.open_compaction_tenure` opens.

    It owns the tenure's lease, id window and commits. It does not own the fold or the look-ups.
    """

    def __init__(
        self,
        keys: KeySpace,
        registered: Registration,
        *,
        follower: Follower,
        lookup: Lookup,
        sender: RecordSender,
        tools: Tools,
        on_end: Callable[[OwnCompactionTenure], None],
    ) -> None:
        self._keys = keys
        self._registered = registered
        self._follower = follower
        self._lookup = lookup
        self._sender = sender
        self._config = tools.config
        self._clock = tools.clock
        self._offload = tools.offload
        self._on_end = on_end
        self._window = registered.fence.window
        self._ids = ObjectIds(registered.object_block, self._window)
        self._blocks = BlockTaker(keys, registered.tenure)
        self._liveness = Liveness(
            keys, registered.tenure, registered.lease_id, tools.config.lease_ttl_ms
        )
        self._background = Background("compaction_metadata", self._on_failure)
        self._taking = asyncio.Lock()
        self._sending = asyncio.Lock()
        self._changed = asyncio.Event()
        self._failure: StreamlogError | None = None
        self._is_closed = False
        self.waits_for_sweep = False
        """No output can be stored before ids that were given up are swept."""
        follower.on_sealed(self._changed.set, registered.tenure)

    def start(self) -> None:
        """Begins to keep the lease alive."""
        self._background.every(self._liveness.interval_s, self._liveness.tick, name="lease")

    @property
    def tenure(self) -> Tenure:
        return self._registered.tenure

    # ids

    def owned_object_ids(self, count: int) -> OwnedIds:
        """As CompactionTenure.owned_object_ids."""
        return OwnedIds(lambda: self._take_ids(count), self._give_up)

    async def _take_ids(self, count: int) -> list[int]:
        if not 0 < count <= self._window:
            raise Invalid(
                f"{count} object ids are asked for at once; this compactor's window holds "
                f"{self._window}"
            )
        taken: list[int] = []
        async with self._taking:
            try:
                await self._room_for(count)
                while len(taken) < count:
                    if self._ids.needs_block:
                        self._ids.add_block(await self._blocks.take(OBJECTS))
                    taken.append(self._ids.take())
            except BaseException:
                self._give_up(taken)
                raise
            finally:
                if self.waits_for_sweep:
                    self.waits_for_sweep = False
                    log.warning("compaction waits for deletions no more")
        return taken

    def _give_up(self, object_ids: Sequence[int]) -> None:
        self._ids.give_up(object_ids)
        self._changed.set()

    def holds(self, object_id: int) -> bool:
        """Whether the id was taken, and neither committed nor swept."""
        return self._ids.holds(object_id)

    @property
    def open_ids(self) -> frozenset[int]:
        """Ids that were taken, and neither committed nor given up."""
        return self._ids.uncommitted

    @property
    def orphans(self) -> list[int]:
        """Ids that were given up and not swept yet."""
        return self._ids.orphans

    def swept(self, object_ids: Sequence[int]) -> None:
        self._ids.swept(object_ids)
        self._changed.set()

    async def _room_for(self, count: int) -> None:
        while True:
            self._check_usable()
            if self._ids.room >= count:
                return
            if self._ids.can_raise_floor:
                await self._background.shielded(self._raise_floor, name="floor")
                continue
            if self._ids.is_held_by_orphan and not self.waits_for_sweep:
                self.waits_for_sweep = True
                log.warning(
                    "compaction waits until %d objects that it gave up are deleted: no more may be "
                    "uncommitted",
                    len(self._ids.orphans),
                )
            self._changed.clear()
            await self._changed.wait()

    # commits

    async def commit(self, replacement: Replacement) -> Committed:
        """As CompactionTenure.commit.

        Once a record was sent, the commit owns the outputs: they are not given up before a definite
        answer.
        """
        self._check_usable()
        return await self._background.shielded(lambda: self._commit(replacement), name="commit")

    async def _commit(self, replacement: Replacement) -> Committed:
        ids = [new.row.object_id for new in replacement.outputs]
        async with self._sending:
            try:
                self._check_ids(replacement, ids)
                await self._check_replaced(replacement)
                while True:
                    self._check_usable()
                    self._check_inputs(replacement)
                    floor = self._ids.floor(ids)
                    frozen = await self._freeze(replacement, floor)
                    # A cancelled caller may have given them up; then they may be deleted any time.
                    self._check_ids(replacement, ids)
                    self._ids.begin_commit(ids)
                    revision = await self._sender.send(frozen)
                    if revision is not None:
                        break
                    self._ids.refused(ids)
            except (Conflict, Invalid):
                self._give_up(ids)
                raise
            try:
                await self._follower.reach(revision)
            finally:
                # They are no orphans any more, even if folding failed.
                self._ids.committed(ids, floor)
                self._changed.set()
            return Committed(revision, frozen.seq)

    def _check_ids(self, replacement: Replacement, ids: Sequence[int]) -> None:
        if not replacement.inputs or not ids:
            raise Invalid("a replacement needs inputs and outputs")
        wrong = sorted(set(ids) - self._ids.uncommitted)
        if wrong or len(set(ids)) < len(ids):
            raise Invalid(
                f"outputs {wrong or sorted(ids)} are not this tenure's to commit, or there twice"
            )

    def _check_inputs(self, replacement: Replacement) -> None:
        compactions = self._follower.state.fold.compactions
        if compactions.replaced_since(replacement.point.counter, replacement.inputs):
            raise Conflict(
                f"a compaction after counter {replacement.point.counter} replaced an input, or may "
                "have; plan again"
            )

    async def _check_replaced(self, replacement: Replacement) -> None:
        self._check_inputs(replacement)
        try:
            await check_replaced(
                replacement, lambda: self._follower.state.fold, self._lookup.ranges
            )
        except Invalid:
            # Another compaction may have been folded between the look-ups.
            self._check_inputs(replacement)
            raise

    async def _freeze(self, replacement: Replacement, floor: int) -> FrozenRecord:
        fold = self._follower.state.fold
        mark, compactions = fold.mark(self.tenure), fold.compactions.counter
        record = await run_cooperatively(record_of(replacement, compactions + 1, floor))
        rows = compaction_record.rows_of(record.outputs)
        if rows <= ENCODE_INLINE_ROWS:
            value = compaction_record.encode(record)
        else:
            value = await self._offload.run(Lane.CPU, compaction_record.encode, record)
        if rows > self._config.object_streams_max or len(value) > self._config.record_bytes_max:
            raise Invalid(
                f"a replacement has {rows} rows and a record of {len(value)} bytes; at most "
                f"{self._config.object_streams_max} rows and {self._config.record_bytes_max} bytes "
                "fit: replace less at once",
                rows=rows,
                size_bytes=len(value),
            )
        return FrozenRecord(mark.seq + 1, mark.gen, value, compactions)

    async def _raise_floor(self) -> None:
        async with self._sending:
            while self._ids.can_raise_floor:
                mark, floor = self._follower.state.fold.mark(self.tenure), self._ids.floor()
                value = commit_record.encode(CommitRecord(floor, 0, ()))
                revision = await self._sender.send(FrozenRecord(mark.seq + 1, mark.gen, value))
                if revision is not None:
                    await self._follower.reach(revision)
                    self._ids.committed((), floor)

    # the end

    async def close(self) -> None:
        """Seals the tenure after the commit in flight, if the metadata store answers."""
        if self._is_closed:
            return
        self._is_closed = True
        self._changed.set()
        try:
            backoff = self._keys.retry.bounded()
            async with asyncio.timeout(backoff.left_s()), self._sending:
                await seal_own(
                    self._keys,
                    self._follower,
                    self.tenure,
                    self._registered.fence,
                    drained=True,
                    clock=self._clock,
                    backoff=backoff,
                )
                await self._liveness.end()
        except TimeoutError:
            log.warning("the metadata store did not answer: the next start seals this compactor")
        except StreamlogError as error:
            log.warning("the compactor was not sealed, the next start does it: %s", error)
        finally:
            await self._stop()

    async def kill(self) -> None:
        """Stops at once, as a crash would."""
        self._is_closed = True
        self._changed.set()
        await self._stop()

    def fail(self, error: StreamlogError) -> None:
        """Fails every later call with the error that ended the node's metadata."""
        self._failure = self._failure or error
        self._changed.set()

    async def _stop(self) -> None:
        await self._background.close()
        self._follower.forget_sealed(self.tenure)
        self._on_end(self)

    def _on_failure(self, error: BaseException) -> None:
        if not isinstance(error, StreamlogError):
            cause = error
            error = Internal(f"the compaction tenure {self.tenure} failed: {cause!r}")
            error.__cause__ = cause
        self.fail(error)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._follower.has_sealed(self.tenure):
            raise self._sender.fenced()
        if self._is_closed:
            raise Closed("the compactor's metadata was closed")
