"""What recovery has put together, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamlog.format.checkpoint.state import StagingRows
from streamlog.metadata.interface import ObjectRow, Tenure
from streamlog.repair.recover.resolve import Piece

NOBODY = Tenure(0, 1)
"""Holds streams of which no object tells a writer."""


@dataclass(slots=True)
class RecoveredStream:
    """`epoch`: the highest one seen; the stream is written down with a later one."""

    start: int
    end: int
    epoch: int
    holder: Tenure
    pieces: list[Piece] = field(default_factory=list)
    is_open: bool = True
    token: bytes = b""
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Recovered:
    """`values`: the users' key space, namespace and name → value. Highest numbers ever seen.

    `from_revision`: of the metadata that it began with, 0 for none. `knows_deletions`: no newer
    ones were lost that could have been read.
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
    staging: StagingRows = field(default_factory=StagingRows)
    """What is staged, what writers committed last, where objects were attached."""
    from_revision: int = 0
    knows_deletions: bool = True

    def saw_tenure(self, tenure: Tenure) -> None:
        known = self.node_epochs.get(tenure.node_id, 0)
        self.node_epochs[tenure.node_id] = max(known, tenure.node_epoch)

    def staged_objects(self) -> list[int]:
        """Objects that are staged and in no stream yet."""
        return [stage.row.object_id for stage in self.staging.stages]

    def rows(self) -> Mapping[int, ObjectRow]:
        return self.objects
