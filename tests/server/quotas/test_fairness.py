"""A client above its quota leaves the node to the others: minutes of it, in virtual time.

The node of these scenes does one thing at a time, and each takes a while. A rogue keeps it busy
with all that its connections carry; a polite client asks now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry

from streamlog.kafka.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from streamlog.kafka.messages.produce_response import ProduceResponse
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.server.kafka.call import KafkaCall, Reply, Route
from streamlog.server.kafka.dispatch import Dispatcher
from streamlog.server.kafka.transport.connections import Connections
from streamlog.server.limits.quotas.quota_values import QuotaValues
from streamlog.settings.limits import LimitsConfig
from streamlog.testing.simulation.world.loop import run
from tests.server.quotas.scenes import QuotaScene
from tests.server.quotas.virtual_wire import MemoryTransport, throttle_ms_of
from tests.support.kafka_wire import request_bytes
from tests.support.server_harness import listener_resources
from tests.support.virtual_time import LoopClock

MINUTES = 5
VERSION = 9
SIZE_BYTES = 50_000
PIPELINED = 5
"""Requests of the rogue under way on each connection, as Kafka's producers have."""
RATE = 100_000
SERVICE_S = 0.01
POLITE_EVERY_S = 0.5


class Done(Reply):
    async def wait(self) -> None: ...

    def response(self) -> ProduceResponse:
        return ProduceResponse()

    def is_ready(self) -> bool:
        return True

    def abandon(self) -> None: ...


class BusyNode:
    """Serves one produce request after the other, `SERVICE_S` each."""

    def __init__(self) -> None:
        self._core = asyncio.Lock()
        self.bytes_of: dict[str, int] = {}

    async def produce(self, call: KafkaCall, request: ProduceRequest) -> Reply:
        client_id = call.context.client_id
        self.bytes_of[client_id] = self.bytes_of.get(client_id, 0) + call.frame_bytes
        async with self._core:
            await asyncio.sleep(SERVICE_S)
        return Done()

    async def produce_many(
        self, requests: Sequence[tuple[KafkaCall, ProduceRequest]]
    ) -> list[Reply]:
        return [await self.produce(call, request) for call, request in requests]


def request(client_id: str, size_bytes: int) -> bytes:
    part = PartitionProduceData(index=0, records=bytes(size_bytes))
    topic = TopicProduceData(name="t", partition_data=[part])
    message = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
    return request_bytes(ApiKey.PRODUCE, VERSION, 1, message, client_id)


class World:
    def __init__(self) -> None:
        clock = LoopClock()
        self.node = BusyNode()
        self.scene = QuotaScene(clock)
        route = Route(self.node.produce, is_pipelined=True, handle_many=self.node.produce_many)
        resources = listener_resources(CollectorRegistry())
        self._connections = Connections("kafka", LimitsConfig(), clock)
        dispatcher = Dispatcher({ApiKey.PRODUCE: route}, resources.requests, self.scene.quotas)
        self._connections.serve(dispatcher, resources)
        self.throttles_ms: list[int] = []
        self.latencies_s: list[float] = []

    def connect(self, on_answer: Callable[[bytes], None]) -> MemoryTransport:
        transport = MemoryTransport(on_answer)
        transport.attach(self._connections.new())
        return transport

    def start_rogue(self, connections: int = 1) -> None:
        """Sends the next request with each answer, whatever the answer says."""
        data = request("rogue", SIZE_BYTES)

        def start() -> None:
            def answered(frame: bytes) -> None:
                self.throttles_ms.append(throttle_ms_of(ApiKey.PRODUCE, VERSION, frame))
                transport.send(data)

            transport = self.connect(answered)
            transport.send(data * PIPELINED)

        for _ in range(connections):
            start()

    async def ask_politely(self, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        answers: asyncio.Queue[bytes] = asyncio.Queue()
        transport = self.connect(answers.put_nowait)
        while (began := loop.time()) < until_s:
            transport.send(request("polite", 1000))
            frame = await answers.get()
            assert throttle_ms_of(ApiKey.PRODUCE, VERSION, frame) == 0
            self.latencies_s.append(loop.time() - began)
            await asyncio.sleep(POLITE_EVERY_S)

    async def stop(self) -> None:
        await self._connections.stop(1)


def minutes_of(quota: QuotaValues | None, connections: int = 1) -> World:
    """A rogue with so many connections, and a polite client beside it."""
    worlds: list[World] = []

    async def main() -> None:
        world = World()
        worlds.append(world)
        if quota is not None:
            world.scene.quotas.set("rogue", quota)
        world.start_rogue(connections)
        await world.ask_politely(60 * MINUTES)
        await world.stop()

    run(main)
    return worlds[0]


def test_without_a_quota_the_rogue_has_the_node() -> None:
    world = minutes_of(None, connections=8)
    assert max(world.latencies_s) > 7 * SERVICE_S, "each connection goes before the polite client"
    assert world.node.bytes_of["rogue"] > 10 * RATE * 60 * MINUTES


def test_a_rogue_gets_its_quota_and_the_polite_client_the_rest() -> None:
    world = minutes_of(QuotaValues(produce=RATE))
    expected = RATE * 60 * MINUTES
    assert 0.9 * expected < world.node.bytes_of["rogue"] < 1.1 * expected
    assert max(world.throttles_ms) <= 11_000
    # One request of the rogue, and its own.
    late = [latency for latency in world.latencies_s[20:] if latency > 2.5 * SERVICE_S]
    assert not late
    assert len(world.latencies_s) > 60 * MINUTES / POLITE_EVERY_S * 0.95


def test_many_connections_get_the_rogue_more_but_not_the_node() -> None:
    """Connections are muted one by one, so each may have a request in while others wait."""
    world = minutes_of(QuotaValues(produce=RATE), connections=8)
    assert world.node.bytes_of["rogue"] < 2 * RATE * 60 * MINUTES
    late = [latency for latency in world.latencies_s[20:] if latency > 10 * SERVICE_S]
    assert not late


def test_a_quota_of_nothing_much_leaves_one_request_a_window() -> None:
    """It neither ends the rogue nor keeps the node awake: virtual time would stand still."""
    world = minutes_of(QuotaValues(produce=1))
    requests = len(world.throttles_ms)
    assert set(world.throttles_ms) == {11_000}
    assert requests <= 60 * MINUTES / 11 + 1
