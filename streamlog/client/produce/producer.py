"""The producer for threads.

Threads: callers append to open batches under one lock; `streamlog-producer` opens connections,
asks for the producer id and watches the clock; gRPC's own thread takes messages out of the core
when the stream has room; `streamlog-producer-answers` reads answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

import grpc

from streamlog.client import forking
from streamlog.client.calls.topic import init_producer_id
from streamlog.client.calls.topic_lookup import run
from streamlog.client.channel import Call, Caller, Retry, typed_error
from streamlog.client.produce.accumulator import TopicDescription, TopicQueues
from streamlog.client.produce.batches import PendingBatch, RecordMetadata, Run
from streamlog.client.produce.core import NEVER, ProducerCore
from streamlog.client.produce.delivery import (
    Delivery,
    ManyDeliveries,
    deliver,
    deliver_in_background,
    is_delivering,
    wait,
)
from streamlog.client.produce.partitioner import Partitioner, partition_for_key
from streamlog.client.produce.routing import PartitionRecords, by_partition, checked_partition
from streamlog.client.produce.topic_directory import TopicDirectory
from streamlog.client.producer_identity import ProducerIdentity
from streamlog.client.settings import ProducerSettings, backoff_s, check, wait_s
from streamlog.codec.records import Headers
from streamlog.errors import (
    Closed,
    Internal,
    Invalid,
    InvalidConfig,
    MessageTooLarge,
    Overloaded,
    StreamlogError,
    Unavailable,
    UnknownTopicOrPartition,
)
from streamlog.runtime.buffers import Buffer
from streamlog.v1 import log_pb2

log = logging.getLogger(__name__)

PRODUCE_STREAM = "/streamlog.v1.LogService/ProduceStream"
METADATA_TIMEOUT_S_MAX = 30.0
NO_HEADERS: list[tuple[str, bytes | None]] = []

OnDelivery = Callable[[RecordMetadata | None, StreamlogError | None], object]
"""Called with the metadata or with the error, from the producer's thread: it must be quick."""

DescribeTopic = Callable[[str, float], Generator[Call, Any, TopicDescription]]

now_s = time.monotonic
new_object = object.__new__


def settings_of(**given: Any) -> ProducerSettings:
    """Errors: InvalidConfig for an unknown setting or a value outside its limits."""
    unknown = given.keys() - ProducerSettings.__dataclass_fields__.keys()
    if unknown:
        raise InvalidConfig(f"a producer has no setting {', '.join(sorted(unknown))}")
    settings = ProducerSettings(**{**given, "acks": str(given.get("acks", "all"))})
    check(settings)
    if settings.batch_size_max_bytes < settings.batch_size_bytes:
        settings = replace(settings, batch_size_max_bytes=settings.batch_size_bytes)
    return settings


THREAD_END_S = 5.0
"""How long closing waits for its threads: for a cancelled call's last word, for a callback."""


def no_room(settings: ProducerSettings, charged_bytes: int) -> str:
    """The text of Overloaded."""
    if is_delivering():
        waited = "a delivery callback cannot wait for room: answers come by its own thread"
    else:
        waited = f"no room came free within max_block_ms = {settings.max_block_ms}"
    return (
        f"{charged_bytes} bytes wait for the server and {waited}; send less, or raise "
        f"buffer_memory_bytes = {settings.buffer_memory_bytes}"
    )


def checked_headers(
    headers: Iterable[tuple[str, bytes | None]],
) -> list[tuple[str, bytes | None]]:
    """The pairs as a list. Errors: TypeError for what are no pairs."""
    pairs = list(headers)
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(
                f"headers are pairs (name, value) of str and bytes or None, not {pair!r}"
            )
    return pairs


class _Connection:
    """One bidirectional call; `is_over` once nothing more may be sent over it."""

    def __init__(self) -> None:
        self.is_over = False
        self.call: Any = None
        self.reader: threading.Thread | None = None
        self.answered = False


