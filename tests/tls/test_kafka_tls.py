"""Kafka's protocol inside TLS."""

from __future__ import annotations

import asyncio
import random
import ssl
from contextlib import suppress
from pathlib import Path

import aiokafka
import pytest

from streamlog.kafka.messages.list_offsets_request import ListOffsetsRequest
from streamlog.kafka.messages.list_offsets_response import ListOffsetsResponse
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.server.addresses import split_address
from streamlog.server.kafka.call import KafkaCall, Route
from streamlog.server.tls.node_tls import NodeTls
from streamlog.settings.tls import TlsConfig
from tests.engine.harness import until
from tests.server.kafka.transport.scenes import Scene, fetch, list_offsets, produce
from tests.support.certificates import Authority, Pair
from tests.support.kafka_wire import VERSIONS_REQUEST, WireClient, connect, wire
from tests.support.running_node import running_node
from tests.support.sockets import socket_of

BULK = random.Random(2).randbytes(5 << 20)


def context_of(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.ca)
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


def both_sides(
    folder: Path, authority: Authority, client: Pair | None = None
) -> tuple[NodeTls, ssl.SSLContext]:
    pair = authority.issue("node")
    ca = str(authority.ca)
    config = TlsConfig(str(pair.certificate), str(pair.key), ca, "requested")
    return NodeTls(config), context_of(authority, client)


def test_requests_and_answers_of_any_size_arrive_whole(tmp_path: Path) -> None:
    records = [BULK[:300_000], BULK, b"", BULK[:1]]

    async def main() -> None:
        scene = Scene(is_held=False, records=records)
        async with wire(scene.routes(), tls=both_sides(tmp_path, Authority(tmp_path))) as served:
            client = await served.client()
            for number, size in enumerate((1, 16_384, 300_000, len(BULK))):
                client.send(produce(number, BULK[:size]))
            for number in range(4):
                assert (await client.answer(ApiKey.PRODUCE, 9))[0] == number
            client.send(fetch(9))
            _, answer = await client.answer(ApiKey.FETCH, 12)
            assert bytes(answer.responses[0].partitions[0].records) == b"".join(records)

    asyncio.run(main())


def test_pipelined_requests_of_one_record_are_answered_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        scene = Scene(is_held=False)
        async with wire(scene.routes(), tls=both_sides(tmp_path, Authority(tmp_path))) as served:
            client = await served.client()
            client.send(b"".join(produce(number) for number in range(500)))
            for number in range(500):
                assert (await client.answer(ApiKey.PRODUCE, 9))[0] == number

    asyncio.run(main())


def test_requests_of_a_client_that_sends_and_closes_are_begun(tmp_path: Path) -> None:
    async def main() -> None:
        scene = Scene(is_held=False)
        async with wire(scene.routes(), tls=both_sides(tmp_path, Authority(tmp_path))) as served:
            client = await served.client()
            client.send(b"".join(produce(number, acks=0) for number in range(500)))
            await client.close()
            await until(lambda: served.connections.count == 0)
            assert [reply.correlation_id for reply in scene.begun] == list(range(500))

    asyncio.run(main())


def test_a_client_that_does_not_read_holds_up_its_own_fetches_alone(tmp_path: Path) -> None:
    async def main() -> None:
        scene = Scene(is_held=False, records=[BULK])
        async with wire(scene.routes(), tls=both_sides(tmp_path, Authority(tmp_path))) as served:
            client, other = await served.client(), await served.client()
            socket_of(client.writer).pause_reading()
            client.send(b"".join(fetch(number) for number in range(20)))
            await until(lambda: len(scene.fetches) >= 1)
            assert await other.is_served()
            await asyncio.sleep(0.05)
            assert len(scene.fetches) < 6
            socket_of(client.writer).resume_reading()
            for number in range(20):
                assert (await client.answer(ApiKey.FETCH, 12))[0] == number

    asyncio.run(main())


def test_a_request_s_principal_is_the_certificate_s_subject(tmp_path: Path) -> None:
    seen: list[str] = []

    async def note(call: KafkaCall, request: ListOffsetsRequest) -> ListOffsetsResponse:
        seen.append(call.context.principal)
        return ListOffsetsResponse()

    async def main() -> None:
        authority = Authority(tmp_path)
        pair = authority.issue("client", organization_name="A", organization_unit_name="b")
        tls = both_sides(tmp_path, authority, pair)
        async with wire({ApiKey.LIST_OFFSETS: Route(note)}, tls=tls) as served:
            for context in (tls[1], context_of(authority)):
                client = await connect(served.port, context)
                served.clients.append(client)
                client.send(list_offsets(1))
                await client.answer(ApiKey.LIST_OFFSETS, 6)

    asyncio.run(main())
    assert seen == ["User:CN=client,OU=b,O=A", "anonymous"]


