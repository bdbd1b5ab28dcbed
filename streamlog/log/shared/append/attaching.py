"""A shared log's side of a staged commit: batches are attached while the writer's turn is held."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streamlog.errors import Internal, StreamlogError
from streamlog.log.shared.append.writer import LogWriter
from streamlog.log.shared.parts import LogParts
from streamlog.model.batch import BatchAttributes

_BATCHES_AT_ONCE = 64
"""Batches accounted before other tasks get a turn: less than a millisecond."""


class SharedLogAttach:
    """Staged batches come into the log from its end `start` on; the writer's turn is held."""

    def __init__(self, parts: LogParts, writer: LogWriter) -> None:
        self._parts = parts
        self._data = parts.streams.data
        self._tail = parts.tail
        self._writer = writer
        self._is_given_up = False
        self._runs = 0
        self.start = self._tail.end_offset

    @property
    def has_attached(self) -> bool:
        """Whether batches have come into the log since `start`."""
        return self._tail.end_offset != self.start

    async def ready(self) -> None:
        """As Attaching.ready. The leader epoch of the batches to come is written down, too."""
        await self._parts.visibility.wait_durable(self._tail.end_offset)
        self._writer.begin_epoch()
        await self._parts.jobs.flush_until(self._tail.end_offset)

    def account(self, batches: Sequence[BatchAttributes]) -> None:
        """As Attaching.account."""
        first = batches[0].base_offset - self._writer.data_shift
        # The attributes leave out an object that compaction has replaced meanwhile: a gap.
        if not self._is_given_up and first <= self._tail.accounted_end:
            self._runs += 1
            self._writer.account_attached(batches)

    async def finish(self) -> None:
        """As Attaching.finish."""
        if self._is_given_up or not self.has_attached:
            return
        tail, shift = self._tail, self._writer.data_shift
        if tail.accounted_end < tail.end_offset:
            missing = await self._data.attributes(
                tail.accounted_end + shift, tail.end_offset + shift
            )
            for low in range(0, len(missing), _BATCHES_AT_ONCE):
                self._runs += 1
                self._writer.account_attached(missing[low : low + _BATCHES_AT_ONCE])
                await asyncio.sleep(0)
        if tail.accounted_end != tail.end_offset:
            raise Internal(
                f"staged batches up to {tail.end_offset} were attached, and only those up to "
                f"{tail.accounted_end} are accounted for"
            )
        self._writer.finish_attached(self._runs)

    def show(self) -> None:
        """As Attaching.show."""
        if self.has_attached and not self._is_given_up:
            self._parts.visibility.show_attached(self._tail.segments, self._tail.end_offset)

    def give_up(self, error: StreamlogError) -> None:
        """As Attaching.give_up."""
        if self.has_attached and not self._is_given_up:
            self._is_given_up = True
            self._parts.lifecycle.fail(error)
