"""An append that needs a file gets one as soon as there may be one, in whichever order threads
answer, and whatever the settings were before."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from random import Random
from typing import TypeVar, TypeVarTuple

import pytest
from prometheus_client import CollectorRegistry

from streamlog.errors import DiskFull
from streamlog.format.rows import Tenure
from streamlog.runtime.offload import Lane
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_disk import TornDisk, TornFile
from streamlog.wal.config import WalConfig
from streamlog.wal.log import WriteAheadLog
from tests.wal.wal_helpers import (
    CLUSTER,
    SMALL,
    TIGHT,
    InlineOffload,
    begin,
    group,
    open_wal,
    recovered,
    turns,
)

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


def wal_bytes(disk: TornDisk) -> int:
    """Size of the log's files."""
    return sum(disk.open(name).size() for name in disk.list() if name.startswith("wal-0"))


async def leave_free_files(disk: TornDisk) -> None:
    """A log with SMALL settings is closed after 20 groups, all of them released."""
    wal = await begin(disk)
    for _ in range(20):
        await wal.append(group(bytes(6000)))
    wal.release(20)
    await turns(500)
    await wal.close()


async def begin_unevenly(
    disk: TornDisk,
    seed: int,
    epoch: int,
    config: WalConfig = SMALL,
    *,
    uploads_bytes: int | None = None,
) -> WriteAheadLog:
    """A log whose threads answer in any order."""
    wal = await WriteAheadLog.open(
        disk,
        UnevenOffload(seed),
        config,
        CollectorRegistry(),
        SeededRandom(seed),
        uploads_bytes=uploads_bytes,
    )
    await wal.begin(Tenure(1, epoch), cluster_id=CLUSTER)
    return wal


@pytest.mark.parametrize("seed", range(20))
def test_appends_go_on_while_files_of_an_earlier_size_are_removed(seed: int) -> None:
    """`file_bytes` was made smaller: the first appends may take free files of the old size."""

    async def scenario() -> None:
        random, disk = Random(seed), TornDisk(SeededRandom(seed))
        await leave_free_files(disk)
        smaller = WalConfig(wal_bytes_max=SMALL.wal_bytes_max, file_bytes=SMALL.file_bytes // 2)
        wal = await begin_unevenly(disk, seed, 2, smaller)
        await turns(random.randrange(40))
        for number in range(21, 31):
            assert await wal.append(group(bytes(2000))) == number
        await wal.close()

    asyncio.run(scenario())


def test_a_log_goes_on_although_its_newest_file_fills_a_smaller_bound() -> None:
    """The newest file is only freed when there is a newer one."""

    async def scenario() -> None:
        disk = TornDisk(SeededRandom(1))
        wal = await begin(disk, 1, WalConfig(wal_bytes_max=8 * 65536, file_bytes=65536))
        await wal.append(group(b"one"))
        await wal.close()
        smaller = WalConfig(wal_bytes_max=65536, file_bytes=16384)
        wal = await begin(disk, 2, smaller)
        append = asyncio.ensure_future(wal.append(group(b"two")))
        await turns(500)
        assert append.done(), "the append waits for ever with nothing in the log"
        for number in range(3, 40):
            wal.release(number - 1)
            await turns(50)
            assert await wal.append(group(bytes(2000))) == number
        assert wal_bytes(disk) <= smaller.wal_bytes_max
        await wal.close()
        assert (await recovered(await open_wal(disk, smaller)))[-1] == (39, bytes(2000))

    asyncio.run(scenario())


def test_a_smaller_bound_gives_its_room_back_at_the_start() -> None:
    async def scenario() -> None:
        disk = TornDisk(SeededRandom(1))
        await leave_free_files(disk)
        assert wal_bytes(disk) > TIGHT.wal_bytes_max
        wal = await begin(disk, 2, TIGHT)
        await turns(500)
        assert wal_bytes(disk) <= TIGHT.wal_bytes_max
        assert await wal.append(group(b"on")) == 21
        await wal.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(20))
