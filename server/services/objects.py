"""Descriptions of the objects in the store, and of the blocks in one of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from streamlog.errors import Corrupt, Invalid
from streamlog.format.object.block import BlockCompression
from streamlog.format.object.footer import TRAILER_BYTES, decode_footer, decode_trailer
from streamlog.format.object.header import HEADER_BYTES, decode_header
from streamlog.format.object.index import decode_index
from streamlog.objectstore.interface import ObjectInfo, ObjectStore
from streamlog.objectstore.keys import DATA_PREFIX, check_key, object_id
from streamlog.server.context import CLUSTER, Authorize, Operation, RequestContext

INDEX_BYTES_MAX = 64 * 1024 * 1024
_COMPRESSION_AT = 28


@dataclass(frozen=True, slots=True)
class ObjectSummary:
    info: ObjectInfo
    object_id: int
    is_live: bool


@dataclass(frozen=True, slots=True)
class BlockDescription:
    """Offsets start to end of one stream; position and length are bytes in the object."""

    stream_id: int
    epoch: int
    start: int
    end: int
    position: int
    length: int
    compression: str


@dataclass(frozen=True, slots=True)
class ObjectDescription:
    summary: ObjectSummary
    format_version: int
    cluster_id: str
    tenure: str
    blocks: list[BlockDescription]


class ObjectService:
    """`is_live` tells whether the fold knows an object by its id."""

    def __init__(
        self,
        store: ObjectStore,
        is_live: Callable[[int], Awaitable[bool]],
        *,
        authorize: Authorize,
    ) -> None:
        self._store = store
        self._is_live = is_live
        self._authorize = authorize

    async def list(
        self, context: RequestContext, token: str | None, limit: int
    ) -> tuple[list[ObjectSummary], str | None]:
        """Data objects by key, and the token of the next page."""
        self._authorize(context, Operation.DESCRIBE, CLUSTER)
        page = await self._store.list(DATA_PREFIX, token=token, limit=limit)
        return [await self._summary(info) for info in page.objects], page.next_token

    async def describe(self, context: RequestContext, key: str) -> ObjectDescription:
        """Errors: ObjectNotFound, Corrupt (with the byte range), UnsupportedVersion, Invalid."""
        self._authorize(context, Operation.DESCRIBE, CLUSTER)
        object_id(check_key(key))
        info = await self._store.head(key)
        size = info.size_bytes
        if size < HEADER_BYTES + TRAILER_BYTES:
            raise Corrupt(f"{key} is too short for an object", object_key=key, start=0, end=size)
        version = decode_header(await self._store.get(key, 0, HEADER_BYTES), object_key=key)
        end = await self._store.get(key, size - TRAILER_BYTES, TRAILER_BYTES)
        trailer = decode_trailer(end, size_bytes=size, object_key=key)
        if size - trailer.index_position > INDEX_BYTES_MAX:
            raise Invalid(f"the index of {key} is larger than this call shows")
        tail = await self._store.get(key, trailer.footer_position)
        footer = decode_footer(tail, size_bytes=size, object_key=key)
        index_bytes = await self._store.get(key, trailer.index_position, trailer.index_length)
        index = decode_index(index_bytes, footer.row, object_key=key)
        epochs = sorted((row.stream_id, row.start, row.end, row.epoch) for row in footer.ranges)
        blocks = []
        for row in index.blocks():
            head = await self._store.get(key, row.position + _COMPRESSION_AT, 1)
            epoch = next(
                (e for s, low, high, e in epochs if s == row.stream_id and low <= row.start < high),
                0,
            )
            blocks.append(
                BlockDescription(
                    row.stream_id,
                    epoch,
                    row.start,
                    row.end,
                    row.position,
                    row.length,
                    BlockCompression(head[0]).name.lower(),
                )
            )
        identity = footer.identity
        return ObjectDescription(
            await self._summary(info),
            version,
            identity.cluster_id,
            f"{identity.node_id}.{identity.node_epoch}",
            blocks,
        )

    async def _summary(self, info: ObjectInfo) -> ObjectSummary:
        number = object_id(info.key)
        return ObjectSummary(info, number, await self._is_live(number))
