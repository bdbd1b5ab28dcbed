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
from streamlog.client.aio.channel import Caller, is_being_cancelled
from streamlog.client.calls.topic import (
    EARLIEST,
    LATEST,
    OffsetAndTimestamp,
    TopicPartition,
    list_offsets,
    list_offsets_each,
    most_partitions,
    pieces,
)
from streamlog.client.calls.topic_lookup import find_topics, run_async
from streamlog.client.channel import typed_error
from streamlog.client.closing import AsyncClosing
from streamlog.client.consume.consumer import (
    MISSING_TOPIC_RETRY_S,
    fetch_call,
    settings_of,
    waiting_for,
)
from streamlog.client.consume.fetch_state import (
    RESETS,
    FetchPlan,
    FetchState,
    checked,
    checked_topics,
)
from streamlog.client.consume.pending import PendingRecords
from streamlog.client.consume.records import ConsumerRecord, FetchedBatch
from streamlog.client.offset_resets import OffsetReset
from streamlog.client.settings import wait_s
from streamlog.errors import (
    Closed,
    Internal,
    Invalid,
    OffsetOutOfRange,
    StreamlogError,
)
from streamlog.runtime.concurrency.background import Background

log = logging.getLogger(__name__)

NEVER = float("inf")
now_s = time.monotonic


