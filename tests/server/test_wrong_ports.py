"""A client that came to the wrong port: the node's log says what it speaks, and where that is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog.server.addresses import Endpoint, split_address
from streamlog.server.wrong_ports import NodePorts, spoken
from tests.support.certificates import Authority
from tests.support.kafka_wire import VERSIONS_REQUEST, connect
from tests.support.running_node import RunningNode, running_node

GRPC = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HTTP = b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"
TLS = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100)


def address(node: RunningNode, name: str) -> str:
    return next(one for one in node.banner.listeners if one.name == name).address


async def answer_to(address: str, first_bytes: bytes) -> bytes:
    """What the node says until it ends the connection, which it does at once."""
    client = await connect(split_address(address)[1])
    client.send(first_bytes)
    answer = await asyncio.wait_for(client.rest(), 30)
    await client.close()
    return answer


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.__dict__["reason"] for line in caplog.records if "reason" in line.__dict__]


@pytest.mark.parametrize(
    ("port", "first_bytes", "words", "right"),
    [
        ("kafka", GRPC, "it looks like gRPC; the node speaks gRPC at {}", "grpc"),
        ("kafka", HTTP, "it looks like HTTP; the node speaks HTTP at {}", "http"),
        ("kafka", TLS, "it looks like TLS, which this port does not speak", "kafka"),
        (
            "http",
            VERSIONS_REQUEST,
            "Kafka's protocol; the node speaks Kafka's protocol at {}",
            "kafka",
        ),
        ("http", GRPC, "it looks like gRPC; the node speaks gRPC at {}", "grpc"),
        ("http", TLS, "it looks like TLS, which this port does not speak", "http"),
    ],
)
def test_the_log_says_which_port_the_client_should_use(
    port: str, first_bytes: bytes, words: str, right: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with running_node(kafka_listen="127.0.0.1:0") as node:
            answer = await answer_to(address(node, port), first_bytes)
            expected = words.format(address(node, right))
            (reason,) = reasons(caplog)
            assert expected in reason
            # HTTP has words for it; Kafka's port has none that such a client reads.
            assert (expected.encode() in answer) == (port == "http")

    asyncio.run(main())


def test_a_hundred_wrong_clients_make_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with running_node(kafka_listen="127.0.0.1:0") as node:
            await asyncio.gather(
                *(answer_to(address(node, "http"), VERSIONS_REQUEST) for _ in range(100))
            )

    asyncio.run(main())
    assert 1 <= len(reasons(caplog)) < 10


def test_a_client_without_tls_is_told_apart_from_a_failed_handshake(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    flags = Authority(tmp_path).issue("node").flags()

    async def main() -> None:
        async with running_node(kafka_listen="127.0.0.1:0", **flags) as node:
            await answer_to(address(node, "kafka"), VERSIONS_REQUEST)
            (reason,) = reasons(caplog)
            assert reason == (
                "it looks like Kafka's protocol without TLS, and this port speaks TLS alone: "
                "connect with TLS; the node speaks Kafka's protocol at "
                f"{address(node, 'kafka')} (TLS)"
            )

    asyncio.run(main())


def test_a_node_names_all_addresses_of_a_protocol() -> None:
    ports = NodePorts(
        [
            Endpoint("http", "https", "0.0.0.0:1", "a:1"),
            Endpoint("IN", "kafka", "10.0.0.1:2", "10.0.0.1:2"),
            Endpoint("OUT", "kafka+tls", "0.0.0.0:3", "log.example:3"),
        ]
    )
    assert ports.advice(VERSIONS_REQUEST).endswith("at 10.0.0.1:2, log.example:3 (TLS)")
    assert ports.advice(HTTP).endswith("at a:1 (TLS)")
    assert ports.advice(GRPC) == "it looks like gRPC"
    assert ports.advice(b"SSH-2.0-OpenSSH\r\n") == "it looks like no protocol that is known here"
    assert spoken(b"") is None
