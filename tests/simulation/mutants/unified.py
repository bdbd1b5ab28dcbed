"""Mutants of topics in local files: what is durable, what an open trusts, what a cleaning keeps."""

from __future__ import annotations

from typing import Any

from streamlog.log.cleaning.batch_filter import BatchFilter
from streamlog.testing.simulation.local.history import UNIFIED_PLAN
from streamlog.unified import log_folder
from streamlog.unified.disk.log_files import LogFiles, SyncedTo
from streamlog.unified.flusher import Flusher
from streamlog.unified.log_folder import LogFolder
from streamlog.unified.partition_folder import PartitionFolder
from streamlog.unified.recovery import loader
from streamlog.unified.recovery.loader import LogLoader
from streamlog.unified.unified_log import UnifiedLog
from tests.simulation.mutants.cleaning_rules import (
    aborted_supersedes,
    marker_gone_early,
    tombstone_gone_at_once,
)
from tests.simulation.mutants.mutant import Mutant, Patch


def _nothing(*_: object, **__: object) -> None:
    return


async def _nothing_async(*_: object, **__: object) -> None:
    return


# What is durable.


def _acked_without_sync(patch: Patch) -> None:
    def pretend(self: Any) -> None:
        self.synced = SyncedTo(self._base_offset, self._active.size())

    patch.set(LogFiles, "_sync", pretend)


def _acked_before_the_write(patch: Patch) -> None:
    async def early(self: Any, group: Any) -> None:
        for one in group:
            if one.ack is not None:
                one.ack.confirm(1)
        await original(self, [one._replace(ack=None) for one in group])

    original = patch.set(Flusher, "_carry_out", early)


def _recovery_point_ahead(patch: Patch) -> None:
    def ahead(self: Any) -> None:
        original(self)
        self._folder.note_recovery_point(self.log_end_offset)

    original = patch.set(UnifiedLog, "_roll", ahead)


class _Unsynced:
    """A folder whose names are never synced."""

    def __init__(self, folder: Any) -> None:
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return _nothing if name == "sync" else getattr(self._folder, name)


def _roll_without_folder_sync(patch: Patch) -> None:
    def without(self: Any, step: Any) -> None:
        folder = self.folder
        self.folder = _Unsynced(folder)
        try:
            original(self, step)
        finally:
            self.folder = folder

    original = patch.set(LogFiles, "_roll", without)


def _failed_sync_believed(patch: Patch) -> None:
    """The pages are readable and clean: the next sync has nothing to do, and succeeds."""
    patch.set(LogFolder, "distrust", _nothing)
    patch.set(LogLoader, "_make_durable", lambda _self, _segment, file: file.sync())


def _failed_sync_of_the_dead_believed(patch: Patch) -> None:
    """As the one before, where the process died in between: what the loader did before."""
    patch.set(LogLoader, "_make_durable", lambda _self, _segment, file: file.sync())


def _start_not_written(patch: Patch) -> None:
    patch.set(PartitionFolder, "save_start", _nothing_async)


# What an open trusts.


def _index_trusted(patch: Patch) -> None:
    def trusting(folder: Any, plan: Any) -> Any:
        offsets = [int(name[:20]) for name in folder.list() if name.endswith(".snapshot")]
        point = max([plan.recovery_point, *(offset + 1 for offset in offsets)])
        return original(folder, plan._replace(recovery_point=point))

    original = patch.set(log_folder, "load", trusting)


def _torn_bytes_left(patch: Patch) -> None:
    patch.set(LogLoader, "_truncate", lambda *_: 0)


def _snapshot_of_later(patch: Patch) -> None:
    def skips(*arguments: Any) -> Any:
        found = original(*arguments)
        return found._replace(offset=found.offset + 2)

    original = patch.set(loader, "newest_snapshot", skips)


def _tail_not_replayed(patch: Patch) -> None:
    patch.set(LogLoader, "_replay", lambda *_: [])


def _batches_before_the_snapshot_forgotten(patch: Patch) -> None:
    patch.set(loader, "recall", lambda _folder, _segments, entries, *_: entries)


def _swap_given_up(patch: Patch) -> None:
    """What the loader did before: it took the .swap of a half-done swap for a left-over."""

    def swap_in(self: Any, base_offset: int) -> None:
        self._bases()
        original(self, base_offset)

    original = patch.set(LogLoader, "_swap_in", swap_in)


