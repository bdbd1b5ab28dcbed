"""Batches of idempotent producers that were not stored, and have to come again before younger ones.

A log that does not know a producer takes any sequence number as its first, as Kafka does. A client
sends several batches before it has an answer. The first may be refused, because its partition does
not open or has no room, or be lost with its log before it is durable. Were the next one taken then,
the producer's records would have a gap that nobody sees: the retry of the first is out of sequence,
and librdkafka takes it for delivered, since a younger batch is. So the younger ones are refused,
too, until the first has come again.

1. An entry is made where a batch got an error after which its client sends it again. A producer has
   one in a partition: that of its oldest such batch, in its newest epoch.
2. It ends when that batch comes again, when a newer epoch does, or after FORGOTTEN_AFTER_S.
3. A header whose batch fails its CRC neither makes an entry nor ends one: it may name a producer,
   or a sequence number, that nobody has sent.
"""

from __future__ import annotations

from typing import NamedTuple

from streamlog.codec.batch import (
    HEADER_BYTES,
    SEQUENCE_MAX,
    BatchHeader,
    parse_header,
    scan,
    sequence_after,
)
from streamlog.errors import (
    Corrupt,
    EpochFenced,
    Fenced,
    Field,
    OutcomeUnknown,
    ProducerFenced,
    StreamlogError,
    StreamNotFound,
    TransactionalIdFenced,
    WalPending,
)
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock

FORGOTTEN_AFTER_S = 30.0
"""Retries come within a second or two. A producer that gives the batch up may go on after this."""
ENTRIES_MAX = 10_000
SENT_AGAIN = (OutcomeUnknown, Fenced, StreamNotFound, WalPending, Corrupt)
"""Errors that are not retryable here, and whose codes are so for Kafka's clients."""
NOT_SENT_AGAIN = (ProducerFenced, TransactionalIdFenced, EpochFenced)


class _Reason(NamedTuple):
    """An error without its frames, which hold the request."""

    cls: type[StreamlogError]
    message: str
    fields: dict[str, Field]

    def error(self) -> StreamlogError:
        error = self.cls(self.message)
        error.fields = dict(self.fields)
        return error


class _Refused(NamedTuple):
    epoch: int
    sequence: int
    reason: _Reason
    until: float


class AwaitedRetries:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: dict[tuple[TopicPartition, int], _Refused] = {}
        """By partition and producer id; the oldest first."""

    def __len__(self) -> int:
        return len(self._refused)

    def refused(self, partition: TopicPartition, batches: Buffer, error: StreamlogError) -> None:
        """Batches were not stored, or perhaps not, by an error that their client is told."""
        if not is_sent_again(error):
            return
        headers = _intact(batches)
        if not headers:
            return
        now = self._clock.monotonic()
        self._forget(now)
        reason = _Reason(type(error), error.message, error.fields)
        for header in headers:
            if header.producer_id >= 0:
                self._refuse(partition, header, reason, now)

    def _refuse(
        self,
        partition: TopicPartition,
        header: BatchHeader,
        reason: _Reason,
        now: float,
    ) -> None:
        key = (partition, header.producer_id)
        epoch, sequence = header.producer_epoch, header.base_sequence
        before = self._refused.get(key)
        if before is not None:
            if epoch < before.epoch:
                return
            if epoch == before.epoch and _is_younger(sequence, before.sequence):
                sequence = before.sequence
            del self._refused[key]
        elif len(self._refused) >= ENTRIES_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[key] = _Refused(epoch, sequence, reason, now + FORGOTTEN_AFTER_S)

    def refusal(self, partition: TopicPartition, batches: Buffer) -> StreamlogError | None:
        """The error of the older batch that has to come first."""
        if not self._refused or len(batches) < HEADER_BYTES:
            return None
        header = parse_header(batches)
        key = (partition, header.producer_id)
        refused = self._refused.get(key)
        if refused is None or header.producer_epoch < refused.epoch:
            return None
        if header.producer_epoch == refused.epoch and _is_younger(
            header.base_sequence, refused.sequence
        ):
            if self._clock.monotonic() < refused.until:
                return refused.reason.error()
        elif not _intact(batches):
            return None
        del self._refused[key]
        return None

    def _forget(self, now: float) -> None:
        """Entries whose time is over are the oldest."""
        expired = []
        for key, refused in self._refused.items():
            if now < refused.until:
                break
            expired.append(key)
        for key in expired:
            del self._refused[key]


def is_sent_again(error: StreamlogError) -> bool:
    """Whether clients send the batch again after this error, under the same sequence number."""
    if error.is_retryable:
        return True
    return isinstance(error, SENT_AGAIN) and not isinstance(error, NOT_SENT_AGAIN)


def _intact(batches: Buffer) -> list[BatchHeader]:
    """The headers of whole, undamaged batches; none where one of them is not."""
    try:
        return [batch.header for batch in scan(batches)]
    except StreamlogError:
        return []


def _is_younger(sequence: int, than: int) -> bool:
    """Sequence numbers wrap at 2^31: the shorter way counts."""
    return 0 < sequence_after(sequence, -than) <= SEQUENCE_MAX // 2
