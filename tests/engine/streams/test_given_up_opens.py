"""A cancelled open leaves nothing open: the next one can take the folders."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, TypeVarTuple

import pytest

import streamlog
from streamlog.runtime.offload import Lane, ThreadOffload
from streamlog.wiring import Components

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Counted(ThreadOffload):
    """Cancels `opening` when it waits for call number `call_number`."""

    def __init__(self, call_number: int) -> None:
        super().__init__()
        self.call_number = call_number
        self.calls = 0
        self.opening: asyncio.Task[None] | None = None

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        self.calls += 1
        if self.calls == self.call_number:
            assert self.opening is not None
            asyncio.get_running_loop().call_soon(self.opening.cancel)
        return await super().run(lane, fn, *args)


async def opened(folder: Path, offload: ThreadOffload) -> None:
    async with streamlog.open(f"local://{folder}", components=Components(offload=offload)):
        pass


def test_an_open_cancelled_at_one_of_its_calls_gives_its_folders_back(tmp_path: Path) -> None:
    """The locks stayed with the process, and each later open of it was refused. They are taken by
    the first of the calls."""

    async def main() -> None:
        for call_number in range(1, 9):
            offload = Counted(call_number)
            offload.opening = asyncio.create_task(opened(tmp_path, offload))
            with pytest.raises(asyncio.CancelledError):
                await offload.opening
            await opened(tmp_path, offload)
            await offload.close()

    asyncio.run(main())