# What a reader is told.


def _recovery_point_not_saved(patch: Patch) -> None:
    """A cleaning joins segments above the recovery point that is on disk."""
    patch.set(PartitionFolder, "save_recovery_point", _nothing_async)


def _aborted_of_sealed_segments_not_told(patch: Patch) -> None:
    async def local(self: Any, *arguments: Any) -> Any:
        aborted = self._tail.active.aborted or ()
        return [one for one in await original(self, *arguments) if one in aborted]

    original = patch.set(UnifiedLog, "_aborted_between", local)


# What a cleaning keeps.


def _last_value_lost(patch: Patch) -> None:
    """The newest record of a key goes when it is in the cleaned range itself."""

    def keeps(self: Any, record: Any, keeps_tombstones: bool) -> bool:
        newest = self.offsets.get(record[2]) if record[2] is not None else -1
        is_last = newest == record[0] and newest == self.offsets.latest_offset
        return not is_last and bool(original(self, record, keeps_tombstones))

    original = patch.set(BatchFilter, "keeps_record", keeps)


def _mutant(
    name: str, broken: str, install: Any, *, is_quick: bool = True, found_by: str = ""
) -> Mutant:
    is_quick = is_quick and not found_by
    return Mutant(name, broken, "disk", install, is_quick, found_by, UNIFIED_PLAN)


UNIFIED_MUTANTS = (
    _mutant("acked without a sync", "appends are acknowledged unsynced", _acked_without_sync),
    _mutant(
        "acked before the write",
        "appends are acknowledged before they are written",
        _acked_before_the_write,
    ),
    _mutant(
        "recovery point ahead",
        "the recovery point is written down before the roll that it speaks of is durable",
        _recovery_point_ahead,
    ),
    _mutant(
        "roll without folder sync",
        "the new segment's name is not durable when the next append is acknowledged",
        _roll_without_folder_sync,
    ),
    _mutant(
        "failed sync believed",
        "after a failed sync the next open trusts what it can read",
        _failed_sync_believed,
    ),
    _mutant(
        "failed sync of the dead believed",
        "an open trusts what it can read, though the process before died of a failed sync",
        _failed_sync_of_the_dead_believed,
        found_by="tests/unified/test_failing_logs.py",
    ),
    _mutant("start not written", "a raised log start is in memory alone", _start_not_written),
    _mutant(
        "index trusted",
        "segments behind the recovery point are trusted as they are",
        _index_trusted,
    ),
    _mutant(
        "torn bytes left", "what is behind the last sound batch is not cut off", _torn_bytes_left
    ),
    _mutant(
        "snapshot of a later offset",
        "a producer snapshot is taken for one of two offsets later",
        _snapshot_of_later,
    ),
    _mutant(
        "tail not replayed",
        "batches behind the producer snapshot change no producer",
        _tail_not_replayed,
    ),
    _mutant(
        "batches before the snapshot forgotten",
        "an open knows the last batch of each producer alone, and no resend of those before it",
        _batches_before_the_snapshot_forgotten,
        is_quick=False,
    ),
    _mutant(
        "swap given up",
        "an open takes the new segment of a half-done swap for a left-over",
        _swap_given_up,
    ),
    _mutant(
        "recovery point not saved",
        "a cleaning joins segments above the recovery point that is on disk",
        _recovery_point_not_saved,
        found_by="tests/unified/test_cleaning.py::"
        "test_a_crash_after_a_cleaning_meets_no_recovery_point_within_the_new_segment",
    ),
    _mutant(
        "aborted of sealed segments not told",
        "a fetch tells the aborted transactions of the active segment alone",
        _aborted_of_sealed_segments_not_told,
    ),
    _mutant("last value lost", "a cleaning drops a key's newest record", _last_value_lost),
    _mutant("deleted key back", "a tombstone goes with its first cleaning", tombstone_gone_at_once),
    _mutant(
        "aborted supersedes",
        "a cleaning takes aborted records for committed ones",
        aborted_supersedes,
    ),
    _mutant(
        "marker gone early",
        "a cleaning drops markers of transactions whose records stay",
        marker_gone_early,
    ),
)
