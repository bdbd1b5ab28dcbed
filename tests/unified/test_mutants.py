"""Each of these mistakes is found by the histories: so they can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from streamlog.errors import StreamlogError
from streamlog.unified.disk.log_files import LogFiles, SyncedTo
from streamlog.unified.flusher import Flusher
from streamlog.unified.log_folder import LogFolder
from streamlog.unified.partition_folder import PartitionFolder
from streamlog.unified.recovery import loader, scan, snapshots
from streamlog.unified.unified_log import UnifiedLog
from tests.unified.test_histories import run_history

SEEDS_MAX = 3000
Patch = tuple[object, str, Any]


class Mutant(NamedTuple):
    name: str
    patches: Callable[[], list[Patch]]


def _nothing(*_: object, **__: object) -> None:
    return


async def _nothing_async(*_: object, **__: object) -> None:
    return


def _acks_without_sync() -> list[Patch]:
    def pretend(self: Any) -> None:
        self.synced = SyncedTo(self._base_offset, self._active.size())

    return [(LogFiles, "_sync", pretend)]


def _acks_before_the_write() -> list[Patch]:
    original = Flusher._carry_out

    async def early(self: Any, group: Any) -> None:
        for one in group:
            if one.ack is not None:
                one.ack.confirm(1)
        await original(self, [one._replace(ack=None) for one in group])

    return [(Flusher, "_carry_out", early)]


def _recovery_point_ahead() -> list[Patch]:
    original = UnifiedLog._roll

    def ahead(self: Any) -> None:
        original(self)
        self._folder.note_recovery_point(self.log_end_offset)

    return [(UnifiedLog, "_roll", ahead)]


def _recovery_point_of_what_is_not_synced() -> list[Patch]:
    def note(self: Any, offset: int) -> None:
        self._owner.recovery_points.note(self._partition, offset + 3)
        self._owner.save_soon()

    return [(PartitionFolder, "note_recovery_point", note)]


def _roll_without_folder_sync() -> list[Patch]:
    original = LogFiles._roll

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

    return [(LogFiles, "_roll", without)]


def _trusts_a_failed_sync() -> list[Patch]:
    return [(LogFolder, "distrust", _nothing)]


def _recovers_without_crc() -> list[Patch]:
    return [(scan, "_has_crc", lambda *_: True)]


def _leaves_what_is_torn() -> list[Patch]:
    return [(loader._Loader, "_truncate", lambda *_: 0)]


def _forgets_batches_behind_the_snapshot() -> list[Patch]:
    return [(loader._Loader, "_replay", _nothing)]


def _snapshot_of_later_batches() -> list[Patch]:
    original = snapshots.restore_newest

    def skips(*arguments: Any) -> int:
        return original(*arguments) + 2

    return [(loader, "restore_newest", skips)]


def _start_is_not_written_down() -> list[Patch]:
    return [(PartitionFolder, "save_start", _nothing_async)]


def _an_index_of_the_future() -> list[Patch]:
    """Entries are trusted as if all of the file had been durable."""
    original = loader.load

    def trusting(folder: Any, plan: Any) -> Any:
        end = 0
        for name in folder.list():
            if name.endswith(".snapshot"):
                end = max(end, int(name[:20]))
        return original(folder, plan._replace(recovery_point=max(plan.recovery_point, end + 1)))

    from streamlog.unified import log_folder

    return [(log_folder, "load", trusting)]


MUTANTS = [
    Mutant("acknowledges without a sync", _acks_without_sync),
    Mutant("acknowledges before the write", _acks_before_the_write),
    Mutant("recovery point ahead of the roll", _recovery_point_ahead),
    Mutant("recovery point behind the sealed segment", _recovery_point_of_what_is_not_synced),
    Mutant("roll without a sync of the folder", _roll_without_folder_sync),
    Mutant("trusts pages of a failed sync", _trusts_a_failed_sync),
    Mutant("recovers without CRC", _recovers_without_crc),
    Mutant("leaves torn bytes behind the end", _leaves_what_is_torn),
    Mutant("forgets the batches behind the snapshot", _forgets_batches_behind_the_snapshot),
    Mutant("takes a snapshot for a later one", _snapshot_of_later_batches),
    Mutant("does not write the log start down", _start_is_not_written_down),
    Mutant("trusts an index behind the recovery point", _an_index_of_the_future),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[one.name for one in MUTANTS])
def test_a_mistake_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    for target, name, replacement in mutant.patches():
        monkeypatch.setattr(target, name, replacement)
    for seed in range(SEEDS_MAX):
        try:
            run_history(seed)
        except (TimeoutError, AssertionError, StreamlogError, KeyError):
            return
    pytest.fail(f"{SEEDS_MAX} histories did not notice: {mutant.name}")
