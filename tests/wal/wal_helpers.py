"""What the tests of the write-ahead log share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, TypeVarTuple

from prometheus_client import CollectorRegistry

from streamlog.codec.crc import crc32c
from streamlog.format.entry import StreamEntry
from streamlog.format.rows import Tenure
from streamlog.runtime.disk.interface import Disk
from streamlog.runtime.offload import Lane
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_disk import TornDisk
from streamlog.wal.config import WalConfig
from streamlog.wal.log import WriteAheadLog

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CLUSTER = "cluster-1"
SMALL = WalConfig(wal_bytes_max=16 * 32768, file_bytes=32768)
TIGHT = WalConfig(wal_bytes_max=4 * 32768, file_bytes=32768)


class InlineOffload:
    """Runs the work on the loop, between two turns of it, whether the caller waits or not."""

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                result = fn(*args)
            except Exception as error:  # noqa: BLE001 - carried to the caller, as a thread would
                loop.call_soon(_answer, done, None, error)
            else:
                loop.call_soon(_answer, done, result, None)

        loop.call_soon(work)
        return await done

    async def close(self) -> None:
        """Nothing to free."""


def _answer(done: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if done.cancelled():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


def entry(payload: bytes, *, stream_id: int = 1, base_offset: int = 0) -> StreamEntry:
    return StreamEntry(stream_id, 1, base_offset, 1, 1234, (payload,), payload[:8], crc32c(payload))


def group(payload: bytes) -> list[StreamEntry]:
    return [entry(payload), entry(payload[::-1], stream_id=2)]


def payload_of(entries: Sequence[StreamEntry]) -> bytes:
    """The payload that `group` was called with."""
    first, second = (b"".join(e.parts) for e in entries)
    assert second == first[::-1]
    assert entries[0].attributes == first[:8]
    return first


async def open_wal(disk: Disk, config: WalConfig = SMALL, seed: int = 1) -> WriteAheadLog:
    return await WriteAheadLog.open(
        disk, InlineOffload(), config, CollectorRegistry(), SeededRandom(seed)
    )


async def begin(disk: Disk, epoch: int = 1, config: WalConfig = SMALL) -> WriteAheadLog:
    wal = await open_wal(disk, config, seed=epoch)
    await wal.begin(Tenure(1, epoch), cluster_id=CLUSTER)
    return wal


async def recovered(wal: WriteAheadLog) -> list[tuple[int, bytes]]:
    return [(g.sequence, payload_of(g.entries)) async for g in wal.recover()]


async def power_cut(disk: TornDisk) -> None:
    """Whoever used the disk is gone, and it comes back torn."""
    await kill_others()
    disk.crash()


async def kill_others() -> None:
    """Ends every other task, as the end of the process would."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await turns(3)


async def turns(count: int = 100) -> None:
    """Lets everything else on the loop go on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def overfilled(disk: Disk) -> tuple[WriteAheadLog, list[asyncio.Future[int]]]:
    """A small log and 20 appends to it, of which it has no room for the last ones."""
    wal = await begin(disk, 1, TIGHT)
    appends: list[asyncio.Future[int]] = [
        asyncio.ensure_future(wal.append(group(bytes(6000)))) for _ in range(20)
    ]
    await turns(500)
    return wal, appends
