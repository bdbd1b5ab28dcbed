"""The look-ups that check a replacement before its commit."""

from __future__ import annotations

import asyncio

import pytest

from streamlog.errors import Corrupt
from streamlog.metadata.compaction_interface import CompactionPoint, Replacement
from streamlog.metadata.fold.overlay import ObjectRange
from streamlog.metadata.fold.replacement import check_replaced
from streamlog.metadata.interface import NewObject, ObjectRow, RangeRow
from tests.metadata.fold.harness import A, Harness


def test_a_hole_in_the_metadata_ends_the_check() -> None:
    """There is no live range at offset 5: the look-up would give the same answer for ever."""
    harness = Harness()
    harness.create(A, 3)
    harness.append(A, 10, (3, 1, 0, 10))
    output = NewObject(ObjectRow(50, 100, 90, 10, 7), [RangeRow(3, 1, 0, 10)])
    replacement = Replacement(CompactionPoint(0, 0), [10], [output])

    async def find(stream_id: int, start: int, end: int) -> list[ObjectRange]:
        return [ObjectRange(0, 5, 10)] if start < 5 else []

    with pytest.raises(Corrupt, match="no data at offset 5"):
        asyncio.run(check_replaced(replacement, lambda: harness.fold, find))
