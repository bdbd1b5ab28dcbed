"""Groups that are written at a time: answered in order, and recovered as far as they are whole."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from streamlog.errors import Corrupt, StoreUnavailable
from streamlog.format.rows import Tenure
from streamlog.runtime.disk.interface import DiskFile
from streamlog.runtime.offload import Lane
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.torn_disk import TornDisk
from streamlog.testing.torn_media import DiskFault
from streamlog.wal.config import WalConfig
from streamlog.wal.folder import WAL_FILE_NAME
from streamlog.wal.log import WriteAheadLog
from streamlog.wal.writer import WRITES_MAX
from tests.support.replacing import replace_method
from tests.wal.wal_helpers import (
    CLUSTER,
    SMALL,
    InlineOffload,
    begin,
    group,
    kill_others,
    recovered,
    turns,
)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class HeldWrites(InlineOffload):
    """While `is_holding`, what writes to the log waits until the test lets it go on."""

    def __init__(self) -> None:
        self.is_holding = False
        self.registry = CollectorRegistry()
        self.held: list[Callable[[], Any]] = []
        self.files: list[DiskFile] = []

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        if lane is not Lane.WAL or not self.is_holding or fn.__name__ != "write_sync":
            return await super().run(lane, fn, *args)
        gate = asyncio.get_running_loop().create_future()
        self.held.append(lambda: gate.set_result(None))
        self.files.append(fn.__self__)  # type: ignore[attr-defined]
        await gate
        return await super().run(lane, fn, *args)

    async def let(self, *numbers: int) -> None:
        """Writes those, counted from the first held one, in this order."""
        for number in numbers:
            self.held[number]()
            await turns(20)


async def log_with_held_writes(
    disk: TornDisk, count: int
) -> tuple[WriteAheadLog, HeldWrites, list[asyncio.Future[int]]]:
    """A log with one durable group and `count` groups that are being written."""
    offload = HeldWrites()
    registry = offload.registry
    wal = await WriteAheadLog.open(disk, offload, SMALL, registry, SeededRandom(1))
    await wal.begin(Tenure(1, 1), cluster_id=CLUSTER)
    await wal.append(group(b"first"))
    offload.is_holding = True
    appends: list[asyncio.Future[int]] = [
        asyncio.ensure_future(wal.append(group(payload(n)))) for n in range(count)
    ]
    await turns(200)
    return wal, offload, appends


def payload(number: int) -> bytes:
    return b"%d" % number * 1500


async def after_a_power_cut(disk: TornDisk) -> list[bytes]:
    """What the next process finds behind the first group, and a third after it has not written."""
    await kill_others()
    disk.crash()
    found: list[bytes] = []
    for epoch in (2, 3):
        wal = await begin(disk, epoch)
        groups = await recovered(wal)
        assert [sequence for sequence, _ in groups] == list(range(1, len(groups) + 1))
        assert groups[0][1] == b"first"
        assert epoch == 2 or found == [data for _, data in groups[1:]]
        found = [data for _, data in groups[1:]]
        await kill_others()
        disk.crash()
    return found


def test_groups_are_answered_in_their_order() -> None:
    async def scenario() -> None:
        disk = TornDisk(SeededRandom(1))
        wal, offload, appends = await log_with_held_writes(disk, WRITES_MAX + 1)
        assert len(offload.held) == WRITES_MAX
        await offload.let(2, 1)
        assert not any(append.done() for append in appends)
        await offload.let(0)
        assert [append.done() for append in appends] == [True, True, True, False, False]
        assert len(offload.held) == WRITES_MAX + 1
        await offload.let(3, 4)
        assert [append.result() for append in appends] == [2, 3, 4, 5, 6]
        beside = offload.registry.get_sample_value("streamlog_wal_groups_beside_total")
        assert beside == WRITES_MAX
        offload.is_holding = False
        await wal.close()
        wal = await begin(disk, 2)
        assert [data for _, data in await recovered(wal)] == [b"first", *map(payload, range(5))]
        await wal.close()

    asyncio.run(scenario())


def test_writes_that_are_under_way_together_have_descriptors_of_their_own() -> None:
    """The kernel tells of a lost page once to each: with one for both, the other write would hear
    of it, and the one whose page it was would end well."""

    async def scenario() -> None:
        disk = TornDisk(SeededRandom(1))
        wal, offload, appends = await log_with_held_writes(disk, WRITES_MAX)
        assert len({id(file) for file in offload.files}) == WRITES_MAX
        await offload.let(*range(WRITES_MAX))
        await asyncio.gather(*appends)
        later = asyncio.ensure_future(wal.append(group(b"later")))
        await turns()
        assert offload.files[-1] in offload.files[:-1]
        await offload.let(WRITES_MAX)
        await later
        offload.is_holding = False
        await wal.close()

    asyncio.run(scenario())


@settings(max_examples=60, deadline=None)
@given(st.permutations(range(WRITES_MAX)), st.integers(0, WRITES_MAX), st.integers(0, 2**32))
def test_a_power_cut_leaves_the_groups_before_the_first_that_is_missing(
    order: list[int], written: int, seed: int
) -> None:
    """Whichever of them were on the disk by then, and whichever of the rest are torn."""

    async def scenario() -> None:
        disk = TornDisk(SeededRandom(seed))
        _, offload, appends = await log_with_held_writes(disk, WRITES_MAX)
        await offload.let(*order[:written])
        answered = [append.done() for append in appends]
        whole = next((n for n in range(WRITES_MAX) if n not in order[:written]), WRITES_MAX)
        assert answered == [n < whole for n in range(WRITES_MAX)]
        disk.plan_faults = lambda operation, name: DiskFault.POWER
        await offload.let(*order[written:][:1])
        disk.plan_faults = None
        found = await after_a_power_cut(disk)
        assert found[:whole] == [payload(n) for n in range(whole)]
        assert found == [payload(n) for n in range(len(found))]

    asyncio.run(scenario())


def test_what_was_cut_is_not_read_again_behind_what_follows() -> None:
    """The second and third of three groups are whole, the first is missing: they are void for good,
    also when groups of the same numbers have been written since."""

    async def scenario() -> None:
        disk = TornDisk(SeededRandom(3))
        _, offload, _ = await log_with_held_writes(disk, 3)
        await offload.let(1, 2)
        await kill_others()
        disk.crash()
        wal = await begin(disk, 2)
        assert await recovered(wal) == [(1, b"first")]
        assert await wal.append(group(b"instead")) == 2
        await kill_others()
        disk.crash()
        wal = await begin(disk, 3)
        assert await recovered(wal) == [(1, b"first"), (2, b"instead")]
        await wal.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("damaged", range(4))
def test_damage_of_what_was_answered_is_told(damaged: int) -> None:
    """Groups 2 to 4 are written together, 5 when they are durable: that proves it."""

    async def scenario() -> None:
        disk = TornDisk(SeededRandom(1))
        wal, offload, appends = await log_with_held_writes(disk, 3)
        await offload.let(1, 2, 0)
        await asyncio.gather(*appends)
        offload.is_holding = False
        await wal.append(group(b"proof"))
        await wal.close()
        (name,) = [name for name in disk.list() if any(disk.open(name).read(4096, 4096))]
        disk.flip(name, (1 + damaged) * 4096 + 20)
        with pytest.raises(Corrupt):
            await begin(disk, 2)

    asyncio.run(scenario())


def test_a_failure_ends_those_behind_it_and_is_told_when_they_have_ended() -> None:
    async def scenario() -> None:
        disk = TornDisk(SeededRandom(1))
        wal, offload, appends = await log_with_held_writes(disk, 3)
        await offload.let(0)
        disk.plan_faults = lambda operation, name: DiskFault.IO_ERROR
        await offload.let(1)
        disk.plan_faults = None
        assert [append.done() for append in appends] == [True, False, False]
        behind = asyncio.ensure_future(wal.append(group(b"behind")))
        await turns()
        assert len(offload.held) == 3
        offload.is_holding = False
        await offload.let(2)
        errors = await asyncio.gather(*appends[1:], behind, return_exceptions=True)
        assert all(isinstance(error, StoreUnavailable) for error in errors)
        effects = [not error.has_no_side_effects for error in errors]  # type: ignore[union-attr]
        assert effects == [True, True, False]
        assert await wal.append(group(b"again")) == 3
        await wal.close()
        wal = await begin(disk, 2)
        found = [(1, b"first"), (2, payload(0)), (3, b"again")]
        assert await recovered(wal) == found
        await wal.close()

    asyncio.run(scenario())


def test_a_group_that_needs_another_file_waits_for_those_under_way() -> None:
    async def scenario() -> None:
        disk = TornDisk(SeededRandom(1))
        wal, offload, appends = await log_with_held_writes(disk, 2)
        large = asyncio.ensure_future(wal.append(group(bytes(10_000))))
        small = asyncio.ensure_future(wal.append(group(b"small")))
        await turns()
        assert len(offload.held) == 2
        await offload.let(1, 0)
        await asyncio.gather(*appends)
        await turns()
        # Nothing is written beside the activation of a file.
        assert len(offload.held) == 3
        await offload.let(2)
        await offload.let(3)
        assert [await large, await small] == [4, 5]
        offload.is_holding = False
        await wal.close()

    asyncio.run(scenario())


def test_groups_are_written_beside_each_other_again_behind_a_stall() -> None:
    """Also where calls wait all the time, so that none meets a log without a stall behind it."""

    async def scenario() -> None:
        disk = TornDisk(SeededRandom(1))
        wal, offload, appends = await log_with_held_writes(disk, 0)
        offload.is_holding = False
        # No room is left: calls from now on wait for a release.
        full = [asyncio.ensure_future(wal.append(group(bytes(6000)))) for _ in range(40)]
        await turns(2000)
        stored = wal.last_sequence
        assert stored < 40
        offload.is_holding = True
        appends += [asyncio.ensure_future(wal.append(group(payload(n)))) for n in range(8)]
        wal.release(stored)
        for held in range(60):
            await turns(500)
            if len(offload.held) >= held + WRITES_MAX:
                break
            await offload.let(held)
        assert len(offload.held) >= held + WRITES_MAX
        assert not appends[-1].done()
        offload.is_holding = False
        for write in offload.held[held:]:
            write()
        await turns(500)
        wal.release(wal.last_sequence)
        await asyncio.gather(*full, *appends)
        assert [append.result() for append in appends] == list(range(42, 50))
        await wal.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("between", range(6))
def test_groups_take_their_places_in_the_order_of_calls_also_where_a_stall_begins(
    between: int,
) -> None:
    async def scenario() -> None:
        wal = await begin(TornDisk(SeededRandom(1)))
        calls: list[asyncio.Future[int]] = []
        for number in range(6):
            calls.append(asyncio.ensure_future(wal.append(group(b"%d" % number))))
            await turns(between)
        assert await asyncio.gather(*calls) == [1, 2, 3, 4, 5, 6]
        await wal.close()

    asyncio.run(scenario())


def test_a_group_of_before_a_failure_fails_with_it_whenever_it_is_handed_over() -> None:
    """Its caller hears of the failure later than the log: in the failed one's place it would come
    before the one that failed."""

    async def scenario() -> None:
        disk = TornDisk(SeededRandom(1))
        wal, offload, (failing,) = await log_with_held_writes(disk, 1)
        known = wal.failure_count
        disk.plan_faults = lambda operation, name: DiskFault.IO_ERROR
        offload.is_holding = False
        await offload.let(0)
        disk.plan_faults = None
        assert isinstance(failing.exception(), StoreUnavailable)
        with pytest.raises(StoreUnavailable, match="nothing of this one was stored"):
            await wal.append(group(b"of before"), known)
        assert await wal.append(group(b"again"), wal.failure_count) == 2
        await wal.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("fails", [False, True])
def test_a_descriptor_that_cannot_be_closed_holds_nobody_up(
    fails: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """File systems over a network tell there what they could not write."""

    async def scenario() -> None:
        disk = TornDisk(SeededRandom(1))
        opens = disk.open

        def opened(name: str) -> DiskFile:
            file = opens(name)
            closes = replace_method(file, "close", refused)
            files.append(closes)
            return file

        def refused() -> None:
            raise OSError(5, "Input/output error")

        files: list[object] = []
        wal, offload, _ = await log_with_held_writes(disk, 0)
        monkeypatch.setattr(disk, "open", opened)
        appends = [asyncio.ensure_future(wal.append(group(payload(n)))) for n in range(2)]
        await turns()
        monkeypatch.setattr(disk, "open", opens)
        assert len(files) == 1
        if fails:
            disk.plan_faults = lambda operation, name: DiskFault.IO_ERROR
        offload.is_holding = False
        await offload.let(0, 1)
        disk.plan_faults = None
        await asyncio.wait(appends)
        assert [append.exception() is None for append in appends] == [not fails] * 2
        # Another file.
        assert await wal.append(group(bytes(10_000))) == (2 if fails else 4)
        assert "Input/output error" in caplog.text
        await wal.close()

    asyncio.run(scenario())


def test_a_file_that_was_freed_behind_the_call_still_states_its_release() -> None:
    """The release is in that file alone, which a group takes that waits for the one before it."""

    async def scenario() -> None:
        disk, offload = TornDisk(SeededRandom(1)), HeldWrites()
        config = WalConfig(wal_bytes_max=3 * 32768, file_bytes=32768)
        wal = await WriteAheadLog.open(disk, offload, config, offload.registry, SeededRandom(1))
        await wal.begin(Tenure(1, 1), cluster_id=CLUSTER)
        for _ in range(3):
            await wal.append(group(bytes(10_000)))  # a file each
        offload.is_holding = True
        fits = asyncio.ensure_future(wal.append(group(b"fits")))
        await turns()
        waits = asyncio.ensure_future(wal.append(group(bytes(10_000))))
        await turns()
        wal.release(1)
        await turns(200)
        await offload.let(0, 1)
        assert (fits.result(), waits.result()) == (4, 5)
        await kill_others()
        disk.crash()
        wal = await begin(disk, 2, config)
        assert [sequence for sequence, _ in await recovered(wal)] == [2, 3, 4, 5]
        await wal.close()

    asyncio.run(scenario())


def test_groups_behind_one_that_cannot_be_encoded_do_not_take_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    async def scenario() -> None:
        disk = TornDisk(SeededRandom(1))
        wal, offload, (first,) = await log_with_held_writes(disk, 1)
        with monkeypatch.context() as patched:
            patched.setattr("streamlog.wal.writer.encode_group", no_memory)
            fails = asyncio.ensure_future(wal.append(group(b"fails"), 0))
            await turns()
        behind = asyncio.ensure_future(wal.append(group(b"behind"), 0))
        await turns()
        offload.is_holding = False
        await offload.let(0)
        assert await first == 2
        with pytest.raises(MemoryError):
            await fails
        with pytest.raises(StoreUnavailable, match="nothing of this one was stored"):
            await behind
        assert await wal.append(group(b"again"), wal.failure_count) == 3
        await wal.close()

    asyncio.run(scenario())


def test_files_that_cannot_be_closed_are_removed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> None:
        raise OSError(5, "Input/output error")

    async def scenario() -> None:
        disk = TornDisk(SeededRandom(1))
        opens = disk.open

        def opened(name: str) -> DiskFile:
            file = opens(name)
            if WAL_FILE_NAME.fullmatch(name):
                replace_method(file, "close", refused)
            return file

        monkeypatch.setattr(disk, "open", opened)
        wal = await begin(disk)
        for number in range(1, 9):
            assert await wal.append(group(bytes(10_000))) == number
        wal.release(8)
        wal.give_room(True)
        await turns(500)
        assert len(disk.list()) <= 3  # the newest file, and the identity with its next
        wal.give_room(False)
        await wal.append(group(b"later"))
        await wal.close()

    asyncio.run(scenario())


def test_without_another_descriptor_groups_are_written_one_by_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        disk = TornDisk(SeededRandom(1))
        opens = disk.open

        def too_many(name: str) -> DiskFile:
            raise OSError(24, "Too many open files")

        wal, offload, _ = await log_with_held_writes(disk, 0)
        monkeypatch.setattr(disk, "open", too_many)
        appends = [asyncio.ensure_future(wal.append(group(payload(n)))) for n in range(2)]
        await turns()
        assert len(offload.held) == 1
        await offload.let(0)
        await offload.let(1)
        assert [append.result() for append in appends] == [2, 3]
        assert "Too many open files" in caplog.text
        # The next file is asked for one again.
        monkeypatch.setattr(disk, "open", opens)
        offload.is_holding = False
        await wal.append(group(bytes(10_000)))
        offload.is_holding = True
        more = [asyncio.ensure_future(wal.append(group(b"more"))) for _ in range(2)]
        await turns()
        assert len(offload.held) == 4
        await offload.let(2, 3)
        await asyncio.gather(*more)
        offload.is_holding = False
        await wal.close()

    asyncio.run(scenario())
