"""The fold of a meta stream whose beginning may be a remnant. Pure.

A meta stream is trimmed only up to a snapshot, which replaces everything before it. Where a lost
checkpoint told of the trim, objects may still hold some entries before that snapshot. They do not
stand on their own, and no node could open a partition whose meta stream begins with them.
"""

from __future__ import annotations

from streamlog.errors import Corrupt
from streamlog.log.shared.meta.codec import MetaEntry
from streamlog.log.shared.meta.state import MetaState


class MetaReplay:
    """`snapshot_offset`: where the last whole snapshot begins; None: there is none.

    `has_remnant`: entries before it do not stand on their own.
    """

    def __init__(self) -> None:
        self.state = MetaState()
        self.snapshot_offset: int | None = None
        self.has_remnant = False
        self._group_offset = 0
        self._misfit: Corrupt | None = None

    def add(self, offset: int, entry: MetaEntry) -> None:
        """The next entry. One that cannot follow those before it waits for a snapshot."""
        if not entry.is_continuing:
            self._group_offset = offset
        try:
            self.state.apply_entry(entry)
        except Corrupt as error:
            self._misfit = self._misfit or error
            self.has_remnant = True
            return
        if entry.is_snapshot and not entry.is_continued:
            self.snapshot_offset = self._group_offset
            self._misfit = None

    @property
    def stands_alone(self) -> bool:
        """Whether the state is whole: from a snapshot on, or from the partition's creation."""
        return self.snapshot_offset is not None or self.state.description is not None

    def check(self) -> None:
        """Errors: Corrupt, if an entry does not fit and no snapshot follows it."""
        if self._misfit is not None:
            raise self._misfit
