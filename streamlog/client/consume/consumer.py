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
    list_offsets,
    list_offsets_each,
    most_partitions,
    pieces,
)
from streamlog.client.calls.topic_lookup import find_topics, run
from streamlog.client.channel import Call, Caller, typed_error
from streamlog.client.closing import Closing
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
from streamlog.client.settings import WAIT_S_MAX, ConsumerSettings, check, wait_s
from streamlog.errors import (
    Closed,
    Internal,
    Invalid,
    InvalidConfig,
    OffsetOutOfRange,
    StreamlogError,
)
from streamlog.v1 import log_pb2

log = logging.getLogger(__name__)

MISSING_TOPIC_RETRY_S = 1.0

now_s = time.monotonic


def settings_of(group_id: str | None, given: Mapping[str, Any]) -> ConsumerSettings:
    """Errors: Invalid for a group, InvalidConfig."""
    if group_id is not None:
        raise Invalid(
            "consumer groups come with a later version; leave group_id out, and use assign() or "
            "subscribe(), which takes all partitions"
        )
    unknown = given.keys() - ConsumerSettings.__dataclass_fields__.keys()
    if unknown:
        raise InvalidConfig(f"a consumer has no setting {', '.join(sorted(unknown))}")
    settings = ConsumerSettings(**given)
    check(settings)
    return settings


def waiting_for(server: str, state: FetchState, missing: list[str], now: float) -> str | None:
    if state.failing_since is not None:
        return f"{server}, for {now - state.failing_since:.0f} s: {state.last_failure}"
    if missing:
        return f"topics that do not exist yet: {', '.join(missing)}"
    return None


def fetch_call(request: Any) -> Call:
    return Call("LogService/Fetch", request, log_pb2.FetchResponse, lambda response: response)


