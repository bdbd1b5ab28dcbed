"""CPU of the listener itself: microseconds of a request by stage, without log and engine.

One node in this process, whose logs take a batch at once and acknowledge it half a millisecond
later, many at a time, as a log file does. A client in a process of its own sends over loopback.

1. *whole*: CPU of the event loop's thread while the client has `WINDOW` requests under way.
2. The stages, each in a loop of its own over `TOGETHER` requests: what `recv_into` and the cutting
   of frames cost, decoding, the handler with ProduceService, the answer, and its `writev`.
3. What is left of the whole is the loop's own: `select`, the two tasks, bounds and counters.

Thread time of the best round, so that a machine with other work to do gives figures to compare.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, cast

import streamlog
from benchmarks.kafka.bench import Bench
from benchmarks.kafka.wire import KafkaConnection, encode_frame, produce_frame
from benchmarks.produce import RECORD_BYTES, example_values
from benchmarks.report import Report, Row
from streamlog.codec.records import encode_values
from streamlog.kafka.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from streamlog.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from streamlog.kafka.protocol.apis import ApiKey
from streamlog.log.api.abstract_log import (
    AbstractLog,
    AppendOutcome,
    LogAppend,
    LogAppendInfo,
)
from streamlog.model.partition import TopicPartition
from streamlog.server.kafka.dispatch import Begun, Dispatcher, Peer
from streamlog.server.kafka.handlers.table import NodeRoutes
from streamlog.server.kafka.transport.receive import FrameReceiver, ReceiveMemory
from streamlog.server.listeners.listeners import node_listeners
from streamlog.server.node import backend_of
from streamlog.server.node_server import NodeServer
from streamlog.server.services.ports import Logs
from streamlog.settings import load

SIZES = {1 << 10: 20_000, 16 << 10: 8_000, 128 << 10: 2_000}
"""Bytes of a batch, and requests of a round at scale 1."""
WINDOW = 64
TOGETHER = 64
ROUNDS = 5
STAGE_ROUNDS = 40
ACK_AFTER_S = 0.0005
PARTITIONS = 4
TOPICS = 100
"""Beside the one that is written, for Metadata of all topics."""
SOCKET_BYTES = 16 << 20


def run(bench: Bench) -> None:
    def measure() -> None:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as client:
            asyncio.run(_run(bench, client))

    bench.attempt("stages", "all", measure)


async def _run(bench: Bench, client: ProcessPoolExecutor) -> None:
    async with _world() as world:
        for size, requests in SIZES.items():
            await _produce(bench, world, client, size, max(TOGETHER, int(requests * bench.scale)))
        await _others(bench, world, client, max(100, int(4000 * bench.scale)))


# ---- the node


class _QuickLog:
    """A log whose appends cost nothing but their answers."""

    def __init__(self, log: AbstractLog) -> None:
        self._log = log
        self._pending: list[asyncio.Future[LogAppendInfo]] = []
        self._info = LogAppendInfo(0, 0, -1, 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append_many(self, appends: Sequence[LogAppend]) -> Sequence[AppendOutcome]:
        loop = asyncio.get_running_loop()
        if not self._pending:
            loop.call_later(ACK_AFTER_S, self._acknowledge)
        futures: list[asyncio.Future[LogAppendInfo]] = [loop.create_future() for _ in appends]
        self._pending += futures
        return futures

    def _acknowledge(self) -> None:
        pending, self._pending = self._pending, []
        for future in pending:
            if not future.done():
                future.set_result(self._info)


class _QuickLogs:
    """The engine's logs; `quick` partitions take appends at once."""

    def __init__(self, logs: Any) -> None:
        self._logs = logs
        self.topic = logs.topic
        self.quick: dict[TopicPartition, _QuickLog] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logs, name)

    def open_log(self, partition: TopicPartition) -> Any:
        return self.quick.get(partition) or self._logs.open_log(partition)


class _World:
    def __init__(self, address: str, dispatcher: Dispatcher, logs: Any) -> None:
        self.address = address
        self.dispatcher = dispatcher
        self.logs = logs


