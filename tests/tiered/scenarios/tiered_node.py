"""A node whose copies, expirations and local deletions come when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from streamlog.log.api.abstract_log import AbstractLog
from streamlog.model.partition import TopicPartition
from streamlog.wiring.engine import OpenEngine
from tests.support.running_node import RunningNode, running_node
from tests.tiered.scenarios.kafka_clients import KafkaClients

TIERED = {
    "log.type": "unified",
    "remote.storage.enable": "true",
    "segment.bytes": str(1 << 20),
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "0",
}
SEGMENT = 8
"""Records of a segment."""


class TieredNode:
    def __init__(self, node: RunningNode, data: Path) -> None:
        assert node.node.engine is not None
        self.engine: OpenEngine = node.node.engine
        self.data = data
        server = next(one.address for one in node.banner.listeners if one.name == "kafka")
        self.kafka = KafkaClients(server)
        self.grpc = node.banner.grpc

    async def settle(self) -> None:
        """What is to be copied or to expire, has been; what may leave this disk has left it.

        A segment is closed by the first round, copied by the second, deleted here by the third.
        """
        assert self.engine.tiers is not None
        for _ in range(3):
            await self.engine.logs.retention_tick()
            await self.engine.tiers.run_tasks()

    async def deletions_done(self) -> None:
        """Nothing of deleted topics is left in the remote tier."""
        assert self.engine.tiers is not None
        async with asyncio.timeout(30):
            await self.engine.tiers.deletions_done()

    async def special_offsets(self, topic: str) -> tuple[int, int, int]:
        """The log's start, that of its local part, and the last one in the remote tier."""
        log = await self.log(topic)
        assert self.engine.tiers is not None
        highest = self.engine.tiers.highest_offset(log.topic_partition)
        return log.log_start_offset, log.segments[0].base_offset, highest

    async def log(self, topic: str, partition: int = 0) -> AbstractLog:
        return await self.engine.logs.log(TopicPartition(topic, partition))

    async def remote_segments(self) -> list[int]:
        """Base offsets of all segments in the remote tier, whatever topic they are of."""
        listed = (await self.engine.store.list("remote/")).objects
        names = [one.key.rpartition("/")[2] for one in listed if one.key.endswith(".segment")]
        return sorted(int(name.partition(".")[0]) for name in names)

    async def remote_files(self) -> int:
        return len((await self.engine.store.list("remote/")).objects)

    def local_segments(self, topic: str, partition: int = 0) -> list[int]:
        """Base offsets."""
        folder = self.data / "logs" / f"{topic}-{partition}"
        return sorted(int(path.stem) for path in folder.glob("*.log"))


@asynccontextmanager
async def tiered_node(
    data: Path, store: str | None = None, log_dir: Path | None = None
) -> AsyncIterator[TieredNode]:
    """`store`: the URL of its objects, `log_dir`: its local segments; None: they are in the folder,
    too."""
    places = {"data": str(data)}
    if log_dir is not None:
        places["log_dir"] = str(log_dir)
    if store is not None:
        places = {"store": store, "meta": f"rocksdb://{data}/meta", "log_dir": f"{data}/logs"}
    async with running_node(**places) as node:
        yield TieredNode(node, data)
