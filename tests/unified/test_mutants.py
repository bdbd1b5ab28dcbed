"""Each of these mistakes is found by the histories: so they can fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from streamlog.errors import StreamlogError
from streamlog.unified import log_folder
from streamlog.unified.disk.log_files import LogFiles, SyncedTo
from streamlog.unified.flusher import Flusher
from streamlog.unified.log_folder import LogFolder
from streamlog.unified.partition_folder import PartitionFolder
from streamlog.unified.recovery import loader, scan
from streamlog.unified.recovery.loader import LogLoader
from streamlog.unified.unified_log import UnifiedLog
from tests.simulation.mutants.mutant import Patch
from tests.unified.histories import run_history

SEEDS_MAX = 3000
Install = Callable[[Patch], None]


def _nothing(*_: object, **__: object) -> None:
    return


async def _nothing_async(*_: object, **__: object) -> None:
    return


def acknowledges_without_a_sync(patch: Patch) -> None:
    def pretend(self: Any) -> None:
        self.synced = SyncedTo(self._base_offset, self._active.size())

    patch.set(LogFiles, "_sync", pretend)


def acknowledges_before_the_write(patch: Patch) -> None:
    async def early(self: Any, group: Any) -> None:
        for one in group:
            if one.ack is not None:
                one.ack.confirm(1)
        await original(self, [one._replace(ack=None) for one in group])

    original = patch.set(Flusher, "_carry_out", early)


def recovery_point_ahead_of_the_roll(patch: Patch) -> None:
    def ahead(self: Any) -> None:
        original(self)
        self._folder.note_recovery_point(self.log_end_offset)

    original = patch.set(UnifiedLog, "_roll", ahead)


def recovery_point_behind_the_sealed_segment(patch: Patch) -> None:
    def note(self: Any, offset: int) -> None:
        self._owner.recovery_points.note(self._partition, offset + 3)
        self._owner.save_soon()

    patch.set(PartitionFolder, "note_recovery_point", note)


def roll_without_a_sync_of_the_folder(patch: Patch) -> None:
    def without(self: Any, step: Any) -> None:
        folder = self.folder

        class Unsynced:
            def __getattr__(self, name: str) -> Any:
                return _nothing if name == "sync" else getattr(folder, name)

        self.folder = Unsynced()
        try:
            original(self, step)
        finally:
            self.folder = folder

    original = patch.set(LogFiles, "_roll", without)


def trusts_pages_of_a_failed_sync(patch: Patch) -> None:
    patch.set(LogFolder, "distrust", _nothing)
    patch.set(LogLoader, "_make_durable", lambda _self, _segment, file: file.sync())


def recovers_without_crc(patch: Patch) -> None:
    patch.set(scan, "_has_crc", lambda *_: True)


def leaves_torn_bytes_behind_the_end(patch: Patch) -> None:
    patch.set(LogLoader, "_truncate", lambda *_: 0)


def forgets_the_batches_behind_the_snapshot(patch: Patch) -> None:
    patch.set(LogLoader, "_replay", _nothing)


def takes_a_snapshot_for_a_later_one(patch: Patch) -> None:
    def skips(*arguments: Any) -> Any:
        found = original(*arguments)
        return found._replace(offset=found.offset + 2)

    original = patch.set(loader, "newest_snapshot", skips)


def forgets_the_batches_before_the_snapshot(patch: Patch) -> None:
    patch.set(loader, "recall", lambda _folder, _segments, entries, *_: entries)


def does_not_write_the_log_start_down(patch: Patch) -> None:
    patch.set(PartitionFolder, "save_start", _nothing_async)


def trusts_an_index_behind_the_recovery_point(patch: Patch) -> None:
    def trusting(folder: Any, plan: Any) -> Any:
        offsets = [int(name[:20]) for name in folder.list() if name.endswith(".snapshot")]
        point = max([plan.recovery_point, *(offset + 1 for offset in offsets)])
        return original(folder, plan._replace(recovery_point=point))

    original = patch.set(log_folder, "load", trusting)


MUTANTS: list[Install] = [
    acknowledges_without_a_sync,
    acknowledges_before_the_write,
    recovery_point_ahead_of_the_roll,
    recovery_point_behind_the_sealed_segment,
    roll_without_a_sync_of_the_folder,
    trusts_pages_of_a_failed_sync,
    recovers_without_crc,
    leaves_torn_bytes_behind_the_end,
    forgets_the_batches_behind_the_snapshot,
    takes_a_snapshot_for_a_later_one,
    forgets_the_batches_before_the_snapshot,
    does_not_write_the_log_start_down,
    trusts_an_index_behind_the_recovery_point,
]


@pytest.fixture
def patch() -> Iterator[Patch]:
    made = Patch()
    try:
        yield made
    finally:
        made.undo()


@pytest.mark.parametrize("install", MUTANTS, ids=[one.__name__ for one in MUTANTS])
def test_a_mistake_is_found(install: Install, patch: Patch) -> None:
    install(patch)
    for seed in range(SEEDS_MAX):
        try:
            run_history(seed)
        except (AssertionError, StreamlogError, TimeoutError, KeyError):
            return
    pytest.fail(f"{SEEDS_MAX} histories did not notice: {install.__name__}")