class Consumer(Closing):
    """Reads topics. One thread uses it at a time; close it, or use it in `with`.

    Settings: `ConsumerSettings`. Errors: InvalidConfig; Invalid for a `group_id`, because groups
    come later.
    """

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
    ) -> None:
        self._settings = settings_of(
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
        self._caller = Caller(server, client_id=client_id, timeout_ms=default_api_timeout_ms)
        self._state = FetchState(self._settings)
        self._changed = threading.Condition()
        self._answers: deque[list[tuple[FetchedBatch, int]]] = deque()
        self._pending = PendingRecords(self._state, self._settings.poll_bytes_max)
        self._topics: list[str] = []
        self._topics_seen: set[str] = set()
        self._missing_topics: list[str] = []
        self._refresh_at = 0.0
        self._fetch: Any = None
        self._asked: Any = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._failure: StreamlogError | None = None
        self._is_forked = False
        forking.watch(self)

    # -- what to read

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Reads exactly these (topic, partition); those assigned before go on where they are."""
        wanted = checked(partitions)
        with self._changed:
            self._check_open()
            self._topics = []
            self._state.assign(wanted)
            self._interrupt_fetch()

    def subscribe(self, topics: Sequence[str]) -> None:
        """Reads all partitions of the topics; new ones are followed, from their start.

        A topic that does not exist is waited for.
        """
        wanted = checked_topics(topics)
        with self._changed:
            self._check_open()
            self._topics = wanted
            self._topics_seen = set()
            self._state.assign(at for at in self._state.partitions if at[0] in wanted)
            self._refresh_at = 0.0
            self._interrupt_fetch()

    def assignment(self) -> list[TopicPartition]:
        """What is read now."""
        with self._changed:
            return sorted(self._state.partitions)

    def waiting_for(self) -> str | None:
        """What keeps records from coming, in words: topics that do not exist, a server that does
        not answer; None: nothing but records."""
        with self._changed:
            return waiting_for(self._caller.server, self._state, self._missing_topics, now_s())

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
        at = (topic, partition)
        with self._changed:
            position = self._state.position_of(at)
            if position is not None:
                return position
            time_ms = RESETS.get(self._state.of(at).reset)
            generations = self._state.generations([at])
        if time_ms is None:
            raise OffsetOutOfRange(
                f"{topic}-{partition} has no position and auto_offset_reset is none; seek"
            )
        found = self._caller.run(list_offsets({at: time_ms}, self._settings.isolation_level))
        with self._changed:
            self._state.looked_up(found, generations, now_s())
            position = self._state.position_of(at)
        if position is None:
            raise OffsetOutOfRange(f"{topic}-{partition} has no start offset")
        return position

    def _interrupt_fetch(self) -> None:
        """With the lock held: what is asked for now may not be wanted any more."""
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
        """Batches that came next, not decoded; an empty list where none came in time.

        None waits until there are some.

        Errors: those that waiting does not heal, such as UnknownTopicOrPartition, Corrupt,
        Unauthorized, and OffsetOutOfRange with auto_offset_reset="none". Reading can go on.
        """
        with self._changed:
            self._check_open()
            rest = self._pending.take_batches()
            if rest:
                return rest
            self._wait_answer(timeout_s)
            return self._pending.take_batches()

    def poll(self, timeout_s: float | None = 1.0, max_records: int = 500) -> list[ConsumerRecord]:
        """Up to max_records records that came next; None waits until there are some.

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
            place, generation = run.place, run.generation
            for record in run.records[run.index :]:
                run.index += 1
                place.position = record[2] + 1
                yield record
                if place.generation != generation:
                    break
            else:
                run.window_passed()

    def _wait_answer(self, timeout_s: float | None) -> None:
        """With the lock held: moves the next answer to `_pending`, if one comes in time."""
        limit_s = wait_s(timeout_s)
        self._check_open()
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="streamlog-consumer", daemon=True)
            thread.start()
            self._thread = thread
        ends_at = now_s() + (WAIT_S_MAX if limit_s is None else limit_s)
        while True:
            # What was answered before an error is handed out before it.
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
            if not self._state.partitions and not self._topics:
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
                now = now_s()
                topics = self._topics_to_refresh(now)
                lookups = {} if topics else self._state.lookups(now)
                generations = self._state.generations(lookups)
                plan: FetchPlan | None = None
                if not topics and not lookups:
                    if self._state.errors:
                        self._changed.notify_all()
                    is_full = self._answers or self._state.errors
                    plan = None if is_full else self._state.plan(now)
                    if plan is None:
                        self._changed.wait(self._idle_s(now))
                        continue
                    self._fetch = self._start_fetch(plan)
            if topics:
                self._refresh(topics)
            elif lookups:
                self._look_up(lookups, generations)
            elif plan is not None:
                self._finish_fetch(plan)

    def _idle_s(self, now: float) -> float | None:
        wake = self._state.wake_at(now)
        if self._topics:
            wake = min(wake, self._refresh_at)
        return None if wake == float("inf") else max(0.001, wake - now)

    def _start_fetch(self, plan: FetchPlan) -> Any:
        call = fetch_call(plan.request)
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
            error = typed_error(rpc_error, writes=False)
        with self._changed:
            self._fetch = None
            now = now_s()
            if error is not None:
                log.info("fetch failed", extra={"error": str(error)})
                self._state.fetch_failed(plan, error, now)
            elif response is not None:
                batches = self._state.answered(plan, response, now)
                if batches:
                    generation_of = self._state.generation_of
                    self._answers.append([(batch, generation_of(batch)) for batch in batches])
            self._changed.notify_all()

    def _look_up(
        self, lookups: dict[TopicPartition, int], generations: dict[TopicPartition, int]
    ) -> None:
        call = list_offsets_each(lookups, self._settings.isolation_level)
        try:
            found = self._ask(call)
        except StreamlogError as error:
            with self._changed:
                self._state.lookup_failed(lookups, error, now_s())
                self._changed.notify_all()
            return
        with self._changed:
            self._state.looked_up(found, generations, now_s())
            self._changed.notify_all()

    def _ask(self, call: Call) -> Any:
        """A call of the fetching thread, broken off when the consumer is closed."""
        with self._changed:
            self._check_open()
            asked = self._caller.method(call).future(
                call.request,
                timeout=self._settings.request_timeout_ms / 1000,
                metadata=self._caller.metadata,
            )
            self._asked = asked
        try:
            return call.read(asked.result())
        except grpc.RpcError as error:
            raise typed_error(error, writes=call.writes) from None
        except grpc.FutureCancelledError:
            raise Closed("the consumer is closed; open another one") from None
        finally:
            self._asked = None

    def _topics_to_refresh(self, now: float) -> list[str]:
        wanted = self._state.topics_to_find(now)
        if self._topics and now >= self._refresh_at:
            wanted += self._topics
        return list(dict.fromkeys(wanted))

    def _refresh(self, topics: list[str]) -> None:
        """Follows the partitions of subscribed topics; comes back soon for those that are missing,
        and for all where the look-up failed."""
        try:
            found = run(find_topics(topics), self._ask)
        except StreamlogError as error:
            with self._changed:
                self._state.find_failed(error, now_s())
                self._refresh_at = now_s() + MISSING_TOPIC_RETRY_S
                self._changed.notify_all()
            return
        with self._changed:
            seen = self._topics_seen
            missing = self._state.topics_found(topics, found, self._topics, seen)
            self._topics_seen |= found.keys()
            if set(self._topics) <= set(topics):
                self._refresh_at = now_s() + self._settings.metadata_max_age_ms / 1000
            if missing:
                self._refresh_at = min(self._refresh_at, now_s() + MISSING_TOPIC_RETRY_S)
            still = {*missing, *self._missing_topics} - found.keys()
            self._missing_topics = [topic for topic in self._topics if topic in still]
            self._changed.notify_all()
        if missing:
            log.warning("waiting for topics", extra={"topics": missing})

    # -- offsets

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """First offset of each. Errors: UnknownTopicOrPartition, Unavailable after
        default_api_timeout_ms."""
        return self._edge(partitions, EARLIEST)

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """End (exclusive) of what can be read of each. Errors as for `beginning_offsets`."""
        return self._edge(partitions, LATEST)

    def _edge(self, partitions: Iterable[TopicPartition], which: int) -> dict[TopicPartition, int]:
        found = self.offsets_for_times(dict.fromkeys(partitions, which))
        return {at: place.offset for at, place in found.items() if place is not None}

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition with that timestamp (ms) or later; None: no such.

        Errors as for `beginning_offsets`.
        """
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for piece in pieces(times, self._state.partitions_max):
            call = list_offsets(piece, self._settings.isolation_level)
            try:
                found |= self._caller.run(call)
            except Invalid as error:
                most = most_partitions(error)
                if most is None or most >= len(piece):
                    raise
                self._state.partitions_max = most
                found |= self.offsets_for_times(piece)
        return found

    # -- ending

    def close(self) -> None:
        """Frees everything; harmless when called again."""
        if self._is_forked:
            return
        with self._changed:
            self._is_closed = True
            self._interrupt_fetch()
            if self._asked is not None:
                self._asked.cancel()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._caller.close()
