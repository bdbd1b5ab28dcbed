"""The three streams that hold what cleanings have left of a log's segments.

They are made by the log's first cleaning, because most logs are never cleaned:

1. The meta stream says that they are about to be created.
2. They are created, with tags that name the partition.
3. The meta stream names them.

A crash between 2 and 3 leaves streams that no record names. The next open, and the next cleaning,
find them by their tags, and delete them: a search through all streams, which only this crash costs.
No others are made before they are gone, because nobody looks for them afterwards.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from streamlog.errors import Fenced, StreamlogError, StreamNotFound, Unavailable
from streamlog.log.api.log_factory import TopicIdentity
from streamlog.log.shared.meta.codec import BEING_CREATED, CleanedStreams, MetaRecord
from streamlog.log.shared.state.recovery import OpenStreams
from streamlog.log.stream_tags import CLEANED_ROLES, is_cleaned_of, tags_of
from streamlog.model.batch import CreateStreamOptions
from streamlog.model.stream import Stream

log = logging.getLogger(__name__)

PAGE = 1000


class CleanedSet(NamedTuple):
    """Streams of cleaned segments: their data, and the entries of their indexes."""

    data: Stream
    time: Stream
    txn: Stream


class CleanedStreamSet:
    """Of one log. `write_meta` writes to its meta stream, and ends the log where that fails."""

    def __init__(
        self, streams: OpenStreams, write_meta: Callable[[MetaRecord], Awaitable[None]]
    ) -> None:
        self._streams = streams
        self._write_meta = write_meta
        self._creating = asyncio.Lock()

    async def opened(self) -> CleanedSet:
        """The streams, created at the first call. A cancelled call may leave some for `sweep`.

        Errors: of creating, listing and deleting streams: the next call looks for what this one may
        have left. Of writing to the meta stream: the log has ended.
        """
        state, by_id = self._streams.meta.state, self._streams.by_id
        async with self._creating:
            if state.cleaned is None or not state.cleaned.ids:
                await self._create()
        cleaned = state.cleaned
        assert cleaned is not None
        return CleanedSet(*(by_id[stream_id] for stream_id in cleaned.ids))

    async def settled(self) -> None:
        """Returns when none are being created: who ends the log closes them with its others. One
        that stays open here keeps other nodes from opening the log, or from cleaning it."""
        async with self._creating:
            return

    async def _create(self) -> None:
        meta = self._streams.meta
        if meta.state.cleaned is None:
            await self._write_meta(BEING_CREATED)
        else:
            await self.sweep()
        described, own = meta.description, await self._own_tags()
        identity = TopicIdentity(described.topic, described.topic_id, own.get("attempt", ""))
        made = await self._streams.client.create_and_open_streams(
            [
                CreateStreamOptions(tags=tags_of(identity, described.partition, role))
                for role in CLEANED_ROLES
            ]
        )
        try:
            await self._write_meta(CleanedStreams(*(stream.stream_id for stream in made)))
        except Fenced:
            # The next leader may have looked for them already.
            for stream in made:
                await self._delete(stream.stream_id)
            raise
        except StreamlogError:
            # The meta stream may name them. Whoever leads next opens or deletes them, which needs
            # that nobody holds them.
            for stream in made:
                await self._let_go(stream)
            raise
        self._streams.by_id.update((stream.stream_id, stream) for stream in made)

    async def _own_tags(self) -> dict[str, str]:
        stream_id = self._streams.meta.stream.stream_id
        return (await self._streams.client.describe_stream(stream_id)).tags

    @property
    def has_left_some(self) -> bool:
        """Whether a crash may have left streams that no record names."""
        return self._streams.meta.state.cleaned == BEING_CREATED

    async def sweep(self) -> None:
        """Deletes streams that a dead cleaning has left.

        Errors: those of the stream client; Unavailable (another node has one open).
        """
        own = await self._own_tags()
        found: list[int] = []
        after = 0
        while True:
            page = await self._streams.client.list_streams(after=after, limit=PAGE)
            found += [one.stream_id for one in page if is_cleaned_of(one.tags, own)]
            if len(page) < PAGE:
                break
            after = page[-1].stream_id
        kept = [stream_id for stream_id in found if not await self._delete(stream_id)]
        if kept:
            raise Unavailable(
                f"streams {kept} of a dead cleaning cannot be deleted yet: they are open on "
                "another node, or the metadata is away; the next cleaning tries again"
            )

    async def _delete(self, stream_id: int) -> bool:
        """Whether the stream is gone."""
        try:
            await self._streams.client.delete_stream(stream_id)
        except StreamNotFound:
            return True
        except StreamlogError as error:
            log.warning("stream %d of a cleaning is not deleted: %s", stream_id, error)
            return False
        return True

    @staticmethod
    async def _let_go(stream: Stream) -> None:
        try:
            await stream.close()
        except StreamlogError as error:
            log.warning("stream %d of a cleaning stays open: %s", stream.stream_id, error)
