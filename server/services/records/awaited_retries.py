"""Batches of idempotent producers that were refused for now, and have to come again before younger
ones.

A log that does not know a producer takes any sequence number as its first, as Kafka does. A client
sends several batches before it has an answer. When the first is refused because its partition does
not open, or has no room, and the next is taken, the producer's records have a gap that nobody sees:
the retry of the first is out of sequence, and librdkafka takes it for delivered, since a younger
batch is. So the younger ones are refused, too, until the first has come again.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from streamlog.codec.batch import HEADER_BYTES
from streamlog.errors import StreamlogError
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock

FORGOTTEN_AFTER_S = 30.0
"""Retries come within a second or two. A producer that gives the batch up may go on after this."""
ENTRIES_MAX = 10_000
_PRODUCER = Struct(">43xqhi")
"""Producer id, producer epoch and first sequence number of a batch."""
_HALF = 1 << 30
_MASK = (1 << 31) - 1


class _Refused(NamedTuple):
    epoch: int
    sequence: int
    error: StreamlogError
    until: float


class AwaitedRetries:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: dict[tuple[str, int, int], _Refused] = {}
        """By topic, partition and producer id; the oldest first."""

    def refused(self, topic: str, partition: int, batches: Buffer, error: StreamlogError) -> None:
        """A batch got no place, by an error after which its client sends it again."""
        if not error.is_retryable or len(batches) < HEADER_BYTES:
            return
        producer_id, epoch, sequence = _PRODUCER.unpack_from(batches)
        if producer_id < 0:
            return
        key = (topic, partition, producer_id)
        before = self._refused.pop(key, None)
        if before is not None and before.epoch == epoch and _is_younger(sequence, before.sequence):
            sequence = before.sequence
        elif len(self._refused) >= ENTRIES_MAX:
            del self._refused[next(iter(self._refused))]
        until = self._clock.monotonic() + FORGOTTEN_AFTER_S
        self._refused[key] = _Refused(epoch, sequence, error, until)

    def refusal(self, topic: str, partition: int, batches: Buffer) -> StreamlogError | None:
        """The error of the older batch that has to come first."""
        if not self._refused or len(batches) < HEADER_BYTES:
            return None
        producer_id, epoch, sequence = _PRODUCER.unpack_from(batches)
        key = (topic, partition, producer_id)
        refused = self._refused.get(key)
        if refused is None:
            return None
        if (
            refused.epoch == epoch
            and _is_younger(sequence, refused.sequence)
            and self._clock.monotonic() < refused.until
        ):
            return refused.error
        del self._refused[key]
        return None


def _is_younger(sequence: int, than: int) -> bool:
    """Sequence numbers wrap at 2^31."""
    return sequence != than and ((sequence - than) & _MASK) < _HALF
