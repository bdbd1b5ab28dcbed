"""Staged writes in the fold: staged objects, the last attach of each writer, and attached objects.

1. A stage makes an object known, so that no sweep deletes it. The object is in no stream yet.
2. An attach gives all rows of a list of staged objects their offsets, at the ends of their streams,
   in one record, or it is refused. A writer's epochs rise.
3. An unstage drops objects that are still staged; attached objects stay.
4. Attach and unstage compare and raise the compaction counter. So each is decided by a fold that
   has seen all others, whichever tenure holds the streams, and a writer's epoch is attached once.
5. Where an object was attached is kept until the object is dead, because its bytes do not say it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from streamlog.format.checkpoint.state import StagingRows
from streamlog.format.records.staged_entries import Attach as Attach
from streamlog.format.records.staged_entries import Stage as Stage
from streamlog.format.records.staged_entries import Unstage as Unstage
from streamlog.format.records.staged_entries import WriterRow as WriterRow
from streamlog.format.rows import ObjectRow as ObjectRow
from streamlog.format.rows import Placement as Placement
from streamlog.format.rows import Placements as Placements


class FoldedStaging:
    """`staged` and `attached` are by object id, `writers` by writer id.

    `attached_revision` is that of the last record with an attach; 0: the checkpoint covers all.
    """

    __slots__ = ("_attempts", "_counts", "attached", "attached_revision", "staged", "writers")

    def __init__(self, rows: StagingRows | None = None) -> None:
        self.staged: dict[int, Stage] = {}
        self.writers: dict[str, WriterRow] = {}
        self.attached: dict[int, Placements] = {}
        self.attached_revision = 0
        self._attempts: dict[tuple[str, str], int] = {}
        self._counts: Counter[str] = Counter()
        """Writer id → number of its staged objects, where it has any."""
        if rows is not None:
            for stage in rows.stages:
                self.add(stage)
            self.writers = {row.writer_id: row for row in rows.writers}
            self.attached = dict(rows.attached)

    def rows(self, without: Iterable[int] = ()) -> StagingRows:
        """The content as a checkpoint stores it, without these dead objects."""
        gone = frozenset(without)
        return StagingRows(
            list(self.staged.values()),
            list(self.writers.values()),
            [item for item in self.attached.items() if item[0] not in gone],
        )

    def add(self, stage: Stage) -> None:
        self.staged[stage.row.object_id] = stage
        self._attempts[stage.writer_id, stage.attempt] = stage.row.object_id
        self._counts[stage.writer_id] += 1

    def take(self, object_id: int) -> Stage | None:
        """Removes the object from what is staged; None where it was not staged."""
        stage = self.staged.pop(object_id, None)
        if stage is not None:
            key = stage.writer_id, stage.attempt
            if self._attempts.get(key) == object_id:
                del self._attempts[key]
            self._counts[stage.writer_id] -= 1
            if not self._counts[stage.writer_id]:
                del self._counts[stage.writer_id]
        return stage

    def of_attempt(self, writer_id: str, attempt: str) -> Stage | None:
        object_id = self._attempts.get((writer_id, attempt))
        return None if object_id is None else self.staged[object_id]

    def count_of(self, writer_id: str) -> int:
        """The number of the writer's staged objects."""
        return self._counts.get(writer_id, 0)

    def last_epoch(self, writer_id: str) -> int:
        """The epoch that the writer attached last; -1: none."""
        writer = self.writers.get(writer_id)
        return -1 if writer is None else writer.epoch

    def forget_dead(self, object_ids: Iterable[int]) -> None:
        gone = self.attached.keys() & object_ids
        if gone:
            # Running look-ups keep the mapping that they began with.
            self.attached = {i: places for i, places in self.attached.items() if i not in gone}
