"""Runs jobs in a child process, so that the node's own core stays free."""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE, Process

from streamlog.compaction.plan.planner import MergePlan
from streamlog.compaction.plan.planning import MergePlanRequest, decode_plan, encode_request
from streamlog.compaction.plan.spec import Job, MergeOutcome, decode_outcome, encode_job
from streamlog.compaction.workers.frames import (
    HEADER,
    PAYLOAD_BYTES_MAX,
    Frame,
    WorkerSettings,
    decode_error,
    encode_frame,
)
from streamlog.errors import Closed, StoreUnavailable, StreamlogError, Unavailable
from streamlog.runtime.clock import Clock
from streamlog.runtime.offload import Lane, Offload

log = logging.getLogger(__name__)

BACKOFF_S = 1.0
BACKOFF_S_MAX = 60.0
SILENT_S = 300.0
"""A process that sends no frame, or reads nothing of one, for this long is stuck."""


class ProcessExecutor:
    """Starts the process for the first job, and again after it died, each time with a longer wait.

    A job whose process died, or whose caller was cancelled, leaves orphans: nothing is committed.
    """

    def __init__(self, settings: WorkerSettings, offload: Offload, clock: Clock) -> None:
        self._settings = settings
        self._offload = offload
        self._clock = clock
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._backoff_s = 0.0
        self._start_at = clock.monotonic()
        self._is_busy = False
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The process's id, while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    async def run(self, job: Job) -> MergeOutcome:
        data = await self._offload.run(Lane.CPU, encode_job, job)
        return decode_outcome(await self._ask(Frame.JOB, data))

    async def plan(self, request: MergePlanRequest) -> MergePlan:
        """Plans in the process too, because planning burns CPU for each row. The answer has the
        rows of outputs alone."""
        data = await self._offload.run(Lane.CPU, encode_request, request)
        answer = await self._ask(Frame.PLAN, data)
        return await self._offload.run(Lane.CPU, decode_plan, answer, request)

    async def _ask(self, kind: Frame, data: bytes) -> bytes:
        async with self._turn:
            process = await self._started()
            try:
                await self._send(process, kind, data)
                answer, payload = await self._receive(process)
            except BaseException:
                # The process may be at work still; its answer must not be read as the next one's.
                await self._end(process)
                raise
        if answer is Frame.ERROR:
            raise decode_error(payload)
        self._backoff_s = 0.0
        return payload

    def set_busy(self, is_busy: bool) -> None:
        if is_busy == self._is_busy:
            return
        self._is_busy = is_busy
        process = self._process
        if process is not None and process.returncode is None:
            assert process.stdin is not None
            process.stdin.write(encode_frame(Frame.BUSY, bytes([is_busy])))

    async def close(self) -> None:
        """Kills the process; the work under way is not committed."""
        self._is_closed = True
        if self._process is not None:
            await self._end(self._process)

    async def _started(self) -> Process:
        if self._is_closed:
            raise Closed("the compactor was closed")
        process = self._process
        if process is not None:
            if process.returncode is None:
                return process
            await self._end(process)
        await asyncio.sleep(max(self._start_at - self._clock.monotonic(), 0))
        self._backoff_s = min(max(2 * self._backoff_s, BACKOFF_S), BACKOFF_S_MAX)
        self._start_at = self._clock.monotonic() + self._backoff_s
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "streamlog.compaction.workers.worker", stdin=PIPE, stdout=PIPE
            )
        except OSError as error:
            raise StoreUnavailable(
                f"the compactor process cannot be started: {error}; it is tried again",
                operation="compact",
            ) from error
        self._process = process
        try:
            await self._send(process, Frame.SETTINGS, self._settings.encode())
            kind, payload = await self._receive(process)
        except BaseException:
            await self._end(process)
            raise
        if kind is not Frame.READY:
            await self._end(process)
            raise _not_started(decode_error(payload))
        if self._is_busy:
            await self._send(process, Frame.BUSY, b"\1")
        log.info("the compactor process runs", extra={"pid": process.pid})
        return process

    async def _send(self, process: Process, kind: Frame, payload: bytes) -> None:
        """Errors: StoreUnavailable."""
        assert process.stdin is not None
        try:
            process.stdin.write(encode_frame(kind, payload))
            # What the pipe does not hold waits for the process to read.
            async with asyncio.timeout(SILENT_S):
                await process.stdin.drain()
        except TimeoutError as error:
            raise _silent(process) from error
        except ConnectionError as error:
            raise _died(process) from error

    async def _receive(self, process: Process) -> tuple[Frame, bytes]:
        """The next frame that is not ALIVE. Errors: StoreUnavailable."""
        kind = Frame.ALIVE
        while kind is Frame.ALIVE:
            try:
                async with asyncio.timeout(SILENT_S):
                    kind, payload = await self._frame(process)
            except TimeoutError as error:
                raise _silent(process) from error
        return kind, payload

    async def _frame(self, process: Process) -> tuple[Frame, bytes]:
        assert process.stdout is not None
        try:
            size, kind = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
            if size > PAYLOAD_BYTES_MAX or kind not in set(Frame):
                raise StoreUnavailable(
                    f"the compactor process {process.pid} wrote something that is not a frame to "
                    "its standard output; it is started again",
                    operation="compact",
                )
            return Frame(kind), await process.stdout.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise _died(process) from error

    async def _end(self, process: Process) -> None:
        if self._process is process:
            self._process = None
        if process.stdin is not None:
            process.stdin.close()
        if process.returncode is None:
            try:
                process.kill()
            except ProcessLookupError:
                log.debug("the compactor process had ended")
        await process.wait()


def _not_started(error: StreamlogError) -> Unavailable:
    """The node's own store is open, so what the process says of it is no fault of a job: where
    credentials have expired, say, jobs wait until it can open the store again."""
    if isinstance(error, Unavailable):
        return error
    return StoreUnavailable(
        f"the compactor process cannot open the store: {error}; it is tried again",
        operation="compact",
    )


def _silent(process: Process) -> StoreUnavailable:
    return StoreUnavailable(
        f"the compactor process {process.pid} gave no sign of life for {SILENT_S:g} s; "
        "it is started again",
        operation="compact",
    )


def _died(process: Process) -> StoreUnavailable:
    return StoreUnavailable(
        f"the compactor process {process.pid} ended in the middle of its work; it is started again",
        operation="compact",
    )