def test_a_closed_log_writes_no_group(seed: int) -> None:
    """Also none whose append was about to take a file: another process may have the folder."""

    async def scenario() -> None:
        random, disk = Random(seed), TornDisk(SeededRandom(seed))
        for epoch in range(1, 30):
            wal = await begin_unevenly(disk, random.randrange(1 << 30), epoch, uploads_bytes=65536)
            append = asyncio.ensure_future(wal.append(group(b"%d" % epoch)))
            await turns(random.randrange(60))
            await wal.close()
            after = [disk.open(name).read(0, 1 << 20) for name in disk.list()]
            await asyncio.gather(append, return_exceptions=True)
            assert [disk.open(name).read(0, 1 << 20) for name in disk.list()] == after
            disk.restart()

    asyncio.run(scenario())


class NearlyFullDisk(TornDisk):
    """Remembers what was made on it."""

    def __init__(self, free_bytes: int) -> None:
        super().__init__(SeededRandom(1))
        self.left_bytes = free_bytes
        self.made: list[str] = []

    def free_bytes(self) -> int:
        return self.left_bytes

    def create(self, name: str, size: int) -> TornFile:
        self.made.append(name)
        return super().create(name, size)


@pytest.mark.parametrize(
    ("free_bytes", "uploads_bytes"),
    [(SMALL.file_bytes // 2, None), (3 * SMALL.file_bytes, 2 * SMALL.file_bytes)],
)
def test_no_file_is_begun_that_does_not_fit_the_disk(
    free_bytes: int, uploads_bytes: int | None
) -> None:
    """It would take the last byte from others on the disk, until it is removed again; or the room
    of uploads, if objects are there, too."""

    async def scenario() -> None:
        disk = NearlyFullDisk(free_bytes)
        wal = await begin_unevenly(disk, 1, 1, uploads_bytes=uploads_bytes)
        with pytest.raises(DiskFull):
            await wal.append(group(b"one"))
        assert set(disk.made) == {"wal-identity.new"}
        await wal.close()

    asyncio.run(scenario())


class LaneOffload(InlineOffload):
    """Runs calls of the WAL's lane one after another, some turns after each was made."""

    def __init__(self) -> None:
        self._lane = asyncio.Lock()
        self.wal_calls = 0

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        if lane is not Lane.WAL:
            return await super().run(lane, fn, *args)
        self.wal_calls += 1
        async with self._lane:
            await turns(20)
            return await super().run(lane, fn, *args)


async def begin_in_lane(offload: LaneOffload, disk: TornDisk) -> WriteAheadLog:
    wal = await WriteAheadLog.open(disk, offload, TIGHT, CollectorRegistry(), SeededRandom(1))
    await wal.begin(Tenure(1, 1), cluster_id=CLUSTER)
    return wal


def test_after_a_wait_files_are_kept_ready_again() -> None:
    """An append with a ready file is one call in the WAL's lane; one that waits takes three."""

    async def scenario() -> None:
        offload = LaneOffload()
        wal = await begin_in_lane(offload, TornDisk(SeededRandom(1)))
        appends = [asyncio.ensure_future(wal.append(group(bytes(6000)))) for _ in range(20)]
        await turns(2000)
        assert not appends[-1].done()
        while not appends[-1].done():
            wal.release(wal.last_sequence)
            await turns(50)
        wal.release(wal.last_sequence)
        await turns(200)
        offload.wal_calls = 0
        for _ in range(20):
            wal.release(await wal.append(group(bytes(6000))))
            await turns()
        assert offload.wal_calls == 20
        await wal.close()

    asyncio.run(scenario())


def test_close_waits_for_groups_under_way() -> None:
    async def scenario() -> None:
        disk = TornDisk(SeededRandom(1))
        wal = await begin_in_lane(LaneOffload(), disk)
        assert await wal.append(group(b"first")) == 1
        append = asyncio.ensure_future(wal.append(group(b"under way")))
        await turns(1)
        await wal.close()
        assert await append == 2
        assert await recovered(await open_wal(disk, TIGHT)) == [(1, b"first"), (2, b"under way")]

    asyncio.run(scenario())
