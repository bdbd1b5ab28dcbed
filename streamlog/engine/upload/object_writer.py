"""Builds the object of a batch: entries sorted by stream, under an id of this tenure."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Protocol

from streamlog.engine.config import ObjectConfig
from streamlog.format.entry import StreamEntry
from streamlog.format.object.build import BuiltObject, build_object
from streamlog.format.object.footer import ObjectIdentity
from streamlog.metadata.interface import IdSource, NewObject, SessionInfo
from streamlog.runtime.buffers import Buffer, parts_size
from streamlog.runtime.offload import Lane, Offload

BUILD_INLINE_ENTRIES = 64
BUILD_INLINE_BYTES = 64 * 1024
"""Smaller objects are built on the loop: 10 to 300 µs (1 ms with zstd), where a thread costs 50 to
250 µs until it answers."""


class WrittenObject:
    """A built object; `parts` may be dropped once it is in the store."""

    __slots__ = ("new_object", "object_id", "parts", "size_bytes")

    def __init__(
        self, object_id: int, parts: Sequence[Buffer], size_bytes: int, new_object: NewObject
    ) -> None:
        self.object_id = object_id
        self.parts = parts
        self.size_bytes = size_bytes
        self.new_object = new_object


class WriterMetadata(SessionInfo, IdSource, Protocol):
    """An object needs an id, and names its cluster and tenure."""


class ObjectWriter:
    """Builds objects, and owns their ids until they are committed."""

    def __init__(self, metadata: WriterMetadata, offload: Offload, config: ObjectConfig) -> None:
        self._metadata = metadata
        self._offload = offload
        self._config = config

    @asynccontextmanager
    async def writing(
        self, entries: list[StreamEntry], *, is_staged: bool = False, is_patient: bool = False
    ) -> AsyncIterator[WrittenObject]:
        """Builds an object of the entries, and owns its id for the block.

        The caller PUTs and commits the object inside the block. At its end an id that is in no
        commit is given up. `entries` hold each stream's batches in order; `is_staged`: from offset
        0 on; `is_patient`: waits for an id without end. Errors: as Metadata.owned_object_id.
        """
        # Stable: within a stream the order of appends, which is offset order, stays.
        entries.sort(key=attrgetter("stream_id"))
        async with self._metadata.owned_object_id(is_patient=is_patient) as (object_id,):
            tenure = self._metadata.tenure
            identity = ObjectIdentity(
                self._metadata.cluster_id, tenure.node_id, tenure.node_epoch, object_id
            )
            if _is_small(entries):
                built = self._build(identity, entries, is_staged)
            else:
                built = await self._offload.run(Lane.CPU, self._build, identity, entries, is_staged)
            new = NewObject(built.row, built.ranges)
            yield WrittenObject(object_id, built.parts, built.size_bytes, new)

    def _build(
        self, identity: ObjectIdentity, entries: Sequence[StreamEntry], is_staged: bool
    ) -> BuiltObject:
        return build_object(
            identity,
            entries,
            compression=self._config.compression,
            block_target_bytes=self._config.block_target_bytes,
            is_staged=is_staged,
        )


def _is_small(entries: Sequence[StreamEntry]) -> bool:
    return (
        len(entries) <= BUILD_INLINE_ENTRIES
        and sum(parts_size(entry.parts) for entry in entries) <= BUILD_INLINE_BYTES
    )
