"""Writes markers into the logs that this node leads.

A log whose store is away keeps a marker that it has sequenced for as long as it takes. Whoever asks
again waits for that one: a marker for each try would fill memory while the store is away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streamlog.coordinator.markers import Outcome
from streamlog.errors import StreamlogError
from streamlog.log.api.abstract_log import AbstractLog, LogAppendInfo, TransactionMarker
from streamlog.log.manager import LogManager
from streamlog.model.partition import TopicPartition

Ack = asyncio.Future[LogAppendInfo]


class LocalMarkers:
    """As MarkerSender."""

    def __init__(self, logs: LogManager) -> None:
        self._logs = logs
        self._sequenced: dict[tuple[AbstractLog, TransactionMarker], Ack] = {}
        """Those that are not durable yet, until the log takes or loses them."""

    async def send(
        self, partition: TopicPartition, markers: Sequence[TransactionMarker]
    ) -> Sequence[Outcome]:
        """All are sequenced first, so that they become durable together."""
        opened = await self._logs.log(partition)
        acks: list[Ack | StreamlogError] = []
        for marker in markers:
            try:
                acks.append(await self._ack(opened, marker))
            except StreamlogError as error:
                acks.append(error)
        return [await _outcome(ack) for ack in acks]

    async def _ack(self, opened: AbstractLog, marker: TransactionMarker) -> Ack:
        """Errors: those of AbstractLog.append_marker."""
        key = opened, marker
        known = self._sequenced.get(key)
        if known is not None:
            return known
        ack = asyncio.ensure_future(await opened.append_marker(marker))

        def ended(_: Ack) -> None:
            self._sequenced.pop(key, None)
            if not ack.cancelled():
                ack.exception()  # Its caller may have gone.

        self._sequenced[key] = ack
        ack.add_done_callback(ended)
        return ack


async def _outcome(ack: Ack | StreamlogError) -> Outcome:
    if isinstance(ack, StreamlogError):
        return ack
    try:
        await asyncio.shield(ack)
    except StreamlogError as error:
        return error
    return None
