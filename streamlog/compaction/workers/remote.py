"""A compactor's jobs carried out by a remote executor, which comes and goes.

1. The compactor uses a `SwitchedExecutor`. The node's own executor makes all plans; jobs go to the
   remote executor while there is one. There is one remote executor at a time.
2. A job has a number. Its outcome is checked (`outcome_check`) before the compactor gets it. The
   remote may report only inputs of the job as damaged or gone.
3. When the remote goes away, or its answer is wrong, the job fails with RemoteLost, the remote gets
   no more jobs, and the node's own executor takes the next one. A lost remote may go on storing
   outputs, so the compactor seals its tenure: then the collector deletes whatever arrives later.
4. A remote is not told when the caller of its job is cancelled. It goes on, its answer is passed
   over, and the compactor seals its tenure as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from streamlog.compaction.execute.executor import Executor
from streamlog.compaction.plan.planner import MergePlan
from streamlog.compaction.plan.planning import MergePlanRequest
from streamlog.compaction.plan.spec import Job, MergeOutcome, decode_outcome, encode_job
from streamlog.compaction.workers.outcome_check import check_outcome
from streamlog.errors import (
    Closed,
    Conflict,
    Corrupt,
    Invalid,
    ObjectNotFound,
    StoreUnavailable,
    StreamlogError,
    Unavailable,
    UnsupportedVersion,
)
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.runtime.offload import Lane, Offload

log = logging.getLogger(__name__)

JOB_S_MAX = 3600.0
"""A job has a few GiB at most; a live remote that takes longer is stuck."""
OUTCOME_BYTES_MAX = 64 << 10
"""The outcome of 64 outputs takes 3 KiB."""


class RemoteLost(StoreUnavailable):
    """The remote executor is gone; it may still store outputs of its job."""


class RemoteExecutor:
    """One remote executor. The service that talks to it fetches jobs and delivers answers."""

    def __init__(self, owner: str, store: ObjectStore, offload: Offload) -> None:
        self.owner = owner
        self.ended: StreamlogError | None = None
        """Why it gets no more jobs."""
        self._store = store
        self._offload = offload
        self._jobs: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._number = 0
        self._due: set[int] = set()
        """Jobs whose answer has not come; all but the newest were given up."""
        self._job: Job | None = None
        self._answer: asyncio.Future[bytes] | None = None

    async def run(self, job: Job) -> MergeOutcome:
        """As Executor.run. Errors: also RemoteLost; DiskFull does not come."""
        data = await self._offload.run(Lane.CPU, encode_job, job)
        if self.ended is not None:
            raise self._lost(self.ended)
        self._number += 1
        self._due.add(self._number)
        self._job = job
        answer = self._answer = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait((self._number, data))
        try:
            async with asyncio.timeout(JOB_S_MAX):
                data = await answer
        except TimeoutError:
            late = Unavailable(f"{self.owner} did not end a merge within {JOB_S_MAX:g} s")
            self.end(late)
            raise self._lost(late) from None
        finally:
            self._job = self._answer = None
        try:
            outcome = await self._offload.run(Lane.CPU, decode_outcome, data, OUTCOME_BYTES_MAX)
            await check_outcome(job, outcome, self._store, self._offload)
        except (Corrupt, Invalid, UnsupportedVersion) as error:
            refused = Invalid(f"the outcome that {self.owner} reports is refused: {error.message}")
            self.end(refused)
            raise self._lost(refused) from error
        return outcome

    # for the service that talks to the remote

    async def next_job(self) -> tuple[int, bytes]:
        """Waits for the next job; its number and bytes."""
        return await self._jobs.get()

    def done(self, number: int, outcome: bytes) -> None:
        """Errors: Invalid (no such job is under way)."""
        answer = self._answer_to(number)
        if len(outcome) > OUTCOME_BYTES_MAX:
            raise Invalid(f"an outcome of {len(outcome)} bytes; {OUTCOME_BYTES_MAX} are allowed")
        self._due.remove(number)
        if answer is not None:
            answer.set_result(outcome)

    def failed(self, number: int, error: StreamlogError) -> None:
        """An input cannot be read. Errors: Invalid (no such job, or another kind of error)."""
        answer = self._answer_to(number)
        if answer is None:
            self._due.remove(number)
            return
        assert self._job is not None
        inputs = {data_key(one.row.object_id) for one in self._job.spec.inputs}
        key = error.fields.get("object_key")
        if not isinstance(error, Corrupt | ObjectNotFound) or key not in inputs:
            raise Invalid(
                f"{type(error).__name__} ({error.message}) says of no input of the merge that it "
                "is damaged or gone: end the call instead"
            )
        self._due.remove(number)
        answer.set_exception(error)

    def end(self, reason: StreamlogError) -> None:
        """Ends the remote: its job fails, and it gets no more. Only the first reason is kept."""
        if self.ended is not None:
            return
        self.ended = reason
        self._due.clear()
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._lost(reason))

    def _answer_to(self, number: int) -> asyncio.Future[bytes] | None:
        """None: the job was given up. Errors: Invalid."""
        if number not in self._due:
            raise Invalid(f"merge {number} is not under way here")
        if number != self._number or self._answer is None or self._answer.done():
            return None
        return self._answer

    def _lost(self, reason: StreamlogError) -> RemoteLost:
        return RemoteLost(
            f"the executor {self.owner} is gone: {reason.message}", operation="compact"
        )


class SwitchedExecutor:
    """Passes jobs to the remote executor while there is one, else to the node's own."""

    def __init__(self, own: Executor) -> None:
        self.own = own
        self._remote: RemoteExecutor | None = None
        self._is_closed = False

    @property
    def is_lent(self) -> bool:
        return self._remote is not None and self._remote.ended is None

    @contextmanager
    def lent(self, remote: RemoteExecutor) -> Iterator[None]:
        """Jobs go to `remote` until it ends, or this context does. Errors: Conflict, Closed."""
        if self._is_closed:
            raise Closed("the compactor was closed")
        present = self._remote
        if present is not None:
            raise Conflict(
                f"{present.owner} carries out this node's merges: wait until it is done, or stop it"
            )
        self._remote = remote
        log.info("merges are carried out elsewhere", extra={"owner": remote.owner})
        try:
            yield
        finally:
            remote.end(Closed("its call is over"))
            self._remote = None
            log.info("merges are carried out here again", extra={"owner": remote.owner})

    async def plan(self, request: MergePlanRequest) -> MergePlan:
        return await self.own.plan(request)

    async def run(self, job: Job) -> MergeOutcome:
        if self._remote is not None and self._remote.ended is None:
            return await self._remote.run(job)
        return await self.own.run(job)

    def set_busy(self, is_busy: bool) -> None:
        self.own.set_busy(is_busy)

    async def close(self) -> None:
        self._is_closed = True
        if self._remote is not None:
            self._remote.end(Closed("the compactor was closed"))
        await self.own.close()
