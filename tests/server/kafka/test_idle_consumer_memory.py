"""An idle consumer costs a node a connection, a fetch session and a request that waits: 20 KB."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack
from pathlib import Path

import psutil

from streamlog.kafka.messages.create_topics_request import CreatableTopic, CreateTopicsRequest
from streamlog.kafka.protocol.apis import ApiKey
from tests.server.kafka.fetch_world import fetch_request, wanted
from tests.support.kafka_wire import WireClient, connect
from tests.support.node import NodeProcess

PARTITIONS = 4
FIRST = 100
"""They fill what the node's memory has free, and its caches."""
COUNT = 500
EACH_BYTES_MAX = 20_000
VERSION = 12
WAIT_MS = 500
POLLS = 3


class Consumer:
    """It polls its session again as soon as it is answered. `is_idle`: after a few polls."""

    def __init__(self, client: WireClient) -> None:
        self._client = client
        self.is_idle = asyncio.Event()

    async def run(self, partition: int) -> None:
        opened = await self._client.ask(
            ApiKey.FETCH, VERSION, fetch_request(wanted(partition), session=(0, 0))
        )
        session = opened.session_id
        assert session
        for epoch in itertools.count(1):
            request = fetch_request(parts=[], session=(session, epoch), wait_ms=WAIT_MS)
            answer = await self._client.ask(ApiKey.FETCH, VERSION, request)
            assert (answer.error_code, answer.responses) == (0, [])
            if epoch == POLLS:
                self.is_idle.set()


async def _size_with(port: int, pid: int, count: int, stack: AsyncExitStack) -> int:
    """Adds so many consumers; the node's resident bytes once each of them has polled."""
    group = await stack.enter_async_context(asyncio.TaskGroup())
    consumers = []
    for number in range(count):
        client = await connect(port)
        stack.push_async_callback(client.close)
        consumers.append(Consumer(client))
        task = group.create_task(consumers[-1].run(number % PARTITIONS))
        stack.callback(task.cancel)
    async with asyncio.timeout(60):
        for consumer in consumers:
            await consumer.is_idle.wait()
    return psutil.Process(pid).memory_info().rss


def test_an_idle_consumer_takes_20_kb_at_most(tmp_path: Path) -> None:
    async def main(node: NodeProcess) -> float:
        [address] = [one["address"] for one in node.banner["listeners"] if one["name"] == "kafka"]
        port = int(address.rpartition(":")[2])
        async with AsyncExitStack() as stack:
            admin = await connect(port)
            stack.push_async_callback(admin.close)
            topic = CreatableTopic(name="t", num_partitions=PARTITIONS, replication_factor=1)
            request = CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
            await admin.ask(ApiKey.CREATE_TOPICS, 5, request)
            before = await _size_with(port, node.pid, FIRST, stack)
            after = await _size_with(port, node.pid, COUNT, stack)
        return (after - before) / COUNT

    with NodeProcess(tmp_path / "node") as node:
        each_bytes = asyncio.run(main(node))
    # Less than a third would say that what the first ones left free was measured.
    assert EACH_BYTES_MAX / 3 < each_bytes <= EACH_BYTES_MAX
