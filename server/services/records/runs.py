"""Batches of several requests that go to their logs in one call each: a run for every log.

1. `add` keeps the order of each partition's batches; partitions have no order among each other.
2. `flush` gives them to the logs. Until then nothing has a place, and nothing has been awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import NamedTuple

from streamlog.errors import StreamlogError
from streamlog.log.api.abstract_log import (
    AbstractLog,
    AppendOutcome,
    LogAppend,
    LogAppendInfo,
)
from streamlog.server.services.ports import Logs
from streamlog.server.services.records.awaited_retries import AwaitedRetries
from streamlog.server.services.support.topic_identity import client_error

RUN_BYTES_MAX = 1 << 20
"""Bytes after which a flush is due: the medium begins to write them while others are collected."""


class PartitionAppend:
    """What became of a request's batches for one partition. `outcome` None: they have no place."""

    __slots__ = ("outcome", "partition", "size_bytes")

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.size_bytes = 0
        """Bytes of the batches, once they have their places."""
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


class Ready(NamedTuple):
    """Batches whose log is open. `topic_id`: that of the log, where it is known."""

    part: PartitionAppend
    append: LogAppend
    topic: str
    topic_id: str


class Runs:
    def __init__(self, logs: Logs, awaited: AwaitedRetries) -> None:
        self._logs = logs
        self._awaited = awaited
        self._waiting: dict[AbstractLog, list[Ready]] = {}
        self.size_bytes = 0
        """Bytes that wait for `flush`."""
        self.sent: dict[str, int] = {}
        """Bytes that have their places, by client id."""

    def add(self, log: AbstractLog, ready: Ready) -> None:
        waiting = self._waiting.get(log)
        if waiting is None:
            waiting = self._waiting[log] = []
        waiting.append(ready)
        self.size_bytes += len(ready.append.batches)

    async def flush(self) -> None:
        """Every batch has its place, or an error. Cancelled, those that have none keep None."""
        waiting, self._waiting = self._waiting, {}
        self.size_bytes, sent = 0, self.sent
        for log, run in waiting.items():
            # Looked up before the wait: an error then may come from the deletion of the topic.
            current = self._logs.topic(run[0].topic)
            outcomes: Sequence[AppendOutcome]
            try:
                outcomes = await log.append_many([one.append for one in run])
            except StreamlogError as error:
                outcomes = [error] * len(run)
            for (part, append, topic, topic_id), outcome in zip(run, outcomes, strict=True):
                if isinstance(outcome, StreamlogError):
                    topic_id = topic_id or ("" if current is None else current.topic_id)
                    part.outcome = refused = client_error(
                        outcome, self._logs, topic, part.partition, topic_id
                    )
                    self._awaited.refused(topic, part.partition, append.batches, refused)
                else:
                    part.outcome = outcome
                    part.size_bytes = size = len(append.batches)
                    client_id = append.context.client_id
                    sent[client_id] = sent.get(client_id, 0) + size


def _observe(future: asyncio.Future[LogAppendInfo]) -> None:
    if not future.cancelled():
        future.exception()
