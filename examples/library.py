"""An engine inside this process, without a server."""

import asyncio

import streamlog
from streamlog.model import single


async def main() -> None:
    async with streamlog.open("local:///tmp/streamlog-example") as engine:
        stream = await engine.streams.create_and_open_stream()
        appended = await stream.append(single(b"hello"))
        fetched = await stream.fetch(0, stream.confirm_offset, max_bytes_hint=1 << 20)
        print(appended.base_offset, bytes(fetched.batches[0].parts[0]))


asyncio.run(main())
