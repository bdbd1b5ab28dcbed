"""Where objects are built: small ones on the loop, others on the CPU lane."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import pytest

from streamlog.codec.crc import crc32c
from streamlog.engine.config import ObjectConfig
from streamlog.engine.upload.object_writer import (
    BUILD_INLINE_BYTES,
    BUILD_INLINE_ENTRIES,
    ObjectWriter,
)
from streamlog.format.entry import StreamEntry
from streamlog.runtime.offload import Lane, ThreadOffload
from tests.engine.fakes import FakeMetadata

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class CountingOffload(ThreadOffload):
    def __init__(self) -> None:
        super().__init__()
        self.lanes: list[Lane] = []

    async def run(self, lane: Lane, fn: Callable[[*Ts], T], *args: *Ts) -> T:
        self.lanes.append(lane)
        return await super().run(lane, fn, *args)


def entries(count: int, size_bytes: int) -> list[StreamEntry]:
    payload = b"x" * size_bytes
    return [StreamEntry(1, 1, n, 1, 5, (payload,), b"", crc32c(payload)) for n in range(count)]


@pytest.mark.parametrize(
    ("count", "size_bytes", "lanes"),
    [
        (BUILD_INLINE_ENTRIES, BUILD_INLINE_BYTES // BUILD_INLINE_ENTRIES, []),
        (BUILD_INLINE_ENTRIES + 1, 1, [Lane.CPU]),
        (1, BUILD_INLINE_BYTES + 1, [Lane.CPU]),
    ],
)
def test_small_objects_are_built_without_a_thread(
    count: int, size_bytes: int, lanes: list[Lane]
) -> None:
    async def test() -> None:
        offload = CountingOffload()
        writer = ObjectWriter(FakeMetadata().as_metadata, offload, ObjectConfig())
        async with writer.writing(entries(count, size_bytes)) as written:
            assert offload.lanes == lanes
            assert written.size_bytes == sum(map(len, written.parts)) > count * size_bytes
            assert [(r.start, r.end) for r in written.new_object.ranges] == [(0, count)]
        await offload.close()

    asyncio.run(test())
