"""The producer for asyncio: the same core as the blocking one; `Sender` drives it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Self

from streamlog.client.aio.channel import Caller
from streamlog.client.aio.delivery import Delivery, ManyDeliveries, wait
from streamlog.client.aio.sender import Sender
from streamlog.client.aio.transactions import ProducerTransactions
from streamlog.client.produce.accumulator import TopicQueues
from streamlog.client.produce.batches import Run
from streamlog.client.produce.core import ProducerCore
from streamlog.client.produce.options import (
    NO_HEADERS,
    OnDelivery,
    checked_headers,
    delivery_report,
    note_taken,
    overloaded,
    producer_settings,
)
from streamlog.client.produce.partitioner import Partitioner, partition_for_key
from streamlog.client.produce.routing import PartitionRecords, checked_partition, grouped
from streamlog.client.settings import wait_s
from streamlog.client.tls import Tls
from streamlog.errors import Closed, MessageTooLarge, Overloaded, UnknownTopicOrPartition
from streamlog.runtime.buffers import Buffer

now_s = time.monotonic


class Producer:
    """As `streamlog.client.Producer`, for one event loop; use it in `async with`.

    `await producer.send(…)` waits for room in the buffer only; awaiting what it returns waits
    until the record is durable.
    """

    def __init__(
        self,
        server: str,
        *,
        partitioner: Partitioner | None = None,
        tls: Tls | bool | None = None,
        **settings: Any,
    ) -> None:
        self._settings = producer_settings(**settings)
        self._partitioner = partitioner
        self._core = ProducerCore(self._settings, server)
        self._topics = self._core.accumulator.topics
        caller = Caller(
            server,
            client_id=self._settings.client_id,
            timeout_ms=self._settings.request_timeout_ms,
            tls=tls,
        )
        self._sender = Sender(self._core, caller, self._settings)
        self._is_closed = False
        self._transactions = ProducerTransactions(
            self._core.transactions,
            check_open=self._check_usable,
            close_batches=self._core.accumulator.close_all,
            wake=self._start,
        )

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
        """Puts a record on its way. Errors and waits as `streamlog.client.Producer.send`.

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
                    await self._sender.learn_limit(queues)
            ends_at = self._block_ends_at()
            try:
                while (batch := self._core.append(queues, partition, record, now_s())) is None:
                    await self._wait_for_room(0, ends_at)
            finally:
                # After an error too: a full batch may have been closed before it.
                self._sender.wake()
        if batch.builder is None:
            raise AssertionError("an open batch has a builder")
        index = batch.builder.record_count - 1
        if on_delivery is not None:
            batch.callbacks.append(delivery_report(batch, index, timestamp_ms, on_delivery))
        return Delivery(batch, index, timestamp_ms)

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
            await self._sender.learn_limit(queues)
            self._core.check_sizes(queues, values, keys)
        which, groups = grouped(queues, values, keys, partition, self._partitioner)
        runs: list[Run] = []
        try:
            for records in groups:
                await self._extend(queues, records, timestamp_ms, runs)
        except (Overloaded, Closed, UnknownTopicOrPartition) as error:
            note_taken(error, runs, ManyDeliveries(runs, timestamp_ms))
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
                self._sender.wake()
            runs.append(run)
            start += run.record_count
            ends_at = self._block_ends_at()
            await asyncio.sleep(0)

    def _block_ends_at(self) -> float:
        """The end of a wait that begins now; callers that take free room do not prolong it."""
        return now_s() + self._settings.max_block_ms / 1000

    async def _wait_for_room(self, taken: int, ends_at: float) -> None:
        accumulator = self._core.accumulator
        charged = accumulator.charged_bytes
        self._sender.waiting_for_room += 1
        accumulator.is_short_of_room = True
        self._sender.wake()
        try:
            async with asyncio.timeout(ends_at - now_s()):
                while accumulator.charged_bytes >= charged:
                    self._sender.room.clear()
                    await self._sender.room.wait()
                    self._check_open(None, taken)
        except TimeoutError:
            raise overloaded(self._settings, charged, taken) from None
        finally:
            self._sender.waiting_for_room -= 1
            accumulator.is_short_of_room = self._sender.waiting_for_room > 0

    def _check_open(self, queues: TopicQueues | None, taken: int) -> None:
        """Errors: Closed; the failure that ended the producer; those of `check_sending`."""
        self._check_usable(taken)
        self._core.check_sending()
        if queues is not None:
            self._sender.refresh_when_old(queues)

    def _check_usable(self, taken: int = 0) -> None:
        """Errors: Closed; the failure that ended the producer."""
        if self._sender.failure is not None:
            raise self._sender.failure.with_traceback(None)
        if self._is_closed:
            raise Closed("the producer is closed; open another one", taken=taken)

    def _start(self) -> None:
        self._sender.start()
        self._sender.wake()

    async def _load_topic(self, name: str) -> TopicQueues:
        self._check_open(None, 0)
        metadata = await self._sender.look_up_new(name)
        self._check_open(None, 0)
        self._sender.start()
        return self._core.accumulator.update_topic(name, metadata, now_s())

    # -- transactions

    async def init_transactions(self, timeout: float | None = None) -> None:
        """As `streamlog.client.Producer.init_transactions`, and so are the next ones."""
        await self._transactions.initialise(timeout)

    async def begin_transaction(self) -> None:
        await self._transactions.begin()

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Cancelled, it goes on."""
        await self._transactions.commit(timeout)

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Cancelled, it goes on."""
        await self._transactions.abort(timeout)

    def transaction(self) -> AbstractAsyncContextManager[None]:
        """`async with producer.transaction():`; a task that is cancelled in it aborts."""
        return self._transactions.block()

    # -- ending

    async def flush(self, timeout: float | None = None) -> None:
        """Returns when all records sent before are stored or given up. `timeout` in seconds.

        Errors: TimeoutError, and the rest is still under way.
        """
        timeout = wait_s(timeout)
        batches = self._core.accumulator.close_all()
        self._sender.wake()
        async with asyncio.timeout(timeout):
            for batch in batches:
                await wait(batch)

    async def close(self, timeout: float | None = None) -> None:
        """Flushes, then frees everything; gives up records not stored after `timeout` seconds.

        Aborts a transaction that is open. Harmless when called again. Cancelled, it gives up what
        is left at once.
        """
        timeout = wait_s(timeout)
        self._is_closed = True
        if self._sender.is_forked:
            return
        self._sender.room.set()
        try:
            await self._transactions.end(timeout)
            with contextlib.suppress(TimeoutError):
                await self.flush(timeout)
        finally:
            await self._sender.stop()

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
