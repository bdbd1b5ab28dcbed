"""The consumer without its I/O: which offsets to fetch, and what an answer changes. Pure.

Every partition has two offsets: `fetch_offset`, where the next request goes on, runs ahead of
`position`, where the caller is. A seek or another assignment gives the partition a new generation;
answers to requests of an older generation are dropped.

A partition is in one of these states:
    no fetch_offset     its start must be looked up (`offset_lookups`)
    fetching            in the next request, unless its back-off runs; with its topic's id, so that
                        a topic that was made anew under the name is noticed
    failed              its error is raised by the next poll; then it is fetched again
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator, Iterable, Mapping
from typing import Any

from streamlog.client.calls.topic import (
    EARLIEST,
    ISOLATION,
    LATEST,
    PARTITIONS_PER_REQUEST,
    OffsetAndTimestamp,
    OffsetResult,
    TopicPartition,
    chunks,
    list_offsets,
    partition_limit_of,
)
from streamlog.client.calls.topic_lookup import TopicEntries
from streamlog.client.channel import Call
from streamlog.client.consume.answers import fetched_batches
from streamlog.client.consume.arguments import check_offset, checked_partitions
from streamlog.client.consume.partition_state import NOTHING_PASSED_OVER, PartitionFetchState
from streamlog.client.consume.records import FetchedBatch
from streamlog.client.offset_resets import OffsetResets
from streamlog.client.settings import UNKNOWN_TOPIC_ATTEMPTS_MAX, ConsumerSettings, backoff_s
from streamlog.errors import (
    Corrupt,
    CorruptMessage,
    InconsistentTopicId,
    Invalid,
    OffsetOutOfRange,
    StreamlogError,
    TlsHandshakeFailed,
    UnknownTopicOrPartition,
)
from streamlog.v1 import log_pb2
from streamlog.v1support.errors import from_proto

log = logging.getLogger(__name__)

NEVER = float("inf")
TOPIC_LOOKUP_RETRY_S = 1.0
"""Wait after a look-up of topics that failed."""
RESET_TIMES = {"earliest": EARLIEST, "latest": LATEST}
"""The time that ListOffsets is asked for, by auto_offset_reset."""


class FetchPlan:
    """One request, and the generation and offset with which it asks for each partition."""

    __slots__ = ("asked", "request")

    def __init__(self, request: Any, asked: dict[TopicPartition, tuple[int, int]]) -> None:
        self.request = request
        self.asked = asked


class FetchState:
    """All assigned partitions of one consumer. It owns no thread, lock or connection."""

    def __init__(self, settings: ConsumerSettings, *, keeps_control_batches: bool = False) -> None:
        self._settings = settings
        self._keeps_control_batches = keeps_control_batches
        self.partitions: dict[TopicPartition, PartitionFetchState] = {}
        self._generation = 0
        self.errors: list[StreamlogError] = []
        """To be raised by the next poll, oldest first."""
        self.resets = OffsetResets()
        """Jumps from positions that the log does not hold, for the caller to ask for."""
        self.partitions_max = PARTITIONS_PER_REQUEST
        """How many partitions one request names; lowered when the server says so."""
        self.topic_ids: dict[str, str] = {}
        """By name, the id of each topic that was looked up and exists."""
        self.stale_topics: dict[str, None] = {}
        """Topics to look up: new ones, and those that the server says were deleted or made anew."""
        self._topic_lookup_at = 0.0
        self.asked_at: float | None = None
        """When the call under way went out; None: the server owes no answer."""
        self.failing_since: float | None = None
        self.last_failure: StreamlogError | None = None

    # -- what the caller does

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Exactly these; those assigned before go on where they are."""
        wanted = dict.fromkeys(partitions)
        for tp, state in self.partitions.items():
            if tp not in wanted:
                state.generation = self._new_generation()
                self.resets.forget(tp)
        self.partitions = {
            tp: self.partitions.get(tp) or self._new_state(self._settings.auto_offset_reset)
            for tp in wanted
        }
        self._look_up_new(topic for topic, _ in wanted)

    def keep_topics(self, topics: Collection[str]) -> None:
        """Drops the partitions of all other topics."""
        self.assign([tp for tp in self.partitions if tp[0] in topics])

    def add(self, partitions: Iterable[TopicPartition], *, from_start: bool) -> None:
        """These too. `from_start`: new ones are read from their start."""
        new = [tp for tp in partitions if tp not in self.partitions]
        for tp in new:
            reset = "earliest" if from_start else self._settings.auto_offset_reset
            self.partitions[tp] = self._new_state(reset)
        self._look_up_new(topic for topic, _ in new)

    def _look_up_new(self, topics: Iterable[str]) -> None:
        self.stale_topics.update((topic, None) for topic in topics if topic not in self.topic_ids)

    def _new_state(self, reset: str) -> PartitionFetchState:
        return PartitionFetchState(self._new_generation(), reset)

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Errors: Invalid where the partition is not assigned, or the offset is none."""
        state = self.assigned(tp)
        check_offset(offset)
        state.generation = self._new_generation()
        state.fetch_offset = state.position = offset
        state.passed_over = NOTHING_PASSED_OVER
        self.resets.forget(tp)
        state.backoff_until = 0.0
        state.forget_failures()

    def assigned(self, tp: TopicPartition) -> PartitionFetchState:
        """Errors: Invalid where the partition is not assigned."""
        state = self.partitions.get(tp)
        if state is None:
            raise Invalid(f"{tp[0]}-{tp[1]} is not assigned to this consumer; assign it first")
        return state

    def position_of(self, tp: TopicPartition) -> int | None:
        """Offset of the next record that the caller gets; None until its start is looked up.

        Errors: Invalid where the partition is not assigned.
        """
        state = self.assigned(tp)
        start, end = state.passed_over
        position = state.position
        # Also where an earlier call has moved it on, and more was passed over since.
        if position is not None and (position == start or start < position < end):
            state.position = end
        return state.position

    def _new_generation(self) -> int:
        self._generation += 1
        return self._generation

    # -- topics

    def topics_to_look_up(self, now: float) -> list[str]:
        """Assigned topics whose ids are not known, or not any more."""
        return list(self.stale_topics) if now >= self._topic_lookup_at else []

    def topics_found(
        self,
        asked: Iterable[str],
        entries: TopicEntries,
        subscribed: Collection[str],
        known: Collection[str],
    ) -> list[str]:
        """Takes a look-up of topics over; returns the subscribed topics that are missing.

        All partitions of a subscribed topic are read, and no others: partitions go with a topic
        that was deleted, and where it was made anew with fewer of them. New partitions of `known`
        topics, which an earlier look-up saw or missed, are read from their start.
        """
        self.failing_since = None
        missing: list[str] = []
        for topic in asked:
            self.stale_topics.pop(topic, None)
            entry = entries.get(topic)
            known_id = self.topic_ids.get(topic)
            if entry is not None and known_id and known_id != entry.topic_id:
                self._made_anew(topic)
            if entry is not None:
                self.topic_ids[topic] = entry.topic_id
            if topic not in subscribed:
                continue
            if entry is None:
                missing.append(topic)
            count = 0 if entry is None else entry.partitions
            for tp in [tp for tp in self.partitions if tp[0] == topic and tp[1] >= count]:
                del self.partitions[tp]
                self.resets.forget(tp)
            self.add([(topic, number) for number in range(count)], from_start=topic in known)
        return missing

    def topic_lookup_failed(self, error: StreamlogError, now: float) -> None:
        """Partitions are fetched with the ids that are known until the next look-up."""
        self._topic_lookup_at = now + TOPIC_LOOKUP_RETRY_S
        self._note_failure(error, now)
        if not error.is_retryable or isinstance(error, TlsHandshakeFailed):
            self.errors.append(error)

    def _made_anew(self, topic: str) -> None:
        """The new topic is read from its start: offsets of the old one mean nothing in it.

        With auto_offset_reset = none the next poll raises an error, and the caller has to seek.
        """
        must_seek = self._settings.auto_offset_reset == "none"
        log.warning("topic was deleted and made anew", extra={"topic": topic})
        for tp, state in self.partitions.items():
            if tp[0] != topic:
                continue
            state.generation = self._new_generation()
            state.forget_failures()
            state.fetch_offset = state.position = None
            state.passed_over = NOTHING_PASSED_OVER
            self.resets.forget(tp)
            state.reset = "none" if must_seek else "earliest"
            state.backoff_until = NEVER if must_seek else 0.0
        if must_seek:
            self.errors.append(
                InconsistentTopicId(
                    f"topic {topic} was deleted and made anew, so that positions in it mean "
                    "nothing any more; seek in its partitions, or use auto_offset_reset = earliest",
                    topic=topic,
                )
            )

    # -- starts

    def offset_lookups(self, now: float) -> dict[TopicPartition, int]:
        """Partitions without a position, with ListOffsets' time to ask for; at most one request."""
        lookups: dict[TopicPartition, int] = {}
        for tp, state in self.partitions.items():
            if len(lookups) == self.partitions_max:
                break
            if state.fetch_offset is not None or now < state.backoff_until:
                continue
            try:
                lookups[tp] = self.start_time_ms(tp)
            except OffsetOutOfRange as error:
                state.backoff_until = NEVER
                self.errors.append(error)
        return lookups

    def start_time_ms(self, tp: TopicPartition) -> int:
        """ListOffsets' time of where the partition begins.

        Errors: OffsetOutOfRange where the caller must seek; Invalid where it is not assigned.
        """
        time_ms = RESET_TIMES.get(self.assigned(tp).reset)
        if time_ms is None:
            raise OffsetOutOfRange(
                f"{tp[0]}-{tp[1]} has no position and auto_offset_reset is none; seek"
            )
        return time_ms

    def generations(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {tp: self.partitions[tp].generation for tp in partitions if tp in self.partitions}

    def offsets_found(
        self,
        results: Mapping[TopicPartition, OffsetResult],
        generations: dict[TopicPartition, int],
        now: float,
    ) -> None:
        """Takes a look-up of starts over. `generations`: of the partitions when it was sent.

        The caller's `position` and the fetching thread may both look for a start: the first finds.
        """
        self.failing_since = None
        is_reported = False
        for tp, result in results.items():
            state = self.partitions.get(tp)
            if state is None or state.generation != generations.get(tp) or result is None:
                continue
            if state.fetch_offset is not None:
                # Another look-up of the same start came first: fetching may be behind it by now.
                continue
            if isinstance(result, StreamlogError):
                is_reported = self._failed(state, result, now, is_reported=is_reported)
                if isinstance(result, UnknownTopicOrPartition):
                    self.stale_topics[tp[0]] = None
                continue
            state.forget_failures()
            self._start_at(tp, state, result.offset)

    def found_position(
        self,
        tp: TopicPartition,
        results: Mapping[TopicPartition, OffsetResult],
        generations: dict[TopicPartition, int],
        now: float,
    ) -> int:
        """As `offsets_found`, then the partition's position. Errors: OffsetOutOfRange."""
        self.offsets_found(results, generations, now)
        position = self.position_of(tp)
        if position is None:
            raise OffsetOutOfRange(f"{tp[0]}-{tp[1]} has no start offset")
        return position

    def _start_at(self, tp: TopicPartition, state: PartitionFetchState, offset: int) -> None:
        """Fetching begins at `offset`, or goes on there after a position that was refused.

        What was fetched before the refusal stays the caller's, who then goes on at `offset`.
        """
        refused = self.resets.resolved(tp, offset)
        state.fetch_offset = offset
        if refused is None or state.position is None:
            state.position = offset
            return
        state.pass_over(refused, offset)
        log.warning(
            "the position is not in the log; reading goes on elsewhere",
            extra={"topic": tp[0], "partition": tp[1], "from_offset": refused, "to_offset": offset},
        )

    def offset_lookup_failed(
        self, partitions: Iterable[TopicPartition], error: StreamlogError, now: float
    ) -> None:
        if self._lower_partition_limit(error):
            return
        self._note_failure(error, now)
        is_reported = False
        for tp in partitions:
            state = self.partitions.get(tp)
            if state is not None:
                is_reported = self._failed(state, error, now, is_reported=is_reported)

    def _lower_partition_limit(self, error: StreamlogError) -> bool:
        """True where the request named too many partitions; the next one names fewer."""
        limit = partition_limit_of(error)
        if limit is None or limit >= self.partitions_max:
            return False
        self.partitions_max = limit
        return True

    def _note_failure(self, error: StreamlogError, now: float) -> None:
        self.last_failure = error
        if self.failing_since is None:
            self.failing_since = now if self.asked_at is None else self.asked_at

    # -- offsets that the caller asks for

    def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> Generator[Call, Any, dict[TopicPartition, OffsetAndTimestamp | None]]:
        """ListOffsets calls, each sent its result, of as many partitions as one request names."""
        checked_partitions(times)
        offsets: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for chunk in chunks(times, self.partitions_max):
            try:
                offsets |= yield list_offsets(chunk, self._settings.isolation_level)
            except Invalid as error:
                limit = partition_limit_of(error)
                if limit is None or limit >= len(chunk):
                    raise
                self.partitions_max = limit
                offsets |= yield from self.offsets_for_times(chunk)
        return offsets

    def edge_offsets(
        self, partitions: Iterable[TopicPartition], time_ms: int
    ) -> Generator[Call, Any, dict[TopicPartition, int]]:
        """As `offsets_for_times`, for EARLIEST or LATEST of each partition."""
        offsets = yield from self.offsets_for_times(dict.fromkeys(partitions, time_ms))
        return {tp: offset.offset for tp, offset in offsets.items() if offset is not None}

    # -- fetching

    def plan(self, now: float) -> FetchPlan | None:
        """The next request; None when no partition can be fetched now.

        The partition asked first takes all the room it wants, so the order goes round. Where one
        request cannot name all partitions, requests take turns and together wait as long as one.
        """
        settings = self._settings
        asked: dict[TopicPartition, tuple[int, int]] = {}
        by_topic: dict[str, list[tuple[int, int]]] = {}
        ready = 0
        for tp, state in self.partitions.items():
            if state.fetch_offset is not None and now >= state.backoff_until:
                ready += 1
                if ready <= self.partitions_max:
                    asked[tp] = (state.generation, state.fetch_offset)
                    by_topic.setdefault(tp[0], []).append((tp[1], state.fetch_offset))
        if not asked:
            return None
        request = log_pb2.FetchRequest(
            max_wait_ms=settings.fetch_max_wait_ms * len(asked) // ready,
            min_bytes=settings.fetch_min_bytes,
            max_bytes=settings.fetch_max_bytes,
            isolation_level=ISOLATION[settings.isolation_level],
        )
        for topic, partitions in by_topic.items():
            out = request.topics.add(topic=topic, topic_id=self.topic_ids.get(topic, ""))
            for partition, offset in partitions:
                out.partitions.add(
                    partition=partition,
                    fetch_offset=offset,
                    partition_max_bytes=settings.max_partition_fetch_bytes,
                )
        to_the_end = [next(iter(self.partitions))] if ready == len(asked) else list(asked)
        for tp in to_the_end:
            self.partitions[tp] = self.partitions.pop(tp)
        return FetchPlan(request, asked)

    def wake_at(self, now: float) -> float:
        """When a back-off ends."""
        ends = [s.backoff_until for s in self.partitions.values() if s.backoff_until > now]
        if self.stale_topics:
            ends.append(self._topic_lookup_at)
        return min(ends, default=NEVER)

    def answered(
        self, plan: FetchPlan, response: Any, now: float
    ) -> list[tuple[FetchedBatch, int]]:
        """The batches of an answer and their generations, in order within each partition.

        A partition's error goes to `errors`, to its back-off, or to a new look-up.
        """
        if response.HasField("error"):
            self.fetch_failed(plan, from_proto(response.error), now)
            return []
        self.failing_since = None
        fetched: list[tuple[FetchedBatch, int]] = []
        for topic in response.topics:
            for result in topic.partitions:
                tp = (topic.topic, result.partition)
                state = self.partitions.get(tp)
                asked = plan.asked.get(tp)
                if state is None or asked is None or state.generation != asked[0]:
                    continue
                if result.HasField("error"):
                    self._partition_failed(tp, state, from_proto(result.error), now)
                    continue
                state.forget_failures()
                state.high_watermark = result.high_watermark
                try:
                    batches, next_offset = fetched_batches(
                        tp,
                        asked[1],
                        result,
                        self._settings,
                        keeps_control_batches=self._keeps_control_batches,
                    )
                except StreamlogError as error:
                    self._failed(state, error, now)
                    continue
                fetched += [(batch, state.generation) for batch in batches]
                state.fetch_offset = max(next_offset, asked[1])
                batches_end = batches[-1].next_offset if batches else asked[1]
                if batches_end < state.fetch_offset:
                    state.pass_over(batches_end, state.fetch_offset)
        return fetched

    def fetch_failed(self, plan: FetchPlan, error: StreamlogError, now: float) -> None:
        """The whole request failed."""
        if self._lower_partition_limit(error):
            return
        self._note_failure(error, now)
        is_reported = False
        for tp, (generation, _) in plan.asked.items():
            state = self.partitions.get(tp)
            if state is not None and state.generation == generation:
                is_reported = self._failed(state, error, now, is_reported=is_reported)

    def _partition_failed(
        self, tp: TopicPartition, state: PartitionFetchState, error: StreamlogError, now: float
    ) -> None:
        if isinstance(error, OffsetOutOfRange):
            if self._settings.auto_offset_reset == "none":
                state.backoff_until = NEVER
                self.errors.append(error)
                return
            if state.fetch_offset is not None:
                self.resets.refused(tp, state.fetch_offset, error)
            state.fetch_offset = None
            return
        if isinstance(error, UnknownTopicOrPartition):
            self.stale_topics[tp[0]] = None
        if isinstance(error, InconsistentTopicId):
            # The look-up's result makes the partitions start anew.
            state.backoff_until = now + self._settings.retry_backoff_ms / 1000
            return
        self._failed(state, error, now)

    def _failed(
        self,
        state: PartitionFetchState,
        error: StreamlogError,
        now: float,
        *,
        is_reported: bool = False,
    ) -> bool:
        """Backs off; the next poll raises the error where waiting does not help.

        Returns whether the error is in `errors` now: once for all partitions of a request.
        """
        state.failures += 1
        state.backoff_until = now + backoff_s(
            state.failures, self._settings.retry_backoff_ms, self._settings.retry_backoff_max_ms
        )
        is_final = not error.is_retryable or isinstance(
            error, Corrupt | CorruptMessage | TlsHandshakeFailed
        )
        if isinstance(error, UnknownTopicOrPartition):
            state.unknown_attempts += 1
            is_final = state.unknown_attempts % UNKNOWN_TOPIC_ATTEMPTS_MAX == 0
        if is_final and not is_reported:
            self.errors.append(error)
        return is_reported or is_final

    # -- delivery

    def is_current(self, batch: FetchedBatch, generation: int) -> bool:
        """The caller has not sought elsewhere since the batch was asked for."""
        state = self.partitions.get((batch.topic, batch.partition))
        return state is not None and state.generation == generation

    def consumed_to(self, batch: FetchedBatch, next_offset: int) -> None:
        """The caller has everything below next_offset."""
        state = self.partitions.get((batch.topic, batch.partition))
        if state is not None:
            state.position = next_offset
