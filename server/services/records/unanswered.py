"""Batches that have their places and no answer yet.

When a log fails, its owner opens the partition anew, and the new log does not know a producer whose
batches were lost with the old one. So before a batch goes to a log that was opened anew, those that
have no answer from the old one are noted as batches that have to come again first.

The answers themselves come too late for that: they are given in the order of requests, and one that
waits for another partition holds up all behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import NamedTuple

from streamlog.errors import OutcomeUnknown, StreamlogError
from streamlog.log.api.abstract_log import AbstractLog, AppendOutcome, LogAppendInfo
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer
from streamlog.server.services.records.awaited_retries import AwaitedRetries


class PartitionAppend:
    """What becomes of a request's batches for one partition.

    `outcome` None: they have no place. `has_answer`: the client is told the outcome. `is_counted`:
    they are among the topic's stored records.
    """

    __slots__ = ("batches", "has_answer", "is_counted", "outcome", "partition")

    def __init__(self, partition: TopicPartition, *, has_answer: bool) -> None:
        self.partition = partition
        self.has_answer = has_answer
        self.batches: Buffer = b""
        """Set when they have their places."""
        self.is_counted = False
        self.outcome: AppendOutcome | None = None

    def is_done(self) -> bool:
        """The outcome is known: awaiting it would not wait."""
        outcome = self.outcome
        if isinstance(outcome, asyncio.Future):
            return outcome.done()
        return isinstance(outcome, StreamlogError)

    def abandon(self, on_stored: Callable[[LogAppendInfo], None]) -> None:
        """The caller has left: the append goes on, its error is not reported as lost."""
        outcome = self.outcome
        if isinstance(outcome, asyncio.Future):
            outcome.add_done_callback(lambda ack: when_stored(ack, on_stored))
        elif isinstance(outcome, Coroutine):
            outcome.close()


class _OfLog(NamedTuple):
    log: AbstractLog
    appends: dict[PartitionAppend, None]


class Unanswered:
    def __init__(self, awaited: AwaitedRetries) -> None:
        self._awaited = awaited
        self._by_partition: dict[TopicPartition, _OfLog] = {}

    def __len__(self) -> int:
        return sum(len(of_log.appends) for of_log in self._by_partition.values())

    def placed(
        self, partition: TopicPartition, log: AbstractLog, appends: Iterable[PartitionAppend]
    ) -> None:
        """They have their places in the partition's log."""
        self.follow(partition, log)
        of_log = self._by_partition.get(partition)
        if of_log is None:
            of_log = self._by_partition[partition] = _OfLog(log, {})
        of_log.appends.update(dict.fromkeys(appends))

    def follow(self, partition: TopicPartition, log: AbstractLog) -> None:
        """The partition's next batches go to this log. Awaits nothing."""
        of_log = self._by_partition.get(partition)
        if of_log is None or of_log.log is log:
            return
        del self._by_partition[partition]
        for append in of_log.appends:
            error = _error_of(append)
            if error is not None:
                self._awaited.refused(partition, append.batches, error)

    def failed(self, append: PartitionAppend, error: StreamlogError) -> None:
        """The client is told that the batch, which had its place, was not stored."""
        # Noted before, with its log, it may have come again by now.
        if self.answered(append):
            self._awaited.refused(append.partition, append.batches, error)

    def ended(self, append: PartitionAppend) -> None:
        """The outcome is known, after the client was told that it was not."""
        error = _error_of(append)
        if error is None:
            self.answered(append)
        else:
            self.failed(append, error)

    def answered(self, append: PartitionAppend) -> bool:
        """Forgets the append; whether it was known."""
        partition = append.partition
        of_log = self._by_partition.get(partition)
        if of_log is None or append not in of_log.appends:
            return False
        del of_log.appends[append]
        if not of_log.appends:
            del self._by_partition[partition]
        return True


def _error_of(append: PartitionAppend) -> StreamlogError | None:
    """Why the append of a lost log is not stored; None: it is."""
    outcome = append.outcome
    if isinstance(outcome, asyncio.Future) and outcome.done() and not outcome.cancelled():
        error = outcome.exception()
        if error is None or isinstance(error, StreamlogError):
            return error
    return OutcomeUnknown(
        "the partition was given up before the append was confirmed; retry with the same producer "
        "id and sequence"
    )


def when_stored(
    ack: asyncio.Future[LogAppendInfo], on_stored: Callable[[LogAppendInfo], None]
) -> None:
    """Passes on what became of an append that is done; its error, if any, counts as seen."""
    if not ack.cancelled() and ack.exception() is None:
        on_stored(ack.result())
