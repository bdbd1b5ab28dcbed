"""Takes object ids that stay open, as those of an upload that never ends."""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.metadata.compaction_interface import CompactionTenure
from streamlog.metadata.interface import Metadata
from streamlog.metadata.session import MetadataSession
from tests.support.metadata_insides import allocator_of


async def take_id(metadata: Metadata) -> int:
    """Takes an id that nothing commits or gives up."""
    (object_id,) = await metadata.owned_object_id().__aenter__()
    return object_id


async def take_ids(tenure: CompactionTenure, count: int) -> list[int]:
    """Takes ids for a compactor, as `take_id` does for an upload."""
    return list(await tenure.owned_object_ids(count).__aenter__())


def give_up_id(metadata: MetadataSession, object_id: int) -> None:
    """Gives the id up, as the end of an upload does."""
    allocator_of(metadata).give_up([object_id])


def give_up_ids(tenure: CompactionTenure, object_ids: Sequence[int]) -> None:
    """Gives up a compactor's ids."""
    tenure._give_up(object_ids)  # type: ignore[attr-defined]
