"""A compactor's jobs carried out elsewhere, by an executor that comes and goes.

1. `SwitchedExecutor` is what the compactor has. Plans are made by the node's own executor, always;
   jobs go to the remote one while it is there. One remote at a time.
2. A job goes out under a number. Its outcome is checked (`outcome_check`) before the compactor sees
   it; that an input is damaged or gone is believed of inputs alone.
3. When the remote goes away, or what it says is wrong, the job fails as RemoteLost, the remote is
   done with, and the next job is the own executor's. Outputs may be stored for long yet by a remote
   that is lost: the compactor seals its tenure, so that whatever lands is swept.
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
"""A job is some GiB at most: a remote that lives and does not end it is stuck."""
OUTCOME_BYTES_MAX = 64 << 10
"""64 outputs take 3 KiB."""


class RemoteLost(StoreUnavailable):
    """The remote executor is gone, and may still be storing the outputs of its job."""


class RemoteExecutor:
    """One remote, from its coming to its end; whoever talks to it fetches jobs, brings answers."""

    def __init__(self, owner: str, store: ObjectStore, offload: Offload) -> None:
        self.owner = owner
        self.ended: StreamlogError | None = None
        """Why it is done with."""
        self._store = store
        self._offload = offload
        self._jobs: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue()
        self._number = 0
        self._job: Job | None = None
        self._answer: asyncio.Future[bytes] | None = None

    async def run(self, job: Job) -> MergeOutcome:
        """As Executor.run. Errors: also RemoteLost; DiskFull does not come."""
        data = await self._offload.run(Lane.CPU, encode_job, job)
        if self.ended is not None:
            raise self._lost(self.ended)
        self._number += 1
        self._job = job
        answer = self._answer = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait((self._number, data))
        try:
            async with asyncio.timeout(JOB_S_MAX):
                found = await answer
        except TimeoutError:
            late = Unavailable(f"{self.owner} did not end a merge within {JOB_S_MAX:g} s")
            self.end(late)
            raise self._lost(late) from None
        finally:
            self._job = self._answer = None
        try:
            outcome = await self._offload.run(Lane.CPU, decode_outcome, found, OUTCOME_BYTES_MAX)
            await check_outcome(job, outcome, self._store, self._offload)
        except (Corrupt, Invalid, UnsupportedVersion) as error:
            refused = Invalid(f"what {self.owner} says to have merged is refused: {error.message}")
            self.end(refused)
            raise self._lost(refused) from error
        return outcome

    # for whoever talks to it

    async def next_job(self) -> tuple[int, bytes]:
        """Number and bytes of the next job; waits for it."""
        return await self._jobs.get()

    def done(self, number: int, outcome: bytes) -> None:
        """Errors: Invalid (no such job is under way)."""
        answer = self._answer_to(number)
        if len(outcome) > OUTCOME_BYTES_MAX:
            raise Invalid(f"an outcome of {len(outcome)} bytes; {OUTCOME_BYTES_MAX} are allowed")
        answer.set_result(outcome)

    def failed(self, number: int, error: StreamlogError) -> None:
        """An input cannot be read. Errors: Invalid (no such job, or that is not what is said)."""
        answer = self._answer_to(number)
        assert self._job is not None
        inputs = {data_key(one.row.object_id) for one in self._job.spec.inputs}
        key = error.fields.get("object_key")
        if not isinstance(error, Corrupt | ObjectNotFound) or key not in inputs:
            raise Invalid(
                f"{type(error).__name__} ({error.message}) says of no input of the merge that it "
                "is damaged or gone: end the call instead"
            )
        answer.set_exception(error)

    def end(self, reason: StreamlogError) -> None:
        """It gets no more jobs; that under way fails. The first reason counts."""
        if self.ended is not None:
            return
        self.ended = reason
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._lost(reason))

    def _answer_to(self, number: int) -> asyncio.Future[bytes]:
        if self._answer is None or self._answer.done() or number != self._number:
            raise Invalid(f"merge {number} is not under way here")
        return self._answer

    def _lost(self, reason: StreamlogError) -> RemoteLost:
        return RemoteLost(
            f"the executor {self.owner} is gone: {reason.message}", operation="compact"
        )


class SwitchedExecutor:
    """The own executor, or the remote one's while there is one."""

    def __init__(self, own: Executor) -> None:
        self.own = own
        self._remote: RemoteExecutor | None = None
        self._is_closed = False

    @property
    def is_lent(self) -> bool:
        return self._remote is not None and self._remote.ended is None

    @contextmanager
    def lent(self, remote: RemoteExecutor) -> Iterator[None]:
        """Jobs go to `remote` until it ends, or this does. Errors: Conflict, Closed."""
        if self._is_closed:
            raise Closed("the compactor was closed")
        other = self._remote
        if other is not None:
            raise Conflict(
                f"{other.owner} carries out this node's merges: wait until it is done, or stop it"
            )
        self._remote = remote
        log.info("merges are carried out elsewhere", extra={"owner": remote.owner})
        try:
            yield
        finally:
            remote.end(Closed("its call is over"))
            self._remote = None
            log.info("merges are carried out here again", extra={"owner": remote.owner})

    async def plan(self, asked: MergePlanRequest) -> MergePlan:
        return await self.own.plan(asked)

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
