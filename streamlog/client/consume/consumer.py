"""The consumer for threads.

`streamlog-consumer` fetches: one request is under way while the caller works on the last answer,
and the next one goes out when the caller takes the answer that waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import grpc

from streamlog.client import forking
from streamlog.client.calls.topic import (
    EARLIEST,
    LATEST,
    OffsetAndTimestamp,
    TopicPartition,
    fetch,
    list_offsets,
    list_offsets_each,
)
from streamlog.client.calls.topic_lookup import find_topics, run
from streamlog.client.channel import Call, Caller
from streamlog.client.closing import Closing
from streamlog.client.consume.arguments import (
    checked_partitions,
    checked_topics,
    consumer_settings,
)
from streamlog.client.consume.fetch_state import NEVER, FetchPlan, FetchState
from streamlog.client.consume.pending import PendingRecords
from streamlog.client.consume.records import ConsumerRecord, FetchedBatch
from streamlog.client.consume.subscription import Subscription
from streamlog.client.offset_resets import OffsetReset
from streamlog.client.settings import WAIT_S_MAX, wait_s
from streamlog.client.tls import Tls
from streamlog.errors import (
    Closed,
    Internal,
    Invalid,
    StreamlogError,
)

log = logging.getLogger(__name__)

now_s = time.monotonic


class Consumer(Closing):
    """Reads topics. One thread uses it at a time; close it, or use it in `with`.

    Settings: `ConsumerSettings`; `tls` True or a `Tls`: the node speaks TLS. Errors: InvalidConfig;
    Invalid for a `group_id`, because groups come later.
    """

    _keeps_control_batches = False

    def __init__(
        self,
        server: str,
        *,
        isolation_level: str = "read_uncommitted",
        auto_offset_reset: str = "earliest",
        fetch_max_bytes: int = 16 << 20,
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        max_partition_fetch_bytes: int = 8 << 20,
        group_id: str | None = None,
        metadata_max_age_ms: int = 30_000,
        request_timeout_ms: int = 30_000,
        default_api_timeout_ms: int = 60_000,
        retry_backoff_ms: float = 50,
        retry_backoff_max_ms: float = 1000,
        check_crcs: bool = True,
        decoded_batch_bytes_max: int = 128 << 20,
        poll_bytes_max: int = 64 << 20,
        client_id: str = "",
        tls: Tls | bool | None = None,
    ) -> None:
        self._settings = consumer_settings(
            group_id,
            dict(
                isolation_level=isolation_level,
                auto_offset_reset=auto_offset_reset,
                fetch_max_bytes=fetch_max_bytes,
                fetch_min_bytes=fetch_min_bytes,
                fetch_max_wait_ms=fetch_max_wait_ms,
                max_partition_fetch_bytes=max_partition_fetch_bytes,
                metadata_max_age_ms=metadata_max_age_ms,
                request_timeout_ms=request_timeout_ms,
                default_api_timeout_ms=default_api_timeout_ms,
                retry_backoff_ms=retry_backoff_ms,
                retry_backoff_max_ms=retry_backoff_max_ms,
                check_crcs=check_crcs,
                decoded_batch_bytes_max=decoded_batch_bytes_max,
                poll_bytes_max=poll_bytes_max,
                client_id=client_id,
            ),
        )
        self._caller = Caller(
            server, client_id=client_id, timeout_ms=default_api_timeout_ms, tls=tls
        )
        self._state = FetchState(self._settings, keeps_control_batches=self._keeps_control_batches)
        self._changed = threading.Condition()
        self._answers: deque[list[tuple[FetchedBatch, int]]] = deque()
        self._pending = PendingRecords(self._state, self._settings.poll_bytes_max)
        self._subscription = Subscription(self._settings)
        self._fetch: Any = None
        self._lookup: Any = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._failure: StreamlogError | None = None
        self._is_forked = False
        forking.watch(self)

    # -- what to read

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these (topic, partition); those assigned before keep their position."""
        wanted = checked_partitions(partitions)
        with self._changed:
            self._check_open()
            self._subscription.clear()
            self._state.assign(wanted)
            self._interrupt_fetch()

    def subscribe(self, topics: Sequence[str]) -> None:
        """Reads all partitions of the topics; new ones are followed, from their start.

        A topic that does not exist is waited for.
        """
        wanted = checked_topics(topics)
        with self._changed:
            self._check_open()
            self._subscription.subscribe(wanted)
            self._state.keep_topics(wanted)
            self._interrupt_fetch()

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read now."""
        with self._changed:
            return sorted(self._state.partitions)

    def waiting_for(self) -> str | None:
        """Why no records come, in words: topics that do not exist, a server that does not answer.

        None: the log has no further records yet.
        """
        with self._changed:
            return self._subscription.waiting_for(self._caller.server, self._state, now_s())

    def take_offset_resets(self) -> list[OffsetReset]:
        """Where reading went on by `auto_offset_reset` because the log does not hold a position any
        more, since the last call; at most one for each partition.

        Records that were deleted before they were read show up here and nowhere else: with
        "earliest" and "latest" a poll does not raise for them.
        """
        with self._changed:
            return self._state.resets.take()

    def seek(self, topic: str, partition: int, offset: int) -> None:
        """The next record of the partition is the one at `offset`, or the first after it.

        Errors: Invalid where the partition is not assigned.
        """
        with self._changed:
            self._check_open()
            self._state.seek((topic, partition), offset)
            self._interrupt_fetch()

    def position(self, topic: str, partition: int) -> int:
        """Offset of the next record that the caller gets.

        Errors: Invalid where the partition is not assigned; those of offset look-ups.
        """
        tp = (topic, partition)
        with self._changed:
            position = self._state.position_of(tp)
            if position is not None:
                return position
            time_ms = self._state.start_time_ms(tp)
            generations = self._state.generations([tp])
        offsets = self._caller.run(list_offsets({tp: time_ms}, self._settings.isolation_level))
        with self._changed:
            return self._state.found_position(tp, offsets, generations, now_s())

    def _interrupt_fetch(self) -> None:
        """With the lock held: the request under way may ask for what is not wanted any more."""
        self._changed.notify_all()
        if self._fetch is not None:
            self._fetch.cancel()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the consumer is closed; open another one")
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def after_fork(self, error: Invalid) -> None:
        """In the child process: what was fetched is the parent's; each further call raises."""
        self._changed = threading.Condition()
        self._is_forked = True
        self._failure = error

    # -- reading

    def poll_batches(self, timeout_s: float | None = 1.0) -> list[FetchedBatch]:
        """The next batches, not decoded; an empty list where none came in time.

        None waits until there are some.

        Errors: those that waiting does not heal, such as UnknownTopicOrPartition, Corrupt,
        Unauthorized, and OffsetOutOfRange with auto_offset_reset="none". Reading can go on.
        """
        with self._changed:
            self._check_open()
            batches = self._pending.take_batches()
            if batches:
                return batches
            self._wait_answer(timeout_s)
            return self._pending.take_batches()

    def poll(self, timeout_s: float | None = 1.0, max_records: int = 500) -> list[ConsumerRecord]:
        """The next records, up to max_records; None waits until there are some.

        Errors as for `poll_batches`, and those of decoding: CorruptMessage and InvalidRecord, with
        the fields `topic`, `partition`, `offset` and `next_offset`. The records before such a batch
        are returned first; then each call raises it, until a seek passes over it.
        """
        with self._changed:
            self._check_open()
            if not self._pending:
                self._wait_answer(timeout_s)
            return self._pending.take_records(max_records)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Records without end. Errors as for `poll`."""
        while True:
            with self._changed:
                self._check_open()
                if not self._pending:
                    self._wait_answer(None)
                run = self._pending.current_run()
            if run is None:
                continue
            state, generation = run.state, run.generation
            for record in run.records[run.index :]:
                run.index += 1
                state.position = record[2] + 1
                yield record
                if state.generation != generation:
                    break
            else:
                run.window_passed()

    def _wait_answer(self, timeout_s: float | None) -> None:
        """With the lock held: moves the next answer to `_pending`, if it comes in time."""
        limit_s = wait_s(timeout_s)
        self._check_open()
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="streamlog-consumer", daemon=True)
            thread.start()
            self._thread = thread
        ends_at = now_s() + (WAIT_S_MAX if limit_s is None else limit_s)
        while True:
            # Batches that were answered before an error are returned before it is raised.
            if self._answers:
                self._pending.add(self._answers.popleft())
                self._changed.notify_all()
                if self._pending:
                    return
                continue
            if self._state.errors:
                self._changed.notify_all()
                raise self._state.errors.pop(0)
            left = ends_at - now_s()
            if left <= 0:
                return
            if not self._state.partitions and not self._subscription.topics:
                raise Invalid("nothing to read: assign() or subscribe() first")
            self._changed.wait(left)
            self._check_open()

    # -- the fetching thread

    def _run(self) -> None:
        try:
            self._fetch_on()
        except BaseException as error:
            with self._changed:
                self._failure = Internal(f"the fetching thread failed: {error!r}; open another")
                self._failure.__cause__ = error
                self._changed.notify_all()
            raise

    def _fetch_on(self) -> None:
        while True:
            with self._changed:
                if self._is_closed:
                    return
                self._state.asked_at = None
                if self._state.errors:
                    # Nothing is asked before the caller has them: it would add the same ones again.
                    self._changed.notify_all()
                    self._changed.wait()
                    continue
                now = now_s()
                topics = self._subscription.due_topics(self._state, now)
                lookups = {} if topics else self._state.offset_lookups(now)
                generations = self._state.generations(lookups)
                plan: FetchPlan | None = None
                if not topics and not lookups:
                    is_full = self._answers or self._state.errors
                    plan = None if is_full else self._state.plan(now)
                    if plan is None:
                        if not self._state.errors:
                            self._changed.wait(self._idle_s(now))
                        continue
                    self._fetch = self._start_fetch(plan)
                self._state.asked_at = now
            if topics:
                self._look_up_topics(topics)
            elif lookups:
                self._look_up_offsets(lookups, generations)
            elif plan is not None:
                self._finish_fetch(plan)

    def _idle_s(self, now: float) -> float | None:
        wake = self._subscription.wake_at(self._state.wake_at(now))
        return None if wake == NEVER else max(0.001, wake - now)

    def _start_fetch(self, plan: FetchPlan) -> Any:
        call = fetch(plan.request)
        timeout_ms = self._settings.request_timeout_ms + self._settings.fetch_max_wait_ms
        return self._caller.method(call).future(
            call.request, timeout=timeout_ms / 1000, metadata=self._caller.metadata
        )

    def _finish_fetch(self, plan: FetchPlan) -> None:
        error: StreamlogError | None = None
        response: Any = None
        try:
            response = self._fetch.result()
        except grpc.FutureCancelledError:
            pass
        except grpc.RpcError as rpc_error:
            error = self._caller.typed_error(rpc_error, writes=False)
        with self._changed:
            self._fetch = None
            now = now_s()
            if error is not None:
                log.info("fetch failed", extra={"error": str(error)})
                self._state.fetch_failed(plan, error, now)
            elif response is not None:
                batches = self._state.answered(plan, response, now)
                if batches:
                    self._answers.append(batches)
            self._changed.notify_all()

    def _look_up_offsets(
        self, lookups: dict[TopicPartition, int], generations: dict[TopicPartition, int]
    ) -> None:
        call = list_offsets_each(lookups, self._settings.isolation_level)
        try:
            results = self._look_up(call)
        except StreamlogError as error:
            with self._changed:
                self._state.offset_lookup_failed(lookups, error, now_s())
                self._changed.notify_all()
            return
        with self._changed:
            self._state.offsets_found(results, generations, now_s())
            self._changed.notify_all()

    def _look_up(self, call: Call) -> Any:
        """A call of the fetching thread, broken off when the consumer is closed."""
        with self._changed:
            self._check_open()
            lookup = self._caller.method(call).future(
                call.request,
                timeout=self._settings.request_timeout_ms / 1000,
                metadata=self._caller.metadata,
            )
            self._lookup = lookup
        try:
            return call.read(lookup.result())
        except grpc.RpcError as error:
            raise self._caller.typed_error(error, writes=call.writes) from None
        except grpc.FutureCancelledError:
            raise Closed("the consumer is closed; open another one") from None
        finally:
            self._lookup = None

    def _look_up_topics(self, topics: list[str]) -> None:
        """Finds ids and partitions of the topics."""
        try:
            entries = run(find_topics(topics), self._look_up)
        except StreamlogError as error:
            with self._changed:
                self._subscription.lookup_failed(self._state, error, now_s())
                self._changed.notify_all()
            return
        with self._changed:
            self._subscription.topics_found(self._state, topics, entries, now_s())
            self._changed.notify_all()

    # -- offsets

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """First offset of each. Errors: UnknownTopicOrPartition, Unavailable after
        default_api_timeout_ms."""
        return run(self._state.edge_offsets(partitions, EARLIEST), self._caller.run)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """End (exclusive) of what can be read of each. Errors as for `beginning_offsets`."""
        return run(self._state.edge_offsets(partitions, LATEST), self._caller.run)

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition with that timestamp (ms) or later; None: no such.

        Errors as for `beginning_offsets`.
        """
        return run(self._state.offsets_for_times(times), self._caller.run)

    # -- ending

    def close(self) -> None:
        """Frees everything; harmless when called again."""
        if self._is_forked:
            return
        with self._changed:
            self._is_closed = True
            self._interrupt_fetch()
            lookup = self._lookup
            if lookup is not None:
                lookup.cancel()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._caller.close()
