"""What a consumer reads: its partitions, and which of them a fetch has to look at.

    changed ──take──▶ taken ──watch──▶ subscribed to its log ──the log changes──▶ changed
       ▲                ├── it has more to read, or failed ──▶ changed
       └────────────────┴── another fetch of the consumer begins

So a fetch costs what has changed, however many partitions its consumer has: the others are neither
read nor waited for by anything but a callback in their log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from streamlog.errors import Conflict
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.model.partition import TopicPartition


class Superseded(Conflict):
    """Another fetch of the same consumer has begun."""


class LogOffsets(NamedTuple):
    """What a reader sees of a log beside its records; -1: not known."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


UNKNOWN_OFFSETS = LogOffsets(-1, -1, -1)


def offsets_of(log: AbstractLog) -> LogOffsets:
    return LogOffsets(log.high_watermark, log.last_stable_offset, log.log_start_offset)


class ReadPosition:
    """One partition that a consumer reads, and its log's subscriber: a change marks it changed.

    `key.topic` empty: the topic with `topic_id`, whose name the first fetch fills in. `topic_id`
    empty: any topic of that name.
    """

    __slots__ = (
        "_consumer",
        "_log",
        "current_leader_epoch",
        "key",
        "last_fetched_epoch",
        "max_bytes",
        "offset",
        "topic_id",
    )

    def __init__(
        self,
        consumer: ConsumerPositions,
        key: TopicPartition,
        topic_id: str,
        offset: int,
        max_bytes: int,
        current_leader_epoch: int | None = None,
        last_fetched_epoch: int | None = None,
    ) -> None:
        self._consumer = consumer
        self._log: AbstractLog | None = None
        self.key = key
        self.topic_id = topic_id
        self.offset = offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        consumer.add(self)

    def __call__(self) -> None:
        """The log has changed, and has forgotten its subscriber."""
        self._log = None
        self._consumer.add(self)

    def subscribe(self, log: AbstractLog) -> None:
        if self._log is not log:
            self.unsubscribe()
            self._log = log
        log.subscribe(self)

    def unsubscribe(self) -> None:
        if self._log is not None:
            self._log.unsubscribe(self)
            self._log = None


class ConsumerPositions:
    """The partitions of one consumer that have changed, oldest change first.

    One fetch at a time has them: a later one takes over what the one before had taken, and that one
    ends with Superseded. A fetch that is cut off leaves what it had taken to the next one.
    """

    __slots__ = ("_changed", "_taken", "_turn", "_waiter", "is_closed")

    def __init__(self) -> None:
        self._changed: dict[ReadPosition, None] = {}
        self._taken: dict[ReadPosition, None] = {}
        self._turn = 0
        self._waiter: asyncio.Future[None] | None = None
        self.is_closed = False

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    def add(self, position: ReadPosition) -> None:
        """The next look of a fetch is at this partition, too; wakes a fetch that waits."""
        if self.is_closed:
            return
        self._changed[position] = None
        self._wake()

    def remove(self, position: ReadPosition) -> None:
        """The consumer does not read this partition any more."""
        self._changed.pop(position, None)
        self._taken.pop(position, None)
        position.unsubscribe()

    def begin(self) -> int:
        """The turn of a new fetch. The one before, if it still waits, ends with Superseded."""
        self._turn += 1
        if self._taken:
            self._changed = {**self._taken, **self._changed}
            self._taken = {}
        self._wake()
        return self._turn

    def take(self, turn: int, most: int) -> list[ReadPosition]:
        """Partitions that have changed since the last look, `most` at most. Errors: Superseded."""
        self._check(turn)
        taken = list(islice(self._changed, most))
        for position in taken:
            del self._changed[position]
            self._taken[position] = None
        return taken

    def watch(
        self, turn: int, position: ReadPosition, log: AbstractLog, offsets: LogOffsets
    ) -> None:
        """Marks the partition as changed when its log has other offsets than these, also if it has
        them by now. Errors: Superseded."""
        self._check(turn)
        if self.is_closed:
            return
        if offsets_of(log) == offsets:
            position.subscribe(log)
        else:
            self.add(position)

    def finish(
        self, turn: int, unserved: Iterable[ReadPosition], served: Iterable[ReadPosition]
    ) -> None:
        """The fetch has been answered. The next one looks at these partitions, whatever becomes of
        their logs: first at those that had no room in the answer, last at those that filled it, or
        failed: one that has to wait for the store would hold up the others.

        Errors: Superseded.
        """
        self._check(turn)
        self._taken = {}
        if self.is_closed:
            return
        last = dict.fromkeys(served)
        changed = {**dict.fromkeys(unserved), **self._changed}
        self._changed = {position: None for position in changed if position not in last} | last

    def waiter(self, turn: int) -> asyncio.Future[None]:
        """Done at the next change, when another fetch begins, or at the end of the consumer.

        Call it when nothing has changed. Errors: Superseded.
        """
        self._check(turn)
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    def close(self, positions: Iterable[ReadPosition]) -> None:
        """Ends the consumer, whose partitions are `positions`: no log knows it after this. A fetch
        that waits is answered with what it has."""
        self.is_closed = True
        self._changed = {}
        self._taken = {}
        for position in positions:
            position.unsubscribe()
        self._wake()

    def _check(self, turn: int) -> None:
        if turn != self._turn:
            raise Superseded("another fetch of the same consumer has begun; go on with its answer")

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
