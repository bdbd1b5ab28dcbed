"""The producer for threads: callers append to open batches under one lock; `Sender` sends them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from streamlog.client import forking
from streamlog.client.channel import Caller
from streamlog.client.produce.accumulator import TopicQueues
from streamlog.client.produce.batches import PendingBatch, Run
from streamlog.client.produce.core import ProducerCore
from streamlog.client.produce.delivery import (
    Delivery,
    ManyDeliveries,
    check_may_wait,
    is_delivering,
    wait,
)
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
from streamlog.client.produce.sender import Sender
from streamlog.client.settings import wait_s
from streamlog.client.tls import Tls
from streamlog.client.transactions.blocking import ProducerTransactions
from streamlog.codec.records import Headers
from streamlog.errors import Closed, Invalid, MessageTooLarge, Overloaded, UnknownTopicOrPartition
from streamlog.runtime.buffers import Buffer

log = logging.getLogger(__name__)

now_s = time.monotonic
new_object = object.__new__


class Producer:
    """Sends records to topics. Safe to use from many threads; close it, or use it in `with`.

    `acks`: "all" and 1: answered when durable; 0: not waited for, offsets are -1. With
    `idempotence` retries neither lose, double nor reorder records. With a `transactional_id` every
    record belongs to a transaction. `tls` True or a `Tls`: the node speaks TLS. Further settings:
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
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        partitioner: Partitioner | None = None,
        tls: Tls | bool | None = None,
    ) -> None:
        self._settings = producer_settings(
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
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_ms,
        )
        self._partitioner = partitioner
        self._core = ProducerCore(self._settings, server)
        self._topics = self._core.accumulator.topics
        caller = Caller(server, client_id=client_id, timeout_ms=request_timeout_ms, tls=tls)
        self._sender = Sender(self._core, caller, self._settings)
        self._transactions = ProducerTransactions(
            self._core.transactions,
            self._sender,
            close_batches=self._core.accumulator.close_all,
            check_may_wait=check_may_wait,
        )
        self._take_locks()
        forking.watch(self)

    def _take_locks(self) -> None:
        self._lock = self._sender.lock
        self._work = self._sender.work
        self._room = self._sender.room

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
        those of the partitioner; then nothing of the record was taken.
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
                    batch.callbacks.append(
                        delivery_report(batch, view._index, timestamp_ms, on_delivery)
                    )
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
        UnknownTopicOrPartition carry `taken`, how many of the records are on their way, and
        `deliveries`, a ManyDeliveries whose `outcomes()` say which they are and how they end.
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
            self._sender.learn_limit(queues)
            self._core.check_sizes(queues, values, keys)
        which, groups = grouped(queues, values, keys, partition, self._partitioner)
        runs: list[Run] = []
        try:
            for records in groups:
                self._extend(queues, records, timestamp_ms, runs)
        except (Overloaded, Closed, UnknownTopicOrPartition) as error:
            note_taken(error, runs, ManyDeliveries(runs, timestamp_ms))
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
        """The end of a wait that begins now; callers that take free room do not prolong it."""
        return now_s() + self._settings.max_block_ms / 1000

    def _wait_for_room(self, runs: Sequence[Run], ends_at: float) -> None:
        """With the lock held: returns when room became free. Errors: Overloaded, Closed."""
        accumulator = self._core.accumulator
        charged = accumulator.charged_bytes
        if is_delivering():
            ends_at = now_s()
        self._sender.waiting_for_room += 1
        accumulator.is_short_of_room = True
        self._work.notify_all()
        try:
            while accumulator.charged_bytes >= charged:
                left = ends_at - now_s()
                if left <= 0:
                    taken = sum(run.record_count for run in runs)
                    raise overloaded(self._settings, charged, taken)
                self._room.wait(left)
                self._check_open(None, runs)
        finally:
            self._sender.waiting_for_room -= 1
            accumulator.is_short_of_room = self._sender.waiting_for_room > 0

    def _check_open(self, queues: TopicQueues | None, runs: Sequence[Run]) -> None:
        """With the lock held. Errors: Closed; the failure that ended the producer."""
        if self._sender.failure is not None:
            raise self._sender.failure.with_traceback(None)
        if self._sender.is_closed:
            taken = sum(run.record_count for run in runs)
            raise Closed("the producer is closed; open another one", taken=taken)
        self._core.check_sending()
        self._sender.start()
        if queues is not None:
            self._sender.refresh_when_old(queues)

    # -- topics

    def _check_guessed_limit(
        self, queues: TopicQueues, key: Buffer | None, value: Buffer | None, headers: Headers
    ) -> None:
        """With the lock held: a record larger than the guess looks the limit up, without the lock.

        Errors: those of the look-up.
        """
        try:
            self._core.accumulator.record_limit(queues, key, value, headers)
        except MessageTooLarge:
            self._lock.release()
            try:
                self._sender.learn_limit(queues)
            finally:
                self._lock.acquire()

    def _load_topic(self, name: str) -> TopicQueues:
        if self._sender.failure is not None:
            raise self._sender.failure.with_traceback(None)
        if self._sender.is_closed:
            raise Closed("the producer is closed; open another one")
        with self._lock:
            self._core.check_sending()
        return self._sender.load_topic(name)

    # -- transactions

    def init_transactions(self, timeout: float | None = None) -> None:
        """Takes the transactional id over: older producers of it are fenced, and what they left
        open is ended. Done by the first begin_transaction() where it was not called.

        Waits up to `max_block_ms`. Errors: Unavailable, and it may be called again;
        InvalidTransactionTimeout, Unauthorized; TimeoutError after `timeout` seconds, and it goes
        on.
        """
        self._transactions.initialise(timeout)

    def begin_transaction(self) -> None:
        """From now on records become visible to read_committed readers together, or never.

        Errors: InvalidTxnState (one is open); TransactionAbortable (one is open that can only be
        aborted); Fenced, for good; those of init_transactions().
        """
        self._transactions.begin()

    def commit_transaction(self, timeout: float | None = None) -> None:
        """Returns when all records are stored and the commit is decided, which nothing undoes.
        Readers see it some milliseconds later, when each partition has its marker.

        Errors: TransactionAbortable where a record failed: abort, and begin anew; Fenced, for good;
        OutcomeUnknown after `delivery_timeout_ms`: commit again, or ask another producer, as it
        says; TimeoutError after `timeout` seconds, and it goes on: commit again to wait for it.
        """
        self._transactions.commit(timeout)

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Gives up what is not stored; nothing of the transaction becomes visible.

        Records that are not done fail with TransactionAbortable. Errors: InvalidTxnState (none is
        open); Fenced, for good; Unavailable after `delivery_timeout_ms`: abort again; TimeoutError
        after `timeout` seconds, and it goes on.
        """
        self._transactions.abort(timeout)

    def transaction(self) -> AbstractContextManager[None]:
        """`with producer.transaction():` begins one, commits it at the block's end, and aborts it
        where the block or the commit raises; the error goes on to the caller. Where that abort was
        not confirmed, the next `transaction()` tries it again before it begins.

        Errors: those of abort_transaction(), begin_transaction() and commit_transaction().
        """
        return self._transactions.block()

    # -- ending

    def flush(self, timeout: float | None = None) -> None:
        """Returns when all records sent before are stored or given up. `timeout` in seconds.

        Errors: TimeoutError, and the rest is still under way. A record's own result tells whether
        it is stored.
        """
        timeout = wait_s(timeout)
        ends_at = None if timeout is None else now_s() + timeout
        with self._lock:
            batches = self._core.accumulator.close_all()
            self._work.notify_all()
        for batch in batches:
            wait(batch, None if ends_at is None else max(0.0, ends_at - now_s()))

    def close(self, timeout: float | None = None) -> None:
        """Flushes, then frees everything; gives up records not stored after `timeout` seconds.

        Aborts a transaction that is open. Harmless when called again. In a delivery callback, whose
        thread reads the answers, it returns at once: the producer takes no more records, and
        another thread ends it. The interpreter waits for that thread.
        """
        timeout = wait_s(timeout)
        with self._lock:
            self._sender.is_closed = True
            self._room.notify_all()
        if self._sender.is_forked:
            return
        if is_delivering():
            threading.Thread(
                target=self._end, args=(timeout,), name="streamlog-producer-end", daemon=False
            ).start()
            return
        self._end(timeout)

    def _end(self, timeout: float | None) -> None:
        try:
            self._transactions.end(timeout)
            self.flush(timeout)
        except TimeoutError:
            log.warning("closed with records under way")
        finally:
            self._sender.stop()

    def after_fork(self, error: Invalid) -> None:
        """In the child process: records under way are the parent's; each further call raises."""
        self._sender.after_fork(error)
        self._take_locks()

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
