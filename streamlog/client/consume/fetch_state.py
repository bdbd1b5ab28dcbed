"""The consumer without its I/O: which offsets to fetch, and what an answer means.

Pure. Every partition has two offsets: `fetch_offset`, where the next request goes on, runs ahead
of `position`, where the caller is. A seek or another assignment makes a new generation; what was
asked for before is dropped when it comes.

A partition is in one of these states:
    no fetch_offset     its start must be looked up (`lookups`)
    fetching            in the next request, unless its back-off runs; with its topic's id, so that
                        a topic that was made anew under the name is noticed
    failed              its error is raised by the next poll; then it is fetched again
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from streamlog.client.calls.topic import (
    EARLIEST,
    ISOLATION,
    LATEST,
    PARTITIONS_PER_REQUEST,
    Place,
    TopicPartition,
    most_partitions,
)
from streamlog.client.calls.topic_lookup import Found
from streamlog.client.consume.records import FetchedBatch
from streamlog.client.offset_resets import OffsetResets
from streamlog.client.settings import UNKNOWN_TOPIC_ATTEMPTS_MAX, ConsumerSettings, backoff_s
from streamlog.codec.batch import ScannedBatch, batch_at, parse_header, scan
from streamlog.errors import (
    Corrupt,
    CorruptMessage,
    InconsistentTopicId,
    Invalid,
    InvalidRecord,
    OffsetOutOfRange,
    StreamlogError,
    UnknownTopicOrPartition,
)
from streamlog.v1 import log_pb2
from streamlog.v1support.errors import from_proto

log = logging.getLogger(__name__)

FIND_AGAIN_S = 1.0
"""Wait after a look-up of topics that failed."""
RESETS = {"earliest": EARLIEST, "latest": LATEST}


def checked(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Errors: Invalid for what is no (topic, partition)."""
    found: list[TopicPartition] = []
    for at in partitions:
        if not isinstance(at, tuple | list) or len(at) != 2:
            raise Invalid(f"give (topic, partition), not {at!r}")
        topic, partition = at
        if not _is_name(topic) or not _is_whole(partition):
            raise Invalid(f"give (topic, partition), a text and a number, not {at!r}")
        if not 0 <= partition < 2**31:
            raise Invalid(f"a partition is a number from 0 to 2^31 - 1, not {partition}")
        found.append((topic, partition))
    return found


def checked_topics(topics: Sequence[str]) -> list[str]:
    """Errors: Invalid for what is no list of texts."""
    if isinstance(topics, str) or not all(map(_is_name, topics)):
        raise Invalid(f"subscribe takes a list of topics, not {topics!r}")
    return list(dict.fromkeys(topics))


def _is_name(topic: Any) -> bool:
    """A text that a request can hold: a lone surrogate is no UTF-8."""
    return isinstance(topic, str) and not any("\ud800" <= char <= "\udfff" for char in topic)