class Consumer(AsyncClosing):
    """As `streamlog.client.Consumer`, for one event loop; use it in `async with`."""

    def __init__(self, server: str, *, group_id: str | None = None, **settings: Any) -> None:
        self._settings = settings_of(group_id, settings)
        self._caller = Caller(
            server,
            client_id=self._settings.client_id,
            timeout_ms=self._settings.default_api_timeout_ms,
        )
        self._state = FetchState(self._settings)
        self._background = Background("streamlog.consumer", self._failed)
        self._changed = asyncio.Event()
        self._arrived = asyncio.Event()
        self._answers: deque[list[tuple[FetchedBatch, int]]] = deque()
        self._pending = PendingRecords(self._state, self._settings.poll_bytes_max)
        self._topics: list[str] = []
        self._topics_seen: set[str] = set()
        self._missing_topics: list[str] = []
        self._refresh_at = 0.0
        self._fetch: Any = None
        self._is_started = False
        self._is_closed = False
        self._failure: StreamlogError | None = None
        self._is_forked = False
        forking.watch(self)

    # -- what to read

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these (topic, partition); those assigned before go on where they are."""
        wanted = checked(partitions)
        self._check_open()
        self._topics = []
        self._state.assign(wanted)
        self._interrupt_fetch()

    async def subscribe(self, topics: Sequence[str]) -> None:
        """Reads all partitions of the topics; new ones are followed, from their start.

        A topic that does not exist is waited for.
        """
        wanted = checked_topics(topics)
        self._check_open()
        self._topics = wanted
        self._topics_seen = set()
        self._state.assign([at for at in self._state.partitions if at[0] in wanted])
        self._refresh_at = 0.0
        self._interrupt_fetch()

    def assignment(self) -> list[TopicPartition]:
        """What is read now."""
        return sorted(self._state.partitions)

    def waiting_for(self) -> str | None:
        """What keeps records from coming, in words: topics that do not exist, a server that does
        not answer; None: nothing but records."""
        return waiting_for(self._caller.server, self._state, self._missing_topics, now_s())

    def take_offset_resets(self) -> list[OffsetReset]:
        """As of `streamlog.client.Consumer.take_offset_resets`."""
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
        at = (topic, partition)
        position = self._state.position_of(at)
        if position is not None:
            return position
        time_ms = RESETS.get(self._state.of(at).reset)
        if time_ms is None:
            raise OffsetOutOfRange(
                f"{topic}-{partition} has no position and auto_offset_reset is none; seek"
            )
        generations = self._state.generations([at])
        call = list_offsets({at: time_ms}, self._settings.isolation_level)
        found = await self._caller.run(call)
        self._state.looked_up(found, generations, now_s())
        position = self._state.position_of(at)
        if position is None:
            raise OffsetOutOfRange(f"{topic}-{partition} has no start offset")
        return position

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
        """Batches that came next, not decoded; an empty list where none came in time.

        Errors as of `streamlog.client.Consumer.poll_batches`. Cancelling it loses nothing.
        """
        self._check_open()
        if not self._pending:
            await self._wait_answer(timeout_s)
        return self._pending.take_batches()

    async def poll(
        self, timeout_s: float | None = 1.0, max_records: int = 500
    ) -> list[ConsumerRecord]:
        """Up to max_records records that came next; what takes long is decoded in a thread.

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
            place, generation = run.place, run.generation
            for record in run.records[run.index :]:
                run.index += 1
                place.position = record[2] + 1
                yield record
                if place.generation != generation:
                    break
            else:
                run.window_passed()

    async def _wait_answer(self, timeout_s: float | None) -> None:
        """Moves the next answer to `_pending`, if one comes in time."""
        timeout_s = wait_s(timeout_s)
        self._check_open()
        if not self._is_started:
            self._is_started = True
            task = self._background.spawn(self._fetch_on(), name="fetch")
            task.add_done_callback(self._task_ended)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._take_answer():
                    if not self._state.partitions and not self._topics:
                        raise Invalid("nothing to read: assign() or subscribe() first")
                    self._arrived.clear()
                    await self._arrived.wait()
                    self._check_open()

    def _take_answer(self) -> bool:
        # What was answered before an error is handed out before it.
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
        """A task that another one cancelled, as `asyncio.run` does at its end, brings no answers
        any more: those who wait for them are told."""
        if task.cancelled() and not self._is_closed:
            self._failed(asyncio.CancelledError())

    async def _fetch_on(self) -> None:
        while True:
            self._changed.clear()
            now = now_s()
            topics = self._topics_to_refresh(now)
            if topics:
                await self._refresh(topics)
                continue
            lookups = self._state.lookups(now)
            if self._state.errors:
                self._arrived.set()
            if lookups:
                await self._look_up(lookups, self._state.generations(lookups))
                continue
            is_full = self._answers or self._state.errors
            plan = None if is_full else self._state.plan(now)
            if plan is not None:
                await self._one_fetch(plan)
                continue
            wake = self._state.wake_at(now)
            wake = min(wake, self._refresh_at) if self._topics else wake
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wake == NEVER else max(0.001, wake - now)):
                    await self._changed.wait()

    async def _one_fetch(self, plan: FetchPlan) -> None:
        call = fetch_call(plan.request)
        timeout_ms = self._settings.request_timeout_ms + self._settings.fetch_max_wait_ms
        fetch = self._fetch = self._caller.method(call)(
            call.request, timeout=timeout_ms / 1000, metadata=self._caller.metadata
        )
        try:
            response = await fetch
        except grpc.RpcError as rpc_error:
            error = typed_error(rpc_error, writes=False)
            log.info("fetch failed", extra={"error": str(error)})
            self._state.fetch_failed(plan, error, now_s())
        except asyncio.CancelledError:
            if self._is_closed or is_being_cancelled() or not fetch.cancelled():
                raise
        else:
            batches = self._state.answered(plan, response, now_s())
            if batches:
                generation_of = self._state.generation_of
                self._answers.append([(batch, generation_of(batch)) for batch in batches])
        finally:
            self._fetch = None
        self._arrived.set()

    async def _look_up(
        self, lookups: dict[TopicPartition, int], generations: dict[TopicPartition, int]
    ) -> None:
        call = list_offsets_each(lookups, self._settings.isolation_level)
        try:
            found = await self._caller.run_once(call, self._settings.request_timeout_ms)
        except StreamlogError as error:
            self._state.lookup_failed(lookups, error, now_s())
            self._arrived.set()
            return
        self._state.looked_up(found, generations, now_s())
        self._arrived.set()

    def _topics_to_refresh(self, now: float) -> list[str]:
        wanted = self._state.topics_to_find(now)
        if self._topics and now >= self._refresh_at:
            wanted += self._topics
        return list(dict.fromkeys(wanted))

    async def _refresh(self, topics: list[str]) -> None:
        """Follows the partitions of subscribed topics; comes back soon for those that are missing,
        and for all where the look-up failed."""
        timeout_ms = self._settings.request_timeout_ms
        try:
            found = await run_async(
                find_topics(topics), lambda call: self._caller.run_once(call, timeout_ms)
            )
        except StreamlogError as error:
            self._state.find_failed(error, now_s())
            self._refresh_at = now_s() + MISSING_TOPIC_RETRY_S
            self._arrived.set()
            return
        missing = self._state.topics_found(topics, found, self._topics, self._topics_seen)
        self._topics_seen |= found.keys()
        if set(self._topics) <= set(topics):
            self._refresh_at = now_s() + self._settings.metadata_max_age_ms / 1000
        if missing:
            self._refresh_at = min(self._refresh_at, now_s() + MISSING_TOPIC_RETRY_S)
        still = {*missing, *self._missing_topics} - found.keys()
        self._missing_topics = [topic for topic in self._topics if topic in still]
        self._arrived.set()
        if missing:
            log.warning("waiting for topics", extra={"topics": missing})

    # -- offsets

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """First offset of each. Errors: UnknownTopicOrPartition, Unavailable after
        default_api_timeout_ms."""
        return await self._edge(partitions, EARLIEST)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """End (exclusive) of what can be read of each. Errors as for `beginning_offsets`."""
        return await self._edge(partitions, LATEST)

    async def _edge(
        self, partitions: Iterable[TopicPartition], which: int
    ) -> dict[TopicPartition, int]:
        found = await self.offsets_for_times(dict.fromkeys(partitions, which))
        return {at: place.offset for at, place in found.items() if place is not None}

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition with that timestamp (ms) or later; None: no such.

        Errors as for `beginning_offsets`.
        """
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for piece in pieces(times, self._state.partitions_max):
            call = list_offsets(piece, self._settings.isolation_level)
            try:
                found |= await self._caller.run(call)
            except Invalid as error:
                most = most_partitions(error)
                if most is None or most >= len(piece):
                    raise
                self._state.partitions_max = most
                found |= await self.offsets_for_times(piece)
        return found

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
