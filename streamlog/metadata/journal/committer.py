"""The commit loop of one tenure: takes entries, commits one record at a time, answers callers.

1. Entries are queued in the order of calls. Those that fit share a record; none is split.
2. The record is planned under the fold's lock and gets the number after the last one. From its
   first send on its bytes are frozen: the same bytes are sent until a definite answer.
3. Applied: the record is folded, and the callers of its entries are answered.
4. Refused because gen or compaction counter has changed: the same entries are planned again.
5. However the loop ends, all waiting and all later callers get the reason as their error. A record
   in flight may have been applied: the error of its callers says so.
6. The commit owns an entry's ids from `submit` on: it commits them, or gives them up once refused.
7. A fence that only the watch has shown sealed decides nothing about a record in flight: see 2.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from streamlog.errors import Closed, Internal, MessageTooLarge, StreamlogError, TenureFenced
from streamlog.format.records import commit as commit_record
from streamlog.format.records.commit import CommitRecord
from streamlog.metadata.fold.plan import CommitPlan, plan_record, rows_of, size_bound_bytes
from streamlog.metadata.interface import CommitEntry, Committed
from streamlog.metadata.journal.follower import Follower
from streamlog.metadata.journal.id_allocator import ObjectIdAllocator
from streamlog.metadata.journal.object_ids import ObjectIds
from streamlog.metadata.journal.record_sender import FrozenRecord, RecordSender
from streamlog.metadata.keyspace import Tools
from streamlog.runtime.concurrency.steps import run_cooperatively
from streamlog.runtime.offload import Lane
from streamlog.runtime.progress import Due

log = logging.getLogger(__name__)

ENCODE_INLINE_ROWS = 2048
"""Records up to so many rows are encoded on the loop: about 0.3 ms."""


@dataclass(slots=True)
class _QueuedEntry:
    entry: CommitEntry
    rows: int
    size_bytes: int
    ids: Sequence[int]
    answer: asyncio.Future[Committed]

    @property
    def is_alone(self) -> bool:
        """Whether it gets a record of its own: it compares the compaction counter, may be refused
        for that, and should not hold up other entries."""
        return bool(self.entry.attaches or self.entry.unstages)


@dataclass(frozen=True, slots=True)
class _FrozenCommit:
    plan: CommitPlan
    record: CommitRecord
    sent: FrozenRecord


class Committer:
    """Queues the commit entries of one tenure and commits them in order."""

    def __init__(
        self,
        sender: RecordSender,
        follower: Follower,
        ids: ObjectIds,
        tools: Tools,
    ) -> None:
        self._sender = sender
        self._follower = follower
        self._ids = ids
        self._config = tools.config
        self._offload = tools.offload
        self._metrics = tools.metrics
        self._queue: deque[_QueuedEntry] = deque()
        self._under_way: list[_QueuedEntry] = []
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

    def check_fits(self, entry: CommitEntry) -> None:
        """As Metadata.check_fits."""
        rows, size = rows_of(entry), size_bound_bytes((entry,))
        self._check_size(rows, size)

    def _check_size(self, rows: int, size: int) -> None:
        rows_max, size_max = self._config.object_streams_max, self._config.record_bytes_max
        if rows > rows_max or size > size_max:
            raise MessageTooLarge(
                f"a commit entry has {rows} rows and about {size} bytes; at most {rows_max} rows "
                f"and {size_max} bytes fit into a record (metadata.object_streams_max, "
                "metadata.record_bytes_max). Nothing was stored: ask for less at once",
                rows=rows,
                size_bytes=size,
                max_bytes=size_max,
            )

    def submit(self, entry: CommitEntry) -> asyncio.Future[Committed]:
        """Queues the entry; the future is done when the entry is folded.

        Errors: MessageTooLarge when it is too large for any record; what ended the tenure.
        """
        if self._failure is not None:
            raise self._failure
        rows, size = rows_of(entry), size_bound_bytes((entry,))
        self._check_size(rows, size)
        future: asyncio.Future[Committed] = asyncio.get_running_loop().create_future()
        # A cancelled caller never reads its answer; that is no "exception never retrieved".
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        ids = [new.row.object_id for new in entry.objects]
        ids += [stage.row.object_id for stage in entry.stages]
        self._ids.begin_commit(ids)
        self._queue.append(_QueuedEntry(entry, rows, size, ids, future))
        self._metrics.queue_entries.set(len(self._queue))
        self._idle.clear()
        self._work.set()
        return future

    def ask_for_floor(self) -> None:
        """Asks for a record soon, be it without entries, to raise the floor."""
        if self._failure is None:
            self._wants_floor = True
            self._idle.clear()
            self._work.set()

    def progress(self) -> Due | None:
        """A commit is due while entries are queued or a record is in flight."""
        if self._idle.is_set():
            return None
        return Due(self._records, f"commit record {self._seq + 1}; {len(self._queue)} wait behind")

    async def drained(self) -> None:
        """Waits until no entry is queued or in flight."""
        await self._idle.wait()

    def fail(self, error: StreamlogError) -> None:
        """Fails every entry, queued or in flight, and every later call.

        Ids stay as they are: a record in flight may still be applied, and the sweep of the sealed
        tenure finds its ids.
        """
        self._failure = error = self._failure or error
        self._wants_floor = False
        for waiting in self._under_way:
            _refuse(waiting, _uncertain(error))
        for waiting in self._queue:
            _refuse(waiting, error)
        self._queue.clear()
        self._metrics.queue_entries.set(0)
        self.allocator.fail(error)
        self._idle.set()

    # the loop

    async def run(self) -> None:
        """Runs until cancelled. Errors: Internal (an answer breaks the protocol), Corrupt."""
        try:
            await self._loop()
        except StreamlogError as error:
            self.fail(error)
            raise
        except asyncio.CancelledError:
            self.fail(Closed("the metadata was closed"))
            raise
        except BaseException as cause:
            reason = Internal(f"the commit loop failed: {cause!r}; start the process again")
            reason.__cause__ = cause
            self.fail(reason)
            raise

    async def _loop(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while (self._queue or self._wants_floor) and self._failure is None:
                group = self._under_way = self._take()
                await self._commit(group)
                self._under_way = []
                self._records += 1
            if self._follower.is_sealed:
                # No record is in flight here, so every waiting caller gets a definite answer.
                self.fail(self._sender.fenced())
            self._idle.set()

    def _take(self) -> list[_QueuedEntry]:
        """Takes the entries of the next record: as many as fit, and at least one if any waits."""
        taken: list[_QueuedEntry] = []
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

    async def _commit(self, group: list[_QueuedEntry]) -> None:
        floor_only, self._wants_floor = self._wants_floor, False
        try:
            while True:
                if self._follower.is_sealed:
                    raise self._sender.fenced()
                frozen = await self._freeze([w.entry for w in group], may_be_empty=floor_only)
                if isinstance(frozen, CommitPlan):
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
            # Sealed before the record was applied: it never will be.
            for waiting in group:
                _refuse(waiting, error)
            self.fail(error)

    @property
    def _seq(self) -> int:
        return self._follower.state.fold.mark(self._follower.tenure).seq

    async def _freeze(
        self, entries: Sequence[CommitEntry], *, may_be_empty: bool
    ) -> _FrozenCommit | CommitPlan:
        """The record of these entries, planned now; a CommitPlan when nothing is left to commit."""
        async with self._follower.lock:
            gen, seq = self._follower.gen, self._seq + 1
            plan = await run_cooperatively(
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
        return _FrozenCommit(plan, made, FrozenRecord(seq, gen, value, plan.compactions))

    def _answer(self, group: list[_QueuedEntry], plan: CommitPlan, revision: int, seq: int) -> None:
        for waiting, planned in zip(group, plan.entries, strict=True):
            # Ids that are not committed now never will be: the record left them out.
            self._ids.refused(waiting.ids)
            self._ids.give_up(waiting.ids)
            if planned.failure is not None:
                _refuse(waiting, planned.failure)
                continue
            self._metrics.entries.inc()
            if planned.stripped:
                self._metrics.stripped.inc()
            if not waiting.answer.done():
                waiting.answer.set_result(
                    Committed(revision, seq, planned.stripped, planned.has_changed)
                )
        self.allocator.changed()


def _refuse(waiting: _QueuedEntry, error: StreamlogError) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)


def _uncertain(reason: StreamlogError) -> StreamlogError:
    """The same error for a commit in flight; each caller gets its own."""
    error = type(reason)(
        f"{reason.message}; a commit was under way and may have happened", **reason.fields
    )
    error.has_no_side_effects = False
    error.__cause__ = reason
    return error