async def is_served(port: int, context: ssl.SSLContext | None) -> bool:
    client: WireClient | None = None
    try:
        client = await connect(port, context)
        return await asyncio.wait_for(client.is_served(), 30)
    except (OSError, asyncio.IncompleteReadError):
        return False
    finally:
        if client is not None:
            client.writer.transport.abort()


def test_a_node_requires_certificates_and_follows_its_files(tmp_path: Path) -> None:
    authority, new = Authority(tmp_path), Authority(tmp_path, "new")
    pair, client = authority.issue("node"), authority.issue("client")
    flags = pair.flags()

    async def main() -> None:
        async with running_node(
            **flags, tls__client_ca=str(authority.ca), kafka_listen="127.0.0.1:0"
        ) as node:
            (endpoint,) = (one for one in node.banner.listeners if one.name == "kafka")
            assert endpoint.protocol == "kafka+tls"
            port = split_address(endpoint.address)[1]
            assert await is_served(port, context_of(authority, client))
            assert not await is_served(port, context_of(authority))
            assert not await is_served(port, None)
            with pytest.raises(ssl.SSLCertVerificationError):
                await connect(port, context_of(new, client))
            stays = await connect(port, context_of(authority, client))
            pair.write(new.issue("new-node"))
            assert node.node.tls is not None
            node.node.tls.reload()
            assert await is_served(port, context_of(new, client))
            assert await stays.is_served()
            stays.writer.transport.abort()

    asyncio.run(main())


def test_tls_on_a_plain_port_is_closed_and_called_by_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with wire() as served:
            with pytest.raises(OSError):
                await connect(served.port, context_of(Authority(tmp_path)))
            assert await (await served.client()).is_served()

    asyncio.run(main())
    assert any("TLS" in str(record.__dict__) for record in caplog.records)


def test_a_connection_is_held_until_the_node_serves(tmp_path: Path) -> None:
    async def main() -> None:
        tls = both_sides(tmp_path, Authority(tmp_path))
        async with wire(is_serving=False, tls=tls) as served:
            client = await served.client()
            client.send(VERSIONS_REQUEST)
            served.serve()
            assert (await client.answer(ApiKey.API_VERSIONS, 3))[0] == 5

    asyncio.run(main())


def test_a_connection_above_the_bound_is_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is closed before its handshake, of which Kafka's side of the listener knows nothing."""
    pair = Authority(tmp_path).issue("node")
    flags = pair.flags()

    async def main() -> None:
        async with running_node(
            **flags, limits__connections_max=2, kafka_listen="127.0.0.1:0"
        ) as node:
            (endpoint,) = (one for one in node.banner.listeners if one.name == "kafka")
            address = split_address(endpoint.address)
            open_ones = [await asyncio.open_connection(*address) for _ in range(2)]
            reader, writer = await asyncio.open_connection(*address)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            ended = {"listener": "kafka", "reason": "bound"}
            assert node.metric("streamlog_connections_ended_total", **ended) == 1
            for _, one in (*open_ones, (reader, writer)):
                one.transport.abort()

    asyncio.run(main())
    assert any("connections_max" in str(record.__dict__) for record in caplog.records)


def test_a_client_of_kafkas_own_kind_produces_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair, client = authority.issue("node"), authority.issue("client")
    flags = pair.flags()

    async def main() -> None:
        async with running_node(
            **flags, tls__client_ca=str(authority.ca), kafka_listen="127.0.0.1:0"
        ) as node:
            (endpoint,) = (one for one in node.banner.listeners if one.name == "kafka")
            how = {
                "bootstrap_servers": endpoint.address,
                "security_protocol": "SSL",
                "ssl_context": context_of(authority, client),
            }
            async with aiokafka.AIOKafkaProducer(**how) as producer:
                sent = await producer.send_and_wait("t", b"value", partition=0)
                assert sent.offset == 0
            consumer = aiokafka.AIOKafkaConsumer(**how)
            await consumer.start()
            try:
                consumer.assign([aiokafka.TopicPartition("t", 0)])
                await consumer.seek_to_beginning()
                record = await asyncio.wait_for(consumer.getone(), 30)
                assert record.value == b"value"
            finally:
                await consumer.stop()

    asyncio.run(main())
