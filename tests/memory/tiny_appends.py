"""Records of 10 bytes, one in a batch, over 10,000 streams."""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import streamlog
from streamlog.model.batch import CreateStreamOptions, RecordBatch
from streamlog.wal.config import WalMode
from tests.memory.process import CONFIG, tell

STREAMS = 10_000
ROUNDS = 30


async def main(folder: str, wal: str) -> None:
    async with streamlog.open(
        f"local://{folder}",
        wal=cast(WalMode, wal),
        config=CONFIG,
    ) as engine:
        streams = await engine.streams.create_and_open_streams([CreateStreamOptions()] * STREAMS)
        for number in range(ROUNDS):
            payload = b"%010d" % number
            await asyncio.gather(
                *[stream.append(RecordBatch(1, number, (payload,))) for stream in streams]
            )
        assert all(stream.confirm_offset == ROUNDS for stream in streams)
        tails = engine.engine.tails
        facts = {"appends": STREAMS * ROUNDS, "tail_bytes": tails.committed_bytes}
    tell(facts)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
