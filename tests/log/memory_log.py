"""A shared log over streams in memory, and looks into them."""

from __future__ import annotations

import asyncio

from streamlog.log.api.config import LogConfig
from streamlog.model.batch import OpenStreamOptions
from streamlog.testing.memory_streams import MemoryMedium
from tests.log.harness import shared_log


def run(test, configs=None, budget_bytes=1 << 20, **config):
    medium = MemoryMedium()

    async def client_of(clock):
        return medium.client(clock, budget_bytes=budget_bytes)

    async def body():
        async with shared_log(client_of, configs, LogConfig(**config)) as t:
            t.medium = medium  # type: ignore[attr-defined]
            await test(t)

    asyncio.run(body())


async def turns(count: int = 20) -> None:
    """Lets everything run that needs no release."""
    for _ in range(count):
        await asyncio.sleep(0)


def row(t, role):
    return t.medium.rows[getattr(t.log.stream_ids, role)]


def spied(t, role):
    """Counts fetches and attribute reads of one stream, by wrapping the open handle."""
    calls = {"fetched": 0, "attributes": 0}
    client = t.client
    original = client.open_stream
    wanted = getattr(t.log.stream_ids, role)

    async def open_stream(stream_id, options=OpenStreamOptions()):  # noqa: B008
        stream = await original(stream_id, options)
        if stream_id == wanted:
            fetch, attributes = stream.fetch, stream.attributes

            async def counted_fetch(*args, **kwargs):
                calls["fetched"] += 1
                return await fetch(*args, **kwargs)

            async def counted_attributes(start, end):
                batches = await attributes(start, end)
                calls["attributes"] += len(batches)
                return batches

            stream.fetch, stream.attributes = counted_fetch, counted_attributes
        return stream

    client.open_stream = open_stream
    return calls
