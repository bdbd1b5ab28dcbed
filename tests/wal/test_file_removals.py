"""Files of the write-ahead log that the disk does not remove, or removes without saying so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from streamlog.errors import DiskFull
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_disk import TornDisk
from streamlog.testing.torn_media import DiskFault
from streamlog.wal.config import WalConfig
from streamlog.wal.log import WriteAheadLog
from tests.wal.wal_helpers import (
    SMALL,
    TIGHT,
    begin,
    group,
    open_wal,
    power_cut,
    recovered,
    turns,
)

PAYLOAD = bytes(6000)
LARGER = WalConfig(wal_bytes_max=SMALL.wal_bytes_max, file_bytes=2 * SMALL.file_bytes)


def wal_files(disk: TornDisk) -> set[str]:
    return {name for name in disk.list() if "identity" not in name}


def failing(operations: set[str], is_struck: Callable[[str], bool]) -> TornDisk:
    """A disk that fails the operations on these files while they are in the set; what it does not
    remove stays."""

    def plan(operation: str, name: str) -> DiskFault | None:
        if operation not in operations or not is_struck(name):
            return None
        return DiskFault.FULL if operation == "remove" else DiskFault.IO_ERROR

    return TornDisk(SeededRandom(1), plan)


async def append_and_release(wal: WriteAheadLog, count: int) -> None:
    for _ in range(count):
        wal.release(await wal.append(group(PAYLOAD)))
        await turns(50)


@pytest.mark.parametrize("seed", range(10))
def test_a_file_whose_removal_failed_takes_no_groups(seed: int) -> None:
    """The removal may have taken its name away before its sync failed."""

    async def scenario() -> None:
        disk = TornDisk(SeededRandom(seed))
        wal = await begin(disk)
        await wal.append(group(PAYLOAD))
        await turns()
        disk.plan_faults = lambda operation, name: (
            DiskFault.IO_ERROR if operation == "remove" else None
        )
        wal.give_room(True)
        await turns()
        disk.plan_faults = None
        wal.give_room(False)
        for _ in range(12):
            await wal.append(group(PAYLOAD))
            await turns()
        await power_cut(disk)
        groups = await recovered(await open_wal(disk))
        assert groups == [(number, PAYLOAD) for number in range(1, 14)]

    asyncio.run(scenario())


@pytest.mark.parametrize("is_giving_room", [False, True])
def test_a_free_file_that_cannot_be_removed_holds_up_no_other(is_giving_room: bool) -> None:
    """Such as one from before a change of `file_bytes`; it goes as soon as the disk lets it."""

    async def scenario() -> None:
        operations, kept = set[str](), set[str]()
        disk = failing(operations, lambda name: name in kept)
        wal = await begin(disk)
        for _ in range(20):
            await wal.append(group(PAYLOAD))
        wal.release(20)
        await turns(500)
        old_files = wal_files(disk)
        assert len(old_files) > 4
        if not is_giving_room:
            await wal.close()
        kept.add(min(old_files))
        operations.add("remove")
        if is_giving_room:
            wal.give_room(True)
            await turns(500)
            assert len(wal_files(disk)) <= 2, "beside the newest file"
            wal.give_room(False)
        else:
            wal = await begin(disk, 2, LARGER)
        await append_and_release(wal, 40)
        operations.clear()
        await append_and_release(wal, 1)
        assert not kept & wal_files(disk)
        await wal.close()

    asyncio.run(scenario())


def test_files_stay_in_use_whose_release_could_not_be_stated_while_room_was_given() -> None:
    """Nothing is wrong with them: the identity file is what could not be written."""

    async def scenario() -> None:
        operations = set[str]()
        disk = failing(operations, lambda name: name.startswith("wal-identity"))
        wal = await begin(disk)
        for _ in range(20):
            await wal.append(group(PAYLOAD))
        await turns()
        before = wal_files(disk)
        operations |= {"create", "write", "rename"}
        wal.give_room(True)
        wal.release(20)
        await turns(500)
        operations.clear()
        wal.give_room(False)
        await append_and_release(wal, 40)
        assert before <= wal_files(disk)
        await wal.close()

    asyncio.run(scenario())


def test_a_release_that_cannot_be_stated_is_told_once_for_all_files(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        tries = 0

        def plan(operation: str, name: str) -> DiskFault | None:
            nonlocal tries
            if name != "wal-identity.new" or operation not in {"create", "write"}:
                return None
            tries += 1
            return DiskFault.FULL

        disk = TornDisk(SeededRandom(1))
        wal = await begin(disk)
        for _ in range(20):
            await wal.append(group(PAYLOAD))
        await turns()
        files = wal_files(disk)
        assert len(files) > 4
        disk.plan_faults = plan
        wal.release(20)
        looks = 10
        for _ in range(looks):
            wal.give_room(True)
            await turns()
        assert wal_files(disk) == files
        assert 0 < tries <= looks
        [told] = caplog.messages
        assert "release cannot be stated" in told
        disk.plan_faults = None
        wal.give_room(True)
        await turns(500)
        assert len(wal_files(disk)) == 1, "the newest one"
        await wal.close()

    asyncio.run(scenario())


def test_new_files_that_cannot_be_made_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each try is a file of another name."""

    async def scenario() -> None:
        tried = set[str]()

        def plan(operation: str, name: str) -> DiskFault | None:
            if operation != "create" or name.startswith("wal-identity"):
                return None
            tried.add(name)
            return DiskFault.IO_ERROR

        disk = TornDisk(SeededRandom(1))
        wal = await begin(disk)
        wal.give_room(True)
        await turns(500)
        disk.plan_faults = plan
        for _ in range(10):
            wal.give_room(False)
            await turns()
        assert len(tried) > 1
        [told] = caplog.messages
        assert "could not be made ready" in told
        await wal.close()

    asyncio.run(scenario())


