"""Bounds: what clients send, do not read, or do not send costs the node a bounded amount."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from streamlog.kafka.protocol.apis import ApiKey
from streamlog.settings.limits import MIB, LimitsConfig
from tests.engine.harness import until
from tests.server.kafka.transport.scenes import Scene, fetch, produce
from tests.support.kafka_wire import VERSIONS_REQUEST, wire
from tests.support.sockets import socket_of

KIB = 1024


def test_a_connection_is_not_read_while_its_unanswered_bytes_are_above_the_bound() -> None:
    limits = LimitsConfig(in_flight_bytes_per_connection_max=1 * MIB)
    records = b"x" * 300 * KIB

    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes(), limits=limits) as served:
            client = await served.client()
            for number in range(40):
                client.send(produce(number, records))
            await until(lambda: served.metric("streamlog_in_flight_waits_total") == 1)
            assert served.metric("streamlog_in_flight_bytes") <= 2 * MIB
            assert len(scene.begun) <= 6
            answered = 0
            while answered < 40:
                await until(lambda: len(scene.begun) > answered)  # noqa: B023
                assert served.metric("streamlog_in_flight_bytes") <= 2 * MIB
                scene.begun[answered].let_go()
                assert (await client.answer(ApiKey.PRODUCE, 9))[0] == answered
                answered += 1

    asyncio.run(main())


def test_one_request_may_pass_the_bound_when_it_is_alone() -> None:
    limits = LimitsConfig(in_flight_bytes_per_connection_max=64 * KIB)

    async def main() -> None:
        scene = Scene(is_held=False)
        async with wire(scene.routes(), limits=limits) as served:
            client = await served.client()
            for number in range(4):
                client.send(produce(number, b"x" * 3 * MIB))
            for number in range(4):
                assert (await client.answer(ApiKey.PRODUCE, 9))[0] == number

    asyncio.run(main())


def test_many_small_requests_of_one_connection_are_bounded_in_number() -> None:
    limits = LimitsConfig(requests_per_connection_max=100)

    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes(), limits=limits) as served:
            client = await served.client()
            small = produce(1)
            for _ in range(60):
                client.send(small * 500)
            await until(lambda: served.metric("streamlog_in_flight_waits_total") == 1)
            scratch = served.connections.memory.view.nbytes
            assert len(scene.begun) <= 100 + scratch // len(small)

    asyncio.run(main())


def test_answers_that_a_client_does_not_read_hold_up_its_next_fetches() -> None:
    records = [bytes([at]) * 64 * KIB for at in range(32)]

    async def main() -> None:
        scene = Scene(is_held=False, records=records)
        async with wire(scene.routes()) as served:
            slow, other = await served.client(read_ahead_bytes=1), await served.client()
            for number in range(50):
                slow.send(fetch(number))
            before = -1
            while before != len(scene.fetches):
                before = len(scene.fetches)
                for _ in range(20):
                    assert await other.is_served()
            # The kernel's buffers, one queue, one answer.
            assert len(scene.fetches) < 20
            for number in range(50):
                correlation_id, response = await slow.answer(ApiKey.FETCH, 12)
                assert correlation_id == number
                data = response.responses[0].partitions[0].records
                assert bytes(data) == b"".join(records)

    asyncio.run(main())


def test_produce_answers_that_a_client_does_not_read_stop_its_reading_too() -> None:
    limits = LimitsConfig(in_flight_bytes_per_connection_max=256 * KIB, connections_max_idle_ms=300)

    async def main() -> None:
        scene = Scene(is_held=False, padding_bytes=30_000)
        async with wire(scene.routes(), limits=limits) as served:
            client = await served.client()
            socket_of(client.writer).pause_reading()
            with suppress(ConnectionError):
                while not served.ended("idle"):
                    client.send(produce(1) * 100)
                    await client.writer.drain()
            assert served.ended("idle") == 1
            assert served.metric("streamlog_in_flight_waits_total") > 0

    asyncio.run(main())


def test_the_connection_after_the_last_allowed_one_is_closed_and_counted() -> None:
    async def main() -> None:
        async with wire(limits=LimitsConfig(connections_max=2)) as served:
            first, second = await served.client(), await served.client()
            assert await first.is_served()
            assert await second.is_served()
            third = await served.client()
            assert await third.rest() == b""
            assert served.ended("bound") == 1
            await first.close()
            await until(lambda: served.connections.count == 1)
            fourth = await served.client()
            assert await fourth.is_served()

    asyncio.run(main())


def test_silent_connections_are_closed_after_the_idle_time_and_the_others_stay() -> None:
    limits = LimitsConfig(connections_max_idle_ms=200)

    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes(), limits=limits) as served:
            waiting = await served.client()
            waiting.send(fetch(1))
            await until(lambda: scene.fetches == [1])
            silent = [await served.client() for _ in range(100)]
            sizes = [await served.client() for _ in range(10)]
            for client in sizes:
                client.send(VERSIONS_REQUEST[:4])  # And nothing more.
            for client in (*silent, *sizes):
                assert await client.rest() == b""
            assert served.ended("idle") == 110
            assert served.connections.count == 1
            scene.fetched.set()
            await waiting.answer(ApiKey.FETCH, 12)

    asyncio.run(main())


def test_a_client_that_never_reads_its_answers_is_closed_after_the_idle_time() -> None:
    limits = LimitsConfig(connections_max_idle_ms=200)

    async def main() -> None:
        scene = Scene(is_held=False, records=[b"x" * 16 * MIB])
        async with wire(scene.routes(), limits=limits) as served:
            client = await served.client()
            socket_of(client.writer).pause_reading()
            client.send(fetch(1) + fetch(2))
            await until(lambda: served.ended("idle") == 1)
            await until(lambda: served.connections.count == 0)
            client.writer.transport.abort()

    asyncio.run(main())


def test_a_client_that_sends_slower_than_the_idle_time_allows_is_closed() -> None:
    limits = LimitsConfig(connections_max_idle_ms=200)

    async def main() -> None:
        async with wire(limits=limits) as served:
            client = await served.client()
            sent = 0
            while served.ended("idle") == 0 and sent < len(VERSIONS_REQUEST) - 1:
                client.send(VERSIONS_REQUEST[sent : sent + 1])
                sent += 1
                await asyncio.sleep(0.05)  # Slower than a request in 200 ms.
            assert await client.rest() == b""
            assert served.ended("idle") == 1

    asyncio.run(main())
