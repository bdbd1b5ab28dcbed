"""The producer for asyncio: the same core as the plain one, driven by tasks of one loop.

Tasks: one watches the clock, asks for the producer id and holds a connection; per connection one
writes messages and one reads answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio

from streamlog.client import forking
from streamlog.client.aio.channel import Caller, is_being_cancelled
from streamlog.client.aio.delivery import Delivery, ManyDeliveries, wait
from streamlog.client.calls.topic import init_producer_id
from streamlog.client.calls.topic_lookup import run_async
from streamlog.client.channel import Retry, typed_error
from streamlog.client.produce.accumulator import TopicDescription, TopicQueues
from streamlog.client.produce.batches import RecordMetadata, Run, call_back
from streamlog.client.produce.core import NEVER, ProducerCore
from streamlog.client.produce.partitioner import Partitioner, partition_for_key
from streamlog.client.produce.producer import (
    NO_HEADERS,
    PRODUCE_STREAM,
    DescribeTopic,
    OnDelivery,
    checked_headers,
    no_room,
    settings_of,
)
from streamlog.client.produce.routing import PartitionRecords, by_partition, checked_partition
from streamlog.client.produce.topic_directory import TopicDirectory
from streamlog.client.producer_identity import ProducerIdentity
from streamlog.client.settings import backoff_s, wait_s
from streamlog.errors import (
    Closed,
    Internal,
    Invalid,
    MessageTooLarge,
    Overloaded,
    StreamlogError,
    Unavailable,
    UnknownTopicOrPartition,
)
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.concurrency.background import Background
from streamlog.v1 import log_pb2

log = logging.getLogger(__name__)

now_s = time.monotonic
END_OF_CALL: Any = grpc.aio.EOF  # type: ignore[attr-defined]


class Producer:
    """As `streamlog.client.Producer`, for one event loop; use it in `async with`.

    `await producer.send(…)` waits for room in the buffer only; awaiting what it returns waits
    until the record is durable.
    """

    def __init__(
        self, server: str, *, partitioner: Partitioner | None = None, **settings: Any
    ) -> None:
        self._settings = settings_of(**settings)
        self._partitioner = partitioner
        self._core = ProducerCore(self._settings, server)
        self._topics = self._core.accumulator.topics
        self._directory = TopicDirectory(self._settings.metadata_max_age_ms / 1000)
        self._caller = Caller(
            server,
            client_id=self._settings.client_id,
            timeout_ms=self._settings.request_timeout_ms,
        )
        self._stream: Any = self._caller.channel.stream_stream(
            PRODUCE_STREAM,
            request_serializer=None,
            response_deserializer=log_pb2.ProduceStreamResponse.FromString,
        )
        self._background = Background("streamlog.producer", self._failed)
        self._work = asyncio.Event()
        self._writable = asyncio.Event()
        self._room = asyncio.Event()
        self._waiting_for_room = 0
        self._asking = False
        self._call: Any = None
        self._is_closed = False
        self._is_ended = False
        self._failure: StreamlogError | None = None
        self._loads: dict[str, asyncio.Task[None]] = {}
        self._is_forked = False
        forking.watch(self)
        self._core.warn_when_dropped(self)

    # -- sending

    async def send(
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
        """Puts a record on its way. Errors and waits as of `streamlog.client.Producer.send`.

        Cancelled while it waits, it has taken nothing.
        """
        queues = self._topics.get(topic) or await self._load_topic(topic)
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
        record = (timestamp_ms, key, value, checked_headers(headers) if headers else NO_HEADERS)
        batch = (queues.sticky if partition is None else queues.queues[partition]).open
        if batch is None or not batch.append(*record):
            self._check_open(queues, 0)
            if not queues.knows_limit:
                try:
                    self._core.accumulator.record_limit(queues, *record[1:])
                except MessageTooLarge:
                    await self._learn_limit(queues)
            ends_at = self._block_ends_at()
            try:
                while (batch := self._core.append(queues, partition, record, now_s())) is None:
                    await self._wait_for_room(0, ends_at)
            finally:
                # After an error too: a full batch may have been closed before it.
                self._wake()
        if batch.builder is None:
            raise AssertionError("an open batch has a builder")
        view = Delivery(batch, batch.builder.record_count - 1, timestamp_ms)
        if on_delivery is not None:
            if batch.callbacks is None:
                batch.callbacks = []
            index = batch.builder.record_count - 1
            batch.callbacks.append(_reporting(batch, index, timestamp_ms, on_delivery))
        return view

    async def send_many(
        self,
        topic: str,
        values: Sequence[Buffer | None],
        keys: Sequence[Buffer | None] | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> ManyDeliveries:
        """As `send` for many records at once. Cancelled, it has taken the first of them or all."""
        queues = self._topics.get(topic) or await self._load_topic(topic)
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        if partition is not None:
            checked_partition(queues, partition)
        try:
            self._core.check_sizes(queues, values, keys)
        except MessageTooLarge:
            if queues.knows_limit:
                raise
            await self._learn_limit(queues)
            self._core.check_sizes(queues, values, keys)
        which: list[int] | None = None
        groups = [PartitionRecords(partition, range(len(values)), values, keys)]
        if partition is None and (keys is not None or self._partitioner is not None):
            which, groups = by_partition(queues, values, keys, self._partitioner)
        runs: list[Run] = []
        try:
            for records in groups:
                await self._extend(queues, records, timestamp_ms, runs)
        except (Overloaded, Closed, UnknownTopicOrPartition) as error:
            error.fields["taken"] = sum(run.record_count for run in runs)
            error.deliveries = ManyDeliveries(runs, timestamp_ms)  # type: ignore[union-attr]
            raise
        return ManyDeliveries(runs, timestamp_ms, which)

    async def _extend(
        self,
        queues: TopicQueues,
        records: PartitionRecords,
        timestamp_ms: int,
        runs: list[Run],
    ) -> None:
        start, ends_at = 0, self._block_ends_at()
        while start < len(records.values):
            taken = sum(run.record_count for run in runs)
            self._check_open(queues, taken)
            try:
                run = self._core.extend(queues, records, timestamp_ms, start, now_s())
                if run is None:
                    await self._wait_for_room(taken, ends_at)
                    continue
            finally:
                # After an error too: a full batch may have been closed before it.
                self._wake()
            runs.append(run)
            start += run.record_count
            ends_at = self._block_ends_at()
            await asyncio.sleep(0)

    def _block_ends_at(self) -> float:
        """Of a wait that begins now; others who take what became free do not prolong it."""
        return now_s() + self._settings.max_block_ms / 1000

    async def _wait_for_room(self, taken: int, ends_at: float) -> None:
        accumulator = self._core.accumulator
        charged = accumulator.charged_bytes
        self._waiting_for_room += 1
        accumulator.is_short_of_room = True
        self._wake()
        try:
            async with asyncio.timeout(ends_at - now_s()):
                while accumulator.charged_bytes >= charged:
                    self._room.clear()
                    await self._room.wait()
                    self._check_open(None, taken)
        except TimeoutError:
            raise Overloaded(
                no_room(self._settings, charged),
                queued_bytes=charged,
                bound_bytes=self._settings.buffer_memory_bytes,
                taken=taken,
            ) from None
        finally:
            self._waiting_for_room -= 1
            accumulator.is_short_of_room = self._waiting_for_room > 0

    def _check_open(self, queues: TopicQueues | None, taken: int) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._is_closed:
            raise Closed("the producer is closed; open another one", taken=taken)
        if queues is not None and queues.name not in self._loads:
            age_ms = (now_s() - queues.loaded_at) * 1000
            if age_ms > self._settings.metadata_max_age_ms:
                self._start_refresh(queues)

    def _start_refresh(self, queues: TopicQueues) -> None:
        self._loads[queues.name] = self._background.spawn(self._refresh(queues), name="metadata")

    def _wake(self) -> None:
        self._work.set()
        self._writable.set()

    # -- topics

    async def _load_topic(self, name: str) -> TopicQueues:
        self._check_open(None, 0)
        description = await self._ask_description(name, self._retry(), self._directory.describe)
        self._check_open(None, 0)
        if not self._asking:
            self._asking = True
            for work, task_name in (self._watch, "watch"), (self._keep_connected, "connection"):
                task = self._background.spawn(work(), name=task_name)
                task.add_done_callback(self._task_ended)
        return self._core.accumulator.update_topic(name, description, now_s())

    async def _learn_limit(self, queues: TopicQueues) -> None:
        description = await self._ask_description(
            queues.name, self._retry(), self._directory.describe_afresh
        )
        self._core.accumulator.update_topic(queues.name, description, now_s())

    def _retry(self) -> Retry:
        return Retry(
            self._settings.max_block_ms,
            self._settings.retry_backoff_ms,
            self._settings.retry_backoff_max_ms,
            server=self._caller.server,
        )

    async def _ask_description(
        self, name: str, retry: Retry, ask: DescribeTopic
    ) -> TopicDescription:
        while True:
            try:
                left_ms = retry.left_s() * 1000
                steps = ask(name, now_s())
                return await run_async(steps, partial(self._caller.run_once, timeout_ms=left_ms))
            except StreamlogError as error:
                wait_s = retry.wait_s(error)
            await asyncio.sleep(wait_s)

    async def _refresh(self, queues: TopicQueues) -> None:
        description: TopicDescription | None = None
        try:
            retry = Retry(self._settings.request_timeout_ms)
            description = await self._ask_description(
                queues.name, retry, self._directory.describe_afresh
            )
        except StreamlogError as error:
            log.warning("metadata not refreshed", extra={"topic": queues.name, "error": str(error)})
        self._core.refreshed(queues, description, now_s())
        del self._loads[queues.name]
        self._deliver()
        self._wake()

    # -- tasks

    def _failed(self, error: BaseException) -> None:
        """A task ended by a bug: everything under way fails, and so do later calls."""
        if self._failure is None:
            self._failure = Internal(f"the producer's task failed: {error!r}; open another")
            self._failure.__cause__ = error
        self._core.abandon(self._failure)
        self._room.set()
        self._deliver()

    def after_fork(self, error: Invalid) -> None:
        """In the child process: what is under way is the parent's; each further call raises."""
        self._failure = error
        self._is_forked = True
        self._core.abandon(error)
        self._core.take_done()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """A task that another one cancelled, as `asyncio.run` does at its end, brings no answers
        any more: those who wait for them are told."""
        if task.cancelled() and not self._is_ended and self._failure is None:
            self._core.warn_of_unsent()
            self._failed(asyncio.CancelledError())

    async def _watch(self) -> None:
        """Gives up what is overdue and asks for the producer id when it is needed."""
        while True:
            self._work.clear()
            now = now_s()
            self._core.expire(now)
            self._deliver()
            for queues in list(self._core.stale_topics):
                if queues.name not in self._loads:
                    del self._core.stale_topics[queues]
                    self._start_refresh(queues)
            identity = self._core.identity_request(now)
            if identity is not None:
                await self._ask_identity(identity)
                continue
            late_at = self._core.oldest_sent_at() + self._settings.request_timeout_ms / 1000
            if late_at <= now and self._call is not None:
                self._call.cancel()
                late_at = NEVER
            wake = min(
                self._core.wake_at(now, can_send=False), self._core.identity_wake_at(), late_at
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
        self._writable.set()

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
        timeout_ms = self._settings.request_timeout_ms
        while True:
            now = now_s()
            message = self._core.next_message(now)
            if self._waiting_for_room:
                self._room.set()
            if self._core.accumulator.done:
                # Batches that could not be encoded.
                self._deliver()
            if message is None:
                self._writable.clear()
                self._work.set()
                await _wait_until(self._writable, self._core.wake_at(now, can_send=True))
                continue
            if self._core.in_flight_messages == 1:
                # Whoever watches must wait for an answer from now on.
                self._work.set()
            try:
                await call.write(message.encode(self._core.acks, timeout_ms))
            except (grpc.RpcError, asyncio.InvalidStateError):
                return

    def _deliver(self) -> None:
        """Wakes waiters and runs callbacks.

        `sys.exit()` in a callback ends the program by way of the loop, as in any asyncio callback,
        and not this task, by which the answers come.
        """
        ended = self._core.take_done()
        if ended and self._waiting_for_room:
            self._room.set()
        for batch in ended:
            last = call_back(batch.notify())
            if last is not None:
                asyncio.get_running_loop().call_soon(_raise, last)

    # -- ending

    async def flush(self, timeout: float | None = None) -> None:
        """Returns when all that was sent before is stored or given up. `timeout` in seconds.

        Errors: TimeoutError, and the rest is still under way.
        """
        timeout = wait_s(timeout)
        batches = self._core.accumulator.close_all()
        self._wake()
        async with asyncio.timeout(timeout):
            for batch in batches:
                await wait(batch)

    async def close(self, timeout: float | None = None) -> None:
        """Flushes, then frees everything; what is not stored after `timeout` seconds is given up.

        Harmless when called again. Cancelled, it gives up what is left at once.
        """
        timeout = wait_s(timeout)
        self._is_closed = True
        if self._is_forked:
            return
        self._room.set()
        try:
            with contextlib.suppress(TimeoutError):
                await self.flush(timeout)
        finally:
            self._core.abandon()
            self._deliver()
            self._is_ended = True
            await self._background.close()
            await self._caller.close()

    def metrics(self) -> dict[str, float]:
        """Counts since the start, and what is under way now."""
        return self._core.metrics()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(0 if kind is not None and not issubclass(kind, Exception) else None)


def _raise(error: BaseException) -> None:
    raise error


async def _wait_until(event: asyncio.Event, at: float) -> None:
    """Returns when the event is set, or at that time."""
    if at == NEVER:
        await event.wait()
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(max(0.0, at - now_s())):
            await event.wait()


def _reporting(
    batch: Any, index: int, timestamp_ms: int, on_delivery: OnDelivery
) -> Callable[[], None]:
    def report() -> None:
        error = batch.error_of(index)
        if error is not None:
            on_delivery(None, error)
            return
        metadata: RecordMetadata = batch.metadata(index, timestamp_ms)
        on_delivery(metadata, None)

    return report
