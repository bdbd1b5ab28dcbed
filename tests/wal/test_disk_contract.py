"""The log keeps its promises on a disk that behaves as Linux does, and each step that this takes is
needed: a log or a disk that leaves one out is found by the scenario beside it.

The scenarios cut the power at the worst moment, with twenty outcomes each.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from streamlog.errors import StoreUnavailable, StreamlogError
from streamlog.format.rows import Tenure
from streamlog.runtime.rand import SeededRandom
from streamlog.testing import torn_disk
from streamlog.testing.torn_disk import TornDisk
from streamlog.testing.torn_media import DiskFault
from streamlog.wal import folder
from streamlog.wal.config import WalConfig
from streamlog.wal.pool import FilePool
from streamlog.wal.recovery import RecoveryPlan
from streamlog.wal.writer import GroupWriter
from tests.wal.wal_helpers import (
    CLUSTER,
    SMALL,
    begin,
    group,
    open_wal,
    power_cut,
    recovered,
    turns,
)

Scenario = Callable[[TornDisk], Awaitable[None]]
OUTCOMES = 20


def fail_writes(operation: str, name: str) -> DiskFault | None:
    return DiskFault.IO_ERROR if operation == "write" else None


def fail_writes_and_removals(operation: str, name: str) -> DiskFault | None:
    return DiskFault.IO_ERROR if operation in ("write", "remove") else None


def no_new_files(operation: str, name: str) -> DiskFault | None:
    return DiskFault.FULL if operation == "create" else None


def cut_power_at_a_new_file(operation: str, name: str) -> DiskFault | None:
    is_new = operation == "create" and folder.WAL_FILE_NAME.fullmatch(name)
    return DiskFault.POWER if is_new else None


async def acknowledged_groups_survive_a_power_cut(disk: TornDisk) -> None:
    wal = await begin(disk)
    await wal.append(group(b"one"))
    await turns()
    await wal.append(group(b"two"))
    await power_cut(disk)
    again = await open_wal(disk)
    assert again.cluster_id == CLUSTER
    assert await recovered(again) == [(1, b"one"), (2, b"two")]


async def a_failed_write_is_not_durable_after_a_restart(disk: TornDisk) -> None:
    """What a restarted log shows, and what is acknowledged behind it, survives a power cut."""
    wal = await begin(disk)
    await wal.append(group(b"one"))
    await turns()
    disk.plan_faults = fail_writes
    with pytest.raises(StoreUnavailable):
        await wal.append(group(b"two"))
    disk.plan_faults = None
    disk.restart()
    wal = await begin(disk, 2)
    shown = await recovered(wal)
    assert shown in ([(1, b"one")], [(1, b"one"), (2, b"two")])
    sequence = await wal.append(group(b"three"))
    await power_cut(disk)
    assert await recovered(await open_wal(disk)) == [*shown, (sequence, b"three")]


async def a_failed_activation_is_not_durable_after_a_restart(disk: TornDisk) -> None:
    """The same for a file's first group, whose superblock goes with it."""
    wal = await begin(disk)
    await turns()
    disk.plan_faults = fail_writes
    with pytest.raises(StoreUnavailable):
        await wal.append(group(b"one"))
    disk.plan_faults = None
    disk.restart()
    wal = await begin(disk, 2)
    shown = await recovered(wal)
    assert shown in ([], [(1, b"one")])
    sequence = await wal.append(group(b"two"))
    await power_cut(disk)
    assert await recovered(await open_wal(disk)) == [*shown, (sequence, b"two")]


async def a_failed_write_is_told(disk: TornDisk) -> None:
    wal = await begin(disk)
    await wal.append(group(b"one"))
    await turns()
    disk.plan_faults = fail_writes
    acknowledged = [(1, b"one")]
    with contextlib.suppress(StoreUnavailable):
        acknowledged.append((await wal.append(group(b"two")), b"two"))
    await power_cut(disk)
    disk.plan_faults = None
    groups = await recovered(await open_wal(disk))
    assert groups[: len(acknowledged)] == acknowledged


async def what_a_restart_shows_survives_a_power_cut(disk: TornDisk) -> None:
    """The process died before its writes were durable; the machine stayed up."""
    wal = await begin(disk)
    await wal.append(group(b"one"))
    await turns()
    disk.hold_writes = True
    for payload in (b"two", b"three"):
        await wal.append(group(payload))
    disk.hold_writes = False
    disk.restart()
    shown = await recovered(await open_wal(disk))
    assert shown == [(1, b"one"), (2, b"two"), (3, b"three")]
    await power_cut(disk)
    assert await recovered(await open_wal(disk)) == shown


async def a_stated_release_survives_a_power_cut(disk: TornDisk) -> None:
    """Also one that is stated while there is no room: the identity's next file was there."""
    wal = await begin(disk)
    for payload in (b"one", b"two"):
        await wal.append(group(payload))
    await turns()
    wal.release(1)
    disk.plan_faults = no_new_files
    await wal.persist_release()
    await power_cut(disk)
    disk.plan_faults = None
    again = await open_wal(disk)
    assert again.tenures == {Tenure(1, 1)}
    assert await recovered(again) == [(2, b"two")]


