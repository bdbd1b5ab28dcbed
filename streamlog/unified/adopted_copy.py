"""Makes a log of a partition that is taken over: its files are copied, the source stays as it is.

What is copied is trusted as little as after a crash: every batch is read. On return the copy is a
log that ended in order. It blocks: call it through Offload.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from streamlog.errors import Corrupt
from streamlog.runtime.disk.growing import GrowingFolder
from streamlog.runtime.disk.system_folder import SystemFolder
from streamlog.unified.adoption import FoundPartition, log_files
from streamlog.unified.disk.log_files import LogFiles
from streamlog.unified.recovery.loader import LoadedLog, LoadPlan, load
from streamlog.unified.recovery.snapshots import snapshot_of
from streamlog.unified.state.tail import UnifiedTail

log = logging.getLogger(__name__)

COPY_BYTES = 4 << 20

IsStopped = Callable[[], bool]


class AdoptedLog(NamedTuple):
    """What a copy holds, all of it durable. `producer_id_max`: -1 where no producer is known."""

    copied_bytes: int
    log_start_offset: int
    end_offset: int
    producer_id_max: int


def make_copy(
    found: FoundPartition, target: GrowingFolder, plan: LoadPlan, is_stopped: IsStopped
) -> AdoptedLog:
    """Errors: Corrupt (also where records are lost that were durable, unless the plan accepts it),
    OSError (also where it was stopped)."""
    copied = _copy_files(found.path, target, is_stopped)
    try:
        loaded = load(target, plan._replace(before_segment=lambda: _check(is_stopped)))
    except Corrupt as error:
        # Its paths are of the copy, which goes.
        copy, source = str(target), str(found.path)
        fields = {
            name: value.replace(copy, source) if isinstance(value, str) else value
            for name, value in error.fields.items()
        }
        told = str(error).replace(copy, source)
        raise Corrupt(f"{source} is not adopted: {told}", **fields) from error
    _check(is_stopped)
    _check_loss(found, loaded, plan)
    producer_ids = [entry.producer_id for entry in loaded.producers.snapshot()]
    loaded.producers.expire(plan.now_ms)
    tail = UnifiedTail(loaded.segments, loaded.producers, loaded.epochs)
    files = LogFiles.open(target, tail.active.base_offset)
    try:
        files.finish(tail.indexes(), tail.end_offset, snapshot_of(tail.producers))
    finally:
        files.close()
    return AdoptedLog(
        copied, loaded.log_start_offset, tail.end_offset, max(producer_ids, default=-1)
    )


def _check_loss(found: FoundPartition, loaded: LoadedLog, plan: LoadPlan) -> None:
    """Errors: Corrupt."""
    end, may_have_gaps = loaded.segments[-1].end, found.was_cleaned or plan.config.is_compacted
    lost = [gap for gap in loaded.gaps if gap[1] > plan.log_start_offset and not may_have_gaps]
    if end < found.recovery_point:
        lost.append((end, found.recovery_point))
    if not lost:
        return
    offsets = ", ".join(f"{first} to {behind - 1}" for first, behind in lost)
    if plan.accepts_data_loss:
        log.warning("offsets %s of %s are given up", offsets, found.path)
        return
    raise Corrupt(
        f"{found.path} lacks records of the offsets {offsets}: they were durable "
        f"(recovery point {found.recovery_point}), or a segment between others is missing. Put the "
        "files back from a copy, or give --accept-data-loss, which gives them up. Nothing is lost "
        "where the topic was compacted before, or the recovery point is of a later topic of the "
        "name",
        object_key=str(found.path),
    )


def _copy_files(source: Path, target: GrowingFolder, is_stopped: IsStopped) -> int:
    """Copies the files of a log, and nothing else; durable on return. Returns their bytes."""
    folder = SystemFolder(source, is_made=True)
    copied = sum(_copy(folder, name, target, is_stopped) for name in log_files(source))
    target.sync()
    return copied


def _copy(source: SystemFolder, name: str, target: GrowingFolder, is_stopped: IsStopped) -> int:
    old, new = source.open(name), target.create(name)
    try:
        position = 0
        while data := old.read(position, COPY_BYTES):
            _check(is_stopped)
            new.append([data])
            position += len(data)
        new.sync()
        return position
    finally:
        old.close()
        new.close()


def _check(is_stopped: IsStopped) -> None:
    if is_stopped():
        raise OSError(errno.ECANCELED, "the adoption was cancelled")
