"""The I/O of the blocking producer: what drives the core once records are appended.

Threads: `streamlog-producer` opens connections, asks for the producer id and watches the clock;
gRPC's own thread takes messages out of the core when the stream has room;
`streamlog-producer-answers` reads answers; `streamlog-metadata` refreshes a topic.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc

from streamlog.client import forking
from streamlog.client.calls.topic import init_producer_id
from streamlog.client.calls.topic_lookup import run
from streamlog.client.channel import Call, Caller, Retry, typed_error
from streamlog.client.produce.accumulator import TopicMetadata, TopicQueues
from streamlog.client.produce.batches import PendingBatch
from streamlog.client.produce.core import ProducerCore
from streamlog.client.produce.delivery import deliver, deliver_in_background
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
from streamlog.errors import Internal, Invalid, OutcomeUnknown, StreamlogError, Unavailable

log = logging.getLogger(__name__)

THREAD_END_S = 5.0
"""How long closing waits for a thread: for a cancelled call's end, for a callback."""

now_s = time.monotonic


class _Connection:
    """One bidirectional call; `is_over` once nothing more may be sent over it."""

    def __init__(self) -> None:
        self.is_over = False
        self.call: Any = None
        self.reader: threading.Thread | None = None
        self.answered = False


class Sender:
    """Sends the core's batches and delivers their answers.

    It owns: the lock around the core, the threads, the connection and the caller. It does not own:
    open batches, to which callers append under the same lock.
    """

    def __init__(self, core: ProducerCore, caller: Caller, settings: ProducerSettings) -> None:
        self._core = core
        self._caller = caller
        self._settings = settings
        self._directory = TopicDirectory(settings.metadata_max_age_ms / 1000)
        self._stream = produce_stream(caller.channel)
        self._make_locks()
        self.waiting_for_room = 0
        """Callers that wait on `room`."""
        self.is_closed = False
        """No more records are taken; those taken before are still sent."""
        self.failure: StreamlogError | None = None
        self._is_stopping = False
        self._is_refreshing = False
        self._thread: threading.Thread | None = None
        self._connection: _Connection | None = None
        self._connect_failures = 0
        self._connect_at = 0.0
        self.is_forked = False
        # Not the producer, which a program may drop while the threads still send.
        forking.watch(self)
        core.warn_when_dropped(self)

    def _make_locks(self) -> None:
        self.lock = threading.Lock()
        self.work = threading.Condition(self.lock)
        """Notified when there may be something new to send or to watch."""
        self.room = threading.Condition(self.lock)
        """Notified when room in the buffer came free."""

    def start(self) -> None:
        """With the lock held; harmless when called again."""
        if self._thread is None:
            # Kept once it runs: a thread that could not be started is started by the next call.
            thread = threading.Thread(target=self._run, name="streamlog-producer", daemon=True)
            thread.start()
            self._thread = thread

    # -- topics

    def load_topic(self, name: str) -> TopicQueues:
        """Looks up a topic that is new to the producer. Errors: those of the look-up."""
        retry = blocking_retry(self._settings, self._caller)
        metadata = self._look_up_topic(name, retry, self._directory.metadata)
        with self.lock:
            return self._core.accumulator.update_topic(name, metadata, now_s())

    def learn_limit(self, queues: TopicQueues) -> None:
        """Looks up the topic's limit of batches where it was a guess. Errors as `load_topic`."""
        retry = blocking_retry(self._settings, self._caller)
        metadata = self._look_up_topic(queues.name, retry, self._directory.fresh_metadata)
        with self.lock:
            self._core.accumulator.update_topic(queues.name, metadata, now_s())

    def refresh_when_old(self, queues: TopicQueues) -> None:
        """With the lock held."""
        if self._is_refreshing:
            return
        age_ms = (now_s() - queues.loaded_at) * 1000
        if age_ms > self._settings.metadata_max_age_ms:
            self._start_refresh(queues)

    def _start_refresh(self, queues: TopicQueues) -> None:
        """With the lock held, while none runs."""
        threading.Thread(
            target=self._refresh, args=(queues,), name="streamlog-metadata", daemon=True
        ).start()
        self._is_refreshing = True

    def _look_up_topic(self, name: str, retry: Retry, lookup: TopicLookup) -> TopicMetadata:
        while True:
            try:
                call = partial(self._caller.run_once, timeout_ms=try_ms(retry))
                return run(lookup(name, now_s()), call)
            except StreamlogError as error:
                time.sleep(retry.wait_s(error))

    def _refresh(self, queues: TopicQueues) -> None:
        metadata: TopicMetadata | None = None
        try:
            retry = Retry(self._caller, self._settings.request_timeout_ms)
            metadata = self._look_up_topic(queues.name, retry, self._directory.fresh_metadata)
        except StreamlogError as error:
            log.warning("metadata not refreshed", extra={"topic": queues.name, "error": str(error)})
        except Exception:
            # Closing ends the channel under the call.
            if not self.is_closed:
                log.exception("metadata not refreshed")
        finally:
            with self.lock:
                self._core.refreshed(queues, metadata, now_s())
                self._is_refreshing = False
                done = self._take_done()
                self.work.notify_all()
            deliver_in_background(done)

    # -- the watching thread

    def _run(self) -> None:
        with self._failing_all():
            self._watch()

    @contextmanager
    def _failing_all(self) -> Iterator[None]:
        """An exception that ends one of the threads fails all calls: see `_failed`."""
        try:
            yield
        except BaseException as error:
            self._failed(error)
            raise

    def _failed(self, error: BaseException) -> None:
        """A bug ended a thread: all batches that are not done fail, and so do later calls."""
        with self.lock:
            if self.failure is None:
                self.failure = Internal(f"the producer's thread failed: {error!r}; open another")
                self.failure.__cause__ = error
            self._is_stopping = True
            if self._connection is not None:
                self._connection.is_over = True
            self._core.abandon(self.failure)
            done = self._take_done()
            self.work.notify_all()
            self.room.notify_all()
        deliver_in_background(done)

    def _watch(self) -> None:
        """Connects, asks for the producer id, gives up overdue batches; until stopped."""
        while True:
            identity: ProducerIdentity | None = None
            request: TransactionRequest | None = None
            connection: _Connection | None = None
            with self.lock:
                if self._is_stopping:
                    return
                now = now_s()
                self._core.expire(now)
                done = self._take_done()
                if done:
                    # Batches behind those that expired may be sent now.
                    self.work.notify_all()
                identity = self._core.identity_request(now)
                request = self._core.transaction_request(now)
                done += self._take_done()
                self._break_off_late_connection(now)
                if self._core.stale_topics and not self._is_refreshing:
                    queues, _ = self._core.stale_topics.popitem()
                    self._start_refresh(queues)
                if self._connection is None and self._core.has_work and now >= self._connect_at:
                    connection = self._connection = _Connection()
                elif identity is None and request is None and not done:
                    self.work.wait(self._idle_s(now))
            deliver_in_background(done)
            if identity is not None:
                self._ask_identity(identity)
            if request is not None:
                self._ask_coordinator(request)
            if connection is not None:
                self._connect(connection)

    def _idle_s(self, now: float) -> float | None:
        core = self._core
        wake = min(core.wake_at(now, can_send=False), core.identity_wake_at())
        wake = min(wake, core.transaction_wake_at(now))
        if core.in_flight_messages:
            wake = min(wake, core.oldest_sent_at() + self._settings.request_timeout_ms / 1000)
        if self._connection is None and core.has_work:
            wake = min(wake, self._connect_at)
        return None if wake == NEVER else max(0.0, wake - now)

    def _break_off_late_connection(self, now: float) -> None:
        """Cancels the call where an answer is overdue. With the lock held."""
        connection = self._connection
        is_late = self._core.oldest_sent_at() + self._settings.request_timeout_ms / 1000 <= now
        if connection is not None and is_late and not connection.is_over:
            connection.is_over = True
            self.work.notify_all()
            if connection.call is not None:
                connection.call.cancel()

    # -- the producer id

    def _ask_identity(self, identity: ProducerIdentity) -> None:
        call = init_producer_id(identity)
        future = self._caller.method(call).future(
            call.request,
            timeout=self._settings.request_timeout_ms / 1000,
            metadata=self._caller.metadata,
        )

        def answered(answer: Any) -> None:
            # gRPC only logs what a callback raises.
            with self._failing_all():
                self._identity_answered(call, answer)

        future.add_done_callback(answered)

    def _identity_answered(self, call: Call, answer: Any) -> None:
        refusal: StreamlogError
        try:
            granted = call.read(answer.result())
        except grpc.RpcError as error:
            refusal = typed_error(error, writes=False)
        except grpc.FutureCancelledError:
            refusal = Unavailable("the call was cancelled")
        else:
            with self.lock:
                self._core.identity_granted(granted)
                self.work.notify_all()
            return
        with self.lock:
            self._core.identity_refused(refusal, now_s())
            done = self._take_done()
            self.work.notify_all()
        deliver_in_background(done)

    # -- transactions

    def _ask_coordinator(self, request: TransactionRequest) -> None:
        future = self._caller.method(request.call).future(
            request.call.request, timeout=request.timeout_s, metadata=self._caller.metadata
        )

        def answered(answer: Any) -> None:
            # gRPC only logs what a callback raises.
            with self._failing_all():
                self._coordinator_answered(request, answer)

        future.add_done_callback(answered)

    def _coordinator_answered(self, request: TransactionRequest, answer: Any) -> None:
        transactions = self._core.transactions
        assert transactions is not None
        result: Any = None
        refusal: StreamlogError | None = None
        try:
            result = request.call.read(answer.result())
        except grpc.RpcError as error:
            refusal = typed_error(error, writes=request.call.writes)
        except grpc.FutureCancelledError:
            refusal = OutcomeUnknown("the call was cancelled")
        with self.lock:
            if refusal is None:
                transactions.answered(request, result, now_s())
            else:
                transactions.refused(request, refusal, now_s())
            done = self._take_done()
            self.work.notify_all()
            self.room.notify_all()
        deliver_in_background(done)

    # -- one connection

    def _connect(self, connection: _Connection) -> None:
        connection.call = self._stream(self._messages(connection), metadata=self._caller.metadata)
        connection.reader = threading.Thread(
            target=self._read,
            args=(connection,),
            name="streamlog-producer-answers",
            daemon=True,
        )
        connection.reader.start()

    def _messages(self, connection: _Connection) -> Iterator[bytes]:
        """Run by gRPC's thread: the next message whenever the stream has room for one."""
        try:
            yield from self._encoded_messages(connection)
        except Exception as error:
            self._failed(error)
            raise

    def _encoded_messages(self, connection: _Connection) -> Iterator[bytes]:
        timeout_ms = self._settings.request_timeout_ms
        while True:
            with self.lock:
                while True:
                    if connection.is_over:
                        return
                    now = now_s()
                    message = self._core.next_message(now)
                    if self.waiting_for_room:
                        self.room.notify_all()
                    if self._core.accumulator.done:
                        # Batches that could not be encoded; the watching thread delivers them.
                        self.work.notify_all()
                    if message is not None:
                        if self._core.in_flight_messages == 1:
                            # The watching thread must wait for an answer from now on.
                            self.work.notify_all()
                        break
                    wake = self._core.wake_at(now, can_send=True)
                    self.work.wait(None if wake == NEVER else max(0.001, wake - now))
            yield message.encode(self._core.acks, timeout_ms, self._core.transactional_id)
            del message

    def _read(self, connection: _Connection) -> None:
        with self._failing_all():
            error = self._read_answers(connection)
            connection.call.cancel()
            self._connection_lost(connection, error)

    def _read_answers(self, connection: _Connection) -> StreamlogError:
        """Takes answers until the call ends; returns why it ended."""
        try:
            for response in connection.call:
                connection.answered = True
                with self.lock:
                    if connection.is_over:
                        continue
                    self._core.answered(response.answers, now_s())
                    done = self._take_done()
                    self.work.notify_all()
                deliver_in_background(done)
            return Unavailable("the server ended the stream")
        except grpc.RpcError as rpc_error:
            return typed_error(rpc_error, writes=False)
        except StreamlogError as wrong_answer:
            log.error("the produce stream was broken off", extra={"error": str(wrong_answer)})
            return wrong_answer

    def _connection_lost(self, connection: _Connection, error: StreamlogError) -> None:
        with self.lock:
            connection.is_over = True
            now = now_s()
            self._connect_failures = 0 if connection.answered else self._connect_failures + 1
            self._connect_at = now + backoff_s(
                self._connect_failures + 1,
                self._settings.retry_backoff_ms,
                self._settings.retry_backoff_max_ms,
            )
            self._core.connection_lost(error, now)
            self._connection = None
            done = self._take_done()
            self.work.notify_all()
        if not self._is_stopping:
            log.info("produce stream lost", extra={"error": str(error)})
        deliver_in_background(done)

    def _take_done(self) -> list[PendingBatch]:
        """With the lock held."""
        done = self._core.take_done()
        if done and self.waiting_for_room:
            self.room.notify_all()
        return done

    # -- ending

    def stop(self) -> None:
        """Gives up all batches that are not done, and frees everything.

        Errors: SystemExit and KeyboardInterrupt of a callback that runs here.
        """
        with self.lock:
            self._core.abandon()
            done = self._take_done()
            self._is_stopping = True
            connection = self._connection
            if connection is not None:
                connection.is_over = True
            self.work.notify_all()
        exit_error = deliver(done)
        # First the watching thread, which may be about to make the call.
        _await_end(self._thread)
        if connection is not None and connection.call is not None:
            connection.call.cancel()
            _await_end(connection.reader)
        self._caller.close()
        if exit_error is not None:
            raise exit_error

    def after_fork(self, error: Invalid) -> None:
        """In the child process: the batches are the parent's, and so is the state of its locks.

        Harmless when called again.
        """
        if self.is_forked:
            return
        self.is_forked = True
        self._make_locks()
        self.failure = error
        self._core.after_fork(error)
        self._core.take_done()


def _await_end(thread: threading.Thread | None) -> None:
    """Not left to the interpreter's end, which would stop the thread inside gRPC."""
    if thread is None or thread is threading.current_thread():
        return
    thread.join(THREAD_END_S)
    if thread.is_alive():
        log.warning("closed while a delivery callback runs in %s", thread.name)
