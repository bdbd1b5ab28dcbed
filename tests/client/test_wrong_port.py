"""A client on a port that speaks no gRPC says so at once, and does not try until its time is up."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from streamlog.client import KV, Admin, Consumer, Producer, Streams, Tls, aio
from streamlog.errors import Invalid, StreamlogError, TlsHandshakeFailed, Unavailable
from tests.support.certificates import Authority
from tests.support.command import COMMAND, environment
from tests.support.running_node import RunningNode, running_node

LONG_MS = 600_000
"""A test that tried until then would fail by its own time-out."""

NOT_TLS = "does not speak TLS"
KAFKA = "speaks Kafka's protocol, not gRPC"
KAFKA_NOT_TLS = "speaks Kafka's protocol without TLS, not gRPC"
HTTP = "speaks HTTP/1, not gRPC"
NOT_GRPC = "speaks TLS, but not gRPC in it"
NEEDS_TLS = "speaks TLS, and this client does not"


@asynccontextmanager
async def node_of(authority: Authority, *, is_tls: bool) -> AsyncIterator[RunningNode]:
    flags = authority.issue("node").flags() if is_tls else {}
    async with running_node(kafka_listen="127.0.0.1:0", **flags) as node:
        yield node


def address(node: RunningNode, name: str) -> str:
    return next(one.address for one in node.banner.listeners if one.name == name)


async def failure(server: str, tls: Tls | None) -> str:
    async with aio.Admin(server, tls=tls, timeout_ms=LONG_MS) as admin:
        with pytest.raises((Invalid, TlsHandshakeFailed)) as raised:
            await admin.list_topics()
    assert raised.value.message.startswith(server)
    return raised.value.message


def test_each_port_has_its_words(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = Tls(ca=str(authority.ca))

    async def main() -> None:
        async with node_of(authority, is_tls=False) as node:
            for name, words, words_by_tls in (
                ("kafka", KAFKA, KAFKA_NOT_TLS),
                ("http", HTTP, NOT_TLS),
            ):
                assert words in await failure(address(node, name), None)
                assert words_by_tls in await failure(address(node, name), tls)
            assert NOT_TLS in await failure(node.banner.grpc, tls)
        async with node_of(authority, is_tls=True) as node:
            for name in ("kafka", "http"):
                assert NOT_GRPC in await failure(address(node, name), None)
                assert NOT_GRPC in await failure(address(node, name), tls)
            assert NEEDS_TLS in await failure(node.banner.grpc, None)

    asyncio.run(main())


def list_topics(server: str) -> None:
    with Admin(server, timeout_ms=LONG_MS) as admin:
        admin.list_topics()


def backup(server: str) -> None:
    with Admin(server, timeout_ms=LONG_MS) as admin:
        list(admin.backup())


def send(server: str) -> None:
    with Producer(server, max_block_ms=LONG_MS, delivery_timeout_ms=LONG_MS) as producer:
        producer.send("t", b"v")


def poll(server: str) -> None:
    with Consumer(server) as consumer:
        consumer.assign([("t", 0)])
        consumer.poll(LONG_MS / 1000)


def subscribe(server: str) -> None:
    with Consumer(server) as consumer:
        consumer.subscribe(["t"])
        consumer.poll(LONG_MS / 1000)


def watch(server: str) -> None:
    with KV(server, timeout_ms=LONG_MS) as kv:
        next(iter(kv.watch()))


def read(server: str) -> None:
    with Streams(server, timeout_ms=LONG_MS) as streams:
        list(streams.read(1, 0))


def send_async(server: str) -> None:
    async def main() -> None:
        async with aio.Producer(server, max_block_ms=LONG_MS) as producer:
            await producer.send("t", b"v")

    asyncio.run(main())


def poll_async(server: str) -> None:
    async def main() -> None:
        async with aio.Consumer(server) as consumer:
            await consumer.assign([("t", 0)])
            await consumer.poll(LONG_MS / 1000)

    asyncio.run(main())


@pytest.mark.parametrize(
    "use", [list_topics, backup, send, poll, subscribe, watch, read, send_async, poll_async]
)
def test_every_client_says_it(use: Callable[[str], None]) -> None:
    async def main() -> None:
        async with running_node(kafka_listen="127.0.0.1:0") as node:
            server = address(node, "kafka")
            with pytest.raises(Invalid, match=f"{server}: .*{KAFKA}"):
                await asyncio.to_thread(use, server)

    asyncio.run(main())


def test_a_command_says_it_in_one_line() -> None:
    async def main() -> None:
        async with running_node(kafka_listen="127.0.0.1:0") as node:
            server = address(node, "kafka")
            command = await asyncio.create_subprocess_exec(
                *(*COMMAND, "topic", "list", "--server", server),
                stderr=asyncio.subprocess.PIPE,
                env=environment(),
            )
            _, stderr = await command.communicate()
            assert command.returncode == 1
            (line,) = stderr.decode().splitlines()
            assert line.startswith(f"streamlog: Invalid: {server}: the server there {KAFKA}")

    asyncio.run(main())


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that answers the first bytes of a connection and closes it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(100)
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def failure_of(server: str, timeout_ms: int) -> StreamlogError:
    with Admin(server, timeout_ms=timeout_ms) as admin, pytest.raises(StreamlogError) as raised:
        admin.list_topics()
    return raised.value


def test_any_other_protocol_is_told_apart_by_its_answer() -> None:
    with answering(b"SSH-2.0-OpenSSH_9.9\r\n") as server:
        error = failure_of(server, LONG_MS)
        assert isinstance(error, Invalid)
        assert "speaks another protocol, not gRPC" in error.message


def test_a_server_that_closes_without_a_word_may_be_a_node_that_restarts() -> None:
    """So it is tried again until the time is up; then the error says what it may be."""
    with answering(b"") as server:
        error = failure_of(server, 300)
        assert isinstance(error, Unavailable)
        assert "it may be another protocol's port" in error.message