def test_new_files_that_can_neither_be_written_nor_removed_keep_to_the_bound() -> None:
    """They go as soon as the disk lets them."""

    async def scenario() -> None:
        operations, old_files = set[str](), set[str]()
        disk = failing(operations, lambda name: name.startswith("wal-0") and name not in old_files)
        wal = await begin(disk)
        await wal.append(group(PAYLOAD))
        await turns()
        old_files |= wal_files(disk)
        operations |= {"write", "remove"}
        files_max = SMALL.wal_bytes_max // SMALL.file_bytes
        appends = []
        for _ in range(4 * files_max):
            appends.append(asyncio.ensure_future(wal.append(group(PAYLOAD))))
            await turns()
        refused = [one for one in appends if one.done() and one.exception() is not None]
        assert len(refused) > files_max // 2
        left_over = wal_files(disk) - old_files
        assert len(left_over | old_files) == files_max
        operations.clear()
        async with asyncio.timeout(60):
            while not all(append.done() for append in appends):
                wal.release(wal.last_sequence)
                await turns()
        assert all(append.exception() is None for append in appends if append not in refused)
        assert not left_over & wal_files(disk)
        await wal.close()

    asyncio.run(scenario())


def test_a_free_file_that_cannot_be_removed_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All released files are free already, and the release cannot be stated."""

    async def scenario() -> None:
        operations = set[str]()
        disk = failing(operations, lambda name: name.startswith("wal-identity"))
        wal = await begin(disk)
        for times in (1, 2):
            await append_and_release(wal, 1)
            files = wal_files(disk)
            operations |= {"create", "write", "rename"}
            for _ in range(10):
                wal.give_room(True)
                await turns()
            assert wal_files(disk) == files
            assert len(caplog.messages) == times
            assert "could not be made ready, or removed" in caplog.messages[-1]
            operations.clear()
            wal.give_room(True)
            await turns(50)
            assert len(wal_files(disk)) == 1, "the newest one"
            wal.give_room(False)
            await turns(50)
        await wal.close()

    asyncio.run(scenario())


def test_a_full_log_with_a_file_that_stays_waits_for_uploads() -> None:
    """It refuses appends only where no upload can let another file go."""

    async def scenario() -> None:
        operations = set[str]()
        disk = failing(operations, lambda name: name == "wal-00000001")
        wal = await begin(disk, 1, TIGHT)
        for _ in range(3):
            await wal.append(group(PAYLOAD))
            await turns()
        operations |= {"write", "remove"}
        wal.release(2)
        appends = [asyncio.ensure_future(wal.append(group(PAYLOAD))) for _ in range(8)]
        await turns(500)
        stored = [append for append in appends if append.done()]
        assert len(stored) < len(appends)
        assert [append.result() for append in stored] == list(range(3 + 1, 3 + 1 + len(stored)))
        while not appends[-1].done():
            wal.release(wal.last_sequence)
            await turns(50)
        assert [append.result() for append in appends] == list(range(4, 12))
        await wal.close()

    asyncio.run(scenario())


def test_appends_are_refused_where_no_upload_makes_room_beside_a_file_that_stays() -> None:
    """A bound of two files: the newest one, which is not freed before there is another, and one
    that the disk does not let go."""

    async def scenario() -> None:
        operations = set[str]()
        disk = failing(operations, lambda name: name == "wal-00000001")
        two_files = WalConfig(wal_bytes_max=2 * SMALL.file_bytes, file_bytes=SMALL.file_bytes)
        wal = await begin(disk, 1, two_files)
        for _ in range(3):
            await wal.append(group(PAYLOAD))
            await turns()
        operations |= {"write", "remove"}
        wal.release(2)
        await turns()
        appends = [asyncio.ensure_future(wal.append(group(PAYLOAD))) for _ in range(4)]
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
        assert any(isinstance(outcome, DiskFull) for outcome in outcomes)
        operations.clear()
        async with asyncio.timeout(60):
            await wal.append(group(PAYLOAD))
        await wal.close()

    asyncio.run(scenario())
