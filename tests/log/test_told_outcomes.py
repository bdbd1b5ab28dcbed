"""Errors of calls that change topics, while the metadata goes away at each of their steps.

An error with `has_no_side_effects` says that nothing has happened and nothing will.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from streamlog.errors import MetadataUnavailable, OutcomeUnknown, StreamlogError
from streamlog.log.manager import LogManager
from tests.engine.harness import error_of
from tests.log.cluster import Cluster, cluster

STEPS_MAX = 100
Call = Callable[[LogManager], Awaitable[object]]


class LeavingKV:
    """A KVClient that goes away after some calls, and may lose the last answer."""

    def __init__(self, kv: Any) -> None:
        self._kv = kv
        self.calls_left: int | None = None
        """None: it stays."""
        self.loses_last_answer = False

    def __getattr__(self, name: str) -> Any:
        work = getattr(self._kv, name)
        if name == "watch_kv":
            return work

        async def call(*arguments: Any, **options: Any) -> Any:
            if self.calls_left is None:
                return await work(*arguments, **options)
            if self.calls_left == 0:
                raise MetadataUnavailable("away")
            self.calls_left -= 1
            answer = await work(*arguments, **options)
            is_read = name.startswith(("get", "list"))
            if self.calls_left == 0 and self.loses_last_answer and not is_read:
                raise OutcomeUnknown("the answer was lost")
            return answer

        return call


async def scene(made: Cluster) -> tuple[LogManager, LeavingKV]:
    real = made.medium.kv
    made.medium.kv = kv = LeavingKV(real)
    logs = await made.node()
    await logs.create_topic("old", 1)
    return logs, kv


def partitions(logs: LogManager, name: str) -> int:
    topic = logs.topic(name)
    return 0 if topic is None else topic.partitions


@pytest.mark.parametrize("loses_last_answer", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        lambda logs: logs.create_topic("new", 2),
        lambda logs: logs.create_partitions("old", 3),
        lambda logs: logs.delete_topic("old"),
    ],
    ids=["create", "grow", "delete"],
)
def test_an_error_that_says_that_nothing_happened_is_right(
    call: Call, loses_last_answer: bool
) -> None:
    async def before_step(step: int) -> bool | None:
        """Whether the error denied side effects; None: the call came through."""
        async with cluster() as made:
            logs, kv = await scene(made)
            kv.calls_left, kv.loses_last_answer = step, loses_last_answer
            told = await error_of(call(logs))
            if told is None:
                return None
            assert isinstance(told, StreamlogError)
            kv.calls_left = None
            await logs.repair()
            is_unchanged = (partitions(logs, "old"), partitions(logs, "new")) == (1, 0)
            assert is_unchanged or not told.has_no_side_effects, (step, told)
            return told.has_no_side_effects

    async def body() -> None:
        denials: list[bool] = []
        while (denied := await before_step(len(denials))) is not None:
            denials.append(denied)
            assert len(denials) < STEPS_MAX
        assert denials[0], "nothing can have happened before the first step"
        assert not all(denials), "the last steps come after the record"

    asyncio.run(body())
