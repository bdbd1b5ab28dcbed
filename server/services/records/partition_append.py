"""What becomes of a produce request's batches for one partition."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from streamlog.errors import StreamlogError
from streamlog.log.api.abstract_log import AppendOutcome, LogAppendInfo
from streamlog.model.partition import TopicPartition
from streamlog.runtime.buffers import Buffer


class PartitionAppend:
    """`outcome` None: the batches have no place. `has_answer`: the client is told the outcome."""

    __slots__ = ("batches", "has_answer", "outcome", "partition")

    def __init__(self, partition: TopicPartition, *, has_answer: bool) -> None:
        self.partition = partition
        self.has_answer = has_answer
        self.batches: Buffer = b""
        """Set when they have their places."""
        self.outcome: AppendOutcome | None = None

    def is_done(self) -> bool:
        """The outcome is known: awaiting it would not wait."""
        outcome = self.outcome
        if isinstance(outcome, asyncio.Future):
            return outcome.done()
        return isinstance(outcome, StreamlogError)

    def abandon(self) -> None:
        """The caller has left: the append goes on, its error is not reported as lost."""
        outcome = self.outcome
        if isinstance(outcome, asyncio.Future):
            outcome.add_done_callback(_observe)
        elif isinstance(outcome, Coroutine):
            outcome.close()


def _observe(future: asyncio.Future[LogAppendInfo]) -> None:
    if not future.cancelled():
        future.exception()
