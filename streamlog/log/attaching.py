"""A shared log's side of a staged commit: its turn is held, what came is noted, then shown."""

from __future__ import annotations

from collections.abc import Callable

from streamlog.errors import StreamlogError
from streamlog.log.writer import LogWriter
from streamlog.model.stream import Stream


class SharedLogAttach:
    """Staged batches come into the log from its end `start` on; the writer's turn is held."""

    def __init__(
        self,
        data: Stream,
        writer: LogWriter,
        end: Callable[[], int],
        shown: Callable[[int], None],
        failed: Callable[[StreamlogError], None],
    ) -> None:
        self._data = data
        self._writer = writer
        self._end = end
        self._shown = shown
        self._failed = failed
        self._is_given_up = False
        self.start = end()

    @property
    def has_come(self) -> bool:
        """There is something to account for, or there was."""
        return self._end() != self.start

    async def account(self) -> None:
        """As Attaching.account."""
        end = self._end()
        if end == self.start:
            return
        shift = self._writer.data_shift
        found = await self._data.attributes(self.start + shift, end + shift)
        await self._writer.account_attached(found)

    def show(self) -> None:
        """As Attaching.show."""
        if self.has_come and not self._is_given_up:
            self._shown(self._end())

    def give_up(self, error: StreamlogError) -> None:
        """As Attaching.give_up."""
        self._is_given_up = True
        self._failed(error)
