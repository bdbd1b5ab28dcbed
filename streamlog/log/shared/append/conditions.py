"""The conditions of appends to a shared log: they are tested at the log's end, and refusals wait.

A refusal tells the log's end or its token. Appends before it may still be lost with the log: so it
is answered when they are durable, as a stream's refusal is, and fails with them if they fail.
"""

from __future__ import annotations

import asyncio

from streamlog.errors import Conflict
from streamlog.log.api.abstract_log import AppendOutcome, LogAppendInfo
from streamlog.log.api.append_condition import AppendCondition
from streamlog.log.partition.ack_queue import PendingAppend
from streamlog.log.shared.meta.log import MetaLog
from streamlog.log.shared.state.segment import SharedLogSegment
from streamlog.model.partition import TopicPartition

_UNSEEN = LogAppendInfo(-1, -1, -1, -1)


class AppendConditions:
    """It awaits nothing: what was tested still holds when the batch gets its place."""

    def __init__(self, partition: TopicPartition, meta: MetaLog) -> None:
        self._partition = partition
        self._meta = meta

    @property
    def token(self) -> bytes:
        """The log's token, which is durable. A change of it holds the turn of appends."""
        return self._meta.state.fencing_token

    def refusal(self, condition: AppendCondition, end_offset: int) -> Conflict | None:
        """As AppendCondition.refusal, for the log's end."""
        return condition.refusal(self._partition, end_offset, self.token)


def refused_after(refusal: Conflict, last: PendingAppend[SharedLogSegment] | None) -> AppendOutcome:
    """The refusal as an outcome. `last`: the newest append that is not durable; None: all are."""
    if last is None:
        return refusal
    answer: asyncio.Future[LogAppendInfo] = asyncio.get_running_loop().create_future()

    def durable(done: asyncio.Future[LogAppendInfo]) -> None:
        lost = None if done.cancelled() else done.exception()
        if not answer.done():
            answer.set_exception(refusal if lost is None else lost)
            answer.exception()  # Marks it as seen: a caller may have given up waiting.

    last.wait(_UNSEEN).add_done_callback(durable)
    return answer
