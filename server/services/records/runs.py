"""Batches of several requests that go to their logs in one call each: a run for every log.

1. `add` keeps the order of each partition's batches; partitions have no order among each other.
2. `flush` gives them to the logs. Until then nothing has a place, and nothing has been awaited.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from streamlog.errors import StreamlogError
from streamlog.log.api.abstract_log import AbstractLog, AppendOutcome, LogAppend
from streamlog.runtime.buffers import Buffer
from streamlog.server.services.ports import Logs
from streamlog.server.services.records.awaited_retries import AwaitedRetries
from streamlog.server.services.records.unanswered import PartitionAppend, Unanswered
from streamlog.server.services.support.topic_identity import client_error

RUN_BYTES_MAX = 1 << 20
"""Bytes after which a flush is due: the medium begins to write them while others are collected."""

RUN_LOGS_MAX = 32
"""Logs after which a flush is due: other requests have their turn, and a request of thousands of
partitions does not hold them up."""


class Ready(NamedTuple):
    """Batches whose log is open. `topic_id`: that of the log, where it is known."""

    part: PartitionAppend
    append: LogAppend
    topic_id: str


class Runs:
    def __init__(self, logs: Logs, awaited: AwaitedRetries, unanswered: Unanswered) -> None:
        self._logs = logs
        self._awaited = awaited
        self._unanswered = unanswered
        self._waiting: dict[AbstractLog, list[Ready]] = {}
        self.size_bytes = 0
        """Bytes that wait for `flush`."""
        self.sent: dict[str, int] = {}
        """Bytes that have their places, by client id."""

    def add(self, log: AbstractLog, ready: Ready) -> None:
        """Unless the producer has to send an older batch first."""
        part, append, _ = ready
        waiting = self._waiting.get(log)
        if waiting is None and self._logs.open_log(part.partition) is log:
            # Once for a run: nothing is awaited until its flush. A log that has another in its
            # place takes nothing any more: that was opened while the batches were encoded.
            self._unanswered.follow(part.partition, log)
        part.outcome = self._awaited.refusal(part.partition, append.batches)
        if part.outcome is not None:
            return
        if waiting is None:
            waiting = self._waiting[log] = []
        waiting.append(ready)
        self.size_bytes += len(append.batches)

    @property
    def logs(self) -> int:
        """Logs that wait for `flush`."""
        return len(self._waiting)

    async def flush(self) -> None:
        """Every batch has its place, or an error. Cancelled, those that have none keep None."""
        waiting, self._waiting = self._waiting, {}
        self.size_bytes, sent = 0, self.sent
        for log, run in waiting.items():
            partition = run[0].part.partition
            # Looked up before the wait: an error then may come from the deletion of the topic.
            current = self._logs.topic(partition.topic)
            outcomes: Sequence[AppendOutcome]
            try:
                outcomes = await log.append_many([one.append for one in run])
            except StreamlogError as error:
                outcomes = [error] * len(run)
            placed = []
            for (part, append, topic_id), outcome in zip(run, outcomes, strict=True):
                if isinstance(outcome, StreamlogError):
                    topic_id = topic_id or ("" if current is None else current.topic_id)
                    self.refuse(part, append.batches, outcome, topic_id)
                    continue
                part.outcome = outcome
                part.batches = append.batches
                if part.has_answer:
                    placed.append(part)
                client_id = append.context.client_id
                sent[client_id] = sent.get(client_id, 0) + len(append.batches)
            if placed:
                self._unanswered.placed(partition, log, placed)

    def refuse(
        self, part: PartitionAppend, batches: Buffer, error: StreamlogError, topic_id: str
    ) -> None:
        """The batches get no place. `topic_id`: that of the log, empty where it is not known."""
        topic, number = part.partition
        part.outcome = told = client_error(error, self._logs, topic, number, topic_id)
        if part.has_answer and topic:
            self._awaited.refused(part.partition, batches, told)
