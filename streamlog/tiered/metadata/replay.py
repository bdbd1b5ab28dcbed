"""Replays the records of one partition of `__remote_log_metadata`. Pure.

A node that serves and a command that reads a stopped node's data come to the same state by it:

    RemoteMetadataReplay   takes batches in the order of their offsets
    RemoteMetadataAtRest   answers look-ups from what was replayed, as the manager does
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from streamlog.codec.batch import scan
from streamlog.codec.records import iterate
from streamlog.errors import Corrupt, CorruptMessage, Invalid, InvalidRecord, UnsupportedVersion
from streamlog.runtime.buffers import Buffer
from streamlog.tiered.api import RemoteLogSegmentMetadata, TopicIdPartition
from streamlog.tiered.metadata.records import decode
from streamlog.tiered.metadata.state import RemoteMetadataState

log = logging.getLogger(__name__)


class RemoteMetadataReplay:
    """`name`: of the metadata partition, for errors."""

    def __init__(self, name: str) -> None:
        self.state = RemoteMetadataState()
        self._name = name

    def records(self, data: Buffer, start: int) -> Iterator[tuple[int, Buffer | None]]:
        """Offsets and values in whole batches, from `start` on. Errors: Corrupt."""
        try:
            for header, view in scan(data):
                if not header.is_control:
                    for offset, _, _, value, _ in iterate(view):
                        if offset >= start:
                            yield offset, value
        except (CorruptMessage, InvalidRecord) as error:
            raise Corrupt(
                f"{self._name}: a batch behind offset {start} cannot be read: {error}"
            ) from error

    def apply(self, offset: int, value: Buffer | None) -> Invalid | None:
        """Why the record changed nothing, if it did not. Errors: Corrupt, UnsupportedVersion."""
        try:
            record = decode(value)
        except (Corrupt, UnsupportedVersion) as error:
            raise type(error)(f"{self._name}, offset {offset}: {error}", **error.fields) from error
        try:
            self.state.apply(record)
        except Invalid as refusal:
            log.warning("%s: the record at %d changes nothing: %s", self._name, offset, refusal)
            return refusal
        return None


class RemoteMetadataAtRest:
    """Of a state that nobody changes any more."""

    def __init__(self, state: RemoteMetadataState) -> None:
        self._state = state

    async def list_remote_log_segments(
        self, partition: TopicIdPartition
    ) -> Sequence[RemoteLogSegmentMetadata]:
        """As RemoteLogMetadataManager's."""
        return self._state.cache(partition).list()

    async def remote_log_segment_metadata(
        self, partition: TopicIdPartition, epoch: int, offset: int
    ) -> RemoteLogSegmentMetadata | None:
        """As RemoteLogMetadataManager's."""
        return self._state.cache(partition).segment(epoch, offset)
