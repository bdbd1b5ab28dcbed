"""Looks at a folder of data while no node runs on it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from streamlog.cli.support.offline import DataLocations, OfflineData, open_offline
from streamlog.engine.config import StreamEngineConfig
from streamlog.repair.findings import RepairReport
from streamlog.repair.fsck.fsck import FsckOptions, fsck


def places_of(data: Path) -> DataLocations:
    return DataLocations(f"local://{data}/objects", f"rocksdb://{data}/meta", StreamEngineConfig())


def look(
    places: DataLocations, work: Callable[[OfflineData], Awaitable[RepairReport]]
) -> RepairReport:
    async def run() -> RepairReport:
        async with open_offline(places) as at:
            return await work(at)

    return asyncio.run(run())


def deep_fsck(places: DataLocations) -> RepairReport:
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
