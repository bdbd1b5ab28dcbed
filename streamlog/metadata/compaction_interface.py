"""What compaction, repair and readers that lost their place ask of the metadata.

Compaction replaces its inputs' live ranges by ranges of its outputs; offsets and contents stay.
1. Read a point, look at live objects and rows *after* it, plan, store the outputs, commit.
2. The commit compares the counter `x` of the point. If another compaction came between: fold, and
   unless it replaced one of the same inputs, commit the same outputs again.
3. The fold clips outputs to a stream's start: trims, destroys, moves and appends never conflict.
A compactor commits under a tenure of its own, so that its ids, which it holds for long, do not hold
up the window of the node's uploads. What it stored and did not commit is swept as an orphan.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from streamlog.format.checkpoint.blocks import ObjectColumns
from streamlog.format.rows import Rows
from streamlog.metadata.interface import Committed, Metadata, NewObject, ObjectRow, Tenure


@dataclass(frozen=True, slots=True)
class CompactionPoint:
    """`counter`: `x` as read; what is looked at afterwards is at `revision` or later."""

    counter: int
    revision: int


@dataclass(frozen=True, slots=True)
class LiveObject:
    """An object with `live_ranges` ranges in the fold (streams, where each has one)."""

    row: ObjectRow
    live_ranges: int


class ObjectFiles(NamedTuple):
    """Names of the files of the checkpoint in use, "" where there is none.

    A file never changes. While the base stays, every object that came or lost ranges since it was
    written is in the delta, which hides what the base says of it.
    """

    base: str
    delta: str


@dataclass(frozen=True, slots=True)
class Replacement:
    """`outputs` take the place of live ranges of `inputs`.

    Each output row covers whole live ranges of inputs, from the first (clipped at the stream's
    start when planned) to the last, without a gap. Rows are sorted by (stream_id, start); rows of
    one stream need not meet. An input may keep live ranges that no output covers.
    """

    point: CompactionPoint
    inputs: Sequence[int]
    outputs: Sequence[NewObject]


class CompactionTenure(Protocol):
    """A compactor's own tenure; registering it seals the one that this node's compactor had."""

    @property
    def tenure(self) -> Tenure: ...

    def owned_object_ids(self, count: int) -> AbstractAsyncContextManager[list[int]]:
        """Ids for outputs, owned for an `async with` block.

        At its end those that no commit has are given up and swept. Waits while the window is used
        up. Errors: Invalid (more than the window), TenureFenced, MetadataUnavailable, Closed.
        """
        ...

    async def commit(self, replacement: Replacement) -> Committed:
        """Durable and folded on return; waits while the metadata store is away.

        Errors: Conflict (another compaction replaced an input), Invalid (a rule of Replacement is
        broken, or it is too large for a record): the outputs are released. StoreUnavailable,
        MetadataUnavailable: nothing was sent, call again. TenureFenced, Closed.
        """
        ...

    async def close(self) -> None:
        """Seals the tenure. What is stored and not committed is swept by the node."""
        ...

    async def kill(self) -> None:
        """Stops at once, as a crash would."""
        ...


class CompactionMetadata(Metadata, Protocol):
    """The metadata of a node that compacts, repairs, or reads objects that others delete."""

    async def catch_up(self) -> int:
        """The fold holds every record that was in the metadata store when this was called; the
        revision. Errors: MetadataUnavailable.
        """
        ...

    async def compaction_point(self) -> CompactionPoint:
        """Errors: MetadataUnavailable."""
        ...

    async def live_objects(self, *, after: int = 0, limit: int = 1000) -> list[LiveObject]:
        """By id, those past `after`; memory and time per call are bound by `limit`.

        Objects that died since the last checkpoint may still show, with too many ranges.
        """
        ...

    def object_files(self) -> ObjectFiles: ...

    def object_blocks(self, file: str) -> AsyncIterator[Sequence[ObjectColumns]]:
        """All entries of one of `object_files`, by id; those of the delta that died have 0 ranges.

        Errors: ObjectNotFound (the file is not in use any more), StoreUnavailable, Corrupt.
        """
        ...

    def new_objects(self) -> list[LiveObject]:
        """Objects in no file yet: committed since that checkpoint."""
        ...

    async def live_parts(self, own: Mapping[int, Rows]) -> dict[int, Rows]:
        """Of objects' own rows the parts that live in them now, under their epochs, by object id.

        Costs a look-up for each stream, however many of the objects have it; neighbours share
        blocks. Others are served meanwhile.
        """
        ...

    async def open_compaction_tenure(self, *, ids_max: int) -> CompactionTenure:
        """`ids_max`: object ids held at a time (its window W). Errors: MetadataUnavailable."""
        ...
