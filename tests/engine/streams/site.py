"""An engine on a folder, with either WAL mode, that can be opened again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import streamlog
from streamlog.engine.config import StreamEngineConfig, UploadConfig
from streamlog.metadata.interface import CommitEntry, Committed
from streamlog.wal.config import WalMode
from streamlog.wiring import Components, OpenEngine

QUICK = StreamEngineConfig(upload=UploadConfig(upload_interval_ms=5))
MODES = pytest.mark.parametrize("wal", ["disk", "object"])


class Site:
    """Where an engine's data lies; it can be opened again."""

    def __init__(self, folder: Path, wal: WalMode, config: StreamEngineConfig = QUICK) -> None:
        self._folder = folder
        self._wal: WalMode = wal
        self._config = config

    @asynccontextmanager
    async def open(self, *, crash: bool = False, **parts: Any) -> AsyncIterator[OpenEngine]:
        async with streamlog.open(
            f"local://{self._folder}/store",
            meta=f"rocksdb://{self._folder}/meta",
            wal=self._wal,
            wal_dir=self._folder / "wal",
            config=self._config,
            components=Components(**parts),
        ) as engine:
            yield engine
            if crash:
                await engine.kill()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 120))


def answer_lost(engine: OpenEngine, patch: pytest.MonkeyPatch) -> asyncio.Event:
    """Nobody hears of an attach; set when one is recorded."""
    recorded, commit = asyncio.Event(), engine.metadata.commit

    async def lost(entry: CommitEntry) -> Committed:
        committed = await commit(entry)
        if not entry.attaches:
            return committed
        recorded.set()
        return await asyncio.Future()

    patch.setattr(engine.metadata, "commit", lost)
    return recorded
