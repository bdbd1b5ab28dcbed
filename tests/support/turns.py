"""How often other work of an event loop has its turn beside a call."""

from __future__ import annotations

import asyncio


class Turns:
    """Counts how often another task has its turn."""

    def __init__(self) -> None:
        self.count = 0

    async def _run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)

    async def __aenter__(self) -> Turns:
        self._task = asyncio.create_task(self._run())
        await asyncio.sleep(0)
        self.count = 0
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