@asynccontextmanager
async def _world() -> AsyncIterator[_World]:
    """Topic `quick`, and topic `kept` with real logs in memory."""
    none = {"listen": "127.0.0.1:0", "http_listen": "127.0.0.1:0", "kafka_listen": "127.0.0.1:0"}
    settings = load(None, {}, {"store": "memory://", "meta": "memory://", **none}).for_mode("dev")
    async with streamlog.open("memory://", meta="memory://") as engine:
        logs = _QuickLogs(engine.logs)
        await engine.logs.create_topic("quick", PARTITIONS)
        await engine.logs.create_topic("kept", PARTITIONS)
        for number in range(TOPICS):
            await engine.logs.create_topic(f"beside-{number}", PARTITIONS)
        for number in range(PARTITIONS):
            partition = TopicPartition("quick", number)
            logs.quick[partition] = _QuickLog(await engine.logs.log(partition))
        listeners = node_listeners(settings)
        backend = replace(backend_of(engine), logs=cast(Logs, logs))
        server = NodeServer(backend, settings, listeners)
        await server.start()
        try:
            services = server.services
            routes, shared = NodeRoutes().of(services), services.resources
            dispatcher = Dispatcher(routes, shared.requests, shared.quotas)
            yield _World(listeners.endpoint("kafka").address, dispatcher, logs)
        finally:
            await server.stop(5)


# ---- produce


async def _produce(
    bench: Bench, world: _World, client: ProcessPoolExecutor, size: int, requests: int
) -> None:
    batch = _batch(size)
    frames = [
        produce_frame("quick", number % PARTITIONS, batch, number) for number in range(TOGETHER)
    ]
    whole = await _whole(bench, world, client, frames, requests)
    stages = await _stages(world, frames)
    _add(bench.report, f"produce of {size >> 10} KiB, log left out", whole, stages)