class Producer:
    """Sends records to topics. Safe to use from many threads; close it, or use it in `with`.

    `acks`: "all" and 1: answered when durable; 0: not waited for, offsets are -1. With
    `idempotence` retries neither lose, double nor reorder records. Further settings:
    `ProducerSettings`. Errors: InvalidConfig.
    """

    def __init__(
        self,
        server: str,
        *,
        acks: str | int = "all",
        idempotence: bool = True,
        linger_ms: float = 5,
        batch_size_bytes: int = 128 * 1024,
        batch_size_max_bytes: int = 1 << 20,
        compression: str = "none",
        buffer_memory_bytes: int = 64 << 20,
        max_block_ms: int = 60_000,
        delivery_timeout_ms: int = 120_000,
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: float = 50,
        retry_backoff_max_ms: float = 1000,
        metadata_max_age_ms: int = 300_000,
        client_id: str = "",
        partitioner: Partitioner | None = None,
    ) -> None:
        self._settings = settings_of(
            acks=acks,
            idempotence=idempotence,
            linger_ms=linger_ms,
            batch_size_bytes=batch_size_bytes,
            batch_size_max_bytes=batch_size_max_bytes,
            compression=compression,
            buffer_memory_bytes=buffer_memory_bytes,
            max_block_ms=max_block_ms,
            delivery_timeout_ms=delivery_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
            metadata_max_age_ms=metadata_max_age_ms,
            client_id=client_id,
        )
        self._partitioner = partitioner
        self._core = ProducerCore(self._settings, server)
        self._topics = self._core.accumulator.topics
        self._directory = TopicDirectory(self._settings.metadata_max_age_ms / 1000)
        self._caller = Caller(server, client_id=client_id, timeout_ms=request_timeout_ms)
        self._stream = self._caller.channel.stream_stream(
            PRODUCE_STREAM,
            request_serializer=None,
            response_deserializer=log_pb2.ProduceStreamResponse.FromString,
        )
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._waiting_for_room = 0
        self._connection: _Connection | None = None
        self._connect_failures = 0
        self._connect_at = 0.0
        self._is_closed = False
        self._is_stopping = False
        self._refreshing = False
        self._thread: threading.Thread | None = None
        self._failure: StreamlogError | None = None
        self._is_forked = False
        forking.watch(self)
        self._core.warn_when_dropped(self)

    # -- sending

    def send(
        self,
        topic: str,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Puts a record on its way; the view's `result()` waits until it is durable.

        Blocks up to `max_block_ms` for room in the buffer and, the first time, for the topic.
        In a delivery callback it does not wait for room. Errors: Overloaded (no room),
        MessageTooLarge, InvalidTimestamp, UnknownTopicOrPartition, Unavailable, Closed, TypeError,
        what the partitioner raises; then nothing of the record was taken.
        """
        try:
            queues = self._topics[topic]
        except KeyError:
            queues = self._load_topic(topic)
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        if partition is None:
            if self._partitioner is not None:
                chosen = self._partitioner(topic, key, len(queues.queues))
                partition = checked_partition(queues, chosen)
            elif key is not None:
                partition = partition_for_key(key, len(queues.queues))
        else:
            checked_partition(queues, partition)
        pairs = checked_headers(headers) if headers else NO_HEADERS
        try:
            with self._lock:
                batch = (queues.sticky if partition is None else queues.queues[partition]).open
                if batch is None or not batch.append(timestamp_ms, key, value, pairs):
                    if not queues.knows_limit:
                        self._check_guessed_limit(queues, key, value, pairs)
                    batch = self._append_slowly(
                        queues, partition, (timestamp_ms, key, value, pairs)
                    )
                # Made without a call of __init__, which costs as much as all else about it.
                view = new_object(Delivery)
                view._batch = batch
                view._index = batch.builder.record_count - 1  # type: ignore[union-attr]
                view._timestamp_ms = timestamp_ms
                if on_delivery is not None:
                    if batch.callbacks is None:
                        batch.callbacks = []
                    batch.callbacks.append(_reporting(view, on_delivery))
        except IndexError:
            # The topic was made anew with fewer partitions since this one was chosen.
            checked_partition(queues, partition or 0)
            raise
        return view

    def send_many(
        self,
        topic: str,
        values: Sequence[Buffer | None],
        keys: Sequence[Buffer | None] | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> ManyDeliveries:
        """As `send` for many records at once, in order within each partition, and much faster.

        Errors as for `send`; the list is checked before any of it is taken. Overloaded, Closed and
        UnknownTopicOrPartition carry `taken`: so many of the records are on their way, and
        `deliveries`, a ManyDeliveries whose `outcomes()` say which they are and what became of
        them.
        """
        queues = self._topics.get(topic)
        if queues is None:
            queues = self._load_topic(topic)
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        if partition is not None:
            checked_partition(queues, partition)
        try:
            self._core.check_sizes(queues, values, keys)
        except MessageTooLarge:
            if queues.knows_limit:
                raise
            self._learn_limit(queues)
            self._core.check_sizes(queues, values, keys)
        which: list[int] | None = None
        groups = [PartitionRecords(partition, range(len(values)), values, keys)]
        if partition is None and (keys is not None or self._partitioner is not None):
            which, groups = by_partition(queues, values, keys, self._partitioner)
        runs: list[Run] = []
        try:
            for records in groups:
                self._extend(queues, records, timestamp_ms, runs)
        except (Overloaded, Closed, UnknownTopicOrPartition) as error:
            error.fields["taken"] = sum(run.record_count for run in runs)
            error.deliveries = ManyDeliveries(runs, timestamp_ms)  # type: ignore[union-attr]
            raise
        return ManyDeliveries(runs, timestamp_ms, which)

    def _extend(
        self,
        queues: TopicQueues,
        records: PartitionRecords,
        timestamp_ms: int,
        runs: list[Run],
    ) -> None:
        start, total = 0, len(records.values)
        while start < total:
            with self._lock:
                self._check_open(queues, runs)
                ends_at = self._block_ends_at()
                try:
                    while True:
                        run = self._core.extend(queues, records, timestamp_ms, start, now_s())
                        if run is not None:
                            break
                        self._wait_for_room(runs, ends_at)
                finally:
                    # After an error too: a full batch may have been closed before it.
                    self._work.notify_all()
                runs.append(run)
                start += run.record_count

    def _append_slowly(
        self,
        queues: TopicQueues,
        partition: int | None,
        record: tuple[int, Buffer | None, Buffer | None, list[tuple[str, bytes | None]]],
    ) -> PendingBatch:
        """With the lock held: into a new batch, when there is room for one."""
        self._check_open(queues, ())
        ends_at = self._block_ends_at()
        try:
            while True:
                batch = self._core.append(queues, partition, record, now_s())
                if batch is not None:
                    return batch
                self._wait_for_room((), ends_at)
        finally:
            # After an error too: a full batch may have been closed before it.
            self._work.notify_all()

    def _block_ends_at(self) -> float:
        """Of a wait that begins now; others who take what became free do not prolong it."""
        return now_s() + self._settings.max_block_ms / 1000

    def _wait_for_room(self, runs: Sequence[Run], ends_at: float) -> None:
        """With the lock held: returns when room became free. Errors: Overloaded, Closed."""
        accumulator = self._core.accumulator
        charged = accumulator.charged_bytes
        if is_delivering():
            ends_at = now_s()
        self._waiting_for_room += 1
        accumulator.is_short_of_room = True
        self._work.notify_all()
        try:
            while accumulator.charged_bytes >= charged:
                left = ends_at - now_s()
                if left <= 0:
                    raise Overloaded(
                        no_room(self._settings, charged),
                        queued_bytes=charged,
                        bound_bytes=self._settings.buffer_memory_bytes,
                        taken=sum(run.record_count for run in runs),
                    )
                self._room.wait(left)
                self._check_open(None, runs)
        finally:
            self._waiting_for_room -= 1
            accumulator.is_short_of_room = self._waiting_for_room > 0

    def _check_open(self, queues: TopicQueues | None, runs: Sequence[Run]) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._is_closed:
            taken = sum(run.record_count for run in runs)
            raise Closed("the producer is closed; open another one", taken=taken)
        if self._thread is None:
            # Kept once it runs: a thread that could not be started is started by the next call.
            thread = threading.Thread(target=self._run, name="streamlog-producer", daemon=True)
            thread.start()
            self._thread = thread
        if queues is not None and not self._refreshing:
            age_ms = (now_s() - queues.loaded_at) * 1000
            if age_ms > self._settings.metadata_max_age_ms:
                self._start_refresh(queues)

    def _start_refresh(self, queues: TopicQueues) -> None:
        """With the lock held, while none runs."""
        threading.Thread(
            target=self._refresh, args=(queues,), name="streamlog-metadata", daemon=True
        ).start()
        self._refreshing = True

    # -- topics

    def _check_guessed_limit(
        self, queues: TopicQueues, key: Buffer | None, value: Buffer | None, headers: Headers
    ) -> None:
        """With the lock held: a record that is more than the guess asks for the limit, without it.

        Errors: those of asking.
        """
        try:
            self._core.accumulator.record_limit(queues, key, value, headers)
        except MessageTooLarge:
            self._lock.release()
            try:
                self._learn_limit(queues)
            finally:
                self._lock.acquire()

    def _learn_limit(self, queues: TopicQueues) -> None:
        description = self._ask_description(
            queues.name, self._retry(), self._directory.describe_afresh
        )
        with self._lock:
            self._core.accumulator.update_topic(queues.name, description, now_s())

    def _retry(self) -> Retry:
        return Retry(
            self._settings.max_block_ms,
            self._settings.retry_backoff_ms,
            self._settings.retry_backoff_max_ms,
            server=self._caller.server,
        )

    def _load_topic(self, name: str) -> TopicQueues:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._is_closed:
            raise Closed("the producer is closed; open another one")
        description = self._ask_description(name, self._retry(), self._directory.describe)
        with self._lock:
            return self._core.accumulator.update_topic(name, description, now_s())

    def _ask_description(self, name: str, retry: Retry, ask: DescribeTopic) -> TopicDescription:
        while True:
            try:
                left_ms = min(retry.left_s(), METADATA_TIMEOUT_S_MAX) * 1000
                steps = ask(name, now_s())
                return run(steps, partial(self._caller.run_once, timeout_ms=left_ms))
            except StreamlogError as error:
                time.sleep(retry.wait_s(error))

    def _refresh(self, queues: TopicQueues) -> None:
        description: TopicDescription | None = None
        try:
            retry = Retry(self._settings.request_timeout_ms)
            description = self._ask_description(queues.name, retry, self._directory.describe_afresh)
        except StreamlogError as error:
            log.warning("metadata not refreshed", extra={"topic": queues.name, "error": str(error)})
        except Exception:
            # Closing ends the channel under the call.
            if not self._is_closed:
                log.exception("metadata not refreshed")
        finally:
            with self._lock:
                self._core.refreshed(queues, description, now_s())
                self._refreshing = False
                done = self._take_done()
                self._work.notify_all()
            deliver_in_background(done)

    # -- the producer's own thread

    def _run(self) -> None:
        with self._telling():
            self._watch()

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """An exception that ends one of the producer's threads fails all calls: see `_failed`."""
        try:
            yield
        except BaseException as error:
            self._failed(error)
            raise

    def _failed(self, error: BaseException) -> None:
        """A thread ended by a bug: everything under way fails, and so do later calls."""
        with self._lock:
            if self._failure is None:
                self._failure = Internal(f"the producer's thread failed: {error!r}; open another")
                self._failure.__cause__ = error
            self._is_stopping = True
            if self._connection is not None:
                self._connection.is_over = True
            self._core.abandon(self._failure)
            done = self._take_done()
            self._work.notify_all()
            self._room.notify_all()
        deliver_in_background(done)

    def _watch(self) -> None:
        """Connects, asks for the producer id, gives up what is overdue; until stopped."""
        while True:
            identity: ProducerIdentity | None = None
            connection: _Connection | None = None
            with self._lock:
                if self._is_stopping:
                    return
                now = now_s()
                self._core.expire(now)
                done = self._take_done()
                identity = self._core.identity_request(now)
                self._watch_connection(now)
                if self._core.stale_topics and not self._refreshing:
                    queues, _ = self._core.stale_topics.popitem()
                    self._start_refresh(queues)
                if self._connection is None and self._core.has_work and now >= self._connect_at:
                    connection = self._connection = _Connection()
                elif identity is None and not done:
                    self._work.wait(self._idle_s(now))
            deliver_in_background(done)
            if identity is not None:
                self._ask_identity(identity)
            if connection is not None:
                self._connect(connection)

    def _idle_s(self, now: float) -> float | None:
        core = self._core
        wake = min(core.wake_at(now, can_send=False), core.identity_wake_at())
        if core.in_flight_messages:
            wake = min(wake, core.oldest_sent_at() + self._settings.request_timeout_ms / 1000)
        if self._connection is None and core.has_work:
            wake = min(wake, self._connect_at)
        return None if wake == NEVER else max(0.0, wake - now)

    def _watch_connection(self, now: float) -> None:
        """Breaks a connection whose answers do not come any more."""
        connection = self._connection
        late = self._core.oldest_sent_at() + self._settings.request_timeout_ms / 1000 <= now
        if connection is not None and late and not connection.is_over:
            connection.is_over = True
            self._work.notify_all()
            if connection.call is not None:
                connection.call.cancel()

    def _ask_identity(self, identity: ProducerIdentity) -> None:
        call = init_producer_id(identity)
        future = self._caller.method(call).future(
            call.request,
            timeout=self._settings.request_timeout_ms / 1000,
            metadata=self._caller.metadata,
        )

        def answered(answer: Any) -> None:
            # gRPC logs what a callback raises and goes on.
            with self._telling():
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
            with self._lock:
                self._core.identity_granted(granted)
                self._work.notify_all()
            return
        with self._lock:
            self._core.identity_refused(refusal, now_s())
            done = self._take_done()
            self._work.notify_all()
        deliver_in_background(done)

    # -- one connection

    def _connect(self, connection: _Connection) -> None:
        connection.call = self._stream(self._messages(connection), metadata=self._caller.metadata)
        connection.reader = threading.Thread(
            target=self._answers,
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
            with self._lock:
                while True:
                    if connection.is_over:
                        return
                    now = now_s()
                    message = self._core.next_message(now)
                    if self._waiting_for_room:
                        self._room.notify_all()
                    if self._core.accumulator.done:
                        # Batches that could not be encoded; the watching thread tells of them.
                        self._work.notify_all()
                    if message is not None:
                        if self._core.in_flight_messages == 1:
                            # Whoever watches must wait for an answer from now on.
                            self._work.notify_all()
                        break
                    wake = self._core.wake_at(now, can_send=True)
                    self._work.wait(None if wake == NEVER else max(0.001, wake - now))
            yield message.encode(self._core.acks, timeout_ms)
            del message

    def _answers(self, connection: _Connection) -> None:
        with self._telling():
            self._read_answers(connection)

    def _read_answers(self, connection: _Connection) -> None:
        error: StreamlogError
        try:
            for response in connection.call:
                connection.answered = True
                with self._lock:
                    if connection.is_over:
                        continue
                    self._core.answered(response.answers, now_s())
                    done = self._take_done()
                    self._work.notify_all()
                deliver_in_background(done)
            error = Unavailable("the server ended the stream")
        except grpc.RpcError as rpc_error:
            error = typed_error(rpc_error, writes=False)
        except StreamlogError as wrong_answer:
            error = wrong_answer
            log.error("the produce stream was broken off", extra={"error": str(wrong_answer)})
        connection.call.cancel()
        with self._lock:
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
            self._work.notify_all()
        if not self._is_stopping:
            log.info("produce stream lost", extra={"error": str(error)})
        deliver_in_background(done)

    def _take_done(self) -> list[PendingBatch]:
        """With the lock held."""
        done = self._core.take_done()
        if done and self._waiting_for_room:
            self._room.notify_all()
        return done

    # -- ending

    def flush(self, timeout: float | None = None) -> None:
        """Returns when all that was sent before is stored or given up. `timeout` in seconds.

        Errors: TimeoutError, and the rest is still under way. Whether a record was stored is said
        by its own result.
        """
        timeout = wait_s(timeout)
        ends_at = None if timeout is None else now_s() + timeout
        with self._lock:
            batches = self._core.accumulator.close_all()
            self._work.notify_all()
        for batch in batches:
            wait(batch, None if ends_at is None else max(0.0, ends_at - now_s()))

    def close(self, timeout: float | None = None) -> None:
        """Flushes, then frees everything; what is not stored after `timeout` seconds is given up.

        Harmless when called again. In a delivery callback, whose thread the answers come by, it
        returns at once: the producer takes no more records, and another thread ends it, which the
        interpreter waits for.
        """
        timeout = wait_s(timeout)
        with self._lock:
            self._is_closed = True
            self._room.notify_all()
        if self._is_forked:
            return
        if is_delivering():
            threading.Thread(
                target=self._end, args=(timeout,), name="streamlog-producer-end", daemon=False
            ).start()
            return
        self._end(timeout)

    def _end(self, timeout: float | None) -> None:
        try:
            self.flush(timeout)
        except TimeoutError:
            log.warning("closed with records under way")
        finally:
            self._stop()

    def _stop(self) -> None:
        """Errors: SystemExit and KeyboardInterrupt of a callback that runs here."""
        with self._lock:
            self._core.abandon()
            done = self._take_done()
            self._is_stopping = True
            connection = self._connection
            if connection is not None:
                connection.is_over = True
            self._work.notify_all()
        last = deliver(done)
        if connection is not None and connection.call is not None:
            connection.call.cancel()
        # Not left to the interpreter's end, which would stop the reader inside gRPC.
        for thread in (self._thread, None if connection is None else connection.reader):
            if thread is not None and thread is not threading.current_thread():
                thread.join(THREAD_END_S)
                if thread.is_alive():
                    log.warning("closed while a delivery callback runs in %s", thread.name)
        self._caller.close()
        if last is not None:
            raise last

    def after_fork(self, error: Invalid) -> None:
        """In the child process: what is under way is the parent's; each further call raises."""
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._is_forked = True
        self._failure = error
        self._core.abandon(error)
        self._core.take_done()

    def metrics(self) -> dict[str, float]:
        """Counts since the start, and what is under way now."""
        with self._lock:
            return self._core.metrics()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Flushes and closes; after KeyboardInterrupt it closes without waiting."""
        self.close(0 if kind is not None and not issubclass(kind, Exception) else None)


def _reporting(view: Delivery, on_delivery: OnDelivery) -> Callable[[], None]:
    def report() -> None:
        error = view.exception()
        if error is None:
            on_delivery(view.result(), None)
        else:
            on_delivery(None, error)

    return report
