"""A full log gets a file again whenever one is released, in whichever order threads answer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import TypeVar, TypeVarTuple

import pytest
from prometheus_client import CollectorRegistry

from streamlog.format.rows import Tenure
from streamlog.runtime.offload import Lane
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_disk import TornDisk
from streamlog.wal.config import WalConfig
from streamlog.wal.log import WriteAheadLog
from tests.wal.wal_helpers import CLUSTER, InlineOffload, group, turns

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TWO_FILES = WalConfig(wal_bytes_max=2 * 32768, file_bytes=32768)


class UnevenOffload(InlineOffload):
    """Each call waits some turns of the loop, by chance, before it runs and before it answers."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        if lane is Lane.CPU:
            await turns(self._random.randrange(12))
        result = await super().run(lane, fn, *args)
        if lane is Lane.CPU:
            await turns(self._random.randrange(12))
        return result


@pytest.mark.parametrize("seed", range(20))
def test_appends_go_on_when_groups_are_released(seed: int) -> None:
    """The log shares its disk with uploads, so that each file waits for a look at the free room."""

    async def scenario() -> None:
        random = Random(seed)
        wal = await WriteAheadLog.open(
            TornDisk(Random(seed)),  # type: ignore[arg-type]
            UnevenOffload(seed),
            TWO_FILES,
            CollectorRegistry(),
            SeededRandom(seed),
            uploads_bytes=65536,
        )
        await wal.begin(Tenure(1, 1), cluster_id=CLUSTER)
        under_way: deque[asyncio.Task[int]] = deque()
        for number in range(60):
            under_way.append(asyncio.ensure_future(wal.append(group(bytes(6000)))))
            await turns(random.randrange(8))
            while len(under_way) > 3:
                await turns(1)
                wal.release(wal.last_sequence)
                oldest = under_way[0]
                for _ in range(2000):
                    if oldest.done():
                        break
                    await turns(1)
                    wal.release(wal.last_sequence)
                assert oldest.done(), f"append {number - 3} waits for ever with nothing in the log"
                under_way.popleft().result()
        wal.release(wal.last_sequence)
        await wal.close()
        await asyncio.gather(*under_way, return_exceptions=True)

    asyncio.run(scenario())
