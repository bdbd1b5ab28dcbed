"""More appends than there is room for, while the store is away."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import cast

import streamlog
from streamlog.errors import OutcomeUnknown, Overloaded
from streamlog.model.batch import AppendContext, RecordBatch
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.disk.interface import Disk
from streamlog.runtime.disk.system_disk import SystemDisk
from streamlog.wal.config import WalMode
from streamlog.wiring import Components
from tests.memory.process import CONFIG, tell
from tests.support.slow_store import SlowStore

WRITERS = 64
TRIES = 4


async def main(folder: str, wal: str, payload_bytes: str) -> None:
    clock = SystemClock()
    store = SlowStore(MemoryObjectStore(clock))
    disk: Disk | None = SystemDisk(Path(folder)) if wal == "disk" else None
    stored = overloaded = unknown = 0
    async with streamlog.open(
        "memory://",
        meta="memory://",
        wal=cast(WalMode, wal),
        config=CONFIG,
        components=Components(store=store, disk=disk, clock=clock),
    ) as engine:
        stream = await engine.streams.create_and_open_stream()

        async def write(number: int) -> None:
            nonlocal stored, overloaded, unknown
            for attempt in range(TRIES):
                size = int(payload_bytes)
                payload = bytes([number]) * size
                context = AppendContext(deadline=clock.monotonic() + 0.05)
                batches = [RecordBatch(1, attempt, (payload,)) for _ in range(max(1, 4096 // size))]
                results = await asyncio.gather(
                    *[stream.append(batch, context) for batch in batches], return_exceptions=True
                )
                for result in results:
                    if isinstance(result, Overloaded):
                        overloaded += 1
                    elif isinstance(result, OutcomeUnknown):
                        unknown += 1
                    elif isinstance(result, BaseException):
                        raise result
                    else:
                        stored += 1

        store.go_away()
        await asyncio.gather(*[write(number) for number in range(WRITERS)])
        store.come_back()
        await engine.drain()
        assert overloaded
        assert stream.confirm_offset == stored + unknown
        facts = {"stored": stored, "overloaded": overloaded, "unknown": unknown}
    tell(facts)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
