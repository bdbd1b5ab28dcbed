"""Changes of the folder's identity: one after another, also when those who asked have gone."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from streamlog.format.rows import Tenure
from streamlog.runtime.disk.system_disk import SystemDisk, SystemFile
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SystemRandom
from streamlog.wal.identity import load_identity
from streamlog.wal.log import WriteAheadLog
from tests.wal.wal_helpers import CLUSTER, SMALL, group

WAIT_S = 20.0


class HeldDisk(SystemDisk):
    """Once `hold` is set, making an identity waits in its thread until `go_on`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.hold = threading.Event()
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Event()

    def create(self, name: str, size: int) -> SystemFile:
        file = super().create(name, size)
        if self.hold.is_set() and name.startswith("wal-identity"):
            self.entered.release()
            assert self.go_on.wait(WAIT_S)
        return file


@pytest.mark.parametrize("ending", ["another change", "close"])
def test_a_cancelled_change_of_the_identity_ends_before_the_next_one(
    tmp_path: Path, ending: str
) -> None:
    """Two threads on one temporary file would leave an identity without content."""

    async def scenario() -> None:
        disk, offload = HeldDisk(tmp_path), ThreadOffload()
        wal = await WriteAheadLog.open(disk, offload, SMALL, CollectorRegistry(), SystemRandom())
        await wal.begin(Tenure(1, 1), cluster_id=CLUSTER)
        for payload in (b"one", b"two", b"three"):
            await wal.append(group(payload))
        wal.release(1)
        disk.hold.set()
        cancelled = asyncio.ensure_future(wal.persist_release())
        assert await asyncio.to_thread(disk.entered.acquire, timeout=WAIT_S)
        cancelled.cancel()
        (outcome,) = await asyncio.gather(cancelled, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError)
        wal.release(2)
        following = wal.persist_release() if ending == "another change" else wal.close()
        next_change = asyncio.ensure_future(following)
        for _ in range(20):
            await asyncio.sleep(0)
        # The thread of the first change still runs: no second one has begun.
        assert not disk.entered.acquire(blocking=False)
        disk.go_on.set()
        await next_change
        identity = load_identity(disk)
        assert identity is not None
        assert identity.released_through == 2
        await wal.close()
        await offload.close()

    asyncio.run(scenario())
