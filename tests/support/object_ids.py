"""Object ids that are taken and stay open, as of uploads that go no further."""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.metadata.compaction_interface import CompactionTenure
from streamlog.metadata.interface import Metadata
from streamlog.metadata.session import MetadataSession
from tests.support.metadata_insides import allocator_of


async def take_id(metadata: Metadata) -> int:
    """An id whose owner does not end."""
    (object_id,) = await metadata.owned_object_id().__aenter__()
    return object_id


async def take_ids(tenure: CompactionTenure, count: int) -> list[int]:
    """As take_id, a compactor's."""
    return list(await tenure.owned_object_ids(count).__aenter__())


def give_up_id(metadata: MetadataSession, object_id: int) -> None:
    """As the end of its owner does."""
    allocator_of(metadata).give_up([object_id])


def give_up_ids(tenure: CompactionTenure, object_ids: Sequence[int]) -> None:
    """As give_up_id, a compactor's."""
    tenure._give_up(object_ids)  # type: ignore[attr-defined]
