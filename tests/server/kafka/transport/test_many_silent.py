"""Ten thousand clients that say nothing: bounded, counted, small, and closed after the idle time.

They have no sockets, which would take longer than all the rest; the connections are real.
"""

from __future__ import annotations

import asyncio
import struct
import tracemalloc
from typing import Any

from streamlog.settings.limits import MIB, LimitsConfig
from tests.engine.harness import until
from tests.support.kafka_wire import VERSIONS_REQUEST, Wire, wire

COUNT = 10_000
SMALL_BYTES_MAX = 4 * 1024
"""Memory of a connection that has sent nothing, without its socket and the transport."""


class StoppedClock:
    seconds = 100.0

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self.seconds


class SilentClient(asyncio.Transport):
    """A client that sends what it is told to, and nothing more. `is_closed`: by the node."""

    def __init__(self, served: Wire) -> None:
        super().__init__()
        self.is_closed = False
        self._connection = served.connections.new()
        self._connection.connection_made(self)

    def send(self, data: bytes) -> None:
        buffer = self._connection.get_buffer(-1)
        buffer[: len(data)] = data
        self._connection.buffer_updated(len(data))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("silent", 1), "sslcontext": self}.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)


def test_ten_thousand_silent_connections_are_small_and_closed_after_the_idle_time() -> None:
    async def main() -> None:
        clock = StoppedClock()
        limits = LimitsConfig(connections_max=COUNT + 1, connections_max_idle_ms=40_000)
        async with wire(limits=limits, clock=clock) as served:
            friend = await served.client()
            assert await friend.is_served()
            tracemalloc.start()
            try:
                silent = [SilentClient(served) for _ in range(COUNT)]
                await asyncio.sleep(0)  # They are served from now on.
                size_bytes, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert size_bytes < COUNT * SMALL_BYTES_MAX
            assert served.connections.count == COUNT + 1
            clock.seconds += 39
            assert await friend.is_served()
            assert not any(client.is_closed for client in silent)
            clock.seconds += 2
            await until(lambda: served.connections.count == 1)
            assert all(client.is_closed for client in silent)
            assert served.ended("idle") == COUNT
            assert await friend.is_served()

    asyncio.run(main())


def test_connections_above_the_bound_are_closed_and_counted_and_the_others_stay() -> None:
    async def main() -> None:
        async with wire(limits=LimitsConfig(connections_max=101)) as served:
            friend = await served.client()
            assert await friend.is_served()
            silent = [SilentClient(served) for _ in range(COUNT)]
            assert served.connections.count == 101
            assert sum(client.is_closed for client in silent) == COUNT - 100
            assert served.ended("bound") == COUNT - 100
            assert await friend.is_served()
            for client in silent:
                client.abort()
            await until(lambda: served.connections.count == 1)

    asyncio.run(main())


def test_clients_that_send_nothing_after_the_length_cost_a_bounded_amount_of_memory() -> None:
    """Each claims 3 MiB: 10,000 times as much would be 29 GiB."""

    async def main() -> None:
        clock = StoppedClock()
        limits = LimitsConfig(connections_max=COUNT, connections_max_idle_ms=40_000)
        async with wire(limits=limits, clock=clock) as served:
            memory = served.connections.memory
            silent = [SilentClient(served) for _ in range(1000)]
            await asyncio.sleep(0)
            for client in silent:
                client.send(struct.pack(">i", 3 * MIB) + VERSIONS_REQUEST[4:20])
            assert memory.unfilled_bytes <= 64 * MIB
            clock.seconds += 41
            await until(lambda: served.connections.count == 0)
            assert served.ended("idle") == len(silent)
            assert memory.unfilled_bytes == 0

    asyncio.run(main())
