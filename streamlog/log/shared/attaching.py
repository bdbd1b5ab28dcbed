"""A shared log's side of a staged commit: its turn is held, what came is noted, then shown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from streamlog.errors import Internal, StreamlogError
from streamlog.log.shared.writer import LogWriter
from streamlog.model.batch import BatchAttributes
from streamlog.model.stream import Stream

_BATCHES_AT_ONCE = 64
"""Noted before others get a turn: less than a millisecond."""


class SharedLogAttach:
    """Staged batches come into the log from its end `start` on; the writer's turn is held."""

    def __init__(
        self,
        data: Stream,
        writer: LogWriter,
        end: Callable[[], int],
        flushed: Callable[[], Awaitable[None]],
        shown: Callable[[int], None],
        failed: Callable[[StreamlogError], None],
    ) -> None:
        self._data = data
        self._writer = writer
        self._end = end
        self._flushed = flushed
        self._shown = shown
        self._failed = failed
        self._is_given_up = False
        self._runs = 0
        self.start = end()

    @property
    def has_come(self) -> bool:
        """There is something to account for, or there was."""
        return self._end() != self.start

    async def ready(self) -> None:
        """As Attaching.ready."""
        await self._flushed()

    def account(self, batches: Sequence[BatchAttributes]) -> None:
        """As Attaching.account."""
        first = batches[0].base_offset - self._writer.data_shift
        # An object that compaction has replaced meanwhile is not told of, and leaves a gap.
        if not self._is_given_up and first <= self._writer.accounted_end:
            self._runs += 1
            self._writer.account_attached(batches)

    async def finish(self) -> None:
        """As Attaching.finish."""
        if self._is_given_up or not self.has_come:
            return
        accounted, shift = self._writer.accounted_end, self._writer.data_shift
        if accounted < self._end():
            found = await self._data.attributes(accounted + shift, self._end() + shift)
            for low in range(0, len(found), _BATCHES_AT_ONCE):
                self._runs += 1
                self._writer.account_attached(found[low : low + _BATCHES_AT_ONCE])
                await asyncio.sleep(0)
            accounted = self._writer.accounted_end
        if accounted != self._end():
            raise Internal(f"staged batches up to {self._end()} came, and {accounted} is known of")
        self._writer.finish_attached(self._runs)

    def show(self) -> None:
        """As Attaching.show."""
        if self.has_come and not self._is_given_up:
            self._shown(self._end())

    def give_up(self, error: StreamlogError) -> None:
        """As Attaching.give_up."""
        if self.has_come and not self._is_given_up:
            self._is_given_up = True
            self._failed(error)
