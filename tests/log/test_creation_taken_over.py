"""A topic is created by a node that is replaced meanwhile, and does not know it yet.

The node stands still around the writing of the topic's record. Its successor seals it, and deletes
what it takes for orphans: streams that no topic names.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

import streamlog
from streamlog.errors import Fenced, OutcomeUnknown, Unavailable
from streamlog.kvstore.interface import Put, RangeResult, StoredKeyValue, TxnResult
from streamlog.kvstore.memory.store import MemoryKVStore
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.runtime.clock import SystemClock
from streamlog.wiring import Components, OpenEngine
from tests.support.deaf_kv import DeafKV

Meanwhile = Callable[[], Awaitable[None]]
When = Literal["before", "after"]


class StandsStillKV(DeafKV):
    """The node stands still when it writes its first topic, and hears nothing before it asks the
    store for something else."""

    def __init__(self, kv: MemoryKVStore, when: When) -> None:
        super().__init__(kv)
        self._when = when
        self.meanwhile: Meanwhile | None = None

    async def txn(self, compares: Any, then: Sequence[Any], otherwise: Any = ()) -> TxnResult:
        is_topic = any(isinstance(one, Put) and b"_topic" in one.key for one in then)
        meanwhile = self.meanwhile
        if meanwhile is None or not is_topic:
            self.hears.set()
            return await self._kv.txn(compares, then, otherwise)
        self.meanwhile = None
        self.hears.clear()
        if self._when == "before":
            await meanwhile()
        result = await self._kv.txn(compares, then, otherwise)
        if self._when == "after":
            await meanwhile()
        return result

    async def get(self, *args: Any, **options: Any) -> StoredKeyValue | None:
        self.hears.set()
        return await self._kv.get(*args, **options)

    async def range(self, *args: Any, **options: Any) -> RangeResult:
        self.hears.set()
        return await self._kv.range(*args, **options)


@asynccontextmanager
async def two_nodes(when: When) -> AsyncIterator[tuple[OpenEngine, StandsStillKV, OpenEngine]]:
    clock = SystemClock()
    kv, store = MemoryKVStore(clock), MemoryObjectStore(clock)
    slow_kv = StandsStillKV(kv, when)

    def node(node_id: int, its_kv: Any) -> Any:
        parts = Components(store=store, kv=its_kv)
        return streamlog.open(
            "memory://", meta="memory://", wal="object", node_id=node_id, components=parts
        )

    async with node(1, slow_kv) as slow, node(2, kv) as successor:
        yield slow, slow_kv, successor
        await slow.kill()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_creation_that_was_taken_over_is_not_acknowledged(when: When) -> None:
    async def main() -> None:
        async with two_nodes(when) as (slow, slow_kv, successor):

            async def take_over() -> None:
                tenure = slow.metadata.tenure
                await successor.metadata.seal(tenure, even_if_alive=True)
                await successor.metadata.take_over(tenure)
                await successor.logs.delete_orphans()

            slow_kv.meanwhile = take_over
            with pytest.raises((OutcomeUnknown, Fenced, Unavailable)):
                await slow.logs.create_topic("t", 2)
            assert slow_kv.meanwhile is None
            # A record that came first is finished; one without its streams is given up.
            await successor.logs.repair()
            topic = successor.logs.topic("t")
            assert (topic is not None) == (when == "after")
            if topic is None:
                await successor.logs.create_topic("t", 2)

    asyncio.run(main())
