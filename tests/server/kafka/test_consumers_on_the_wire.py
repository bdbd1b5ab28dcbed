"""Fetches and look-ups over a socket, on a whole node: connections that end, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from streamlog.kafka.messages.fetch_response import FetchResponse
from streamlog.kafka.messages.list_offsets_request import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.model.partition import TopicPartition
from tests.server.kafka.fetch_world import answered, batch, fetch_request, offsets, wanted
from tests.support.kafka_wire import WireClient, connect, request_bytes
from tests.support.running_node import RunningNode, running_node

VERSION = 12


class Consumers:
    """A node with topic t of two partitions, and connections to its Kafka listener."""

    def __init__(self, node: RunningNode, port: int) -> None:
        self.node = node
        self._port = port
        self._clients: list[WireClient] = []

    async def client(self) -> WireClient:
        client = await connect(self._port)
        self._clients.append(client)
        return client

    async def append(self, value: bytes, partition: int = 0) -> None:
        assert self.node.node.engine is not None
        log = await self.node.node.engine.logs.log(TopicPartition("t", partition))
        await (await log.append(batch(value)))

    async def close(self) -> None:
        for client in self._clients:
            await client.close()

    async def eventually(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.005)

    @property
    def long_polls(self) -> float:
        return self.node.metric("streamlog_long_polls")


@asynccontextmanager
async def consumers() -> AsyncIterator[Consumers]:
    async with running_node(kafka_listen="127.0.0.1:0") as node:
        assert node.node.engine is not None
        await node.node.engine.logs.create_topic("t", 2)
        [address] = [one.address for one in node.banner.listeners if one.protocol == "kafka"]
        there = Consumers(node, int(address.rpartition(":")[2]))
        try:
            yield there
        finally:
            await there.close()


async def fetched(client: WireClient, **fields: Any) -> FetchResponse:
    response = await client.ask(ApiKey.FETCH, VERSION, fetch_request(**fields))
    assert isinstance(response, FetchResponse)
    return response


def test_a_session_goes_on_over_another_connection() -> None:
    async def main() -> None:
        async with consumers() as there:
            first = await there.client()
            opened = await fetched(first, parts=[wanted(0), wanted(1)], session=(0, 0))
            await first.close()
            second = await there.client()
            await there.append(b"a", partition=1)
            response = await fetched(second, session=(opened.session_id, 1), wait_ms=60_000)
            assert {n: offsets(part) for n, part in answered(response).items()} == {1: [0]}
            assert there.node.metric("streamlog_fetch_sessions") == 1

    asyncio.run(main())


def test_a_consumer_that_leaves_while_it_waits_leaves_no_long_poll() -> None:
    async def main() -> None:
        async with consumers() as there:
            for session in ((0, -1), (0, 0)):
                client = await there.client()
                message = fetch_request(wanted(), wait_ms=200_000, session=session)
                client.send(request_bytes(ApiKey.FETCH, VERSION, 1, message))
                await there.eventually(lambda: there.long_polls == 1)
                await client.close()
                await there.eventually(lambda: there.long_polls == 0)
            assert there.node.metric("streamlog_fetch_sessions") == 0

    asyncio.run(main())


def test_one_consumer_that_waits_holds_up_no_other() -> None:
    async def main() -> None:
        async with consumers() as there:
            waiting, other = await there.client(), await there.client()
            poll = asyncio.create_task(fetched(waiting, parts=[wanted()], wait_ms=60_000))
            await there.eventually(lambda: there.long_polls == 1)
            part = ListOffsetsPartition(partition_index=0, timestamp=-1)
            topics = [ListOffsetsTopic(name="t", partitions=[part])]
            request = ListOffsetsRequest(replica_id=-1, topics=topics)
            found = await other.ask(ApiKey.LIST_OFFSETS, 7, request)
            assert found.topics[0].partitions[0].offset == 0
            await there.append(b"a")
            assert offsets(answered(await poll)[0]) == [0]

    asyncio.run(main())


def test_a_node_that_stops_answers_its_consumers() -> None:
    async def main() -> None:
        async with consumers() as there:
            client = await there.client()
            poll = asyncio.create_task(fetched(client, parts=[wanted()], wait_ms=200_000))
            await there.eventually(lambda: there.long_polls == 1)
            await there.node.node.stop()
            async with asyncio.timeout(10):
                assert offsets(answered(await poll)[0]) == []

    asyncio.run(main())


def test_a_follower_is_refused_in_the_words_of_its_version() -> None:
    async def main() -> None:
        async with consumers() as there:
            client = await there.client()
            response = await fetched(client, parts=[wanted()], replica_id=3)
            assert response.error_code == KafkaError.INVALID_REQUEST
            old = await client.ask(ApiKey.FETCH, 6, fetch_request(wanted(), replica_id=3))
            assert answered(old)[0].error_code == KafkaError.INVALID_REQUEST
            # The connection goes on.
            assert (await fetched(client, parts=[wanted()])).error_code == 0

    asyncio.run(main())
