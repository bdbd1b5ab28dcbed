"""A thousand idle consumers, each with a connection and a fetch session: what a node pays for them.

Each asks again as soon as it is answered, at its default wait of 500 ms, and at 5 s. What they take
of memory is measured on a node of its own: one that has served much has free memory for thousands.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from benchmarks.kafka.bench import Bench
from benchmarks.kafka.servers import BARE, FSYNCED, NODE, PARTITIONS, Server
from benchmarks.kafka.wire import SIZE_BYTES, VERSIONS, encode_frame
from benchmarks.node import running_node
from benchmarks.report import Row
from streamlog.kafka.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from streamlog.kafka.messages.fetch_response import FetchResponse
from streamlog.kafka.protocol.apis import APIS, ApiKey, decode_response
from streamlog.kafka.protocol.headers import decode_response_header

CONSUMERS = 1000
WAITS_MS = (500, 5000)
MEASURED_S = 10
QUICK_S = 2
VERSION = VERSIONS[ApiKey.FETCH]
OPENING, ENDING = 0, -1


def run(bench: Bench) -> None:
    for server in bench.servers.values():
        # A bare server has no sessions, and fsync costs no consumer anything.
        if server.name not in (BARE, FSYNCED):
            for wait_ms in WAITS_MS:
                case = f"{server.name}, wait of {wait_ms} ms"
                bench.attempt("idle", case, lambda s=server, w=wait_ms: _run(bench, s, w))  # type: ignore[misc]
    bench.attempt("idle", "memory of each consumer", lambda: _weigh(bench))


def _run(bench: Bench, server: Server, wait_ms: int) -> None:
    count = bench.number(CONSUMERS)
    # A whole wait at least: what falls into a part of it is whoever asks then.
    measured_s = bench.number(MEASURED_S, max(QUICK_S, wait_ms // 1000))
    row = asyncio.run(_measure(server, count, wait_ms, measured_s))
    bench.report.add(row)
    if server.node is not None:
        bench.meet(f"idle {wait_ms}", row.value, {"consumers": count, **row.facts})


def _weigh(bench: Bench) -> None:
    """The memory of a new node with and without the consumers, by their number."""
    count = bench.number(CONSUMERS, 100)
    with (
        tempfile.TemporaryDirectory(prefix="bench-idle-") as folder,
        running_node(Path(folder) / "node", wal="disk") as node,
    ):
        server = Server(NODE, node.kafka, node.process, node.started_in_s, {}, node)
        each_kb = asyncio.run(_size_kb(server, count))
    bench.meet("idle size", each_kb, {"consumers": count})


async def _size_kb(server: Server, count: int) -> float:
    topic = server.new_topic("idle")
    # The first ones fill what the start left free; a node keeps 1,000 sessions.
    first = count // 10
    consumers = await _begin(server, topic, first, WAITS_MS[0])
    before_bytes = server.rss_bytes()
    consumers += await _begin(server, topic, count - first, WAITS_MS[0])
    each_kb = (server.rss_bytes() - before_bytes) / (count - first) / 1e3
    await _end(consumers)
    return each_kb


async def _end(consumers: list[_Consumer]) -> None:
    for consumer in consumers:
        consumer.is_ending = True
    await asyncio.gather(*(one.ended for one in consumers))


class _Consumer(asyncio.Protocol):
    """It ends its session before it goes, so that the next ones find room for theirs."""

    def __init__(self, topic: str, partition: int, wait_ms: int) -> None:
        self._topic = topic
        self._partition = partition
        self._wait_ms = wait_ms
        self._received = bytearray()
        self._session = 0
        self._transport: asyncio.Transport | None = None
        self.ended = asyncio.get_running_loop().create_future()
        self.is_ending = False
        self.polls = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask(OPENING, wait_ms=0)

    def _ask(self, epoch: int, wait_ms: int) -> None:
        part = FetchPartition(partition=self._partition, partition_max_bytes=1 << 20)
        topic = FetchTopic(topic=self._topic, partitions=[part])
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            session_id=self._session,
            session_epoch=epoch,
            topics=[topic] if epoch == OPENING else [],
        )
        assert self._transport is not None
        self._transport.write(encode_frame(ApiKey.FETCH, request, self.polls))

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = SIZE_BYTES + int.from_bytes(self._received[:SIZE_BYTES], "big")
        if len(self._received) < SIZE_BYTES or len(self._received) < end:
            return
        frame = memoryview(bytes(self._received[SIZE_BYTES:end]))
        del self._received[:end]
        _, at = decode_response_header(APIS[ApiKey.FETCH], VERSION, frame)
        response = decode_response(ApiKey.FETCH, VERSION, frame, at)
        assert isinstance(response, FetchResponse)
        if response.error_code:
            raise RuntimeError(f"a fetch was answered with error {response.error_code}")
        if self.is_ending and not response.session_id:
            assert self._transport is not None
            self._transport.close()
            return
        self._session = response.session_id
        self.polls += 1
        if self.is_ending:
            self._ask(ENDING, wait_ms=0)
        else:
            self._ask(self.polls, self._wait_ms)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def _begin(server: Server, topic: str, count: int, wait_ms: int) -> list[_Consumer]:
    """New consumers, each of which has polled."""
    host, _, port = server.address.rpartition(":")
    loop = asyncio.get_running_loop()
    consumers: list[_Consumer] = []
    for number in range(count):
        consumer = _Consumer(topic, number % PARTITIONS, wait_ms)
        await loop.create_connection(lambda one=consumer: one, host, int(port))  # type: ignore[misc]
        consumers.append(consumer)
    await asyncio.sleep(2 * wait_ms / 1000)
    return consumers


async def _measure(server: Server, count: int, wait_ms: int, measured_s: float) -> Row:
    topic = server.new_topic(f"idle-{wait_ms}")
    server.wait_until_idle()
    loop = asyncio.get_running_loop()
    consumers = await _begin(server, topic, count, wait_ms)
    began, cpu_s, polls = loop.time(), server.cpu_s(), sum(one.polls for one in consumers)
    await asyncio.sleep(measured_s)
    seconds, polls = loop.time() - began, sum(one.polls for one in consumers) - polls
    used_s = server.cpu_s() - cpu_s
    await _end(consumers)
    row = Row(
        "idle", f"{server.name}, {count} idle consumers, wait of {wait_ms} ms",
        used_s / seconds * 100, "% of a core", less_is_better=True,
    )  # fmt: skip
    row.facts = {
        "polls_s": polls / seconds,
        "us_per_poll": used_s / max(1, polls) * 1e6,
    }
    return row
