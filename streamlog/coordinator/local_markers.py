"""Writes markers into the logs that this node leads."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

from streamlog.coordinator.markers import Outcome
from streamlog.errors import StreamlogError
from streamlog.log.api.abstract_log import LogAppendInfo, TransactionMarker
from streamlog.log.manager import LogManager
from streamlog.model.partition import TopicPartition


class LocalMarkers:
    """As MarkerSender."""

    def __init__(self, logs: LogManager) -> None:
        self._logs = logs

    async def send(
        self, partition: TopicPartition, markers: Sequence[TransactionMarker]
    ) -> Sequence[Outcome]:
        """All are sequenced first, so that they become durable together."""
        opened = await self._logs.log(partition)
        acks: list[Awaitable[LogAppendInfo] | StreamlogError] = []
        for marker in markers:
            try:
                acks.append(await opened.append_marker(marker))
            except StreamlogError as error:
                acks.append(error)
        return [await _outcome(ack) for ack in acks]


async def _outcome(ack: Awaitable[LogAppendInfo] | StreamlogError) -> Outcome:
    if isinstance(ack, StreamlogError):
        return ack
    try:
        await ack
    except StreamlogError as error:
        return error
    return None
