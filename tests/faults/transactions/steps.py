"""The steps of a transaction: all that its logs append to streams, by what it holds.

A step is counted from `arm` on. With `strike_at` the process ends there: before the append, so that
it never was, or after it is durable, so that nobody was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, NamedTuple

import pytest

from streamlog.codec.batch import scan
from streamlog.codec.records import decode
from streamlog.coordinator.api import TRANSACTION_STATE_TOPIC
from streamlog.coordinator.transactions.records import decode_key, decode_value
from streamlog.engine.streams.stream import EngineStream
from streamlog.log.manager import LogManager
from streamlog.model.batch import APPEND, AppendContext, RecordBatch
from streamlog.model.partition import TopicPartition


class Side(StrEnum):
    BEFORE = "before"
    AFTER = "after"


class Strike(NamedTuple):
    step: int
    side: Side


class Killed(BaseException):
    """The process has ended within an append: nothing of it may go on."""


class Steps:
    """`kill` ends the process; it is called once, from within the step."""

    def __init__(self, strike_at: Strike | None, kill: Callable[[], None]) -> None:
        self._strike_at = strike_at
        self._kill = kill
        self._logs: LogManager | None = None
        self._partitions: list[TopicPartition] = []
        self.names: list[str] = []
        self.struck = ""

    def arm(self, logs: LogManager, partitions: list[TopicPartition]) -> None:
        """Counts from now on what the logs of these partitions append."""
        self._logs, self._partitions = logs, partitions

    def disarm(self) -> None:
        self._logs = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Sees the appends of all streams of the engine, each of them as one of its own."""
        append = EngineStream.append

        def watched(
            stream: EngineStream, batch: RecordBatch, context: AppendContext = APPEND
        ) -> asyncio.Future[Any]:
            name = self._name_of(stream.stream_id, batch)
            if name is None:
                return append(stream, batch, context)
            number = len(self.names)
            self.names.append(name)
            self._passed(Strike(number, Side.BEFORE))
            durable = append(stream, batch, context)
            durable.add_done_callback(lambda _: self._passed(Strike(number, Side.AFTER)))
            return durable

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(EngineStream, "append", watched)
            patch.setattr(EngineStream, "try_reserve_run", lambda stream, sizes: None)
            yield

    def _passed(self, strike: Strike) -> None:
        if strike != self._strike_at or self.struck:
            return
        self.struck = f"{strike.side} {strike.step}: {self.names[strike.step]}"
        self._kill()
        if strike.side is Side.BEFORE:
            raise Killed(self.struck)

    def _name_of(self, stream_id: int, batch: RecordBatch) -> str | None:
        for partition in self._partitions if self._logs is not None else ():
            assert self._logs is not None
            opened = self._logs.open_log(partition)
            if opened is None:
                continue
            for role, one in opened.describe().storage_ids.items():
                if one == stream_id:
                    what = _content(partition, batch) if role == "data" else role
                    return f"{partition} {what}"
        return None


def _content(partition: TopicPartition, batch: RecordBatch) -> str:
    data = b"".join(bytes(part) for part in batch.parts)
    (found,) = scan(data)
    if partition.topic == TRANSACTION_STATE_TOPIC:
        states = []
        for _, _, key, value, _ in decode(found.view):
            transactional_id = decode_key(key)
            assert transactional_id is not None
            assert value is not None
            states.append(decode_value(transactional_id, value).state.name)
        return " ".join(states)
    return "marker" if found.header.is_control else "records"
