"""The consumer for asyncio: one fetch is under way while the caller works on the last answer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import grpc

from streamlog.client import forking
from streamlog.client.aio.channel import Caller
from streamlog.client.calls.topic import (
    EARLIEST,
    LATEST,
    OffsetAndTimestamp,
    TopicPartition,
    fetch,
    list_offsets,
    list_offsets_each,
)
from streamlog.client.calls.topic_lookup import find_topics, run_async
from streamlog.client.channel import Call
from streamlog.client.closing import AsyncClosing
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
from streamlog.client.settings import wait_s
from streamlog.client.tls import Tls
from streamlog.errors import (
    Closed,
    Internal,
    Invalid,
    StreamlogError,
)
from streamlog.runtime.concurrency.background import Background
from streamlog.runtime.concurrency.cancellation import is_being_cancelled

log = logging.getLogger(__name__)

now_s = time.monotonic


class Consumer(AsyncClosing):
    """As `streamlog.client.Consumer`, for one event loop; use it in `async with`."""

    def __init__(
        self,
        server: str,
        *,
        group_id: str | None = None,
        tls: Tls | bool | None = None,
        **settings: Any,
    ) -> None:
        self._settings = consumer_settings(group_id, settings)
        self._caller = Caller(
            server,
            client_id=self._settings.client_id,
            timeout_ms=self._settings.default_api_timeout_ms,
            tls=tls,
        )
        self._state = FetchState(self._settings)
        self._background = Background("streamlog.consumer", self._failed)
        self._changed = asyncio.Event()
        self._arrived = asyncio.Event()
        self._answers: deque[list[tuple[FetchedBatch, int]]] = deque()
        self._pending = PendingRecords(self._state, self._settings.poll_bytes_max)
        self._subscription = Subscription(self._settings)
        self._fetch: Any = None
        self._is_started = False
        self._is_closed = False
        self._failure: StreamlogError | None = None
        self._is_forked = False
        forking.watch(self)

    # -- what to read

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these (topic, partition); those assigned before keep their position."""
        wanted = checked_partitions(partitions)
        self._check_open()
        self._subscription.clear()
        self._state.assign(wanted)
        self._interrupt_fetch()

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Reads all partitions of the topics; new ones are followed, from their start.

        A topic that does not exist is waited for.
        """
        wanted = checked_topics(topics)
        self._check_open()
        self._subscription.subscribe(wanted)
        self._state.keep_topics(wanted)
        self._interrupt_fetch()

    def assignment(self) -> list[TopicPartition]:
        """The partitions that are read now."""
        return sorted(self._state.partitions)

    def waiting_for(self) -> str | None:
        """Why no records come, in words: topics that do not exist, a server that does not answer.

        None: the log has no further records yet.
        """
        return self._subscription.waiting_for(self._caller.server, self._state, now_s())

    def take_offset_resets(self) -> list[OffsetReset]:
        """As `streamlog.client.Consumer.take_offset_resets`."""
        return self._state.resets.take()

    async def seek(self, topic: str, partition: int, offset: int) -> None:
        """The next record of the partition is the one at `offset`, or the first after it.

        Errors: Invalid where the partition is not assigned.
        """
        self._check_open()
        self._state.seek((topic, partition), offset)
        self._interrupt_fetch()

    async def position(self, topic: str, partition: int) -> int:
        """Offset of the next record that the caller gets.

        Errors: Invalid where the partition is not assigned; those of offset look-ups.
        """
        tp = (topic, partition)
        position = self._state.position_of(tp)
        if position is not None:
            return position
        time_ms = self._state.start_time_ms(tp)
        generations = self._state.generations([tp])
        call = list_offsets({tp: time_ms}, self._settings.isolation_level)
        offsets = await self._caller.run(call)
        return self._state.found_position(tp, offsets, generations, now_s())

    def _interrupt_fetch(self) -> None:
        self._changed.set()
        if self._fetch is not None:
            self._fetch.cancel()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the consumer is closed; open another one")
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def after_fork(self, error: Invalid) -> None:
        """In the child process: what was fetched is the parent's; each further call raises."""
        self._is_forked = True
        self._failure = error

    # -- reading

    async def poll_batches(self, timeout_s: float | None = 1.0) -> list[FetchedBatch]:
        """The next batches, not decoded; an empty list where none came in time.

        Errors as of `streamlog.client.Consumer.poll_batches`. Cancelling it loses nothing.
        """
        self._check_open()
        if not self._pending:
            await self._wait_answer(timeout_s)
        return self._pending.take_batches()

    async def poll(
        self, timeout_s: float | None = 1.0, max_records: int = 500
    ) -> list[ConsumerRecord]:
        """The next records, up to max_records; what takes long is decoded in a thread.

        Errors as of `streamlog.client.Consumer.poll`. Cancelling it loses nothing.
        """
        self._check_open()
        if not self._pending:
            await self._wait_answer(timeout_s)
        await self._decode(max_records)
        return self._pending.take_records(max_records)

    async def _decode(self, count: int) -> None:
        """Compressed and large batches are decoded beside the loop, before they are taken."""
        entries = self._pending.long_work(count)
        if entries:
            await asyncio.to_thread(self._pending.decode, entries)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Records without end. Errors as for `poll`."""
        while True:
            self._check_open()
            if not self._pending:
                await self._wait_answer(None)
            await self._decode(1)
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

    async def _wait_answer(self, timeout_s: float | None) -> None:
        """Moves the next answer to `_pending`, if it comes in time."""
        timeout_s = wait_s(timeout_s)
        self._check_open()
        if not self._is_started:
            self._is_started = True
            task = self._background.spawn(self._fetch_on(), name="fetch")
            task.add_done_callback(self._task_ended)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._take_answer():
                    if not self._state.partitions and not self._subscription.topics:
                        raise Invalid("nothing to read: assign() or subscribe() first")
                    self._arrived.clear()
                    await self._arrived.wait()
                    self._check_open()

    def _take_answer(self) -> bool:
        # Batches that were answered before an error are returned before it is raised.
        if not self._answers:
            if self._state.errors:
                self._changed.set()
                raise self._state.errors.pop(0)
            return False
        self._pending.add(self._answers.popleft())
        self._changed.set()
        return bool(self._pending)

    # -- the fetching task

    def _failed(self, error: BaseException) -> None:
        self._failure = Internal(f"the fetching task failed: {error!r}; open another")
        self._failure.__cause__ = error
        self._arrived.set()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Fails all waits where another task cancelled this one, as `asyncio.run` does at its end:
        no answer comes any more."""
        if task.cancelled() and not self._is_closed:
            self._failed(asyncio.CancelledError())

    async def _fetch_on(self) -> None:
        while True:
            self._changed.clear()
            self._state.asked_at = None
            if self._state.errors:
                # Nothing is asked before the caller has them: it would add the same ones again.
                self._arrived.set()
                await self._changed.wait()
                continue
            self._state.asked_at = now = now_s()
            topics = self._subscription.due_topics(self._state, now)
            if topics:
                await self._look_up_topics(topics)
                continue
            lookups = self._state.offset_lookups(now)
            if lookups:
                await self._look_up_offsets(lookups, self._state.generations(lookups))
                continue
            if self._state.errors:
                continue
            plan = None if self._answers else self._state.plan(now)
            if plan is not None:
                await self._one_fetch(plan)
                continue
            self._state.asked_at = None
            wake = self._subscription.wake_at(self._state.wake_at(now))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wake == NEVER else max(0.001, wake - now)):
                    await self._changed.wait()

    async def _one_fetch(self, plan: FetchPlan) -> None:
        call = fetch(plan.request)
        timeout_ms = self._settings.request_timeout_ms + self._settings.fetch_max_wait_ms
        under_way = self._fetch = self._caller.method(call)(
            call.request, timeout=timeout_ms / 1000, metadata=self._caller.metadata
        )
        try:
            response = await under_way
        except grpc.RpcError as rpc_error:
            error = self._caller.typed_error(rpc_error, writes=False)
            log.info("fetch failed", extra={"error": str(error)})
            self._state.fetch_failed(plan, error, now_s())
        except asyncio.CancelledError:
            if self._is_closed or is_being_cancelled() or not under_way.cancelled():
                raise
        else:
            batches = self._state.answered(plan, response, now_s())
            if batches:
                self._answers.append(batches)
        finally:
            self._fetch = None
        self._arrived.set()

    async def _look_up_offsets(
        self, lookups: dict[TopicPartition, int], generations: dict[TopicPartition, int]
    ) -> None:
        call = list_offsets_each(lookups, self._settings.isolation_level)
        try:
            results = await self._look_up(call)
        except StreamlogError as error:
            self._state.offset_lookup_failed(lookups, error, now_s())
            self._arrived.set()
            return
        self._state.offsets_found(results, generations, now_s())
        self._arrived.set()

    async def _look_up(self, call: Call) -> Any:
        return await self._caller.run_once(call, self._settings.request_timeout_ms)

    async def _look_up_topics(self, topics: list[str]) -> None:
        """Finds ids and partitions of the topics."""
        try:
            entries = await run_async(find_topics(topics), self._look_up)
        except StreamlogError as error:
            self._subscription.lookup_failed(self._state, error, now_s())
        else:
            self._subscription.topics_found(self._state, topics, entries, now_s())
        self._arrived.set()

    # -- offsets

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """First offset of each. Errors: UnknownTopicOrPartition, Unavailable after
        default_api_timeout_ms."""
        return await run_async(self._state.edge_offsets(partitions, EARLIEST), self._caller.run)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """End (exclusive) of what can be read of each. Errors as for `beginning_offsets`."""
        return await run_async(self._state.edge_offsets(partitions, LATEST), self._caller.run)

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition with that timestamp (ms) or later; None: no such.

        Errors as for `beginning_offsets`.
        """
        return await run_async(self._state.offsets_for_times(times), self._caller.run)

    # -- ending

    async def close(self) -> None:
        """Frees everything; harmless when called again."""
        if self._is_forked:
            return
        self._is_closed = True
        self._interrupt_fetch()
        self._arrived.set()
        await self._background.close()
        await self._caller.close()
