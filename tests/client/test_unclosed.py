"""Clients that are not closed: the program ends, and logs which records it did not wait for."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from streamlog.client import aio
from streamlog.errors import Internal, OutcomeUnknown
from tests.client.fake_node import FakeNode

WAIT_S = 20

UNCLOSED = """
import asyncio, sys
from streamlog.client import Consumer, Producer, aio
server = sys.argv[1]
stored = Producer(server, linger_ms=0)
stored.send("t", b"v").result(20)
unsent = Producer(server, linger_ms=60_000)
unsent.send_many("t", [b"v"] * 3)
consumer = Consumer(server)
consumer.assign([("t", 0)])
assert consumer.poll(20)
async def main():
    stored = aio.Producer(server, linger_ms=0)
    await (await stored.send("t", b"v"))
    dropped = aio.Producer(server, linger_ms=60_000)
    await dropped.send_many("t", [b"v"] * 7)
    consumer = aio.Consumer(server, fetch_max_wait_ms=60_000)
    await consumer.assign([("t", 0)])
    assert await consumer.poll(20)
asyncio.run(main())
"""


def test_a_program_ends_with_clients_unclosed_and_says_what_is_unsent(node: FakeNode) -> None:
    node.create("t")
    run = subprocess.run(
        [sys.executable, "-c", UNCLOSED, node.server], capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 0, run.stderr
    warnings = [line for line in run.stderr.splitlines() if "never closed" in line]
    assert sorted(line.split("and ")[1].split(" of")[0] for line in warnings) == ["3", "7"]


@pytest.mark.parametrize("linger_ms", [0, 600_000])
def test_cancelling_all_tasks_of_a_loop_ends_every_wait(node: FakeNode, linger_ms: int) -> None:
    node.create("t")

    async def main() -> None:
        producer = aio.Producer(node.server, linger_ms=linger_ms, delivery_timeout_ms=2**31 - 1)
        consumer = aio.Consumer(node.server)
        await consumer.assign([("t", 0)])
        node.hold.clear()
        sent = await producer.send("t", b"v")
        await consumer.poll(0.01)
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.wait_for(asyncio.wait(tasks), WAIT_S)
        with pytest.raises((Internal, OutcomeUnknown)):
            await asyncio.wait_for(sent.result(), WAIT_S)
        with pytest.raises(Internal, match="open another"):
            await asyncio.wait_for(producer.send("t", b"v"), WAIT_S)
        with pytest.raises(Internal, match="open another"):
            await asyncio.wait_for(consumer.poll(None), WAIT_S)
        await asyncio.wait_for(producer.close(), WAIT_S)
        await asyncio.wait_for(consumer.close(), WAIT_S)
        node.hold.set()

    asyncio.run(main())
