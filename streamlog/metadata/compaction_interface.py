"""The metadata as compaction, repair and readers of the object store use it.

A compaction replaces live ranges of its inputs by ranges of its outputs; offsets and contents stay.
1. Read a compaction point; *after* it read live objects and rows, plan, store the outputs, commit.
2. The commit compares the compaction counter of the point. If another compaction came between, the
   tenure folds it and commits the same outputs again, unless the other one replaced one of the
   inputs.
3. The fold clips outputs to a stream's start: trim, destroy, transfer and append never conflict.
A compactor commits under a tenure of its own: it holds its ids for long, and they must not use up
the window of the node's uploads. Outputs that it stored and did not commit are swept as orphans.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from streamlog.format.checkpoint.blocks import ObjectColumns
from streamlog.format.rows import Rows
from streamlog.metadata.interface import (
    Committed,
    Metadata,
    NewObject,
    ObjectRow,
    StreamView,
    Tenure,
)


@dataclass(frozen=True, slots=True)
class CompactionPoint:
    """The compaction counter as read; later reads of the fold are at `revision` or later."""

    counter: int
    revision: int


@dataclass(frozen=True, slots=True)
class LiveObject:
    """An object with its number of live ranges in the fold (mostly one for each of its streams)."""

    row: ObjectRow
    live_ranges: int


class ObjectFiles(NamedTuple):
    """Names of the files of the checkpoint in use, "" for a file that does not exist.

    A file never changes. Every object that was added or lost ranges since the base was written is
    in the delta, whose entry hides the one in the base.
    """

    base: str
    delta: str


@dataclass(frozen=True, slots=True)
class Replacement:
    """Replaces live ranges of `inputs` by `outputs`.

    Each output row covers whole live ranges of inputs, from the first (clipped at the stream's
    start when planned) to the last, without a gap. Rows are sorted by (stream_id, start); rows of
    one stream need not be adjacent. An input may keep live ranges that no output covers.
    """

    point: CompactionPoint
    inputs: Sequence[int]
    outputs: Sequence[NewObject]


class CompactionTenure(Protocol):
    """A compactor's own tenure; its registration seals the compactor tenure that the node had."""

    @property
    def tenure(self) -> Tenure: ...

    def owned_object_ids(self, count: int) -> AbstractAsyncContextManager[list[int]]:
        """Ids for outputs, owned for an `async with` block.

        At its end the ids that no commit holds are given up and swept. Waits while the window is
        used up. Errors: Invalid (more than the window), TenureFenced, MetadataUnavailable, Closed.
        """
        ...

    async def commit(self, replacement: Replacement) -> Committed:
        """Commits the replacement: durable and folded on return.

        Waits while the metadata store is away. Errors: Conflict (another compaction replaced an
        input), Invalid (it breaks a rule of Replacement, or is too large for a record): the outputs
        are given up. StoreUnavailable, MetadataUnavailable: nothing was sent, call again.
        TenureFenced, Closed.
        """
        ...

    async def close(self) -> None:
        """Seals the tenure. The node sweeps objects that were stored and not committed."""
        ...

    async def kill(self) -> None:
        """Stops at once, as a crash would."""
        ...


class ObjectView(StreamView, Protocol):
    """All live objects, as planning compactions and reads of the object store need them."""

    async def live_objects(self, *, after: int = 0, limit: int = 1000) -> list[LiveObject]:
        """Live objects by id, beginning above `after`; `limit` bounds memory and time of a call.

        Objects that died since the last checkpoint may still appear, with too many ranges.
        """
        ...

    def object_files(self) -> ObjectFiles: ...

    def object_blocks(self, file: str) -> AsyncIterator[Sequence[ObjectColumns]]:
        """All entries of one of `object_files`, by id; dead objects of the delta have 0 ranges.

        Errors: ObjectNotFound (the file is not in use any more), StoreUnavailable, Corrupt.
        """
        ...

    def new_objects(self) -> list[LiveObject]:
        """Objects that are in no file yet: committed since the checkpoint."""
        ...

    async def live_parts(self, own: Mapping[int, Rows]) -> dict[int, Rows]:
        """Object id → the live parts of the object's own rows, under the rows' epochs.

        Costs one look-up for each stream, however many of the objects have it; neighbours share
        blocks. Other tasks run meanwhile.
        """
        ...


class CompactionMetadata(Metadata, ObjectView, Protocol):
    """The metadata of a node that compacts or repairs."""

    async def compaction_point(self) -> CompactionPoint:
        """Errors: MetadataUnavailable."""
        ...

    async def open_compaction_tenure(self, *, ids_max: int) -> CompactionTenure:
        """Registers a compaction tenure with a window of `ids_max` object ids.

        Errors: MetadataUnavailable.
        """
        ...
