"""Kafka listeners of a node: their addresses, their names, and what clients are told."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest

from streamlog.errors import Invalid, Unavailable
from streamlog.server.addresses import split_address
from streamlog.server.listeners.checks import check_listeners, with_usable_listeners
from streamlog.server.listeners.kafka_addresses import KafkaAddress, kafka_addresses
from streamlog.server.listeners.kafka_listener import KafkaListener
from streamlog.server.listeners.sockets import listening_sockets
from streamlog.settings import Settings, load
from streamlog.settings.node import NodeConfig
from tests.support.kafka_wire import connect
from tests.support.server_harness import running, with_limits


def node(listen: str | None, advertised: str | None = None) -> NodeConfig:
    return NodeConfig(kafka_listen=listen, kafka_advertised=advertised)


@pytest.mark.parametrize(
    ("listen", "advertised", "expected"),
    [
        (None, None, []),
        ("none", None, []),
        ("none", "log.example:9092", []),
        ("127.0.0.1:0", None, [("kafka", "127.0.0.1:0", None)]),
        ("0.0.0.0:9092", "log.example:19092", [("kafka", "0.0.0.0:9092", "log.example:19092")]),
        ("IN=127.0.0.1:1", "a:2", [("IN", "127.0.0.1:1", "a:2")]),
        (
            "IN=127.0.0.1:1, OUT=0.0.0.0:2",
            "OUT=a.example:3",
            [("IN", "127.0.0.1:1", None), ("OUT", "0.0.0.0:2", "a.example:3")],
        ),
    ],
)
def test_addresses_have_names_and_what_clients_are_told(
    listen: str, advertised: str, expected: list[tuple[str, str, str | None]]
) -> None:
    assert list(kafka_addresses(node(listen, advertised))) == [
        KafkaAddress(*address) for address in expected
    ]


@pytest.mark.parametrize(
    ("listen", "advertised", "words"),
    [
        ("nonsense", None, "no address"),
        ("127.0.0.1:1,127.0.0.1:2", None, "two listeners are called kafka"),
        ("A=127.0.0.1:1,a=127.0.0.1:2", None, "two listeners are called a"),
        ("grpc=127.0.0.1:1", None, "cannot be a listener's name"),
        ("A B=127.0.0.1:1", None, "cannot be a listener's name"),
        ("A=127.0.0.1:1,B=127.0.0.1:2", "C=h:1", "no listener of node.kafka_listen is called 'C'"),
        ("0.0.0.0:9092", None, "--kafka-advertise"),
        ("[::]:9092", None, "--kafka-advertise"),
        ("127.0.0.1:1", "0.0.0.0:1", "--kafka-advertise"),
        ("127.0.0.1:1", "h:0", "--kafka-advertise"),
        ("127.0.0.1:1", "h", "no address"),
        (None, "log.example:9092", "nothing listens; say with --kafka-listen"),
    ],
)
def test_addresses_that_no_client_can_use_are_refused(
    listen: str | None, advertised: str | None, words: str
) -> None:
    with pytest.raises(Invalid, match=words):
        kafka_addresses(node(listen, advertised))


def test_two_listeners_on_one_address_are_refused() -> None:
    with pytest.raises(Invalid, match="gRPC and Kafka's protocol cannot both listen"):
        check_listeners(Settings(node("127.0.0.1:9644")))
    with pytest.raises(Invalid, match=r"protocol \(A\) and Kafka's protocol \(B\) cannot both"):
        check_listeners(Settings(node("A=127.0.0.1:9092,B=127.0.0.1:9092")))


def test_an_address_beyond_this_machine_needs_a_word_of_its_own() -> None:
    open_node = node("0.0.0.0:9092", "log.example:9092")
    with pytest.raises(Invalid, match="reaches beyond this machine"):
        check_listeners(Settings(open_node))
    assert check_listeners(Settings(replace(open_node, insecure=True))) is True


def loaded(**flags: str) -> Settings:
    return load(None, {}, {"http_listen": "127.0.0.1:0", **flags})


def test_dev_listens_for_kafkas_clients_and_serve_does_where_it_is_told_to() -> None:
    assert loaded().for_mode("dev").node.kafka_listen == "127.0.0.1:9092"
    assert loaded(kafka_listen="none").for_mode("dev").node.kafka_listen == "none"
    assert loaded(listen="127.0.0.1:0").for_mode("dev").node.kafka_listen == "127.0.0.1:0"
    assert loaded().for_mode("serve").node.kafka_listen is None


def test_a_dev_node_takes_a_free_port_where_kafkas_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        default = loaded(listen="127.0.0.1:0").for_mode("dev")
        default = replace(default, node=replace(default.node, kafka_listen=address))
        usable, note = with_usable_listeners(default, "dev")
        assert usable.node.kafka_listen == "127.0.0.1:0"
        assert address in note
        with pytest.raises(Unavailable, match="for Kafka's protocol"):
            with_usable_listeners(
                loaded(listen="127.0.0.1:0", kafka_listen=address).for_mode("dev"), "dev"
            )


def test_a_nodes_clients_are_told_the_port_that_was_chosen_and_counted_by_listener() -> None:
    async def main() -> None:
        settings = with_limits()
        listeners = [
            KafkaListener(settings, KafkaAddress("IN", "127.0.0.1:0", None)),
            KafkaListener(settings, KafkaAddress("OUT", "localhost:0", "log.example:9092")),
        ]
        async with running(settings, more=listeners) as served:
            inside, outside = (listener.endpoint for listener in listeners)
            assert inside.advertised == inside.address
            assert split_address(inside.address)[1] != 0
            assert outside.advertised == "log.example:9092"
            client = await connect(split_address(inside.address)[1])
            other = await connect(split_address(outside.address)[1])
            assert await client.is_served()
            assert await other.is_served()
            served.service._before_scrape()
            for name, count in (("grpc", 0), ("IN", 1), ("OUT", 1)):
                assert served.metric("streamlog_connections", listener=name) == count
            await client.close()
            await other.close()

    asyncio.run(main())


def test_connections_send_small_answers_at_once() -> None:
    """asyncio sets TCP_NODELAY where the socket's protocol is named. Without it the second of two
    answers waits 40 ms for the client's delayed acknowledgement."""

    async def main() -> None:
        made: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        class Accepted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                accepted = transport.get_extra_info("socket")
                made.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

        (listening, *others) = await listening_sockets("127.0.0.1:0", "--kafka-listen", 10)
        assert not others
        loop = asyncio.get_running_loop()
        async with await loop.create_server(Accepted, sock=listening):
            with socket.create_connection(listening.getsockname()):
                assert await made != 0

    asyncio.run(main())


def test_a_port_in_use_is_told_with_the_flag_that_chooses_another() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            listener = KafkaListener(with_limits(), KafkaAddress("kafka", address, None))
            with pytest.raises(Unavailable, match="--kafka-listen"):
                await listener.bind()
            await listener.stop(0)

    asyncio.run(main())
