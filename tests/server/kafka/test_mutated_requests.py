"""Requests that are nearly right: each is answered, or ends its own connection; none is a bug.

The random messages name topics that exist, so that many of them get past the first checks.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from streamlog.kafka.protocol.apis import APIS, ApiKey, request_codec
from streamlog.kafka.protocol.headers import encode_request_header
from streamlog.kafka.protocol.primitives import Structure
from streamlog.server.addresses import split_address
from tests.kafka.shapes import Shape, every_shape, random_message
from tests.support.kafka_wire import API_VERSIONS, WireClient, connect, request_bytes, sized
from tests.support.running_node import running_node

TOPICS = ("t", "u", "missing")
ANSWER_S = 5.0
MARK_ID = 0x7ABCDEF0
MARK = request_bytes(ApiKey.API_VERSIONS, 0, MARK_ID, API_VERSIONS)
LENGTHS = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\1")


def choose(field: dict[str, Any], rng: random.Random) -> Any:
    """Values with which a request gets further than with any."""
    name = str(field.get("name", ""))
    if name in ("topic", "name", "topic_names"):
        return rng.choice(TOPICS)
    if name in ("max_wait_ms", "timeout_ms"):
        return rng.choice((0, 1, -1))
    if name == "acks":
        return rng.choice((1, -1, 0))
    if "partition" in name and field.get("type") == "int32":
        return rng.choice((0, 1, 7, -1))
    return None


def corpus(rng: random.Random, count: int) -> list[bytes]:
    """Valid requests of every version, without their sizes."""
    requests: list[Shape] = [shape for shape in every_shape() if shape.is_request]
    frames: list[bytes] = []
    while len(frames) < count:
        shape = rng.choice(requests)
        version = rng.choice(shape.versions)
        message: Structure = random_message(shape, version, rng, choose)
        header = encode_request_header(APIS[ApiKey(shape.key)], version, 5, "test")
        frames.append(header + b"".join(request_codec(shape.key).encode(message, version)))
    return frames


def mutated(frame: bytes, rng: random.Random) -> bytes:
    data = bytearray(frame)
    for _ in range(rng.choice((0, 1, 1, 2))):
        at = rng.randrange(8, len(data))
        kind = rng.randrange(4)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1 and len(data) > 20:
            del data[at : at + rng.randint(1, 4)]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randint(1, 4))
        else:
            data[at : at + 4] = rng.choice(LENGTHS)
    return bytes(data)


async def is_open_behind(client: WireClient, frame: bytes) -> bool:
    """Sends the frame, and behind it a request that is always answered; False: closed."""
    try:
        client.send(sized(frame) + MARK)
        async with asyncio.timeout(ANSWER_S):
            while int.from_bytes((await client.frame())[:4], "big") != MARK_ID:
                pass  # The answer to the frame, if it has one.
        return True
    except (asyncio.IncompleteReadError, ConnectionError):
        return False


@pytest.mark.parametrize("seed", range(2))
def test_no_mutated_request_finds_a_bug_or_stops_the_node(seed: int) -> None:
    rng = random.Random(seed)

    async def main() -> None:
        async with running_node("dev", broker__num__partitions=2) as node:
            endpoints = {one.name: one.address for one in node.banner.listeners}
            port = split_address(endpoints["kafka"])[1]
            client, answered = await connect(port), 0
            for frame in corpus(rng, 800):
                if await is_open_behind(client, mutated(frame, rng)):
                    answered += 1
                else:
                    await client.close()
                    client = await connect(port)
            assert answered > 100
            assert await client.is_served()
            await client.close()
            name = "streamlog_connections_ended_total"
            assert node.metric(name, listener="kafka", reason="bug") == 0

    asyncio.run(main())