def _is_whole(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


class PartitionFetch:
    """Where one assigned partition is."""

    __slots__ = (
        "backoff_until",
        "failures",
        "fetch_offset",
        "generation",
        "high_watermark",
        "passed_over",
        "position",
        "reset",
        "unknown_attempts",
    )

    def __init__(self, generation: int, reset: str) -> None:
        self.generation = generation
        self.reset = reset
        self.fetch_offset: int | None = None
        self.position: int | None = None
        self.passed_over = (-1, -1)
        """Offsets at the end of the last answer that hold nothing for the caller, such as markers
        of transactions: from where the caller gets to by itself, to where it stands then."""
        self.high_watermark = -1
        self.backoff_until = 0.0
        self.failures = 0
        self.unknown_attempts = 0


class FetchPlan:
    """One request and what it was asked with: partition → (generation, offset)."""

    __slots__ = ("asked", "request")

    def __init__(self, request: Any, asked: dict[TopicPartition, tuple[int, int]]) -> None:
        self.request = request
        self.asked = asked


class FetchState:
    def __init__(self, settings: ConsumerSettings) -> None:
        self._settings = settings
        self.partitions: dict[TopicPartition, PartitionFetch] = {}
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
        self._find_at = 0.0
        self.failing_since: float | None = None
        self.last_failure: StreamlogError | None = None

    # -- what the caller does

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Exactly these; those assigned before go on where they are."""
        wanted = dict.fromkeys(partitions)
        for at, one in self.partitions.items():
            if at not in wanted:
                one.generation = self._new_generation()
                self.resets.forget(at)
        self.partitions = {
            at: self.partitions.get(at) or self._start(self._settings.auto_offset_reset)
            for at in wanted
        }
        self._find_new(topic for topic, _ in wanted)

    def add(self, partitions: Iterable[TopicPartition], *, from_start: bool) -> bool:
        """These too; True when one is new. `from_start`: new ones are read from their start."""
        new = [at for at in partitions if at not in self.partitions]
        for at in new:
            reset = "earliest" if from_start else self._settings.auto_offset_reset
            self.partitions[at] = self._start(reset)
        self._find_new(topic for topic, _ in new)
        return bool(new)

    def _find_new(self, topics: Iterable[str]) -> None:
        self.stale_topics.update((topic, None) for topic in topics if topic not in self.topic_ids)

    def _start(self, reset: str) -> PartitionFetch:
        return PartitionFetch(self._new_generation(), reset)

    def seek(self, at: TopicPartition, offset: int) -> None:
        """Errors: Invalid where it is not assigned, or the offset is none."""
        found = self.of(at)
        if not _is_whole(offset) or not 0 <= offset < 2**63:
            raise Invalid(f"an offset is a number from 0 to 2^63 - 1, not {offset!r}")
        found.generation = self._new_generation()
        found.fetch_offset = found.position = offset
        found.passed_over = (-1, -1)
        self.resets.forget(at)
        found.backoff_until = 0.0
        found.failures = found.unknown_attempts = 0

    def of(self, at: TopicPartition) -> PartitionFetch:
        found = self.partitions.get(at)
        if found is None:
            raise Invalid(f"{at[0]}-{at[1]} is not assigned to this consumer; assign it first")
        return found

    def position_of(self, at: TopicPartition) -> int | None:
        """Offset of the next record that the caller gets; None until its start is looked up.

        Errors: Invalid where the partition is not assigned.
        """
        one = self.of(at)
        start, end = one.passed_over
        if one.position == start:
            one.position = end
        return one.position

    def _new_generation(self) -> int:
        self._generation += 1
        return self._generation

    # -- topics

    def topics_to_find(self, now: float) -> list[str]:
        """Assigned topics whose ids are not known, or not any more."""
        return list(self.stale_topics) if now >= self._find_at else []

    def topics_found(
        self, asked: Iterable[str], found: Found, subscribed: Collection[str], seen: Collection[str]
    ) -> list[str]:
        """Takes over what was looked up; returns those of the subscribed topics that are missing.

        Of subscribed topics all partitions are read and no others: those of a topic that was
        deleted go, and so do those that one made anew does not have. New ones of topics that were
        `seen` before are read from their start.
        """
        self.failing_since = None
        missing: list[str] = []
        for topic in asked:
            self.stale_topics.pop(topic, None)
            entry = found.get(topic)
            known = self.topic_ids.get(topic)
            if entry is not None and known and known != entry.topic_id:
                self._made_anew(topic)
            if entry is not None:
                self.topic_ids[topic] = entry.topic_id
            if topic not in subscribed:
                continue
            if entry is None:
                missing.append(topic)
            count = 0 if entry is None else entry.partitions
            for at in [at for at in self.partitions if at[0] == topic and at[1] >= count]:
                del self.partitions[at]
                self.resets.forget(at)
            self.add([(topic, number) for number in range(count)], from_start=topic in seen)
        return missing

    def find_failed(self, error: StreamlogError, now: float) -> None:
        """Partitions are fetched with the ids that are known until the next look-up."""
        self._find_at = now + FIND_AGAIN_S
        self._note_failure(error, now)
        if not error.is_retryable:
            self.errors.append(error)

    def _made_anew(self, topic: str) -> None:
        """Offsets are another topic's: the new one is read from its start, for all of it is newer.

        With auto_offset_reset = none the next poll raises an error, and the caller has to seek.
        """
        is_told = self._settings.auto_offset_reset == "none"
        log.warning("topic was deleted and made anew", extra={"topic": topic})
        for at, one in self.partitions.items():
            if at[0] != topic:
                continue
            one.generation = self._new_generation()
            one.failures = one.unknown_attempts = 0
            one.fetch_offset = one.position = None
            one.passed_over = (-1, -1)
            self.resets.forget(at)
            one.reset = "none" if is_told else "earliest"
            one.backoff_until = float("inf") if is_told else 0.0
        if is_told:
            self.errors.append(
                InconsistentTopicId(
                    f"topic {topic} was deleted and made anew, so that positions in it mean "
                    "nothing any more; seek in its partitions, or use auto_offset_reset = earliest",
                    topic=topic,
                )
            )

    # -- starts

    def lookups(self, now: float) -> dict[TopicPartition, int]:
        """Partitions whose start is not known, with ListOffsets' time to ask for; as many as one
        request names."""
        found: dict[TopicPartition, int] = {}
        for at, one in self.partitions.items():
            if len(found) == self.partitions_max:
                break
            if one.fetch_offset is not None or now < one.backoff_until:
                continue
            time_ms = RESETS.get(one.reset)
            if time_ms is None:
                one.backoff_until = float("inf")
                self.errors.append(
                    OffsetOutOfRange(
                        f"{at[0]}-{at[1]} has no position and auto_offset_reset is none; seek"
                    )
                )
                continue
            found[at] = time_ms
        return found

    def generations(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {at: self.partitions[at].generation for at in partitions if at in self.partitions}

    def looked_up(
        self,
        found: Mapping[TopicPartition, Place],
        generations: dict[TopicPartition, int],
        now: float,
    ) -> None:
        self.failing_since = None
        told = False
        for at, place in found.items():
            one = self.partitions.get(at)
            if one is None or one.generation != generations.get(at) or place is None:
                continue
            if isinstance(place, StreamlogError):
                told = self._failed(one, place, now, told=told)
                if isinstance(place, UnknownTopicOrPartition):
                    self.stale_topics[at[0]] = None
                continue
            one.failures = one.unknown_attempts = 0
            self._begin_at(at, one, place.offset)

    def _begin_at(self, at: TopicPartition, one: PartitionFetch, offset: int) -> None:
        """Takes over where fetching begins, or where it goes on after a position that was refused.

        What was fetched before the refusal stays the caller's, who passes over to `offset` behind
        it.
        """
        refused = self.resets.went_to(at, offset)
        one.fetch_offset = offset
        if refused is None or one.position is None:
            one.position = offset
            return
        start, end = one.passed_over
        one.passed_over = (start if end == refused else refused, offset)
        log.warning(
            "the position is not in the log; reading goes on elsewhere",
            extra={"topic": at[0], "partition": at[1], "from_offset": refused, "to_offset": offset},
        )

    def lookup_failed(
        self, partitions: Iterable[TopicPartition], error: StreamlogError, now: float
    ) -> None:
        if self._has_learned(error):
            return
        self._note_failure(error, now)
        told = False
        for at in partitions:
            one = self.partitions.get(at)
            if one is not None:
                told = self._failed(one, error, now, told=told)

    def _has_learned(self, error: StreamlogError) -> bool:
        """The request named too many partitions; the next one names fewer."""
        most = most_partitions(error)
        if most is None or most >= self.partitions_max:
            return False
        self.partitions_max = most
        return True

    def _note_failure(self, error: StreamlogError, now: float) -> None:
        self.last_failure = error
        if self.failing_since is None:
            self.failing_since = now

    # -- fetching

    def plan(self, now: float) -> FetchPlan | None:
        """The next request; None when no partition can be fetched now.

        The partition asked first takes all the room it wants, so the order goes round. What is more
        than one request names is asked for in turns, which together wait as long as one would.
        """
        settings = self._settings
        asked: dict[TopicPartition, tuple[int, int]] = {}
        by_topic: dict[str, list[tuple[int, int]]] = {}
        ready = 0
        for at, one in self.partitions.items():
            if one.fetch_offset is not None and now >= one.backoff_until:
                ready += 1
                if ready <= self.partitions_max:
                    asked[at] = (one.generation, one.fetch_offset)
                    by_topic.setdefault(at[0], []).append((at[1], one.fetch_offset))
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
        behind = [next(iter(self.partitions))] if ready == len(asked) else list(asked)
        for at in behind:
            self.partitions[at] = self.partitions.pop(at)
        return FetchPlan(request, asked)

    def wake_at(self, now: float) -> float:
        """When a back-off ends."""
        waits = [one.backoff_until for one in self.partitions.values() if one.backoff_until > now]
        if self.stale_topics:
            waits.append(self._find_at)
        return min(waits, default=float("inf"))

    def answered(self, plan: FetchPlan, response: Any, now: float) -> list[FetchedBatch]:
        """The batches of an answer, in order within each partition.

        What is wrong with a partition goes to `errors`, to its back-off, or to a new look-up.
        """
        if response.HasField("error"):
            self.fetch_failed(plan, from_proto(response.error), now)
            return []
        self.failing_since = None
        batches: list[FetchedBatch] = []
        for topic in response.topics:
            for result in topic.partitions:
                at = (topic.topic, result.partition)
                one = self.partitions.get(at)
                asked = plan.asked.get(at)
                if one is None or asked is None or one.generation != asked[0]:
                    continue
                if result.HasField("error"):
                    self._partition_failed(at, one, from_proto(result.error), now)
                    continue
                one.failures = one.unknown_attempts = 0
                one.high_watermark = result.high_watermark
                try:
                    found, next_offset = self._batches(at, asked[1], result)
                except StreamlogError as error:
                    self._failed(one, error, now)
                    continue
                batches += found
                one.fetch_offset = max(next_offset, asked[1])
                got_to = found[-1].next_offset if found else asked[1]
                if got_to < one.fetch_offset:
                    start, end = one.passed_over
                    one.passed_over = (start if end == got_to else got_to, one.fetch_offset)
        return batches

    def _batches(
        self, at: TopicPartition, offset: int, result: Any
    ) -> tuple[list[FetchedBatch], int]:
        """What the answer holds of a partition, and where the next fetch goes on."""
        data = result.record_batches
        if not data:
            return [], result.next_offset
        scanned, is_whole = self._scanned(at, offset, result)
        next_offset = result.next_offset if is_whole else scanned[-1].header.next_offset
        if result.aborted_transactions:
            scanned = without_aborted(
                scanned,
                [(one.first_offset, one.producer_id) for one in result.aborted_transactions],
            )
        found = [
            FetchedBatch(
                *at,
                one.header,
                one.view,
                from_offset=offset,
                high_watermark=result.high_watermark,
                check_crc=self._settings.check_crcs,
                decoded_bytes_max=self._settings.decoded_batch_bytes_max,
            )
            for one in scanned
            if not one.header.is_control and one.header.next_offset > offset
        ]
        return found, next_offset

    def _scanned(
        self, at: TopicPartition, offset: int, result: Any
    ) -> tuple[list[ScannedBatch], bool]:
        """The batches and True; or False and those before what is none, where there are some.

        Errors: of scanning, with the fields `topic`, `partition`, `offset` and `next_offset`.
        """
        data = result.record_batches
        try:
            return scan(data, verify_crc=False), True
        except (CorruptMessage, InvalidRecord) as error:
            view, position, whole = memoryview(data), 0, list[ScannedBatch]()
            # What is wrong lies behind the whole batches: the next fetch begins with it.
            with contextlib.suppress(CorruptMessage, InvalidRecord):
                while True:
                    whole.append(batch_at(view, position))
                    position += len(whole[-1].view)
            if whole and whole[-1].header.next_offset > offset:
                return whole, False
            next_offset = behind_damage(view[position:], offset, result.next_offset)
            raise type(error)(
                f"{at[0]}-{at[1]}: what the server sent from offset {offset} on is no record "
                f"batch: {error.message}; seek to {next_offset} to go on behind it",
                **{**error.fields, "topic": at[0], "partition": at[1]},
                **{"offset": offset, "next_offset": next_offset},
            ) from error

    def fetch_failed(self, plan: FetchPlan, error: StreamlogError, now: float) -> None:
        """The whole request came to nothing."""
        if self._has_learned(error):
            return
        self._note_failure(error, now)
        told = False
        for at, (generation, _) in plan.asked.items():
            one = self.partitions.get(at)
            if one is not None and one.generation == generation:
                told = self._failed(one, error, now, told=told)

    def _partition_failed(
        self, at: TopicPartition, one: PartitionFetch, error: StreamlogError, now: float
    ) -> None:
        if isinstance(error, OffsetOutOfRange):
            if self._settings.auto_offset_reset == "none":
                one.backoff_until = float("inf")
                self.errors.append(error)
                return
            if one.fetch_offset is not None:
                self.resets.refused(at, one.fetch_offset, error)
            one.fetch_offset = None
            return
        if isinstance(error, UnknownTopicOrPartition):
            self.stale_topics[at[0]] = None
        if isinstance(error, InconsistentTopicId):
            # What the look-up finds makes the partitions start anew.
            one.backoff_until = now + self._settings.retry_backoff_ms / 1000
            return
        self._failed(one, error, now)

    def _failed(
        self, one: PartitionFetch, error: StreamlogError, now: float, *, told: bool = False
    ) -> bool:
        """Backs off; the caller learns of it where waiting does not help. `told`: it did."""
        one.failures += 1
        one.backoff_until = now + backoff_s(
            one.failures, self._settings.retry_backoff_ms, self._settings.retry_backoff_max_ms
        )
        is_final = not error.is_retryable or isinstance(error, Corrupt | CorruptMessage)
        if isinstance(error, UnknownTopicOrPartition):
            one.unknown_attempts += 1
            is_final = one.unknown_attempts % UNKNOWN_TOPIC_ATTEMPTS_MAX == 0
        if is_final and not told:
            self.errors.append(error)
        return told or is_final

    # -- delivery

    def is_current(self, batch: FetchedBatch, generation: int) -> bool:
        """The caller has not sought elsewhere since the batch was asked for."""
        one = self.partitions.get((batch.topic, batch.partition))
        return one is not None and one.generation == generation

    def generation_of(self, batch: FetchedBatch) -> int:
        return self.partitions[batch.topic, batch.partition].generation

    def passed(self, batch: FetchedBatch, next_offset: int) -> None:
        """The caller has everything below next_offset."""
        one = self.partitions.get((batch.topic, batch.partition))
        if one is not None:
            one.position = next_offset


def behind_damage(view: memoryview, offset: int, answer_end: int) -> int:
    """Where to go on behind bytes that are no record batch and hold `offset`.

    That is where the batch ends by its own header, if what the header says is possible. Otherwise
    it is the end of the answer, since batches behind the damage cannot be told apart.
    """
    with contextlib.suppress(CorruptMessage):
        header = parse_header(view)
        if header.base_offset <= offset < header.next_offset <= answer_end:
            return header.next_offset
    return max(answer_end, offset + 1)


def without_aborted(
    batches: list[ScannedBatch], aborted: list[tuple[int, int]]
) -> list[ScannedBatch]:
    """Drops transactional batches of aborted producers up to their ABORT markers.

    `aborted`: (first offset, producer id) of each aborted transaction that overlaps.
    """
    todo = sorted(aborted, reverse=True)
    aborting: set[int] = set()
    kept: list[ScannedBatch] = []
    for batch in batches:
        header = batch.header
        while todo and todo[-1][0] <= header.last_offset:
            aborting.add(todo.pop()[1])
        if header.is_control:
            aborting.discard(header.producer_id)
        elif header.is_transactional and header.producer_id in aborting:
            continue
        kept.append(batch)
    return kept
