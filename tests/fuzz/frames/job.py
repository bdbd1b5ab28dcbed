"""One run in a process of its own, which is set up as a node's is."""

from __future__ import annotations

import asyncio
import signal
import sys

from streamlog.runtime.allocator import collect_rarely, keep_large_blocks
from tests.fuzz.frames.run import Run, Summary


def job(frames: int, seed: int) -> Summary:
    """SIGINT and SIGTERM end it at its next rest."""
    keep_large_blocks()
    collect_rarely()

    def progress(line: str) -> None:
        print(f"seed {seed}: {line}", file=sys.stderr, flush=True)

    async def all_of_it() -> Summary:
        fuzzing = Run(frames, seed, progress)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, fuzzing.stop)
        return await fuzzing.run()

    return asyncio.run(all_of_it())
