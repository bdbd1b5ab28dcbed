"""Jumps of a consumer from positions that the log does not hold, kept until the caller asks."""

from __future__ import annotations

from typing import NamedTuple

from streamlog.client.calls.topic import TopicPartition
from streamlog.errors import OffsetOutOfRange


class OffsetReset(NamedTuple):
    """A consumer went from an offset that the log does not hold to another one.

    `from_offset` is what the log did not hold, `to_offset` is where the consumer went on, as
    `auto_offset_reset` says, and `skipped` is how many offsets the caller does not get: 0 where the
    consumer went back. Several resets of a partition that were not taken are one, from the first to
    the last. `log_start_offset` and `log_end_offset` are what the log held at the last refusal; -1
    where the server did not say.
    """

    topic: str
    partition: int
    from_offset: int
    to_offset: int
    skipped: int
    log_start_offset: int
    log_end_offset: int

    @property
    def is_deleted(self) -> bool:
        """Retention or DeleteRecords removed the offsets. False: the log ends before them."""
        return self.from_offset < self.log_start_offset


class OffsetResets:
    """At most one for each partition: resets in a row are joined, so that memory is bounded.

    `refused` notes why a position must be looked up, `resolved` the offset that was found.
    """

    def __init__(self) -> None:
        self._refused: dict[TopicPartition, tuple[int, OffsetOutOfRange]] = {}
        self._resets: dict[TopicPartition, OffsetReset] = {}

    def refused(self, tp: TopicPartition, offset: int, error: OffsetOutOfRange) -> None:
        self._refused[tp] = (offset, error)

    def forget(self, tp: TopicPartition) -> None:
        """The caller sought elsewhere, or the partition is another topic's: nothing is skipped."""
        self._refused.pop(tp, None)

    def resolved(self, tp: TopicPartition, offset: int) -> int | None:
        """The offset that was refused; None where the partition begins with this look-up."""
        refusal = self._refused.pop(tp, None)
        if refusal is None:
            return None
        refused, error = refusal
        before = self._resets.get(tp)
        self._resets[tp] = OffsetReset(
            *tp,
            from_offset=refused if before is None else min(before.from_offset, refused),
            to_offset=offset,
            skipped=max(0, offset - refused) + (0 if before is None else before.skipped),
            log_start_offset=_number(error, "start_offset"),
            log_end_offset=_number(error, "end_offset"),
        )
        return refused

    def take(self) -> list[OffsetReset]:
        """Those since the last call."""
        resets, self._resets = list(self._resets.values()), {}
        return resets


def _number(error: OffsetOutOfRange, name: str) -> int:
    value = error.fields.get(name)
    return value if isinstance(value, int) else -1
