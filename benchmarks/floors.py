"""Floors, which are the machine's speed without streamlog: bare gRPC streams, a bare synced file.

Floors use ordinary generated messages and plain files, with the sizes, windows and process layout
of the measured run (client and server are two processes on this machine).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import grpc
import grpc.aio
import psutil

from benchmarks.node import cpu_s_of, own_cpu_s
from benchmarks.report import percentile
from benchmarks.streaming import stream_batches
from streamlog.demo.child import terminate
from streamlog.v1 import log_pb2, log_pb2_grpc

UNLIMITED = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
]


class _Bare(log_pb2_grpc.LogServiceServicer):
    """Answers everything at once and stores nothing."""

    def __init__(self) -> None:
        self._answers: dict[int, log_pb2.FetchResponse] = {}

    async def ProduceStream(
        self, request_iterator: AsyncIterator[log_pb2.ProduceStreamRequest], context: object
    ) -> AsyncIterator[log_pb2.ProduceStreamResponse]:
        async for request in request_iterator:
            answer = log_pb2.ProduceStreamAnswer(correlation_id=request.correlation_id)
            for topic in request.request.topics:
                out = answer.response.topics.add(topic=topic.topic)
                for part in topic.partitions:
                    out.partitions.add(
                        partition=part.partition, base_offset=len(part.record_batches)
                    )
            yield log_pb2.ProduceStreamResponse(answers=[answer])

    async def Produce(
        self, request: log_pb2.ProduceRequest, context: object
    ) -> log_pb2.ProduceResponse:
        return log_pb2.ProduceResponse()

    async def Fetch(self, request: log_pb2.FetchRequest, context: object) -> log_pb2.FetchResponse:
        size = request.max_bytes
        if size not in self._answers:
            partition = log_pb2.FetchPartitionResult(record_batches=os.urandom(size))
            topic = log_pb2.FetchTopicResult(topic="bench", partitions=[partition])
            self._answers[size] = log_pb2.FetchResponse(topics=[topic])
        return self._answers[size]


async def _serve_bare() -> None:
    server = grpc.aio.server(options=UNLIMITED)
    log_pb2_grpc.add_LogServiceServicer_to_server(_Bare(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


class BareServer:
    """The bare server as a child process."""

    def __enter__(self) -> BareServer:
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.floors"], stdout=subprocess.PIPE, text=True
        )
        assert self._child.stdout is not None
        self._process = psutil.Process(self._child.pid)
        self.address = f"127.0.0.1:{int(self._child.stdout.readline())}"
        self.channel = grpc.insecure_channel(self.address, options=UNLIMITED)
        self.stub = log_pb2_grpc.LogServiceStub(self.channel)
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()
        terminate(self._child, 30)

    def produce(
        self, batches: Sequence[tuple[str, int, bytes]], unanswered_max: int
    ) -> tuple[float, dict[str, float]]:
        """MB/s of the batches in ordinary messages, and the CPU cost."""
        cpu_before, own_before = cpu_s_of(self._process), own_cpu_s()
        began = time.perf_counter()
        stream_batches(self.stub, batches, unanswered_max)
        elapsed = time.perf_counter() - began
        sent = sum(len(data) for _, _, data in batches)
        return sent / elapsed / 1e6, {
            "server_cpu_s_per_gib": (cpu_s_of(self._process) - cpu_before) / sent * (1 << 30),
            "client_cpu_s_per_gib": (own_cpu_s() - own_before) / sent * (1 << 30),
        }

    def fetch_mb_s(self, message_bytes: int, total_bytes: int) -> float:
        """MB/s of unary answers of `message_bytes`; the next is requested while the last is
        read."""
        request = log_pb2.FetchRequest(max_bytes=message_bytes)
        count = max(2, total_bytes // message_bytes)
        began = time.perf_counter()
        ahead = self.stub.Fetch.future(request)
        seen = 0
        for number in range(count):
            answer = ahead.result()
            if number + 1 < count:
                ahead = self.stub.Fetch.future(request)
            seen += len(answer.topics[0].partitions[0].record_batches)
        return seen / (time.perf_counter() - began) / 1e6

    def unary_ms(self, calls: int = 1000) -> list[float]:
        """Latencies of bare unary calls, milliseconds."""
        request = log_pb2.ProduceRequest()
        latencies = []
        for _ in range(calls):
            began = time.perf_counter()
            self.stub.Produce(request)
            latencies.append((time.perf_counter() - began) * 1e3)
        return latencies


class SyncedFile:
    """A plain file, written in full beforehand, then overwritten in groups with fdatasync."""

    def __init__(self, folder: Path, size_bytes: int = 64 << 20) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "floor.bin"
        self._size = size_bytes
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        block = bytes(1 << 20)
        for _ in range(0, size_bytes, len(block)):
            os.write(self._fd, block)
        os.fsync(self._fd)

    def write_ms(self, group_bytes: int, groups: int) -> list[float]:
        """Milliseconds of each write + fdatasync of `group_bytes`, one after another."""
        data = os.urandom(group_bytes)
        latencies = []
        position = 0
        for _ in range(groups):
            if position + group_bytes > self._size:
                position = 0
            began = time.perf_counter()
            os.pwrite(self._fd, data, position)
            os.fdatasync(self._fd)
            latencies.append((time.perf_counter() - began) * 1e3)
            position += group_bytes
        return latencies

    def mb_s(self, group_bytes: int, total_bytes: int) -> float:
        latencies = self.write_ms(group_bytes, max(1, total_bytes // group_bytes))
        return group_bytes * len(latencies) / sum(latencies) / 1e3

    def close(self) -> None:
        os.close(self._fd)
        self._path.unlink()


def p50_p99(latencies: list[float]) -> tuple[float, float]:
    return percentile(latencies, 0.5), percentile(latencies, 0.99)


if __name__ == "__main__":
    asyncio.run(_serve_bare())
