"""Clients ask the leader of each partition, and look for it again when it moves.

A client that routes nothing looks right on one node. So a second node is invented: clients are told
of it, some partitions are given to it, and its address leads back to the one real node, which leads
nothing there and says so, until the partition is given back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from streamlog.kafka.protocol.apis import ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.log.api.leadership import Leadership
from streamlog.model.partition import TopicPartition
from streamlog.server.kafka.call import KafkaCall
from streamlog.server.kafka.cluster_view import ClusterView, KafkaNode
from tests.kafka_clients.outages.clients import CLIENTS, Client, Pace
from tests.kafka_clients.outages.programs.telling import PARTITIONS
from tests.kafka_clients.tap import Exchange, Tap
from tests.support.running_node import RunningNode, running_node

pytestmark = pytest.mark.xdist_group("kafka_clients")

INVENTED = 77
PACE = Pace("short", interval_ms=20, record_bytes=100)
LOOK_S = 0.02
PATIENCE_S = 60.0
ASKED_AGAIN = 2


@dataclass
class World:
    node: RunningNode
    leadership: Leadership
    home: Tap
    """Before the real node's own address."""
    elsewhere: Tap
    """Before the invented node's."""

    async def give(self, client: Client, partition: int, node: int) -> None:
        await self.leadership.assign(TopicPartition(client.topic, partition), node)


@asynccontextmanager
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    made: list[Leadership] = []

    def leadership(node_id: int) -> Leadership:
        made.append(Leadership(node_id))
        return made[-1]

    monkeypatch.setattr("streamlog.log.opening.Leadership", leadership)
    with Tap() as home, Tap() as elsewhere:
        _invent_a_node(monkeypatch, elsewhere)
        async with running_node(kafka_listen="127.0.0.1:0", kafka_advertised=home.address) as node:
            home.target = elsewhere.target = _kafka_address(node)
            yield World(node, made[0], home, elsewhere)
        assert not home.failures + elsewhere.failures


def _invent_a_node(monkeypatch: pytest.MonkeyPatch, tap: Tap) -> None:
    real = ClusterView.nodes
    host, port = tap.address.rsplit(":", 1)

    def nodes(view: ClusterView, call: KafkaCall) -> list[KafkaNode]:
        return [*real(view, call), KafkaNode(INVENTED, host, int(port))]

    monkeypatch.setattr(ClusterView, "nodes", nodes)
    monkeypatch.setattr(ClusterView, "is_live", lambda view, node: node in (view.node_id, INVENTED))


def _kafka_address(node: RunningNode) -> str:
    (address,) = (
        endpoint.address
        for endpoint in node.banner.listeners
        if endpoint.protocol.startswith("kafka")
    )
    return address


async def _until(client: Client, what: str, condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert client.is_running, f"{client.name} ended: {client.errors[-5:]}"
        if time.monotonic() > give_up_at:
            pytest.fail(f"{client.name} {what}: {client.errors[-5:]}")
        await asyncio.sleep(LOOK_S)


def _count(seen: dict[Exchange, int], api: ApiKey, error: int) -> int:
    return sum(count for one, count in seen.items() if (one.api, one.error) == (api, error))


def _acked(client: Client, partition: int) -> list[int]:
    places = [place for place in client.acked.values() if place.partition == partition]
    return sorted(place.offset for place in places)


async def _goes_on(client: Client, partition: int) -> None:
    """Waits until records are written to the partition and read again."""
    acked = len(_acked(client, partition)) + 3

    def is_read() -> bool:
        read = [
            place.offset
            for place, _ in client.read.get("reader", [])
            if place.partition == partition
        ]
        offsets = _acked(client, partition)
        return len(offsets) >= acked and bool(read) and read[-1] >= offsets[acked - 1]

    await _until(client, f"partition {partition} is not written and read", is_read)


async def _make_topics(node: RunningNode, client: Client) -> None:
    for name, partitions in ((client.topic, PARTITIONS), (f"{client.topic}-admin", 1)):
        assert node.node.engine is not None
        await node.node.engine.logs.create_topic(name, partitions, {})


async def _is_asked_in_vain(client: Client, asked: Tap, told: Tap) -> None:
    """Waits until `asked` has refused writes and reads again and again, and `told` was asked who
    leads in between."""
    refused = KafkaError.NOT_LEADER_OR_FOLLOWER
    with asked.recording() as seen, told.recording() as also:
        await _until(
            client,
            "does not ask again",
            lambda: (
                _count(seen, ApiKey.PRODUCE, refused) >= ASKED_AGAIN
                and _count(seen, ApiKey.FETCH, refused)
                + _count(seen, ApiKey.OFFSET_FOR_LEADER_EPOCH, refused)
                >= ASKED_AGAIN
                and _count(seen, ApiKey.METADATA, 0) + _count(also, ApiKey.METADATA, 0)
                >= ASKED_AGAIN
            ),
        )


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_asks_the_leader_and_looks_for_it_again(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async def body() -> None:
        client = Client(name)
        with ExitStack() as stack:
            async with world(monkeypatch) as now:
                stack.callback(client.end)
                await _make_topics(now.node, client)
                await now.give(client, 1, INVENTED)
                client.start(now.home.address, PACE)
                await _goes_on(client, 0)
                assert not _acked(client, 1)
                await _is_asked_in_vain(client, now.elsewhere, now.home)
                await now.give(client, 1, now.leadership.node_id)
                await _goes_on(client, 1)
                await now.give(client, 0, INVENTED)
                await _is_asked_in_vain(client, now.elsewhere, now.home)
                await now.give(client, 0, now.leadership.node_id)
                await _goes_on(client, 0)
                client.tell("stop")
                await _until(client, "is not flushed", lambda: "writer" in client.flushed)
                await asyncio.to_thread(client.end)
        _check(client)

    asyncio.run(body())


def _check(client: Client) -> None:
    """Each acknowledged record was read once, where it was acknowledged, and in order."""
    assert not client.failed
    read = client.read["reader"]
    for partition in range(PARTITIONS):
        offsets = [place.offset for place, _ in read if place.partition == partition]
        assert offsets == list(range(len(offsets)))
    named = {place: value for place, value in read}
    for value, place in client.acked.items():
        assert named.get(place, value) == value
