"""What the write-ahead log does when it is used wrongly, fails by a bug, or changes under it."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.errors import Closed, Corrupt, Internal
from streamlog.format.rows import Tenure
from streamlog.format.wal.frame import FileLife
from streamlog.format.wal.superblock import FileState, Superblock
from streamlog.runtime.disk.durable_writes import Done, DurableWrites
from streamlog.runtime.offload import Lane
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_disk import TornDisk
from streamlog.testing.torn_media import DiskFault
from streamlog.wal.file import WalFile
from streamlog.wal.recovery import plan_recovery
from streamlog.wal.scan import FrameRef, ScannedFile
from streamlog.wal.writer import EarlierFailed, GroupWriter, NotWritten, Shelf, Written
from tests.wal.wal_helpers import (
    CLUSTER,
    SMALL,
    TIGHT,
    InlineOffload,
    begin,
    group,
    open_wal,
    overfilled,
    payload_of,
    power_cut,
    recovered,
    turns,
)


def torn_disk() -> TornDisk:
    return TornDisk(SeededRandom(1))


def test_a_log_is_begun_once_and_before_it_is_appended_to() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        wal = await open_wal(disk)
        with pytest.raises(Internal, match="before begin"):
            await wal.append(group(b"too early"))
        await wal.begin(Tenure(1, 1), cluster_id=CLUSTER)
        with pytest.raises(Internal, match=r"begun by 1\.1 already"):
            await wal.begin(Tenure(1, 2), cluster_id=CLUSTER)
        with pytest.raises(Internal, match="nothing"):
            await wal.append([])
        assert wal.tenures == {Tenure(1, 1)}
        assert await wal.append(group(b"one")) == 1
        await wal.close()
        assert await recovered(await open_wal(disk)) == [(1, b"one")]

    asyncio.run(scenario())


def test_a_log_that_was_never_begun_has_no_release_to_state() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        wal = await open_wal(disk)
        await wal.persist_release()
        assert disk.list() == []
        await wal.close()
        await wal.close()
        with pytest.raises(Closed):
            await wal.persist_release()
        assert disk.list() == []

    asyncio.run(scenario())


def bug(operation: str) -> DiskFault | None:
    raise RuntimeError(f"a bug in {operation}")


def test_every_caller_gets_the_error_of_a_background_bug() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        disk.plan_faults = lambda operation, name: (
            bug(operation) if operation == "create" and name.startswith("wal-0") else None
        )
        wal = await begin(disk)
        for _ in range(2):
            with pytest.raises(Internal) as caught:
                await wal.append(group(b"x"))
            assert "a bug in create" in repr(caught.value.__cause__)
        with pytest.raises(Internal):
            await wal.persist_release()
        await wal.close()
        disk.plan_faults = None
        assert await recovered(await open_wal(disk)) == []

    asyncio.run(scenario())


def test_appends_that_wait_for_room_get_the_error_of_a_background_bug() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        wal, appends = await overfilled(disk)
        stored = [append.result() for append in appends if append.done()]
        assert 0 < len(stored) < 20
        disk.plan_faults = lambda operation, name: bug(operation)
        wal.release(len(stored))
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*appends, return_exceptions=True)
        assert outcomes[: len(stored)] == stored
        for outcome in outcomes[len(stored) :]:
            assert isinstance(outcome, Internal)
            assert "a bug in write" in repr(outcome.__cause__)
        disk.plan_faults = None
        await wal.close()

    asyncio.run(scenario())


def test_groups_released_during_recovery_are_not_recovered() -> None:
    """Its files may be used again meanwhile."""

    async def scenario() -> None:
        disk = torn_disk()
        sent = {number: b"%03d" % number * 700 for number in range(1, 31)}
        wal = await begin(disk)
        for payload in sent.values():
            await wal.append(group(payload))
        await wal.close()
        wal = await begin(disk, 2)
        payloads = {}
        async for recovered_group in wal.recover():
            payloads[recovered_group.sequence] = payload_of(recovered_group.entries)
            if recovered_group.sequence == 2:
                wal.release(23)
                await turns()
                for number in range(4):
                    await wal.append(group(b"new %d" % number * 500))
                    await turns()
        kept = {1, 2, *range(24, 31)}
        assert payloads == {number: payload for number, payload in sent.items() if number in kept}
        await power_cut(disk)
        after = dict(await recovered(await open_wal(disk)))
        assert {number for number in after if number <= 30} >= set(range(24, 31))
        assert [after[number] for number in range(31, 35)] == [
            b"new %d" % number * 500 for number in range(4)
        ]

    asyncio.run(scenario())


def test_a_group_that_is_damaged_after_the_log_was_opened_is_named() -> None:
    async def scenario() -> None:
        disk = torn_disk()
        wal = await begin(disk)
        for number in range(3):
            await wal.append(group(b"%d" % number * 40))
        await wal.close()
        wal = await open_wal(disk)
        (name,) = [name for name in disk.list() if any(disk.open(name).read(4096, 4096))]
        disk.flip(name, 2 * 4096 + 200)
        with pytest.raises(Corrupt, match="group 2 changed") as caught:
            await recovered(wal)
        assert caught.value.object_key == name
        assert int(caught.value.start) <= 2 * 4096 + 200 < int(caught.value.end)
        await wal.close()

    asyncio.run(scenario())


def scanned(name: str, disk: TornDisk, *, generation: int, first: int, count: int) -> ScannedFile:
    file_bytes = SMALL.file_bytes
    superblock = Superblock(
        FileState.ACTIVE, FileLife(generation, 7), Tenure(1, 1), first, 0, file_bytes
    )
    places = [(first + n, 4096 * (1 + n)) for n in range(count)]
    frames = [FrameRef(n, at, 100, at + 4096, at, True, n - 1) for n, at in places]
    return ScannedFile(name, disk.create(name, file_bytes), superblock, frames, 0)


def test_files_whose_generations_do_not_count_up_with_their_groups_are_damage() -> None:
    """A later file states what is void of earlier ones; it cannot begin before they did."""
    disk = torn_disk()
    later = scanned("later", disk, generation=1, first=5, count=2)
    earlier = scanned("earlier", disk, generation=2, first=3, count=2)
    with pytest.raises(Corrupt, match="out of order") as caught:
        plan_recovery([later, earlier], released_through=4)
    assert caught.value.object_key == "later"


def a_writer(disk: TornDisk, shelf: Shelf) -> GroupWriter:
    offload = InlineOffload()
    writer = GroupWriter(
        shelf,
        SeededRandom(1),
        DurableWrites(offload),
        lambda name: offload.run(Lane.WAL, disk.open, name),
        next_sequence=1,
        next_generation=1,
        group_bytes_max=20_000,
    )
    writer.tenure = Tenure(1, 1)
    return writer


def a_file(disk: TornDisk, name: str) -> WalFile:
    free = Superblock(FileState.FREE, FileLife(0, 0), Tenure(0, 0), 0, 0, SMALL.file_bytes)
    return WalFile(name, disk.create(name, SMALL.file_bytes), free)


def test_a_group_that_waited_for_a_file_is_not_written_behind_a_failed_one() -> None:
    """Groups never change places: those behind a failure come again, in order."""

    async def scenario() -> None:
        disk, shelf = torn_disk(), Shelf()
        writer, file = a_writer(disk, shelf), a_file(disk, "a")
        assert isinstance(await writer.write(group(b"waits"), 0, 0), NotWritten)
        writer.failures += 1
        with pytest.raises(EarlierFailed):
            await writer.write(group(b"waits"), 0, 0, file)
        assert shelf.sealed == [file]  # the pool has it back
        assert not any(file.file.read(0, SMALL.file_bytes))
        shelf.sealed.clear()
        shelf.ready.append(file)
        written = await writer.write(group(b"again"), 0, 1)
        assert isinstance(written, Written)
        assert written.sequence == 1

    asyncio.run(scenario())


def test_groups_handed_over_at_once_are_written_in_order() -> None:
    async def scenario() -> None:
        disk, shelf = torn_disk(), Shelf()
        writer = a_writer(disk, shelf)
        shelf.ready.append(a_file(disk, "a"))
        calls = [writer.write(group(b"%d" % number), 0, 0) for number in range(5)]
        written = await asyncio.gather(*calls)
        assert [one.sequence for one in written if isinstance(one, Written)] == [1, 2, 3, 4, 5]
        await writer.idle()

    asyncio.run(scenario())


def test_a_call_behind_a_stall_comes_behind_those_that_met_it() -> None:
    """The caller of the last written group wakes up before them, and calls again at once."""

    async def scenario() -> None:
        disk, shelf = torn_disk(), Shelf()
        writer, order = a_writer(disk, shelf), list[str]()
        shelf.ready.append(a_file(disk, "a"))
        most = group(bytes(7_000))

        async def called(name: str, then: str = "") -> None:
            await writer.write(most, 0, 0)
            order.append(name)
            if then:
                await called(then)

        async with asyncio.TaskGroup() as calls:
            for name, then in (("written", "later"), ("stalled", ""), ("stalled too", "")):
                calls.create_task(called(name, then))
        assert order == ["written", "stalled", "stalled too", "later"]

    asyncio.run(scenario())


def test_a_cancelled_group_that_waits_is_left_out_and_one_under_way_is_counted() -> None:
    async def scenario() -> None:
        disk, shelf = torn_disk(), Shelf()
        writer = a_writer(disk, shelf)
        shelf.ready.append(a_file(disk, "a"))
        under_way, waiting, last = [
            writer.write(group(payload), 0, 0) for payload in (b"under way", b"waiting", b"last")
        ]
        under_way.cancel()
        waiting.cancel()
        written = await last
        assert isinstance(written, Written)
        assert written.sequence == 2
        assert [sequence for sequence, _ in writer.stored] == [1, 2]

    asyncio.run(scenario())


def test_the_file_of_a_cancelled_group_goes_back_to_the_pool() -> None:
    async def scenario() -> None:
        disk, shelf = torn_disk(), Shelf()
        writer, file, other = a_writer(disk, shelf), a_file(disk, "a"), a_file(disk, "b")
        assert isinstance(await writer.write(group(b"waits"), 0, 0), NotWritten)
        first = writer.write(group(b"first"), 0, 0, other)
        writer.write(group(b"given up"), 0, 0, file).cancel()
        assert isinstance(await first, Written)
        assert shelf.sealed == [file]

    asyncio.run(scenario())


def test_a_write_that_cannot_be_handed_over_fails_its_caller_and_those_behind() -> None:
    """Such as by a bug, or without memory: nobody waits for ever."""

    async def scenario() -> None:
        disk, shelf = torn_disk(), Shelf()
        writer = a_writer(disk, shelf)
        shelf.ready += [a_file(disk, "a"), a_file(disk, "b")]

        def start(*_: object) -> None:
            raise MemoryError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DurableWrites, "start", start)
            calls = [writer.write(group(b"%d" % number), 0, 0) for number in range(2)]
            with pytest.raises(MemoryError):
                await calls[0]
            with pytest.raises(EarlierFailed):
                await calls[1]
        await writer.idle()
        assert isinstance(await writer.write(group(b"again"), 0, 1), Written)

    asyncio.run(scenario())


def test_a_file_that_fails_while_it_gets_another_descriptor_costs_the_next_one_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        disk, shelf = torn_disk(), Shelf()
        writer = a_writer(disk, shelf)
        shelf.ready += [a_file(disk, "a"), a_file(disk, "b")]
        ends: list[Done] = []
        monkeypatch.setattr(DurableWrites, "start", lambda *arguments: ends.append(arguments[-1]))
        first = writer.write(group(b"first"), 0, 0)
        ends.pop()(None)
        assert isinstance(await first, Written)
        failing, behind = [writer.write(group(b"fails"), 0, 0) for _ in range(2)]
        # In the turn in which another descriptor is asked for.
        ends.pop()(OSError(5, "Input/output error"))
        with pytest.raises(OSError, match="Input/output error"):
            await failing
        with pytest.raises(EarlierFailed):
            await behind
        again = writer.write(group(b"again"), 0, 1)
        ends.pop()(None)
        assert isinstance(await again, Written)
        beside = [writer.write(group(b"beside"), 0, 1) for _ in range(2)]
        await turns()
        assert len(ends) == 2
        for end in ends:
            end(None)
        await asyncio.gather(*beside)

    asyncio.run(scenario())


def test_a_file_whose_first_group_cannot_be_encoded_is_there_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More often than there are files: none is lost."""

    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    async def scenario() -> None:
        wal = await begin(torn_disk(), 1, TIGHT)
        with monkeypatch.context() as patched:
            patched.setattr("streamlog.wal.writer.encode_frame", no_memory)
            for _ in range(20):
                with pytest.raises(MemoryError):
                    await asyncio.wait_for(wal.append(group(b"lost")), 30)
        assert await asyncio.wait_for(wal.append(group(b"kept")), 30) == 1
        await wal.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("broken", [{"write"}, {"write", "remove"}, {"remove"}])
@pytest.mark.parametrize("is_opened_again", [False, True])
def test_a_file_that_the_disk_does_not_free_holds_up_no_append(
    broken: set[str], is_opened_again: bool
) -> None:
    """It is removed instead, as soon as the disk does that."""

    async def scenario() -> None:
        first, faults = "wal-00000001", set[str]()
        disk = TornDisk(
            SeededRandom(1),
            lambda operation, name: (
                DiskFault.IO_ERROR if name == first and operation in faults else None
            ),
        )
        wal = await begin(disk)

        async def append(count: int) -> None:
            for number in range(count):
                wal.release(await wal.append(group(b"%03d" % number * 2000)))
                await turns(50)

        for number in range(12):
            await wal.append(group(b"%03d" % number * 2000))
        faults |= broken
        if is_opened_again:
            await wal.close()
            wal = await begin(disk, 2)
            assert len(await recovered(wal)) == 12
        await append(100)
        faults.clear()
        await append(3)
        files = [name for name in disk.list() if "identity" not in name]
        assert (first in files) is (broken == {"remove"})
        assert len(files) * SMALL.file_bytes <= SMALL.wal_bytes_max
        await wal.close()

    asyncio.run(scenario())
