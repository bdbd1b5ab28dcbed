"""Where sections of streams lie in objects, as a view of the metadata has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamlog.format.rows import Placements
from streamlog.metadata.compaction_interface import LiveObject
from streamlog.metadata.lookup.live_objects import new_objects
from streamlog.metadata.lookup.locating import LocateSection, Locating
from streamlog.model.located import Located, LocatedRun, ObjectTable
from streamlog.repair.view import MetadataView


async def located_in(view: MetadataView, sections: Sequence[LocateSection]) -> Located:
    """Looks up all sections. Errors: Corrupt, StoreUnavailable."""
    locating = Locating(_Places(view), sections)
    runs: list[LocatedRun] = []
    objects = ObjectTable()
    async for part in locating.ranges():
        runs += part
    async for table in locating.objects():
        objects.extend(table)
    return Located(view.revision, runs, objects)


class _Places:
    """The look-ups that `Locating` needs, answered by a view."""

    def __init__(self, view: MetadataView) -> None:
        self._fold = view.state.fold
        lookup = view.lookup
        self.ranges = lookup.ranges
        self.warm = lookup.warm
        self.object = lookup.object
        self.object_files = lookup.object_files
        self.object_blocks = lookup.object_blocks

    def new_objects(self) -> list[LiveObject]:
        return new_objects(self._fold.generations)

    def attached(self) -> Mapping[int, Placements]:
        return self._fold.staging.attached
