"""Before a node serves nothing is answered; when it stops, what is under way is."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from streamlog.kafka.protocol.apis import ApiKey
from tests.engine.harness import until
from tests.server.kafka.transport.scenes import Scene, fetch, list_offsets, produce
from tests.support.kafka_wire import VERSIONS_REQUEST, Wire, wire


def test_a_connection_waits_until_the_node_serves() -> None:
    async def main() -> None:
        async with wire(is_serving=False) as served:
            client = await served.client()
            client.send(VERSIONS_REQUEST)
            await until(lambda: served.connections.count == 1)
            served.serve()
            correlation_id, response = await client.answer(ApiKey.API_VERSIONS, 3)
            assert (correlation_id, response.error_code) == (5, 0)

    asyncio.run(main())


def test_a_connection_that_waited_long_for_the_node_is_closed_without_an_answer() -> None:
    async def main() -> None:
        async with wire(is_serving=False, held_s=0.1) as served:
            client = await served.client()
            client.send(VERSIONS_REQUEST)
            assert await client.rest() == b""
            served.serve()
            other = await served.client()
            assert await other.is_served()

    asyncio.run(main())


def test_a_stop_answers_what_was_begun_and_drops_what_was_not() -> None:
    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes()) as served:
            client, idle = await served.client(), await served.client()
            assert await idle.is_served()
            client.send(produce(1) + produce(2) + list_offsets(3))
            await until(lambda: len(scene.begun) == 2)
            stop = asyncio.create_task(served.connections.stop(30))
            assert await idle.rest() == b""
            for reply in scene.begun:
                reply.let_go()
            assert (await client.answer(ApiKey.PRODUCE, 9))[0] == 1
            assert (await client.answer(ApiKey.PRODUCE, 9))[0] == 2
            assert await client.rest() == b""
            await stop
            assert not scene.listed

    asyncio.run(main())


def test_requests_of_a_client_that_sends_and_closes_are_begun() -> None:
    """With `acks=0` a client waits for nothing before it closes."""

    async def main() -> None:
        scene = Scene(is_held=False)
        async with wire(scene.routes()) as served:
            client = await served.client()
            client.send(b"".join(produce(number, acks=0) for number in range(500)))
            await client.close()
            await until(lambda: served.connections.count == 0)
            assert [reply.correlation_id for reply in scene.begun] == list(range(500))

    asyncio.run(main())


def test_a_request_whose_place_takes_time_gets_it_though_its_client_has_closed() -> None:
    async def main() -> None:
        scene = Scene(is_held=False)
        scene.may_begin = asyncio.Event()
        async with wire(scene.routes()) as served:
            client, other = await served.client(), await served.client()
            client.send(produce(1, acks=0))
            await until(lambda: served.resources.requests.count == 1)
            await client.close()
            for _ in range(3):  # Time for the node to learn of the end.
                assert await other.is_served()
            scene.may_begin.set()
            await until(lambda: served.connections.count == 1)
            assert [reply.correlation_id for reply in scene.begun] == [1]

    asyncio.run(main())


def test_requests_behind_a_fetch_get_their_places_though_their_client_has_closed() -> None:
    """Whatever has no reader any more is passed over."""

    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes()) as served:
            client, other = await served.client(), await served.client()
            client.send(fetch(1))
            await until(lambda: scene.fetches == [1])
            client.send(list_offsets(2) + produce(3, acks=0) + list_offsets(4) + produce(5, acks=0))
            await client.close()
            for _ in range(3):  # Time for the node to learn of the end.
                assert await other.is_served()
            scene.fetched.set()
            await until(lambda: len(scene.begun) == 2)
            for reply in scene.begun:
                reply.let_go()
            await until(lambda: served.connections.count == 1)
            assert [reply.correlation_id for reply in scene.begun] == [3, 5]
            assert not scene.listed
            assert served.resources.requests.count == 0

    asyncio.run(main())


def test_a_fetch_whose_client_closes_ends_at_once() -> None:
    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes()) as served:
            client = await served.client()
            client.send(fetch(1) + list_offsets(2))
            await until(lambda: scene.fetches == [1])
            await client.close()
            await until(lambda: served.connections.count == 0)
            assert scene.cancelled == [1]
            assert not scene.listed

    asyncio.run(main())


def test_a_fetch_that_ends_within_the_grace_is_answered() -> None:
    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes()) as served:
            client = await served.client()
            client.send(fetch(1) + fetch(2))
            await until(lambda: scene.fetches == [1])
            stop = asyncio.create_task(served.connections.stop(30))
            await asyncio.sleep(0)
            scene.fetched.set()
            assert (await client.answer(ApiKey.FETCH, 12))[0] == 1
            assert await client.rest() == b""
            await stop
            assert scene.fetches == [1]

    asyncio.run(main())


def test_what_is_under_way_after_the_grace_is_cut_off() -> None:
    async def main() -> None:
        scene = Scene()
        async with wire(scene.routes()) as served:
            client, silent = await served.client(), await served.client()
            client.send(fetch(1))
            await until(lambda: scene.fetches == [1])
            await served.connections.stop(0.05)
            assert await client.rest() == b""
            assert await silent.rest() == b""
            assert scene.cancelled == [1]

    asyncio.run(main())


def test_a_node_that_stops_takes_no_more_connections() -> None:
    async def main() -> None:
        async with wire() as served:
            await served.connections.stop(0.05)
            client = await served.client()
            assert await client.rest() == b""

    asyncio.run(main())


class GoneClient(asyncio.Transport):
    """It has sent, and its socket takes no answer any more; asyncio has not noticed yet."""

    def __init__(self, served: Wire) -> None:
        super().__init__()
        self._is_closed = False
        self._socket, other = socket.socketpair()
        other.close()
        self._connection = served.connections.new()
        self._connection.connection_made(self)

    def send(self, data: bytes) -> None:
        buffer = self._connection.get_buffer(-1)
        buffer[: len(data)] = data
        self._connection.buffer_updated(len(data))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("gone", 1), "socket": self._socket}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self._is_closed

    def abort(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._socket.close()
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)


def test_a_client_that_has_gone_is_not_served_what_it_had_sent_ahead() -> None:
    async def main() -> None:
        scene = Scene(is_held=False)
        async with wire(scene.routes()) as served:
            client = GoneClient(served)
            await asyncio.sleep(0)  # It is served from now on.
            client.send(b"".join(fetch(number) for number in range(30)))
            await until(lambda: served.connections.count == 0)
            assert scene.fetches == [0]

    asyncio.run(main())
