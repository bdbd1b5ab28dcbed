"""What readers of a compacted partition must find, whatever a cleaning does meanwhile.

1. A read goes from an offset to another. The newest record of each key that lies between them is
   among what it returned: no record that anybody sent could supersede it. A tombstone may be
   missing once `delete.retention.ms` have passed since it was sent.
2. The last batch of each producer stays, if need be as a header without records: after a rebuild of
   the producers' state a resend of it is known by it.
3. A record that is younger than `min.compaction.lag.ms` is there, whatever supersedes it.
4. A transaction of which a record is left has its marker, behind the record.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.testing.simulation.checker import Violation
from streamlog.testing.simulation.numbered.model import (
    NumberedBatch,
    NumberedLogModel,
    NumberedTransaction,
    ObservedNumberedBatch,
)


def check_read(
    model: NumberedLogModel,
    batches: Sequence[ObservedNumberedBatch],
    asked: int,
    following: int,
    now_ms: int,
) -> None:
    """A read from `asked` to `following` (exclusive) returned the batches. Errors: Violation."""
    read = {number for batch in batches for _, number in batch.records}
    for key, (offset, batch, number) in _newest(model).items():
        if not asked <= offset < following or number in read:
            continue
        if number not in batch.tombstones:
            raise Violation(
                f"{model.name}: a read from {asked} to {following} lacks {number} at {offset}, the "
                f"last of {key!r}"
            )
        model.check_tombstone_is_due(batch, number, now_ms)
    _check_young(model, read, asked, following, now_ms)


def _check_young(
    model: NumberedLogModel, read: set[int], asked: int, following: int, now_ms: int
) -> None:
    oldest_ms = now_ms - model.lag_ms + model.clock_slack_ms
    if oldest_ms >= now_ms:
        return  # Clocks are too far apart for the lag to say anything.
    for batch in model.batches[-200:]:
        base = batch.base_offset
        if base is None or batch.at_ms < oldest_ms:
            continue
        for index in range(len(batch.keys)):
            if asked <= base + index < following and batch.first + index not in read:
                raise Violation(
                    f"{model.name}: {batch.first + index} at {base + index} was superseded and "
                    f"went {now_ms - batch.at_ms} ms after it was sent"
                )


def lasting(model: NumberedLogModel) -> list[tuple[int, int]]:
    """Offset and time of each record that no cleaning takes."""
    return [
        (offset, batch.at_ms)
        for offset, batch, number in _newest(model).values()
        if number not in batch.tombstones
    ]


def _newest(model: NumberedLogModel) -> dict[bytes, tuple[int, NumberedBatch, int]]:
    """By key: the record that nothing supersedes. Keys with records of unknown offset are left out:
    one of these may."""
    newest: dict[bytes, tuple[int, NumberedBatch, int]] = {}
    unknown: set[bytes] = set()
    for batch in model.batches:
        transaction = batch.transaction
        if batch.is_refused or (transaction is not None and transaction.is_commit is False):
            continue
        for index, key in enumerate(batch.keys):
            if key is None:
                continue
            if batch.base_offset is None:
                unknown.add(key)
            elif key not in newest or newest[key][0] < batch.base_offset + index:
                newest[key] = (batch.base_offset + index, batch, batch.first + index)
    return {key: one for key, one in newest.items() if key not in unknown}


def check_all(model: NumberedLogModel, seen: Sequence[ObservedNumberedBatch], start: int) -> None:
    """`seen`: all that the log has from `start` on, after healing. Errors: Violation."""
    _check_last_batches(model, seen, start)
    _check_markers(model, seen)


def _check_last_batches(
    model: NumberedLogModel, seen: Sequence[ObservedNumberedBatch], start: int
) -> None:
    bases = {batch.base_offset for batch in seen if batch.is_commit is None}
    last: dict[int, NumberedBatch] = {}
    for batch in model.batches:
        if batch.producer_id >= 0 and not batch.is_refused:
            last[batch.producer_id] = batch
    for batch in last.values():
        # One that was given up may be there, and be the last.
        base = batch.base_offset
        if base is not None and base >= start and base not in bases:
            raise Violation(
                f"{model.name}: {batch} at {base} has gone, the last of producer "
                f"{batch.producer_id}"
            )


def _check_markers(model: NumberedLogModel, seen: Sequence[ObservedNumberedBatch]) -> None:
    left: dict[NumberedTransaction, int] = {}
    markers: dict[int, list[int]] = {}
    for batch in seen:
        if batch.is_commit is not None:
            markers.setdefault(batch.producer_id, []).append(batch.base_offset)
        for offset, number in batch.records:
            transaction = model.transaction_of(number)
            if transaction is not None:
                left[transaction] = offset
    for transaction, offset in left.items():
        end = transaction.marker_offset
        is_there = any(offset < one <= end for one in markers.get(transaction.producer_id, ()))
        if end >= 0 and not is_there:
            raise Violation(
                f"{model.name}: a record at {offset} is left of {transaction}, and its marker has "
                "gone"
            )
