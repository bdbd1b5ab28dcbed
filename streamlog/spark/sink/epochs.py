"""The driver's part of a write: one commit per epoch, and the abort of a failed write.

1. An epoch is committed once, also after a lost answer, a replayed batch or with a second driver.
2. Objects that a repetition staged are dropped; they were never visible.
3. A query replays its last batch and no earlier one. An epoch below the writer's last means another
   checkpoint, or two queries with one writer id: EpochPassed, because going on would lose records.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from streamlog.client.staging import StagedCommit, StagedObject
from streamlog.errors import StreamlogError
from streamlog.spark.errors import EpochPassed

log = logging.getLogger(__name__)


class EpochWriter(Protocol):
    """The part of `StagedWriter` that commits need."""

    writer_id: str

    def commit(self, epoch: int, objects: Iterable[StagedObject]) -> StagedCommit: ...

    def last_epoch(self) -> int | None: ...

    def abort(self, objects: Iterable[StagedObject]) -> int: ...


def commit_epoch(
    writer: EpochWriter, epoch: int, objects: Sequence[StagedObject]
) -> StagedCommit | None:
    """Commits all objects, or finds that an earlier commit of the epoch made its objects visible.

    None: there was nothing to commit. Errors: EpochPassed; StagedNotFound (expired), Conflict;
    OutcomeUnknown: repeat it with the same epoch.
    """
    if not objects:
        return None
    commit = writer.commit(epoch, objects)
    if not commit.was_committed:
        return commit
    last = writer.last_epoch()
    _drop(writer, objects)
    if last is not None and last > epoch:
        raise EpochPassed(
            f"writer {writer.writer_id} has committed epoch {last}, and now {epoch} comes. Either "
            "the query's checkpoint was lost or put back: give it a new writerId; or two queries "
            "write with this writerId: give each its own. Nothing was written",
            writer_id=writer.writer_id,
            epoch=epoch,
            last_epoch=last,
        )
    log.warning(
        "epoch %d of writer %s had been committed before; it was not written again",
        epoch,
        writer.writer_id,
    )
    return commit


def abort_epoch(writer: EpochWriter, epoch: int, objects: Sequence[StagedObject]) -> bool:
    """Drops uncommitted objects. True: the epoch is committed, by a commit whose answer was lost.

    Errors: Unavailable, OutcomeUnknown: the remaining objects expire.
    """
    if not objects:
        return False
    last = writer.last_epoch()
    dropped = writer.abort(objects)
    is_committed = last is not None and last >= epoch
    if is_committed:
        log.warning(
            "epoch %d of writer %s is committed, though this write failed: its records are there",
            epoch,
            writer.writer_id,
        )
    log.info("%d of %d staged objects were dropped", dropped, len(objects))
    return is_committed


def _drop(writer: EpochWriter, objects: Sequence[StagedObject]) -> None:
    """Drops uncommitted objects, which would otherwise expire."""
    try:
        writer.abort(objects)
    except StreamlogError as error:
        log.warning("up to %d staged objects are left to expire: %s", len(objects), error)
