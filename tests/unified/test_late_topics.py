"""A topic's record that arrives when its creator is dead and its folders are held for orphans'."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from streamlog.errors import OutcomeUnknown
from streamlog.log.api.config import LogConfig
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.leadership import Leadership
from streamlog.log.api.log_factory import LogFactories, LogKind, TopicIdentity
from streamlog.log.api.metrics import LogMetrics
from streamlog.log.api.topic_config import parse
from streamlog.log.manager import LogManager
from streamlog.log.topics.topic_record import TOPIC_NAMESPACE
from streamlog.model.kv import Key, Value
from streamlog.model.partition import TopicPartition
from streamlog.runtime.rand import SeededRandom
from streamlog.testing.basic_kv import BasicKV
from streamlog.testing.clocks import ManualClock
from streamlog.testing.logs.log_conformance import append, encoded, read
from streamlog.testing.torn_folder import TornTree
from streamlog.unified.log_folder import LogFolder
from streamlog.unified.unified_logs import UnifiedLogFactory
from tests.unified.harness import OWNER, HeldOffload

CONFIGS = {"log.type": "unified"}
PARTITION = TopicPartition("t", 0)


class LateKV(BasicKV):
    """Creations of topics get no answer while `is_stuck`, and take effect with `deliver`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stuck = False
        self._late: tuple[Key, bytes] | None = None

    async def put_kv_if_absent(self, key: Key, data: bytes) -> Value:
        if self.is_stuck and key.namespace == TOPIC_NAMESPACE:
            self._late = key, data
            raise OutcomeUnknown("no answer")
        return await super().put_kv_if_absent(key, data)

    async def deliver(self) -> None:
        assert self._late is not None
        await super().put_kv_if_absent(*self._late)


class Process:
    """A node's log folder and logs; the folder's tree and the KV store outlive it."""

    def __init__(self, tree: TornTree, kv: BasicKV, seed: int) -> None:
        self._tree, self._kv = tree, kv
        self._offload = HeldOffload()
        metrics = LogMetrics(CollectorRegistry())
        self._environment = LogEnvironment(
            ManualClock(), SeededRandom(seed), LogConfig(), metrics, self._offload
        )

    async def open_folder(self) -> UnifiedLogFactory:
        self.folder = await LogFolder.open(
            self._tree, OWNER, self._environment, self._offload, kv=self._kv
        )
        self.factory = UnifiedLogFactory(self.folder)
        return self.factory

    async def open(self) -> LogManager:
        factories = LogFactories({LogKind.UNIFIED: await self.open_folder()})
        self.logs = await LogManager.open(factories, self._kv, self._environment, Leadership(1))
        return self.logs

    async def kill(self) -> None:
        await self.logs.kill()
        await self.folder.kill()


async def _takes_records(logs: LogManager) -> None:
    log = await logs.log(PARTITION)
    await append(log, encoded([b"kept"]))
    assert [one[3] for one in await read(log)] == [b"kept"]


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_topic_whose_folders_were_deleted_before_its_record_came_is_created_anew(
    partitions: int,
) -> None:
    async def body() -> None:
        tree, kv = TornTree(SeededRandom(7)), LateKV()
        creator = Process(tree, kv, 1)
        logs = await creator.open()
        kv.is_stuck = True
        with pytest.raises(OutcomeUnknown):
            await logs.create_topic("t", partitions, CONFIGS)
        await creator.kill()
        kv.is_stuck = False
        process = Process(tree, kv, 2)
        logs = await process.open()
        await logs.delete_orphans()
        assert tree.folders() == []
        await kv.deliver()
        # Which fails with TopicAlreadyExists as long as the other one is there.
        await logs.create_topic("t", 1, CONFIGS)
        await _takes_records(logs)
        await process.kill()

    asyncio.run(body())


def test_a_topic_whose_record_comes_before_its_folders_are_deleted_keeps_them() -> None:
    async def body() -> None:
        tree, kv = TornTree(SeededRandom(7)), LateKV()
        creator = Process(tree, kv, 1)
        identity = TopicIdentity("t", SeededRandom(3).uuid(), "attempt")
        handles = await (await creator.open_folder()).create(identity, [0], parse({}))
        factory = await Process(tree, kv, 2).open_folder()

        async def registered() -> set[int]:
            # The record comes when those that are registered have been read.
            assert await factory.claim(PARTITION, identity.topic_id, handles[0])
            return set()

        assert await factory.delete_orphans(set, registered) == 0
        assert tree.folders() == ["t-0"]
        await factory.remove(handles[0])
        assert not await factory.claim(PARTITION, identity.topic_id, handles[0])

    asyncio.run(body())
