"""Streams that this process holds of a partition whose meta stream another one has.

A leader that dies while it takes a dead node's partition has taken the meta stream, and left the
others. The dead node's next process takes what is left, and nobody else can open it. The meta
stream would name the others, and is read by its holder alone; so they are found by their tags, in
one listing for all partitions that are asked for once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

from streamlog.log.stream_tags import belongs_to_log
from streamlog.model.batch import StreamDescription, StreamState
from streamlog.model.stream import StreamClient

PAGE = 1000


class SplitPartitions:
    def __init__(self, streams: StreamClient) -> None:
        self._streams = streams
        self._asked: set[int] | None = None
        """Meta streams that were asked for since the last listing; None: there was none."""
        self._found: dict[int, list[int]] = {}
        """By meta stream: streams that are open with another holder."""
        self._listing = asyncio.Lock()

    async def streams_beside(self, meta_stream_id: int) -> list[int]:
        """Open streams of the partition with another holder than its meta stream; perhaps not ours.

        Asked for the same partition again, it looks anew.
        """
        async with self._listing:
            if self._asked is None or meta_stream_id in self._asked:
                self._found = await self._list()
                self._asked = set()
            self._asked.add(meta_stream_id)
            return self._found.pop(meta_stream_id, [])

    async def _list(self) -> dict[int, list[int]]:
        partitions: defaultdict[tuple[str, str], list[StreamDescription]] = defaultdict(list)
        after = 0
        while page := await self._streams.list_streams(after=after, limit=PAGE):
            for stream in page:
                if belongs_to_log(stream.tags):
                    tags = stream.tags
                    partitions[tags["attempt"], tags["partition"]].append(stream)
            after = page[-1].stream_id
            await asyncio.sleep(0)
        found: dict[int, list[int]] = {}
        for streams in partitions.values():
            for meta in streams:
                if meta.tags["role"] == "meta":
                    found[meta.stream_id] = [
                        one.stream_id for one in streams if _is_beside(one, meta)
                    ]
        return {meta: beside for meta, beside in found.items() if beside}


def _is_beside(stream: StreamDescription, meta: StreamDescription) -> bool:
    has_another = meta.state is not StreamState.OPEN or stream.holder != meta.holder
    return stream.state is StreamState.OPEN and has_another
