"""AbstractLog and AbstractLogSegment: all that managers, retention and servers know of a log.

A log is one partition. log_start_offset ≤ last_stable_offset ≤ high_watermark ≤ log_end_offset.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from streamlog.errors import Invalid, InvalidTxnState, StreamlogError
from streamlog.log.api.topic_config import TopicConfig
from streamlog.model.append_condition import ANY, AppendCondition
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer, Parts

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5


class Isolation(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class ProduceContext(NamedTuple):
    """`deadline` is monotonic seconds on the injected clock.

    `condition`: the append is stored where the log fulfils it, and refused elsewhere; None: stored.
    """

    deadline: float | None = None
    principal: str = "anonymous"
    client_id: str = ""
    trace_id: str = ""
    condition: AppendCondition | None = None


PRODUCE = ProduceContext()


class LogAppendInfo(NamedTuple):
    """`base_offset`: of the first batch; `log_append_time_ms` -1 with create-time timestamps."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool = False


class LogAppend(NamedTuple):
    """What one call of `AbstractLog.append` takes."""

    batches: Buffer
    context: ProduceContext = PRODUCE


AppendOutcome = Awaitable[LogAppendInfo] | StreamlogError
"""What `AbstractLog.append` returns or raises."""


class TransactionMarker(NamedTuple):
    """Ends a producer's transaction in one partition (Kafka's EndTransactionMarker)."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool


class ProducerDescription(NamedTuple):
    """An idempotent producer that a log remembers; `last_append_ms` on the server's clock."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_append_ms: int
    coordinator_epoch: int = -1
    """-1: the producer was never in a transaction."""
    current_txn_start_offset: int = -1
    """-1: no transaction is open."""


@dataclass(frozen=True, slots=True)
class AbortedTransaction:
    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class LogFetch:
    """Whole record batches from the one that contains the offset; `parts` joined are their bytes.

    `batches` counts them; `next_offset` follows the last one (the requested offset if empty).
    `is_paced`: other requests go first; answer the client with these batches, or with none.
    """

    parts: Parts
    size_bytes: int
    batches: int
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[AbortedTransaction, ...] = ()
    is_paced: bool = False


