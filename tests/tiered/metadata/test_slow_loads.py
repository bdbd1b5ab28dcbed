"""Loads of the manager over the KV store that take long, beside changes of what they load."""

from __future__ import annotations

import asyncio

from streamlog.model.kv import KeyValue
from streamlog.testing.basic_kv import BasicKV
from streamlog.testing.tiers.metadata_conformance import FIRST, segment
from streamlog.tiered.metadata.kv_manager import KVRemoteLogMetadataManager


class HeldLists(BasicKV):
    """Chosen listings have read what there is, and wait before they answer."""

    def __init__(self, *held: int) -> None:
        super().__init__()
        self.gates = {number: asyncio.Event() for number in held}
        self.lists = 0

    async def list_kv(
        self, namespace: str, prefix: bytes = b"", *, after: bytes | None = None, limit: int = 1000
    ) -> list[KeyValue]:
        self.lists += 1
        gate = self.gates.get(self.lists)
        found = await super().list_kv(namespace, prefix, after=after, limit=limit)
        if gate is not None:
            await gate.wait()
        return found


def test_a_slow_load_of_a_reader_puts_nothing_old_in_the_place_of_a_newer_one() -> None:
    async def body() -> None:
        kv = HeldLists(1, 3)
        manager = KVRemoteLogMetadataManager(kv)
        one = segment(1, (0, 9))
        calls = []
        for call in (
            manager.list_remote_log_segments(FIRST),
            manager.add_remote_log_segment_metadata(one),
            manager.on_partition_leadership_changes([FIRST], []),
        ):
            calls.append(asyncio.ensure_future(call))
            for _ in range(20):
                await asyncio.sleep(0)
        for gate in kv.gates.values():
            gate.set()
            for _ in range(20):
                await asyncio.sleep(0)
        await asyncio.gather(*calls)
        assert await manager.list_remote_log_segments(FIRST) == [one]

    asyncio.run(body())
