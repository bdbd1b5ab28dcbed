"""gRPC over TLS: our clients reach a node, and say why where they do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from streamlog.client import Admin, Consumer, Producer, Tls, aio
from streamlog.errors import Invalid, InvalidConfig, TlsHandshakeFailed
from streamlog.server.context import Operation, RequestContext, Resource
from streamlog.server.listeners.listeners import node_listeners
from streamlog.settings import load
from tests.support.certificates import Authority, Pair
from tests.support.running_node import RunningNode, running_node
from tests.support.server_harness import running


@asynccontextmanager
async def tls_node(pair: Pair, ca: Path | None = None, **more: str) -> AsyncIterator[RunningNode]:
    names = pair.flags()
    if ca is not None:
        names["tls__client_ca"] = str(ca)
    async with running_node(**names, **more) as node:
        yield node


async def reach(node: RunningNode, tls: Tls | bool | None) -> str:
    """The name of the failure's reason; "" where the node was reached."""
    async with aio.Admin(node.banner.grpc, tls=tls, timeout_ms=30_000) as admin:
        try:
            await admin.status()
        except TlsHandshakeFailed as error:
            is_named = node.banner.grpc in error.message
            return str(error.fields["reason"]) if is_named else error.message
    return ""


def tls_of(authority: Authority, pair: Pair | None = None, **more: Any) -> Tls:
    if pair is not None:
        more |= {"certificate": str(pair.certificate), "key": str(pair.key)}
    return Tls(ca=str(authority.ca), **more)