async def files_that_were_removed_are_not_missed(disk: TornDisk) -> None:
    """A setting was changed: files of the old size are removed as soon as they are released. The
    power goes when the first file of the new size is made, whose superblock states the release."""
    wal = await begin(disk)
    for n in range(20):
        await wal.append(group(b"%04d" % n * 1500))
    await wal.close()
    disk.restart()
    larger = WalConfig(wal_bytes_max=SMALL.wal_bytes_max, file_bytes=2 * SMALL.file_bytes)
    wal = await begin(disk, 2, larger)
    disk.plan_faults = cut_power_at_a_new_file
    wal.release(18)
    await turns(500)
    assert not disk.has_power
    await power_cut(disk)
    disk.plan_faults = None
    groups = await recovered(await open_wal(disk, larger))
    assert [sequence for sequence, _ in groups][-2:] == [19, 20]


async def what_a_restart_leaves_out_stays_away(disk: TornDisk) -> None:
    """The first file could be neither activated nor freed nor removed: it may read as free, and be
    in use on the medium."""
    wal = await begin(disk)
    await turns()
    disk.plan_faults = fail_writes_and_removals
    for payload in (b"one", b"two"):
        with pytest.raises(StoreUnavailable):
            await wal.append(group(payload))
    await turns()
    disk.plan_faults = None
    disk.restart()
    shown = await recovered(await open_wal(disk))
    await power_cut(disk)
    assert await recovered(await open_wal(disk)) == shown


SCENARIOS: list[Scenario] = [
    acknowledged_groups_survive_a_power_cut,
    a_failed_write_is_not_durable_after_a_restart,
    a_failed_activation_is_not_durable_after_a_restart,
    a_failed_write_is_told,
    what_a_restart_shows_survives_a_power_cut,
    a_stated_release_survives_a_power_cut,
    files_that_were_removed_are_not_missed,
    what_a_restart_leaves_out_stays_away,
]


def try_all_outcomes(scenario: Scenario) -> None:
    async def run() -> None:
        for seed in range(OUTCOMES):
            await scenario(TornDisk(SeededRandom(seed)))

    asyncio.run(run())


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_log_keeps_its_promises(scenario: Scenario) -> None:
    try_all_outcomes(scenario)


CONTENT = torn_disk._Content

# What each breakage replaces: (owner, name, replacement).
Patch = tuple[Any, str, Any]


def _create_without_folder_sync(self: TornDisk, name: str, size: int) -> Any:
    self._change({**self._files, name: CONTENT(size)})
    return torn_disk.TornFile(self, name, self._files[name])


def _rename_without_folder_sync(self: TornDisk, old: str, new: str) -> None:
    names = {name: content for name, content in self._files.items() if name != old}
    self._change({**names, new: self._files[old]})


def _only_synced(plan: RecoveryPlan) -> None:
    for scanned, _ in plan.live:
        scanned.file.sync()


def _only_written_again(plan: RecoveryPlan) -> None:
    if plan.live:
        scanned, frame = plan.live[-1]
        folder._write_again(scanned.file, frame.position, frame.end - frame.position)


def _superblock_not_written_again(plan: RecoveryPlan) -> None:
    _only_synced(plan)
    _only_written_again(plan)


_ended = GroupWriter._ended
_removes = FilePool._remove


def _synced_again_after_a_failure(self: Any, write: Any, error: BaseException | None) -> None:
    """A failed write is tried again as many programs do: by its sync alone."""
    if isinstance(error, OSError):
        write.handle.sync()
        error = None
    _ended(self, write, error)


async def _removed_unsaid(self: Any, file: Any, owner: Any) -> None:
    async def nothing(through: int) -> None:
        """The identity is not told."""

    self._persist_release = nothing
    await _removes(self, file, owner)


BREAKAGES: dict[str, tuple[Patch, Scenario]] = {
    "writes without dsync": (
        (CONTENT, "make_durable", lambda self, sectors: None),
        acknowledged_groups_survive_a_power_cut,
    ),
    "sync does nothing": (
        (CONTENT, "sync", lambda self: None),
        what_a_restart_shows_survives_a_power_cut,
    ),
    "a new file's folder is not synced": (
        (TornDisk, "create", _create_without_folder_sync),
        acknowledged_groups_survive_a_power_cut,
    ),
    "a rename's folder is not synced": (
        (TornDisk, "rename", _rename_without_folder_sync),
        a_stated_release_survives_a_power_cut,
    ),
    "a failed write is only synced again": (
        (GroupWriter, "_ended", _synced_again_after_a_failure),
        a_failed_write_is_told,
    ),
    "recovery makes nothing durable": (
        (folder, "_make_durable", lambda plan: None),
        what_a_restart_shows_survives_a_power_cut,
    ),
    "recovery syncs and does not write": (
        (folder, "_make_durable", _only_synced),
        a_failed_write_is_not_durable_after_a_restart,
    ),
    "recovery writes and does not sync": (
        (folder, "_make_durable", _only_written_again),
        what_a_restart_shows_survives_a_power_cut,
    ),
    "recovery leaves the superblock": (
        (folder, "_make_durable", _superblock_not_written_again),
        a_failed_activation_is_not_durable_after_a_restart,
    ),
    "recovery leaves free files as they are": (
        (folder, "_make_free_durable", lambda files, plan: None),
        what_a_restart_leaves_out_stays_away,
    ),
    "a file goes before the identity says so": (
        (FilePool, "_remove", _removed_unsaid),
        files_that_were_removed_are_not_missed,
    ),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_leaving_out_any_step_breaks_a_promise(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (owner, attribute, replacement), scenario = BREAKAGES[name]
    monkeypatch.setattr(owner, attribute, replacement)
    with pytest.raises((AssertionError, StreamlogError)):
        try_all_outcomes(scenario)
