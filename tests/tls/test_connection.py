"""TLS of asyncio's listeners: bytes arrive whole, memory is bounded, and each end is an end."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import ssl
import warnings
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from streamlog.server.limits.connections import BoundedConnections
from streamlog.server.tls import connection as tls_connection
from streamlog.server.tls.connection import TlsConnections
from streamlog.server.tls.node_tls import NodeTls
from streamlog.server.tls.principal import of_peer_certificate
from streamlog.settings.tls import TlsConfig
from tests.support.certificates import Authority
from tests.support.sockets import socket_of

WAIT_S = 30.0
BULK = random.Random(1).randbytes(3 << 20)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.002)


class Echo(asyncio.Protocol):
    """Sends back what it gets."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
        self.pauses = 0
        self.is_paused = False
        self.is_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def eof_received(self) -> None:
        self.is_ended = True

    def pause_writing(self) -> None:
        self.pauses += 1
        self.is_paused = True
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.is_paused = False
        self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


class BufferedEcho(Echo, asyncio.BufferedProtocol):
    """As Echo, with a buffer of its own that it uses anew each time."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = bytearray(5000)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.transport.write(memoryview(self.buffer)[:nbytes])


class Listening:
    def __init__(self, authority: Authority, folder: Path, make: Callable[[], Echo]) -> None:
        self.authority = authority
        self.made: list[Echo] = []
        self.bound = BoundedConnections(2)
        pair = authority.issue("node")
        config = TlsConfig(
            certificate=str(pair.certificate),
            key=str(pair.key),
            client_ca=str(authority.ca),
            client_auth="requested",
        )

        def note() -> Echo:
            self.made.append(make())
            return self.made[-1]

        self.factory = TlsConnections(NodeTls(config), note, self.bound)
        self.port = 0

    async def connect(
        self, context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = context or ssl.create_default_context(cafile=self.authority.ca)
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context)

    async def until_none(self) -> None:
        await until(lambda: not self.bound.count)


@asynccontextmanager
async def listening(folder: Path, make: Callable[[], Echo] = Echo) -> AsyncIterator[Listening]:
    listener = Listening(Authority(folder), folder, make)
    server = await asyncio.get_running_loop().create_server(listener.factory, "127.0.0.1", 0)
    listener.port = server.sockets[0].getsockname()[1]
    try:
        yield listener
    finally:
        server.close()
        for echo in listener.made:
            echo.transport.abort()
        await listener.until_none()


@pytest.mark.parametrize("make", [Echo, BufferedEcho])
def test_bytes_go_both_ways_whole(tmp_path: Path, make: Callable[[], Echo]) -> None:
    async def main() -> None:
        async with listening(tmp_path, make) as listener:
            reader, writer = await listener.connect()
            writer.write(BULK)
            assert await reader.readexactly(len(BULK)) == BULK
            writer.close()
            await writer.wait_closed()
            await listener.until_none()
            (echo,) = listener.made
            assert echo.is_ended
            assert await echo.lost is None

    asyncio.run(main())


@pytest.mark.parametrize("make", [Echo, BufferedEcho])
def test_a_client_that_does_not_read_pauses_the_protocol(
    tmp_path: Path, make: Callable[[], Echo]
) -> None:
    async def main() -> None:
        async with listening(tmp_path, make) as listener:
            reader, writer = await listener.connect()
            # The client's own library must not read ahead.
            socket_of(writer).pause_reading()
            data = BULK * 5
            writer.write(data)
            await until(lambda: listener.made and listener.made[0].is_paused)
            transport = listener.made[0].transport
            assert transport.get_write_buffer_size() < 1 << 20
            assert not transport.is_reading()
            socket_of(writer).resume_reading()
            assert await reader.readexactly(len(data)) == data
            assert not listener.made[0].is_paused
            writer.close()

    asyncio.run(main())


def test_what_was_written_before_a_close_arrives_and_then_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with listening(tmp_path) as listener:
            reader, writer = await listener.connect()
            writer.write(b"hello")
            await reader.readexactly(5)
            transport = listener.made[0].transport
            transport.write(BULK)
            transport.close()
            assert transport.is_closing()
            transport.write(b"too late")
            assert await reader.read(-1) == BULK
            writer.close()

    asyncio.run(main())


def test_a_client_without_tls_or_with_rubbish_is_closed_and_not_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    async def main() -> None:
        async with listening(tmp_path) as listener:
            for data in (
                b"GET / HTTP/1.1\r\n\r\n",
                b"\0\0\0\1\0\x12" * 9,
                b"\x16\x03\x01\xff\xff" * 99,
            ):
                reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
                writer.write(data)
                with suppress(ConnectionError):
                    await asyncio.wait_for(reader.read(-1), WAIT_S)
                writer.close()
            await listener.until_none()
            assert not listener.made

    asyncio.run(main())
    (line,) = (one for one in caplog.records if one.message == "a TLS handshake failed")
    assert "it looks like HTTP without TLS" in line.__dict__["reason"]


def test_connections_are_bounded_before_their_handshake(tmp_path: Path) -> None:
    async def main() -> None:
        async with listening(tmp_path) as listener:
            silent = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(2)]
            await until(lambda: listener.bound.count == 2)
            with pytest.raises((ssl.SSLError, OSError)):
                await listener.connect()
            for _, writer in silent:
                writer.transport.abort()
            await listener.until_none()
            reader, writer = await listener.connect()
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            writer.close()

    asyncio.run(main())


def test_a_handshake_has_an_end_and_an_open_connection_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        caplog.set_level("INFO")
        async with listening(tmp_path) as listener:
            monkeypatch.setattr(tls_connection, "HANDSHAKE_S_MAX", 0.05)
            silent_reader, silent = await asyncio.open_connection("127.0.0.1", listener.port)
            assert await asyncio.wait_for(silent_reader.read(1), WAIT_S) == b""
            silent.close()
            await listener.until_none()
            (told,) = [vars(one)["reason"] for one in caplog.records]
            assert "had not finished it" in told
            monkeypatch.setattr(tls_connection, "HANDSHAKE_S_MAX", 2)
            reader, writer = await listener.connect()
            await asyncio.sleep(2.05)
            writer.write(b"y")
            assert await reader.readexactly(1) == b"y"
            writer.close()

    asyncio.run(main())


def test_a_client_that_never_reads_its_end_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_connection, "CLOSE_S_MAX", 0.1)

    async def main() -> None:
        async with listening(tmp_path) as listener:
            _, writer = await listener.connect()
            socket_of(writer).pause_reading()
            writer.write(b"x")
            await until(lambda: listener.made)
            listener.made[0].transport.write(BULK * 5)
            listener.made[0].transport.close()
            await listener.until_none()
            writer.transport.abort()

    asyncio.run(main())


def test_a_client_that_vanishes_in_a_handshake_or_later_frees_its_place(tmp_path: Path) -> None:
    async def main() -> None:
        async with listening(tmp_path) as listener:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(b"\x16\x03\x01")
            writer.transport.abort()
            reader, writer = await listener.connect()
            writer.write(b"x")
            await reader.readexactly(1)
            raw = writer.get_extra_info("socket")
            assert isinstance(raw, object)
            writer.transport.abort()
            await listener.until_none()
            assert listener.made[0].lost.done()

    asyncio.run(main())


def test_a_closed_connection_s_memory_is_freed_without_a_search_for_garbage(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with listening(tmp_path) as listener:
            gc.collect()
            gc.disable()
            try:
                reader, writer = await listener.connect()
                writer.write(b"x")
                await reader.readexactly(1)
                state = weakref.ref(listener.made[0].transport.get_extra_info("ssl_object"))
                assert state() is not None
                writer.close()
                await listener.until_none()
                listener.made.clear()
                await until(lambda: state() is None)
            finally:
                gc.enable()

    asyncio.run(main())


def test_the_certificate_is_the_principal(tmp_path: Path) -> None:
    async def main() -> None:
        async with listening(tmp_path) as listener:
            pair = listener.authority.issue("client", organization_name="Acme")
            context = ssl.create_default_context(cafile=listener.authority.ca)
            context.load_cert_chain(pair.certificate, pair.key)
            for presented in (context, None):
                reader, writer = await listener.connect(presented)
                writer.write(b"x")
                await reader.readexactly(1)
                writer.close()
            names = [
                of_peer_certificate(echo.transport.get_extra_info("peercert"))
                for echo in listener.made
            ]
            assert names[0].startswith("User:CN=client,")
            assert "O=Acme" in names[0]
            assert names[1] == "anonymous"
            assert isinstance(listener.made[0].transport.get_extra_info("socket"), object)

    asyncio.run(main())


def test_tls_1_2_and_1_3_are_spoken_and_nothing_older(tmp_path: Path) -> None:
    async def main() -> None:
        async with listening(tmp_path) as listener:
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                context = ssl.create_default_context(cafile=listener.authority.ca)
                context.minimum_version = context.maximum_version = version
                _, writer = await listener.connect(context)
                writer.close()
            context = ssl.create_default_context(cafile=listener.authority.ca)
            context.set_ciphers("ALL:@SECLEVEL=0")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                context.minimum_version = ssl.TLSVersion.TLSv1
                context.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, OSError)):
                await listener.connect(context)

    asyncio.run(main())


def test_a_protocol_that_refuses_its_connection_gets_no_data(tmp_path: Path) -> None:
    class Refusing(Echo):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.abort()

        def data_received(self, data: bytes) -> None:
            raise AssertionError("data of a connection that was refused")

    async def main() -> None:
        async with listening(tmp_path, Refusing) as listener:
            context = ssl.create_default_context(cafile=listener.authority.ca)
            # The last flight of the handshake and the first data come together.
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(1 << 16))
            client.write(b"data")
            writer.write(outgoing.read())
            with suppress(ConnectionError):
                await reader.read(-1)
            assert await listener.made[0].lost is None
            writer.close()

    asyncio.run(main())


def test_a_handshake_may_come_byte_by_byte_and_may_be_anything(tmp_path: Path) -> None:
    async def main() -> None:
        async with listening(tmp_path) as listener:
            context = ssl.create_default_context(cafile=listener.authority.ca)
            hellos = []
            for _ in range(2):
                outgoing = ssl.MemoryBIO()
                client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
                with suppress(ssl.SSLWantReadError):
                    client.do_handshake()
                hellos.append(outgoing.read())
            chance = random.Random(3)
            for number in range(100):
                hello = bytearray(hellos[number % 2])
                for _ in range(chance.randrange(1, 4)):
                    hello[chance.randrange(len(hello))] = chance.randrange(256)
                del hello[chance.randrange(len(hello)) if number % 3 else len(hello) :]
                reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
                for at in range(0, len(hello), 1 if number < 2 else 100):
                    writer.write(hello[at : at + (1 if number < 2 else 100)])
                    await asyncio.sleep(0)
                writer.write_eof()
                with suppress(ConnectionError):
                    await asyncio.wait_for(reader.read(-1), WAIT_S)
                writer.close()
            await listener.until_none()
            assert not listener.made

    asyncio.run(main())


def test_a_protocol_that_raises_ends_its_connection_alone(tmp_path: Path) -> None:
    class Broken(Echo):
        def data_received(self, data: bytes) -> None:
            if data == b"boom":
                raise ValueError("a bug")
            super().data_received(data)

    async def main() -> None:
        async with listening(tmp_path, Broken) as listener:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
            reader, writer = await listener.connect()
            other_reader, other = await listener.connect()
            writer.write(b"boom")
            with suppress(ConnectionError, ssl.SSLError):
                assert await asyncio.wait_for(reader.read(1), WAIT_S) == b""
            other.write(b"fine")
            assert await other_reader.readexactly(4) == b"fine"
            assert isinstance(await listener.made[0].lost, ValueError)
            for open_writer in (writer, other):
                open_writer.close()

    asyncio.run(main())


def test_a_socket_is_closed_once(tmp_path: Path) -> None:
    """`socket` is the plain one: whoever wants its number gets ciphertext's."""

    async def main() -> None:
        async with listening(tmp_path) as listener:
            _, writer = await listener.connect()
            writer.write(b"x")
            await until(lambda: listener.made)
            transport = listener.made[0].transport
            assert transport.get_extra_info("socket").family == socket.AF_INET
            transport.abort()
            transport.close()
            assert await listener.made[0].lost is None
            writer.transport.abort()

    asyncio.run(main())
