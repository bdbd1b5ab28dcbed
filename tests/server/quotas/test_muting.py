"""Kafka's listener: above a quota the answer comes first, then its connection is muted.

Figures: a client that was silent may use ten seconds' worth at once, and waits for the rest.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from streamlog.errors import StoreUnavailable
from streamlog.kafka.messages.produce_request import ProduceRequest
from streamlog.kafka.messages.produce_response import ProduceResponse
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.server.kafka.call import KafkaCall, Route
from streamlog.server.limits.quotas.quota_values import NO_QUOTAS, QuotaValues
from streamlog.settings.limits import LimitsConfig
from tests.engine.harness import until
from tests.server.kafka.transport.scenes import HeldReply, Scene, fetch, list_offsets, produce
from tests.support.kafka_wire import Wire, WireClient, wire

KIB = 1024
THROTTLE_S = 1.0


def quota_for(size_bytes: int, throttle_s: float = THROTTLE_S) -> float:
    """The rate with which a first use of `size_bytes` throttles for so long."""
    return size_bytes / (10 + throttle_s)


async def answered(client: WireClient, api: ApiKey, version: int) -> tuple[int, int]:
    """Correlation id and throttle time of the next answer."""
    correlation_id, response = await client.answer(api, version)
    return correlation_id, response.throttle_time_ms


def limit(served: Wire, client_id: str | None = "test", **values: float) -> None:
    served.resources.quotas.set(client_id, QuotaValues(**values))


async def other_client(served: Wire) -> WireClient:
    """Its requests have no client id, and no quota."""
    client = await served.client()
    assert await client.is_served()
    return client


def test_produce_is_answered_at_once_and_what_follows_waits() -> None:
    async def main() -> None:
        scene = Scene(is_held=False)
        async with wire(scene.routes()) as served:
            client, polite = await served.client(), await served.client()
            assert await polite.is_served()
            limit(served, produce=quota_for(len(produce(1)) - 4))
            began = time.monotonic()
            client.send(produce(1) + list_offsets(2))
            correlation_id, throttle_ms = await answered(client, ApiKey.PRODUCE, 9)
            assert correlation_id == 1
            assert abs(throttle_ms - THROTTLE_S * 1000) < 100
            limit(served)
            # Of the same id, but connections are muted by themselves, as in Kafka.
            assert await polite.is_served()
            assert scene.listed == []
            assert await answered(client, ApiKey.LIST_OFFSETS, 6) == (2, 0)
            assert time.monotonic() - began >= THROTTLE_S * 0.95

    asyncio.run(main())


def test_requests_that_lie_ready_are_begun_one_by_one_above_the_quota() -> None:
    async def main() -> None:
        scene = Scene(is_held=False)
        async with wire(scene.routes()) as served:
            client = await served.client()
            first = produce(1, b"x" * 20 * KIB)
            limit(served, produce=quota_for(len(first) - 4, 0.2))
            client.send(first + produce(2, b"x" * 2 * KIB) + produce(3, acks=0) + produce(4))
            throttles = [await answered(client, ApiKey.PRODUCE, 9) for _ in range(2)]
            assert scene.groups == [[1], [2]]
            # Those that wait are begun together again once there is no quota.
            limit(served, **{})
            throttles.append(await answered(client, ApiKey.PRODUCE, 9))
            assert [correlation_id for correlation_id, _ in throttles] == [1, 2, 4]
            assert throttles[0][1] > 0
            assert throttles[1][1] > 0
            assert throttles[2][1] == 0
            assert scene.groups[2:] == [[3, 4]]

    asyncio.run(main())


def test_the_time_of_a_request_stands_still_while_its_connection_is_muted() -> None:
    """It would be over before the request is begun."""

    async def main() -> None:
        since: list[float] = []

        async def begin(call: KafkaCall, message: ProduceRequest) -> HeldReply:
            assert call.received_at is not None
            since.append(call.received_at)
            reply = HeldReply(call, message, 0)
            reply.let_go()
            return reply

        async with wire({ApiKey.PRODUCE: Route(begin, is_pipelined=True)}) as served:
            client = await served.client()
            limit(served, produce=quota_for(len(produce(1)) - 4))
            client.send(produce(1) + produce(2))
            number, throttle_ms = await answered(client, ApiKey.PRODUCE, 9)
            assert (number, throttle_ms > 0) == (1, True)
            assert (await answered(client, ApiKey.PRODUCE, 9))[0] == 2
            first, second = since
            assert second - first == pytest.approx(throttle_ms / 1000)

    asyncio.run(main())


def test_a_request_without_an_answer_mutes_too() -> None:
    async def main() -> None:
        scene = Scene(is_held=False)
        async with wire(scene.routes()) as served:
            client, other = await served.client(), await other_client(served)
            limit(served, produce=quota_for(len(produce(1)) - 4))
            began = time.monotonic()
            client.send(produce(1, acks=0) + list_offsets(2))
            await until(lambda: scene.groups == [[1]])
            for _ in range(5):
                assert await other.is_served()
            assert await answered(client, ApiKey.LIST_OFFSETS, 6) == (2, 0)
            assert time.monotonic() - began >= THROTTLE_S * 0.95

    asyncio.run(main())


def test_the_answer_is_not_held_back_by_the_mute() -> None:
    """Produce is answered when it is durable, muted or not."""

    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes()) as served:
            client = await served.client()
            limit(served, produce=1)
            client.send(produce(1))
            await until(lambda: len(scene.begun) == 1)
            scene.begun[0].let_go()
            began = time.monotonic()
            correlation_id, throttle_ms = await answered(client, ApiKey.PRODUCE, 9)
            assert correlation_id == 1
            assert time.monotonic() - began < throttle_ms / 1000 / 2

    asyncio.run(main())


def test_an_error_tells_the_throttle_too() -> None:
    async def main() -> None:
        scene = Scene(is_held=False)
        async with wire(scene.routes()) as served:
            client = await served.client()
            limit(served, produce=1)
            scene.failure = StoreUnavailable("the store is away")
            client.send(produce(1))
            _, response = await client.answer(ApiKey.PRODUCE, 9)
            assert isinstance(response, ProduceResponse)
            assert response.responses[0].partition_responses[0].error_code
            assert response.throttle_time_ms > 0

    asyncio.run(main())


def test_a_fetch_above_the_quota_hands_out_its_records_and_mutes() -> None:
    async def main() -> None:
        scene = Scene(is_held=False, records=[b"x" * 10 * KIB])
        async with wire(scene.routes()) as served:
            client = await served.client()
            client.send(fetch(1))
            size_bytes = len(await client.frame())
            limit(served, fetch=quota_for(size_bytes))
            began = time.monotonic()
            client.send(fetch(2) + fetch(3))
            correlation_id, response = await client.answer(ApiKey.FETCH, 12)
            assert correlation_id == 2
            assert abs(response.throttle_time_ms - THROTTLE_S * 1000) < 100
            assert len(response.responses[0].partitions[0].records) == 10 * KIB
            assert (await answered(client, ApiKey.FETCH, 12))[0] == 3
            assert time.monotonic() - began >= THROTTLE_S * 0.95

    asyncio.run(main())


def test_time_above_the_quota_mutes_whatever_is_asked() -> None:
    async def main() -> None:
        scene = Scene(is_held=False)
        async with wire(scene.routes()) as served:
            limit(served, request=1e-9)
            for request, api, version in (
                (produce(1), ApiKey.PRODUCE, 9),
                (fetch(1), ApiKey.FETCH, 12),
                (list_offsets(1), ApiKey.LIST_OFFSETS, 6),
            ):
                client = await served.client()
                client.send(request)
                # One sample at most.
                assert await answered(client, api, version) == (1, 1000)
            name = "streamlog_client_throttle_seconds_total"
            labels = {"client_id": "test", "quota": "request_percentage"}
            assert served.resources.quotas.of("test") is not None
            assert served.metric(name, **labels) == 3

    asyncio.run(main())


def test_a_muted_connection_is_not_read_not_idle_and_no_burden_when_the_node_stops() -> None:
    limits = LimitsConfig(connections_max_idle_ms=1000)

    async def main() -> None:
        scene = Scene(is_held=False)
        async with wire(scene.routes(), limits=limits) as served:
            client, other = await served.client(), await other_client(served)
            limit(served, produce=1)
            client.send(produce(1))
            assert (await answered(client, ApiKey.PRODUCE, 9))[1] == 11_000
            held = served.metric("streamlog_in_flight_bytes")
            request = produce(2, b"x" * 32 * KIB)
            for _ in range(100):
                client.send(request)
                assert await other.is_served()
            assert served.metric("streamlog_in_flight_bytes") <= held + 2 * len(request)
            await until(lambda: served.ended("idle") == 1)  # The other one.
            assert await other.rest() == b""
            assert served.connections.count == 1
            began = time.monotonic()
        assert time.monotonic() - began < 5

    asyncio.run(main())


def test_a_client_that_leaves_while_it_is_muted_is_let_go() -> None:
    async def main() -> None:
        scene = Scene(is_held=False)
        async with wire(scene.routes()) as served:
            client = await served.client()
            limit(served, produce=quota_for(len(produce(1)) - 4))
            client.send(produce(1))
            assert (await answered(client, ApiKey.PRODUCE, 9))[1] > 0
            await client.close()
            await until(lambda: served.connections.count == 0)

    asyncio.run(main())


def test_without_quotas_nothing_is_measured() -> None:
    async def main() -> None:
        scene = Scene(is_held=False)
        async with wire(scene.routes()) as served:
            client = await served.client()
            limit(served, "another", produce=1, fetch=1, request=1)
            client.send(b"".join(produce(number) for number in range(5)) + fetch(5))
            assert [await answered(client, ApiKey.PRODUCE, 9) for _ in range(5)] == [
                (number, 0) for number in range(5)
            ]
            assert await answered(client, ApiKey.FETCH, 12) == (5, 0)
            assert scene.groups == [[0, 1, 2, 3, 4]]
            assert served.resources.quotas.of("test") is None
            served.resources.quotas.set("another", NO_QUOTAS)

    asyncio.run(main())
