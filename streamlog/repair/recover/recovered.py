"""The recovered metadata, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamlog.format.checkpoint.state import StagingRows
from streamlog.metadata.interface import ObjectRow, Tenure
from streamlog.repair.recover.resolve import Piece

NOBODY = Tenure(0, 1)
"""The holder of streams whose writer no object tells."""


@dataclass(slots=True)
class RecoveredStream:
    """`epoch`: the highest one seen; the recovered stream gets a later one."""

    start: int
    end: int
    epoch: int
    holder: Tenure
    pieces: list[Piece] = field(default_factory=list)
    is_open: bool = True
    token: bytes = b""
    tags: dict[str, str] = field(default_factory=dict)

    def begin_at(self, offset: int) -> None:
        """Trims the stream: nothing before `offset` belongs to it."""
        self.start = max(self.start, offset)
        self.pieces = [
            piece._replace(start=max(piece.start, self.start))
            for piece in self.pieces
            if piece.end > self.start
        ]


@dataclass(slots=True)
class Recovered:
    """`values`: the users' key space, namespace and name → value. `*_max`: the highest seen.

    `from_revision`: the revision of the checkpoint that recovery began with; 0: none.
    `knows_deletions`: no checkpoint that could tell of newer deletions was lost, for this recovery
    or, as cluster.json has it, for an earlier one.
    """

    cluster_id: str
    streams: dict[int, RecoveredStream] = field(default_factory=dict)
    objects: dict[int, ObjectRow] = field(default_factory=dict)
    dead: dict[int, int] = field(default_factory=dict)
    """Object id → when its death was found, ms."""
    values: dict[tuple[str, bytes], bytes] = field(default_factory=dict)
    node_epochs: dict[int, int] = field(default_factory=dict)
    object_id_max: int = 0
    stream_id_max: int = 0
    revision_max: int = 0
    producer_id_max: int = 0
    staging: StagingRows = field(default_factory=StagingRows)
    """Staged objects, the last commit of each writer, and where objects were attached."""
    from_revision: int = 0
    knows_deletions: bool = True

    def saw_tenure(self, tenure: Tenure) -> None:
        highest = self.node_epochs.get(tenure.node_id, 0)
        self.node_epochs[tenure.node_id] = max(highest, tenure.node_epoch)

    def drop_unused_objects(self) -> int:
        """Forgets objects in which no stream has anything. Returns how many are left."""
        used = {piece.object_id for stream in self.streams.values() for piece in stream.pieces}
        self.objects = {i: row for i, row in self.objects.items() if i in used}
        return len(self.objects)

    def staged_objects(self) -> list[int]:
        """Objects that are staged and in no stream yet."""
        return [stage.row.object_id for stage in self.staging.stages]

    def rows(self) -> Mapping[int, ObjectRow]:
        return self.objects