@dataclass(frozen=True, slots=True)
class TimestampAndOffset:
    """-1, -1: no such record."""

    timestamp_ms: int
    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class EpochEndOffset:
    """-1, -1: undefined."""

    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A log at one moment, for operators and tools.

    `storage_ids`: what holds the data, by roles that the kind of log defines. A shared log names
    its streams: meta, data, time, txn. `fencing_token` b"": the log has none.
    """

    partition: TopicPartition
    leader_epoch: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    size_bytes: int
    segments: int
    storage_ids: Mapping[str, int] = field(default_factory=dict)
    fencing_token: bytes = b""


class AbstractLogSegment(ABC):
    """A section of a log: base_offset (inclusive) to end_offset (exclusive)."""

    @property
    @abstractmethod
    def base_offset(self) -> int: ...

    @property
    @abstractmethod
    def end_offset(self) -> int: ...

    @property
    @abstractmethod
    def size_bytes(self) -> int: ...

    @property
    @abstractmethod
    def largest_timestamp_ms(self) -> int:
        """-1 where no record has one."""

    @property
    @abstractmethod
    def is_active(self) -> bool: ...

    @property
    def last_append_ms(self) -> int:
        """The server's clock at the newest append; retention uses it if no record has a timestamp.

        -1 if the log does not know it.
        """
        return -1


class AbstractLog(ABC):
    """One partition. Methods are called from one event loop; nothing here blocks it."""

    has_tier = False
    """Whether older records may be in a remote tier: `is_remote` tells which."""

    @property
    @abstractmethod
    def topic_partition(self) -> TopicPartition: ...

    @property
    @abstractmethod
    def leader_epoch(self) -> int: ...

    @property
    @abstractmethod
    def log_start_offset(self) -> int: ...

    @property
    @abstractmethod
    def high_watermark(self) -> int:
        """End (exclusive) of the durable and visible records."""

    @property
    @abstractmethod
    def last_stable_offset(self) -> int: ...

    @property
    @abstractmethod
    def log_end_offset(self) -> int: ...

    @property
    @abstractmethod
    def size_bytes(self) -> int: ...

    @property
    @abstractmethod
    def segments(self) -> Sequence[AbstractLogSegment]:
        """In order; the last is the active one."""

    @abstractmethod
    async def append(
        self, batches: Buffer, context: ProduceContext = PRODUCE
    ) -> Awaitable[LogAppendInfo]:
        """Validates and sequences Kafka v2 batches. The second await returns when they are durable.

        Batches are sequenced when the first await returns, in the order of calls. Cancelling the
        second await leaves the append under way. Errors of the first: InvalidRecord,
        CorruptMessage, MessageTooLarge, RecordListTooLarge, InvalidTimestamp, OutOfOrderSequence,
        ProducerFenced, QuotaExceeded (too many producers), Overloaded (nothing was stored). Errors
        of the second: Fenced, OutcomeUnknown, Unavailable.

        A condition of the context is tested at the place that the first batch would get, with
        nothing in between. OffsetConflict (`actual`: the log's end) and TokenMismatch (`actual`:
        the log's token as text): nothing was stored. They come from the second await where earlier
        appends are under way, because a refusal must not reveal what may still vanish. A batch that
        was stored before is a duplicate, whatever its condition says. An append without a token is
        not tested for one.
        """

    async def append_many(self, appends: Sequence[LogAppend]) -> Sequence[AppendOutcome]:
        """Appends in this order, each with an outcome of its own: one `append` after another.

        An error of one leaves those behind it as they would be without this call: they are tried.
        Unless it is retryable: then those behind it get the same error, so that a producer that
        sends all of them again finds its order. Cancelling it leaves the appends that were
        sequenced under way.
        """
        outcomes: list[AppendOutcome] = []
        for one in appends:
            try:
                outcomes.append(await self.append(one.batches, one.context))
            except StreamlogError as error:
                if error.is_retryable:
                    return outcomes + [error] * (len(appends) - len(outcomes))
                outcomes.append(error)
        return outcomes

    async def append_marker(
        self, marker: TransactionMarker, context: ProduceContext = PRODUCE
    ) -> Awaitable[LogAppendInfo]:
        """Writes the control batch that ends the producer's transaction; awaits as `append`.

        It is idempotent: a marker of a producer without an open transaction is written and changes
        no reader's view. Errors: ProducerFenced (an older producer epoch), CoordinatorFenced (an
        older coordinator), and those of an append. The default refuses: a log may take none.
        """
        raise InvalidTxnState(f"{self.topic_partition} takes no transactions")

    @property
    def tests_conditions(self) -> bool:
        """Whether appends with a condition may come here; servers refuse them elsewhere.

        The default says no: a log that knew nothing of conditions would store what it must not.
        """
        return False

    async def set_fencing_token(
        self, token: bytes, condition: AppendCondition = ANY, *, deadline: float | None = None
    ) -> None:
        """Sets the token that every later append must have, if it has one; b"" removes it.

        `condition` is what the log must be like at the change's place among the appends. Durable on
        return, and so is every append sequenced before; those sequenced behind it wait until then.
        The token (≤ 64 bytes) outlives closes, crashes and changes of the leader. Cancelling it
        leaves a change that is being written under way.

        Errors: TokenMismatch, OffsetConflict, Invalid; DeadlinePassed (nothing was changed);
        OutcomeUnknown (`describe` tells the token); Closed, or why the log failed. The default
        refuses: a log may keep no token.
        """
        raise Invalid(f"{self.topic_partition} keeps no fencing token: its kind of log has none")

    def needs_verification(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a transactional batch of the producer would be refused here as unverified.

        It is so while no transaction of this pair is open here and `verified` was not called since
        its last marker (KIP-890).
        """
        return True

    def verification_guard(self) -> int:
        """What `verified` is given; to be taken before the coordinator is asked."""
        return 0

    def verified(self, producer_id: int, producer_epoch: int, guard: int | None = None) -> None:
        """Takes the pair's next transactional batch: its coordinator has the partition.

        It does nothing if a marker of the producer has come since the guard was taken (None: just
        now), and the producer's next marker takes it back: a batch that was verified before an
        abort and comes behind it is refused. The default does nothing.
        """
        return

    @abstractmethod
    async def fetch(
        self,
        offset: int,
        max_bytes: int,
        *,
        min_one_batch: bool = True,
        isolation: Isolation = Isolation.READ_UNCOMMITTED,
        deadline: float | None = None,
    ) -> LogFetch:
        """Reads the batches that are there now; never waits for new records.

        Errors: OffsetOutOfRange, OffsetNotAvailable (high watermark < offset ≤ log end),
        StoreUnavailable, Corrupt.
        """

    def is_remote(self, offset: int) -> bool:
        """Whether a fetch from there has to wait for a remote tier, and others may go on beside."""
        return False

    def is_cold(self, offset: int) -> bool:
        """Whether a fetch from there reads objects, also to find that its batch has no room."""
        return False

    @abstractmethod
    async def wait_for(self, offset: int, isolation: Isolation) -> None:
        """Returns when the visible end is past `offset`, or the log is closed."""

    @abstractmethod
    def subscribe(self, changed: Callable[[], None]) -> None:
        """Calls `changed` once, at the next change that a reader could see, and forgets it.

        Such changes: the high watermark, the last stable offset or the log start offset moves, or
        the log ends. A log that has ended calls it at once. A callback that is subscribed already
        stays so. It returns at once, raises nothing, and may be called within any other call.

        A reader that compares the offsets with those it has seen, and subscribes without an await
        between, misses nothing, costs no task, and costs the log one call for each look it takes.
        """

    @abstractmethod
    def unsubscribe(self, changed: Callable[[], None]) -> None:
        """Forgets the callback; does nothing if the log does not have it."""

    @abstractmethod
    async def offset_for_timestamp(
        self, timestamp_ms: int, isolation: Isolation
    ) -> TimestampAndOffset:
        """The first record with timestamp ≥ timestamp_ms (or EARLIEST, LATEST, MAX_TIMESTAMP)."""

    @abstractmethod
    def end_offset_for_epoch(self, leader_epoch: int) -> EpochEndOffset: ...

    @abstractmethod
    async def delete_records(self, before_offset: int) -> int:
        """Raises log_start_offset to before_offset (-1: high watermark); returns the new one.

        Durable on return. Errors: OffsetOutOfRange, PolicyViolation.
        """

    async def raise_start(self, before_offset: int) -> int:
        """As `delete_records`, whatever `cleanup.policy` says: for who owns the log's records."""
        return await self.delete_records(before_offset)

    @abstractmethod
    async def delete_oldest_segments(self, predicate_end_offset: int, reason: str) -> int:
        """Drops the segments that end at or before the offset, oldest first; returns how many."""

    @abstractmethod
    async def roll(self) -> None:
        """Starts a new active segment, unless the active one is empty."""

    async def configure(self, config: TopicConfig) -> None:
        """Follows these settings from now on. The default does nothing: a log may have none."""
        return

    def describe(self) -> PartitionDescription:
        return PartitionDescription(
            self.topic_partition,
            self.leader_epoch,
            self.log_start_offset,
            self.high_watermark,
            self.last_stable_offset,
            self.log_end_offset,
            self.size_bytes,
            len(self.segments),
        )

    def producers(self) -> Sequence[ProducerDescription]:
        """Those that appended within `producer.id.expiration.ms`; a log may remember none.

        Errors: Closed, or why the log failed.
        """
        return ()

    @abstractmethod
    async def close(self) -> None: ...

    async def stop(self) -> None:
        """As `close`; the caller closes the engine next, which gives up all streams at once."""
        await self.close()

    async def kill(self) -> None:
        """Stops at once, as a crash would. The default closes the log."""
        await self.close()

    @abstractmethod
    async def delete(self) -> None:
        """Removes all data of the partition."""
