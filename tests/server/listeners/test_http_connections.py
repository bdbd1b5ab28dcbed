"""Connections to the HTTP port: bounded like those to the gRPC port, and apart from them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from streamlog.server.listeners import http
from streamlog.v1 import log_pb2
from tests.support.server_harness import Running, running, with_limits

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(node: Running) -> Connection:
    host, _, port = node.service.http_address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def status_line(connection: Connection) -> bytes:
    """Of /readyz; empty where the node has closed the connection."""
    reader, writer = connection
    writer.write(b"GET /readyz HTTP/1.1\r\nHost: node\r\n\r\n")
    try:
        async with asyncio.timeout(30):
            return await reader.readline()
    except ConnectionError:
        return b""


async def close(*connections: Connection) -> None:
    for _, writer in connections:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def fetch_request() -> log_pb2.FetchRequest:
    topic = log_pb2.FetchTopic(topic="t", partitions=[log_pb2.FetchPartition()])
    return log_pb2.FetchRequest(topics=[topic])


def test_a_connection_over_the_bound_is_closed_and_one_that_ends_makes_room(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with running(with_limits(connections_max=2)) as node:
            idle, busy, refused = [await connect(node) for _ in range(3)]
            assert await status_line(busy) == b"HTTP/1.1 200 OK\r\n"
            assert await status_line(refused) == b""
            await node.log_stub.Fetch(fetch_request())
            await close(idle, refused)
            is_answered = False
            async with asyncio.timeout(30):
                while not is_answered:
                    connection = await connect(node)
                    is_answered = bool(await status_line(connection))
                    await close(connection)
            await close(busy)

    asyncio.run(main())
    told = [vars(one) for one in caplog.records if one.name.endswith(".listeners.http")]
    assert "connections_max" in told[0]["reason"]
    assert told[0]["peer"].startswith("127.0.0.1:")


def test_a_connection_without_a_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the bound would keep supervisors out for as long as such connections stay."""
    monkeypatch.setattr(http, "IDLE_S", 0.05)

    async def main() -> None:
        async with running() as node:
            reader, writer = await connect(node)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: no")
            async with asyncio.timeout(30):
                assert await reader.read() == b""
            await close((reader, writer))

    asyncio.run(main())
