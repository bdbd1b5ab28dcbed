"""The I/O of the asyncio producer: what drives the core once records are appended.

Tasks: one watches the clock and asks for the producer id, one holds a connection; per connection
one writes messages and one reads answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from functools import partial
from typing import Any

import grpc
import grpc.aio

from streamlog.client import forking
from streamlog.client.aio.channel import Caller
from streamlog.client.calls.topic import init_producer_id
from streamlog.client.calls.topic_lookup import run_async
from streamlog.client.channel import Retry, typed_error
from streamlog.client.produce.accumulator import TopicMetadata, TopicQueues
from streamlog.client.produce.batches import call_back
from streamlog.client.produce.core import ProducerCore
from streamlog.client.produce.identity import NEVER
from streamlog.client.produce.options import (
    TopicLookup,
    blocking_retry,
    produce_stream,
    try_ms,
)
from streamlog.client.produce.topic_directory import TopicDirectory
from streamlog.client.producer_identity import ProducerIdentity
from streamlog.client.settings import ProducerSettings, backoff_s
from streamlog.client.transactions.requests import TransactionRequest
from streamlog.errors import Internal, Invalid, StreamlogError, Unavailable
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.cancellation import is_being_cancelled

log = logging.getLogger(__name__)

now_s = time.monotonic
END_OF_CALL: Any = grpc.aio.EOF  # type: ignore[attr-defined]


class Sender:
    """Sends the core's batches and delivers their answers.

    It owns: the tasks, the connection and the caller. It does not own: open batches, to which
    callers append.
    """

    def __init__(self, core: ProducerCore, caller: Caller, settings: ProducerSettings) -> None:
        self._core = core
        self._caller = caller
        self._settings = settings
        self._directory = TopicDirectory(settings.metadata_max_age_ms / 1000)
        self._stream = produce_stream(caller.channel)
        self._background = Background("streamlog.producer", self._failed)
        self._work = asyncio.Event()
        """Set when there may be something new to watch."""
        self._writable = asyncio.Event()
        """Set when there may be something new to send."""
        self.room = asyncio.Event()
        """Set when room in the buffer came free."""
        self.waiting_for_room = 0
        """Callers that wait on `room`."""
        self.failure: StreamlogError | None = None
        self._is_started = False
        self._is_ended = False
        self.is_forked = False
        self._call: Any = None
        self._refreshes: dict[str, asyncio.Task[None]] = {}
        # Not the producer, which a program may drop while the tasks still send.
        forking.watch(self)
        core.warn_when_dropped(self)

    def start(self) -> None:
        """Harmless when called again."""
        if self._is_started:
            return
        self._is_started = True
        for work, task_name in (self._watch, "watch"), (self._keep_connected, "connection"):
            task = self._background.spawn(work(), name=task_name)
            task.add_done_callback(self._task_ended)

    def wake(self) -> None:
        """There may be something new to send or to watch."""
        self._work.set()
        self._writable.set()

    # -- topics

    async def look_up_new(self, name: str) -> TopicMetadata:
        """Of a topic that is new to the producer. Errors: those of the look-up."""
        retry = blocking_retry(self._settings, self._caller)
        return await self._look_up_topic(name, retry, self._directory.metadata)

    async def learn_limit(self, queues: TopicQueues) -> None:
        """Looks up the topic's limit of batches where it was a guess. Errors: as `look_up_new`."""
        retry = blocking_retry(self._settings, self._caller)
        metadata = await self._look_up_topic(queues.name, retry, self._directory.fresh_metadata)
        self._core.accumulator.update_topic(queues.name, metadata, now_s())

    def refresh_when_old(self, queues: TopicQueues) -> None:
        if queues.name in self._refreshes:
            return
        age_ms = (now_s() - queues.loaded_at) * 1000
        if age_ms > self._settings.metadata_max_age_ms:
            self._start_refresh(queues)

    def _start_refresh(self, queues: TopicQueues) -> None:
        task = self._background.spawn(self._refresh(queues), name="metadata")
        self._refreshes[queues.name] = task

    async def _look_up_topic(self, name: str, retry: Retry, lookup: TopicLookup) -> TopicMetadata:
        while True:
            try:
                call = partial(self._caller.run_once, timeout_ms=try_ms(retry))
                return await run_async(lookup(name, now_s()), call)
            except StreamlogError as error:
                wait_s = retry.wait_s(error)
            await asyncio.sleep(wait_s)

    async def _refresh(self, queues: TopicQueues) -> None:
        metadata: TopicMetadata | None = None
        try:
            retry = Retry(self._caller, self._settings.request_timeout_ms)
            metadata = await self._look_up_topic(queues.name, retry, self._directory.fresh_metadata)
        except StreamlogError as error:
            log.warning("metadata not refreshed", extra={"topic": queues.name, "error": str(error)})
        self._core.refreshed(queues, metadata, now_s())
        del self._refreshes[queues.name]
        self._deliver()
        self.wake()

    # -- failures

    def _failed(self, error: BaseException) -> None:
        """A bug ended a task: all batches that are not done fail, and so do later calls."""
        if self.failure is None:
            self.failure = Internal(f"the producer's task failed: {error!r}; open another")
            self.failure.__cause__ = error
        self._core.abandon(self.failure)
        self.room.set()
        self._deliver()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Fails all batches where another task cancelled this one, as `asyncio.run` does at its
        end: no answer comes any more."""
        if task.cancelled() and not self._is_ended and self.failure is None:
            self._core.warn_of_unsent()
            self._failed(asyncio.CancelledError())

    # -- the watching task

    async def _watch(self) -> None:
        """Gives up overdue batches and asks for the producer id when it is needed."""
        while True:
            self._work.clear()
            now = now_s()
            self._core.expire(now)
            self._deliver()
            for queues in list(self._core.stale_topics):
                if queues.name not in self._refreshes:
                    del self._core.stale_topics[queues]
                    self._start_refresh(queues)
            identity = self._core.identity_request(now)
            if identity is not None:
                # Not awaited: while it waits, batches expire and late answers end the connection.
                self._background.spawn(self._ask_identity(identity), name="identity")
            request = self._core.transaction_request(now)
            self._deliver()
            if request is not None:
                self._background.spawn(self._ask_coordinator(request), name="transaction")
            late_at = self._core.oldest_sent_at() + self._settings.request_timeout_ms / 1000
            if late_at <= now and self._call is not None:
                self._call.cancel()
                late_at = NEVER
            wake = min(
                self._core.wake_at(now, can_send=False),
                self._core.identity_wake_at(),
                self._core.transaction_wake_at(now),
                late_at,
            )
            await _wait_until(self._work, wake)

    async def _ask_identity(self, identity: ProducerIdentity) -> None:
        call = init_producer_id(identity)
        try:
            granted = await self._caller.run_once(call, self._settings.request_timeout_ms)
        except StreamlogError as error:
            self._core.identity_refused(error, now_s())
            self._deliver()
        else:
            self._core.identity_granted(granted)
        self.wake()

    async def _ask_coordinator(self, request: TransactionRequest) -> None:
        transactions = self._core.transactions
        assert transactions is not None
        try:
            result = await self._caller.run_once(request.call, request.timeout_s * 1000)
        except StreamlogError as error:
            transactions.refused(request, error, now_s())
        else:
            transactions.answered(request, result, now_s())
        self.room.set()
        self._deliver()
        self.wake()

    # -- the connection

    async def _keep_connected(self) -> None:
        failures = 0
        while True:
            while not self._core.has_work:
                self._writable.clear()
                await self._writable.wait()
            answered, error = await self._one_connection()
            failures = 1 if answered else failures + 1
            log.info("produce stream lost", extra={"error": str(error)})
            self._core.connection_lost(error, now_s())
            self._deliver()
            settings = self._settings
            await asyncio.sleep(
                backoff_s(failures, settings.retry_backoff_ms, settings.retry_backoff_max_ms)
            )

    async def _one_connection(self) -> tuple[bool, StreamlogError]:
        """One call from start to end: whether anything was answered, and why it ended."""
        self._call = call = self._stream(metadata=self._caller.metadata)
        writer = self._background.spawn(self._write(call), name="write")
        answered = False
        try:
            while (response := await call.read()) is not END_OF_CALL:
                answered = True
                self._core.answered(response.answers, now_s())
                self._deliver()
                self._writable.set()
                if self._core.stale_topics:
                    self._work.set()
            code = await call.code()
            reason = f"{code.name}: {await call.details()}"
            return answered, Unavailable(f"the server ended the stream, {reason}")
        except grpc.RpcError as error:
            return answered, typed_error(error, writes=False)
        except StreamlogError as wrong_answer:
            log.error("the produce stream was broken off", extra={"error": str(wrong_answer)})
            return answered, wrong_answer
        except asyncio.CancelledError:
            if is_being_cancelled() or not call.cancelled():
                raise
            return answered, Unavailable("answers came too late; the stream was broken off")
        finally:
            self._call = None
            call.cancel()
            writer.cancel()
            await asyncio.wait([writer])

    async def _write(self, call: Any) -> None:
        core, timeout_ms = self._core, self._settings.request_timeout_ms
        while True:
            now = now_s()
            message = core.next_message(now)
            if self.waiting_for_room:
                self.room.set()
            if self._core.accumulator.done:
                # Batches that could not be encoded.
                self._deliver()
            if message is None:
                self._writable.clear()
                self._work.set()
                await _wait_until(self._writable, self._core.wake_at(now, can_send=True))
                continue
            if self._core.in_flight_messages == 1:
                # The watching task must wait for an answer from now on.
                self._work.set()
            try:
                await call.write(message.encode(core.acks, timeout_ms, core.transactional_id))
            except (grpc.RpcError, asyncio.InvalidStateError):
                return

    def _deliver(self) -> None:
        """Wakes waiters and runs callbacks.

        `sys.exit()` in a callback ends the program by way of the loop, as in any asyncio callback,
        and not this task, which reads the answers.
        """
        ended = self._core.take_done()
        if ended:
            # Batches behind those that ended may be sent now.
            self._writable.set()
            if self.waiting_for_room:
                self.room.set()
        for batch in ended:
            exit_error = call_back(batch.notify())
            if exit_error is not None:
                asyncio.get_running_loop().call_soon(_raise, exit_error)

    # -- ending

    async def stop(self) -> None:
        """Gives up all batches that are not done, and frees everything."""
        self._core.abandon()
        self._deliver()
        self._is_ended = True
        await self._background.close()
        await self._caller.close()

    def after_fork(self, error: Invalid) -> None:
        """In the child process: the batches are the parent's; each further call raises."""
        self.failure = error
        self.is_forked = True
        self._core.after_fork(error)
        self._core.take_done()


def _raise(error: BaseException) -> None:
    raise error


async def _wait_until(event: asyncio.Event, at_s: float) -> None:
    """Returns when the event is set, or at that time."""
    if at_s == NEVER:
        await event.wait()
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, at_s - now_s())):
            await event.wait()