def _batch(size: int) -> bytes:
    count = max(1, (size - 100) // (RECORD_BYTES + 16))
    record = min(RECORD_BYTES, size - 124)
    values = [value[:record] for value in example_values(max(2 * RECORD_BYTES, size))[:count]]
    return bytes(encode_values(values, timestamp_ms=int(time.time() * 1000)).data)


async def _whole(
    bench: Bench, world: _World, client: ProcessPoolExecutor, frames: list[bytes], requests: int
) -> float:
    """CPU microseconds of the loop's thread for each request, while a client keeps `WINDOW` under
    way."""
    loop, best = asyncio.get_running_loop(), float("inf")
    for _ in bench.rounds(ROUNDS):
        cpu = time.thread_time()
        await loop.run_in_executor(client, _send, world.address, frames, requests, WINDOW)
        best = min(best, (time.thread_time() - cpu) / requests * 1e6)
    return best


def _send(address: str, frames: list[bytes], requests: int, window: int) -> None:
    """In the client's process."""
    sent = (frames * (requests // len(frames) + 1))[:requests]
    with KafkaConnection(address) as connection:
        connection.blast(sent, window)


async def _stages(world: _World, frames: Sequence[bytes]) -> dict[str, float]:
    """Microseconds of a request, by stage; the best round counts."""
    found: dict[str, float] = {}
    receiver = _Receiver(ReceiveMemory(100 << 20))
    receiver.memory.apis = world.dispatcher.apis
    ours, theirs = _sockets()
    dispatcher, peer = world.dispatcher, Peer("a", "b", "kafka", ("localhost", 1))
    with ours, theirs:
        for _ in range(STAGE_ROUNDS):
            taken: dict[str, float] = {}
            taken["receive"] = _receive(receiver, ours, theirs, frames)
            views, receiver.frames = receiver.frames, []
            began = time.thread_time()
            requests = [dispatcher.read(view, peer) for view in views]
            taken["decode"] = time.thread_time() - began
            began = time.thread_time()
            begun = await dispatcher.begin(requests)
            taken["handle"] = time.thread_time() - began
            await _durable(begun)
            began = time.thread_time()
            pieces = [piece for one in begun for piece in dispatcher.finish(one)]
            taken["answer"] = time.thread_time() - began
            began = time.thread_time()
            ours.sendmsg(pieces)
            taken["send"] = time.thread_time() - began
            theirs.recv(1 << 20)
            for name, seconds in taken.items():
                found[name] = min(found.get(name, 1e9), seconds / len(frames) * 1e6)
    return found


async def _durable(begun: Sequence[Begun]) -> None:
    while not all(one.is_ready() for one in begun):  # noqa: ASYNC110 - asked as a connection does
        await asyncio.sleep(ACK_AFTER_S)


class _Receiver(FrameReceiver):
    def __init__(self, memory: ReceiveMemory) -> None:
        super().__init__(memory)
        self.memory = memory
        self.frames: list[memoryview] = []

    def requests_received(self, frames: Sequence[memoryview]) -> None:
        self.frames += frames

    def large_request_begun(self, size_bytes: int) -> None:
        pass

    def not_a_request(self, first_bytes: bytes, reason: str) -> None:
        raise RuntimeError(reason)


def _receive(
    receiver: FrameReceiver, ours: socket.socket, theirs: socket.socket, frames: Sequence[bytes]
) -> float:
    """Seconds to take the frames out of the socket, which holds them whole a few at a time."""
    seconds, some, size = 0.0, b"", 0
    for number, frame in enumerate(frames):
        some += frame
        if len(some) < 512 << 10 and number < len(frames) - 1:
            continue
        theirs.sendall(some)
        left, some = len(some), b""
        began = time.thread_time()
        while left:
            size = ours.recv_into(receiver.get_buffer(-1))
            receiver.buffer_updated(size)
            left -= size
        seconds += time.thread_time() - began
    return seconds


def _sockets() -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection over loopback, with room for what is sent at once."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        theirs = socket.socket()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        theirs.connect(listening.getsockname())
        ours, _ = listening.accept()
    return ours, theirs


# ---- the other APIs


async def _others(bench: Bench, world: _World, client: ProcessPoolExecutor, requests: int) -> None:
    """One request under way, as a consumer's."""
    log = await world.logs.log(TopicPartition("kept", 0))
    small, large = _batch(1 << 10), _batch(1 << 20)
    at_large = (await (await log.append(small))).last_offset + 1
    at_end = (await (await log.append(large))).last_offset + 1
    named = MetadataRequest(topics=[MetadataRequestTopic(name="kept")])
    everything = MetadataRequest(topics=None)
    cases: dict[str, tuple[ApiKey, Any, int]] = {
        "fetch of 1 KiB": (ApiKey.FETCH, _fetch(0, 1 << 10), requests),
        "fetch of 1 MiB": (ApiKey.FETCH, _fetch(at_large, 1 << 20), max(10, requests // 10)),
        "fetch of nothing, 1 ms": (ApiKey.FETCH, _fetch(at_end, 1), requests),
        "metadata of a topic": (ApiKey.METADATA, named, requests),
        f"metadata of {TOPICS + 2} topics": (ApiKey.METADATA, everything, requests),
    }
    for name, (api, request, count) in cases.items():
        frame = encode_frame(api, request, 1)
        loop, best = asyncio.get_running_loop(), float("inf")
        for _ in bench.rounds(ROUNDS):
            cpu = time.thread_time()
            await loop.run_in_executor(client, _ask, world.address, api, frame, count)
            best = min(best, (time.thread_time() - cpu) / count * 1e6)
        _add(bench.report, name, best, {})


def _ask(address: str, api: ApiKey, frame: bytes, requests: int) -> None:
    """In the client's process."""
    with KafkaConnection(address) as connection:
        for _ in range(requests):
            connection.send(frame)
            connection.response(api)


def _fetch(offset: int, size: int) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=size)
    return FetchRequest(
        max_wait_ms=1,
        min_bytes=1,
        max_bytes=size,
        session_epoch=-1,
        topics=[FetchTopic(topic="kept", partitions=[part])],
    )


def _add(report: Report, name: str, whole: float, stages: dict[str, float]) -> None:
    row = Row("stages", name, whole, "us", less_is_better=True)
    row.facts = {f"{stage}_us": value for stage, value in stages.items()}
    if stages:
        row.facts["loop_us"] = whole - sum(stages.values())
    report.add(row)
