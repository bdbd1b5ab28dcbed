"""Staged writes in the fold: what is stored and in no stream, what writers attached last, and where
objects lie that were staged once.

1. A stage makes an object known, so that no sweep takes it. It is in no stream.
2. An attach gives all rows of a list of staged objects their offsets, at the ends of their streams,
   in one record, or it is refused. A writer's epochs rise.
3. An unstage drops what is staged still; of an attached object it is void.
4. Both compare and raise `x`: so none is decided by a fold that has not seen the others, whoever
   holds the streams; a writer's epoch is attached once.
5. Where an object was attached is kept until the object is dead: its bytes do not say it.
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


class Staging:
    """`staged` and `attached` by object id, `writers` by writer id.

    `attached_revision`: of the last record with an attach, be it of nothing; 0: a checkpoint has
    all.
    """

    __slots__ = ("_attempts", "_counts", "attached", "attached_revision", "staged", "writers")

    def __init__(self, rows: StagingRows | None = None) -> None:
        self.staged: dict[int, Stage] = {}
        self.writers: dict[str, WriterRow] = {}
        self.attached: dict[int, Placements] = {}
        self.attached_revision = 0
        self._attempts: dict[tuple[str, str], int] = {}
        self._counts: Counter[str] = Counter()
        """Staged objects of each writer that has some."""
        if rows is not None:
            for stage in rows.stages:
                self.add(stage)
            self.writers = {row.writer_id: row for row in rows.writers}
            self.attached = dict(rows.attached)

    def rows(self, without: Iterable[int] = ()) -> StagingRows:
        """As a checkpoint keeps it; `without`: objects that are dead."""
        gone = frozenset(without)
        return StagingRows(
            list(self.staged.values()),
            list(self.writers.values()),
            [one for one in self.attached.items() if one[0] not in gone],
        )

    def add(self, stage: Stage) -> None:
        self.staged[stage.row.object_id] = stage
        self._attempts[stage.writer_id, stage.attempt] = stage.row.object_id
        self._counts[stage.writer_id] += 1

    def take(self, object_id: int) -> Stage | None:
        """It is staged no more."""
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
        """How many objects the writer has staged."""
        return self._counts.get(writer_id, 0)

    def last_epoch(self, writer_id: str) -> int:
        """-1 where nothing is known of the writer."""
        known = self.writers.get(writer_id)
        return -1 if known is None else known.epoch

    def forget_dead(self, object_ids: Iterable[int]) -> None:
        gone = self.attached.keys() & object_ids
        if gone:
            # Look-ups under way go on with the one that they began with.
            self.attached = {i: places for i, places in self.attached.items() if i not in gone}
