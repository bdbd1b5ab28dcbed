"""Looks at a folder of data while no node runs on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from streamlog.cli.support.offline import Opened, Places, opened
from streamlog.engine.config import StreamEngineConfig
from streamlog.repair.findings import Report
from streamlog.repair.fsck.fsck import FsckOptions, fsck


def places_of(data: Path) -> Places:
    return Places(f"local://{data}/objects", f"rocksdb://{data}/meta", StreamEngineConfig())


def look(places: Places, work: Callable[[Opened], Awaitable[Report]]) -> Report:
    async def run() -> Report:
        async with opened(places) as at:
            return await work(at)

    return asyncio.run(run())


def deep_fsck(places: Places) -> Report:
    return look(
        places,
        lambda at: fsck(
            at.kv,
            at.store,
            clock=at.clock,
            random=at.random,
            offload=at.offload,
            options=FsckOptions(deep=True),
        ),
    )
