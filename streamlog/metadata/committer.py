"""The commit loop of one tenure: entries in, one record transaction at a time, answers out.

1. Entries are queued in the order of calls; those that fit share a record, none is split.
2. The record is planned under the fold lock and gets the number after the last one. From its first
   send on its bytes are frozen: they are sent again until a definite answer.
3. Applied: fold it, answer everybody in it.
4. Refused (record_sender), for the gen or `x` moved: the same entries are planned again.
5. A sealed fence that only the watch has shown proves nothing for a record that was sent: see 2.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamlog.errors import Closed, Invalid, StreamlogError, TenureFenced
from streamlog.format import commit_record
from streamlog.format.commit_record import CommitRecord
from streamlog.metadata.config import MetadataConfig
from streamlog.metadata.follower import Follower
from streamlog.metadata.id_allocator import ObjectIdAllocator
from streamlog.metadata.interface import CommitEntry, Committed
from streamlog.metadata.metrics import MetadataMetrics
from streamlog.metadata.object_ids import ObjectIds
from streamlog.metadata.plan import Plan, plan_record, rows_of, size_bound_bytes
from streamlog.metadata.record_sender import FrozenRecord, RecordSender
from streamlog.metadata.steps import run_breathing
from streamlog.runtime.offload import Lane, Offload
from streamlog.runtime.progress import Due

log = logging.getLogger(__name__)

ENCODE_INLINE_ROWS = 2048
"""Records up to so many rows are encoded on the loop: about 0.3 ms."""


@dataclass(slots=True)
class _Waiting:
    entry: CommitEntry
    rows: int
    size_bytes: int
    answer: asyncio.Future[Committed]

    @property
    def is_alone(self) -> bool:
        """It hangs on `x`: others should not wait until it comes to terms with it."""
        return bool(self.entry.attaches or self.entry.unstages)


@dataclass(frozen=True, slots=True)
class _Frozen:
    plan: Plan
    record: CommitRecord
    sent: FrozenRecord


class Committer:
    def __init__(
        self,
        sender: RecordSender,
        follower: Follower,
        ids: ObjectIds,
        *,
        config: MetadataConfig,
        offload: Offload,
        metrics: MetadataMetrics,
    ) -> None:
        self._sender = sender
        self._follower = follower
        self._ids = ids
        self._config = config
        self._offload = offload
        self._metrics = metrics
        self._queue: deque[_Waiting] = deque()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._wants_floor = False
        self._records = 0
        self._failure: StreamlogError | None = None
        self.allocator: ObjectIdAllocator
        """Set before `run`."""
        follower.on_sealed(self._work.set)

    # callers

    def submit(self, entry: CommitEntry) -> asyncio.Future[Committed]:
        """Queues the entry; the future ends when it is folded.

        Errors: Invalid when it is too large for any record; what ended the tenure.
        """
        if self._failure is not None:
            raise self._failure
        rows, size = rows_of(entry), size_bound_bytes((entry,))
        if rows > self._config.object_streams_max or size > self._config.record_bytes_max:
            raise Invalid(
                f"a commit entry has {rows} rows and about {size} bytes; at most "
                f"{self._config.object_streams_max} rows and {self._config.record_bytes_max} bytes "
                "fit into a record: commit smaller objects",
                rows=rows,
                size_bytes=size,
            )
        future: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        # Whoever is cancelled leaves its answer behind; that is not a lost exception.
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._queue.append(_Waiting(entry, rows, size, future))
        self._metrics.queue_entries.set(len(self._queue))
        self._idle.clear()
        self._work.set()
        return future

    def ask_for_floor(self) -> None:
        """Writes a record soon, if only to raise the floor."""
        if self._failure is None:
            self._wants_floor = True
            self._idle.clear()
            self._work.set()

    def progress(self) -> Due | None:
        """The record under way, and what waits for the next one."""
        if self._idle.is_set():
            return None
        return Due(self._records, f"commit record {self._seq + 1}; {len(self._queue)} wait behind")

    async def drained(self) -> None:
        """Nothing is queued or under way on return."""
        await self._idle.wait()

    def fail(self, error: StreamlogError) -> None:
        """Answers everything queued, and every later call, with the error."""
        self._failure = self._failure or error
        self._wants_floor = False
        for waiting in self._queue:
            _refuse(waiting, self._failure)
        self._queue.clear()
        self._metrics.queue_entries.set(0)
        self.allocator.fail(self._failure)
        self._idle.set()

    # the loop

    async def run(self) -> None:
        """Until cancelled. Errors: Internal (the store answered against the protocol), Corrupt."""
        while True:
            await self._work.wait()
            self._work.clear()
            while (self._queue or self._wants_floor) and self._failure is None:
                await self._commit(self._take())
                self._records += 1
            if self._follower.is_sealed:
                # Nothing is under way here, so everything that waits can be told.
                self.fail(self._sender.fenced())
            self._idle.set()

    def _take(self) -> list[_Waiting]:
        """The entries of the next record: as many as fit, at least one if there is one."""
        taken: list[_Waiting] = []
        rows = size = 0
        while self._queue:
            waiting = self._queue[0]
            rows, size = rows + waiting.rows, size + waiting.size_bytes
            if taken and (
                waiting.is_alone
                or taken[-1].is_alone
                or rows > self._config.object_streams_max
                or size > self._config.record_bytes_max
            ):
                break
            taken.append(self._queue.popleft())
        self._metrics.queue_entries.set(len(self._queue))
        return taken

    async def _commit(self, group: list[_Waiting]) -> None:
        floor_only, self._wants_floor = self._wants_floor, False
        try:
            while True:
                if self._follower.is_sealed:
                    raise self._sender.fenced()
                frozen = await self._freeze([w.entry for w in group], may_be_empty=floor_only)
                if isinstance(frozen, Plan):
                    self._answer(group, frozen, self._follower.revision, self._seq)
                    return
                revision = await self._sender.send(frozen.sent)
                if revision is None:
                    continue
                seq, value = frozen.sent.seq, frozen.sent.value
                await self._follower.fold_own_record(revision, seq, frozen.record, len(value))
                committed = [o for e in frozen.plan.entries for o in e.committed]
                self._ids.committed(committed, frozen.record.floor)
                self._answer(group, frozen.plan, revision, seq)
                return
        except TenureFenced as error:
            for waiting in group:
                _refuse(waiting, error)
            self.fail(error)
        except StreamlogError as error:
            for waiting in group:
                _refuse(waiting, error)
            self.fail(error)
            raise
        except asyncio.CancelledError:
            for waiting in group:
                _refuse(waiting, _gave_up())
            raise

    @property
    def _seq(self) -> int:
        return self._follower.state.fold.mark(self._follower.tenure).seq

    async def _freeze(
        self, entries: Sequence[CommitEntry], *, may_be_empty: bool
    ) -> _Frozen | Plan:
        """The record of these entries as of now; a Plan when nothing is left to commit."""
        async with self._follower.lock:
            gen, seq = self._follower.gen, self._seq + 1
            plan = await run_breathing(
                plan_record(
                    self._follower.state.fold,
                    self._follower.tenure,
                    entries,
                    self._ids.uncommitted,
                    may_be_empty=may_be_empty,
                )
            )
        if plan.record is None:
            return plan
        committing = [o for entry in plan.entries for o in entry.committed]
        made = replace(plan.record, floor=self._ids.floor(committing))
        rows = sum(len(o.streams) for entry in made.entries for o in entry.objects)
        if rows <= ENCODE_INLINE_ROWS:
            value = commit_record.encode(made)
        else:
            value = await self._offload.run(Lane.CPU, commit_record.encode, made)
        self._metrics.record_bytes.observe(len(value))
        return _Frozen(plan, made, FrozenRecord(seq, gen, value, plan.compactions))

    def _answer(self, group: list[_Waiting], plan: Plan, revision: int, seq: int) -> None:
        for waiting, planned in zip(group, plan.entries, strict=True):
            if planned.failure is not None:
                _refuse(waiting, planned.failure)
                continue
            self._ids.give_up(planned.orphaned)
            self._metrics.entries.inc()
            if planned.stripped:
                self._metrics.stripped.inc()
            if not waiting.answer.done():
                waiting.answer.set_result(
                    Committed(revision, seq, planned.stripped, planned.has_changed)
                )
        self.allocator.changed()


def _refuse(waiting: _Waiting, error: StreamlogError) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)


def _gave_up() -> Closed:
    error = Closed("the metadata was closed while a commit was under way; it may have happened")
    error.has_no_side_effects = False
    return error
