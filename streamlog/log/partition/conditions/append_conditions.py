"""The conditions of appends to one log: they are tested at the log's end, and refusals wait.

A refusal tells the log's end or its token. Appends before it may still be lost with the log: so it
is answered when they are durable, as a stream's refusal is, and fails with them if they fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from streamlog.errors import Conflict
from streamlog.log.api.abstract_log import AppendOutcome, LogAppendInfo
from streamlog.model.append_condition import AppendCondition
from streamlog.model.partition import TopicPartition

_UNSEEN = LogAppendInfo(-1, -1, -1, -1)


class Sequenced(Protocol):
    """An append that has its place and is not durable yet."""

    def wait(self, info: LogAppendInfo) -> asyncio.Future[LogAppendInfo]:
        """Ends with `info` when it is durable. Errors: why it will not be."""
        ...


class AppendConditions:
    """It awaits nothing: what was tested still holds when the batch gets its place.

    `token()` is the log's token, which is durable; a change of it holds the turn of appends.
    """

    def __init__(self, partition: TopicPartition, token: Callable[[], bytes]) -> None:
        self._partition = partition
        self.token = token

    def refusal(self, condition: AppendCondition, end_offset: int) -> Conflict | None:
        """As AppendCondition.refusal, for the log's end."""
        return condition.refusal(self._partition, end_offset, self.token())


def refused_after(refusal: Conflict, last: Sequenced | None) -> AppendOutcome:
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