def test_a_client_that_trusts_the_authority_is_served(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def main() -> None:
        async with tls_node(authority.issue("node")) as node:
            assert await reach(node, tls_of(authority)) == ""

    asyncio.run(main())


def test_each_failure_has_its_reason(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")

    async def main() -> None:
        async with tls_node(authority.issue("node")) as node:
            assert await reach(node, tls_of(stranger)) == "untrusted"
            assert await reach(node, True) == "untrusted"
            assert await reach(node, None) == "tls_server"
        async with tls_node(authority.issue("elsewhere", "elsewhere.example")) as node:
            assert await reach(node, tls_of(authority)) == "host_mismatch"
            assert await reach(node, tls_of(authority, server_name="elsewhere.example")) == ""
        async with running_node() as node:
            assert await reach(node, tls_of(authority)) == "plaintext_server"

    asyncio.run(main())


def test_certificates_of_clients_are_required(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    client, other = authority.issue("client"), stranger.issue("other")

    async def main() -> None:
        async with tls_node(authority.issue("node"), authority.ca) as node:
            assert await reach(node, tls_of(authority, client)) == ""
            assert await reach(node, tls_of(authority)) == "certificate_required"
            assert await reach(node, tls_of(authority, other)) == "certificate_refused"
            assert await reach(node, None) == "tls_server"

    asyncio.run(main())


def test_a_certificate_that_expired_in_use_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("node")

    async def main() -> None:
        async with tls_node(pair) as node:
            assert node.node.tls is not None
            current = node.node.tls.current
            old = authority.issue("old", expired=True)
            # As if it had been valid when it was read.
            node.node.tls.current = type(current)(
                old.certificate.read_bytes(), old.key.read_bytes(), None, 0.0, current.context
            )
            assert await reach(node, tls_of(authority)) == "expired"

    asyncio.run(main())


def test_the_blocking_client_diagnoses_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def use(server: str) -> None:
        with Admin(server) as admin, pytest.raises(TlsHandshakeFailed, match="--tls-ca"):
            admin.status()
        with Admin(server, tls=tls_of(authority)) as admin:
            admin.create_topic("t")
        with Producer(server, tls=tls_of(authority)) as producer:
            producer.send("t", b"v").result(30)
        with Consumer(server, tls=tls_of(authority)) as consumer:
            consumer.assign([("t", 0)])
            assert [record.value for record in consumer.poll(30)] == [b"v"]
        with Consumer(server) as consumer:
            consumer.assign([("t", 0)])
            with pytest.raises(TlsHandshakeFailed, match=f"{server}: the node there speaks TLS"):
                consumer.poll(30)
        with Consumer(server, tls=True) as consumer:
            consumer.subscribe(["t"])
            with pytest.raises(TlsHandshakeFailed, match="is not trusted here"):
                consumer.poll(30)
        with (
            Producer(server, max_block_ms=30_000) as producer,
            pytest.raises(TlsHandshakeFailed, match=server),
        ):
            producer.send("t", b"v")

    async def main() -> None:
        async with tls_node(authority.issue("node")) as node:
            await asyncio.to_thread(use, node.banner.grpc)

    asyncio.run(main())


def test_a_producer_and_a_consumer_live_through_a_rotation(tmp_path: Path) -> None:
    """Connections stay; the next ones get the new certificate, of a new authority."""
    authority, new = Authority(tmp_path), Authority(tmp_path, "new")
    pair = authority.issue("node")

    async def main() -> None:
        async with (
            tls_node(pair) as node,
            aio.Producer(node.banner.grpc, tls=tls_of(authority)) as producer,
        ):
            await (await producer.send("t", b"1"))
            pair.write(new.issue("new-node"))
            assert node.node.tls is not None
            node.node.tls.reload()
            await (await producer.send("t", b"2"))
            assert await reach(node, tls_of(authority)) == "untrusted"
            assert await reach(node, tls_of(new)) == ""
            async with aio.Consumer(node.banner.grpc, tls=tls_of(new)) as consumer:
                await consumer.assign([("t", 0)])
                got: list[bytes | None] = []
                while len(got) < 2:
                    got += [record.value for record in await consumer.poll(5)]
                assert got == [b"1", b"2"]

    asyncio.run(main())


def test_the_authorities_of_clients_are_read_again(tmp_path: Path) -> None:
    authority, new = Authority(tmp_path), Authority(tmp_path, "new")
    old_client, new_client = authority.issue("client"), new.issue("new-client")
    trusted = tmp_path / "clients.pem"
    trusted.write_bytes(authority.ca.read_bytes())

    async def main() -> None:
        async with tls_node(authority.issue("node"), trusted) as node:
            assert await reach(node, tls_of(authority, new_client)) == "certificate_refused"
            trusted.write_bytes(new.ca.read_bytes())
            assert node.node.tls is not None
            node.node.tls.reload()
            assert await reach(node, tls_of(authority, new_client)) == ""
            assert await reach(node, tls_of(authority, old_client)) == "certificate_refused"

    asyncio.run(main())


def test_the_node_notices_new_files_by_itself(tmp_path: Path) -> None:
    authority, new = Authority(tmp_path), Authority(tmp_path, "new")
    pair = authority.issue("node")

    async def main() -> None:
        async with tls_node(pair) as node:
            pair.write(new.issue("new-node"))
            async with asyncio.timeout(30):
                while await reach(node, tls_of(new)):  # noqa: ASYNC110 - it has no event
                    await asyncio.sleep(0.05)

    asyncio.run(main())


def test_a_call_has_the_certificate_s_subject_as_its_principal(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    client = authority.issue("client", organization_name="Acme, Inc", organization_unit_name="é")
    seen: list[str] = []

    def note(context: RequestContext, operation: Operation, resource: Resource) -> None:
        seen.append(context.principal)

    settings = load(
        None,
        {},
        {
            "listen": "127.0.0.1:0",
            "http_listen": "127.0.0.1:0",
            "tls.client_ca": str(authority.ca),
            **authority.issue("node").settings(),
        },
    )

    async def main() -> None:
        async with (
            running(settings, authorize=note) as node,
            aio.Admin(node.service.grpc_address, tls=tls_of(authority, client)) as admin,
        ):
            await admin.list_topics()

    asyncio.run(main())
    assert set(seen) == {"User:CN=client,OU=é,O=Acme\\, Inc"}


def test_unusable_files_are_refused_when_a_client_is_made(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, other = authority.issue("client"), authority.issue("other")
    with pytest.raises(InvalidConfig, match="missing"):
        Admin("127.0.0.1:1", tls=Tls(ca=str(tmp_path / "missing")))
    with pytest.raises(InvalidConfig, match="does not match"):
        Admin(
            "127.0.0.1:1",
            tls=Tls(certificate=str(pair.certificate), key=str(other.key)),
        )
    with pytest.raises(InvalidConfig, match="without its certificate"):
        Tls(key=str(pair.key))
    with pytest.raises(InvalidConfig, match="give True, False or"):
        Admin("127.0.0.1:1", tls="ca.pem")  # type: ignore[arg-type]


def test_beyond_loopback_clients_need_a_certificate_or_the_node_says_insecure(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("node").settings()
    required = pair | {"tls.client_ca": str(authority.ca)}
    everywhere = {"listen": "0.0.0.0:0", "http_listen": "0.0.0.0:0"}

    async def is_insecure(**flags: Any) -> bool:
        return node_listeners(load(None, {}, flags)).is_insecure

    async def main() -> None:
        assert await is_insecure(**everywhere, **required) is False
        with pytest.raises(Invalid, match="--tls-client-ca"):
            await is_insecure(**everywhere, **pair)
        assert await is_insecure(**everywhere, **pair, insecure=True) is True
        plain_http = required | {"tls.http": False}
        with pytest.raises(Invalid, match=r"listening on .* reaches"):
            await is_insecure(**everywhere, **plain_http)
        assert await is_insecure(listen="0.0.0.0:0", **plain_http) is False

    asyncio.run(main())
