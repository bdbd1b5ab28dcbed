"""The floor: a server that parses produce requests, checks CRCs, and writes groups to one file.

It speaks as much of Kafka's protocol as a producer needs. The file is made and written in full
beforehand. A group is what arrived while the last one was being written; it is written with
O_DSYNC, and its requests are answered afterwards. Nothing can be read, and nothing is kept.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import psutil

from streamlog.codec.batch import scan
from streamlog.demo.child import terminate
from streamlog.kafka.messages.api_versions_response import ApiVersion, ApiVersionsResponse
from streamlog.kafka.messages.create_topics_response import (
    CreatableTopicResult,
    CreateTopicsResponse,
)
from streamlog.kafka.messages.init_producer_id_response import InitProducerIdResponse
from streamlog.kafka.messages.metadata_response import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from streamlog.kafka.messages.produce_response import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from streamlog.kafka.protocol.apis import APIS, ApiKey, decode_request, response_codec
from streamlog.kafka.protocol.headers import (
    RequestHeader,
    decode_request_header,
    encode_response_header,
)
from streamlog.runtime.allocator import collect_rarely, keep_large_blocks

SCRATCH_BYTES = 64 << 10
COPIED_BYTES_MAX = 4 << 10
"""A larger frame that is not whole yet gets memory of its own, which the kernel fills."""
GROUP_BYTES_MAX = 4 << 20
GROUP_PIECES_MAX = 1000
FILE_BYTES = 64 << 20
PARTITIONS = 4
"""Of every topic."""
SERVED = (
    ApiKey.PRODUCE,
    ApiKey.METADATA,
    ApiKey.API_VERSIONS,
    ApiKey.CREATE_TOPICS,
    ApiKey.INIT_PRODUCER_ID,
)


class _Waiting:
    """A produce request that is not written yet."""

    __slots__ = ("connection", "header", "pieces", "response", "size_bytes")

    def __init__(self, connection: _Connection, header: RequestHeader, request: Any) -> None:
        self.connection = connection
        self.header = header
        self.pieces: list[memoryview] = []
        topics = []
        for topic in request.topic_data:
            parts = []
            for part in topic.partition_data:
                self.pieces += [batch.view for batch in scan(part.records)]
                parts.append(PartitionProduceResponse(index=part.index))
            topics.append(
                TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=parts
                )
            )
        self.response = ProduceResponse(responses=topics)
        self.size_bytes = sum(map(len, self.pieces))


class _GroupWriter:
    """Writes what waits, group after group, in a thread."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        for _ in range(0, FILE_BYTES, 1 << 20):
            os.write(fd, bytes(1 << 20))
        os.fsync(fd)
        os.close(fd)
        self._fd = os.open(path, os.O_WRONLY | os.O_DSYNC)
        self._position = 0
        self._waiting: list[_Waiting] = []
        self._wake = asyncio.Event()

    def add(self, waiting: _Waiting) -> None:
        self._waiting.append(waiting)
        self._wake.set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._waiting:
                self._wake.clear()
                await self._wake.wait()
            group = self._take_group()
            pieces = [piece for waiting in group for piece in waiting.pieces]
            size = sum(map(len, pieces))
            if self._position + size > FILE_BYTES:
                self._position = 0
            await loop.run_in_executor(None, os.pwritev, self._fd, pieces, self._position)
            self._position += size
            for waiting in group:
                waiting.connection.answer(waiting.header, waiting.response)

    def _take_group(self) -> list[_Waiting]:
        size = pieces = count = 0
        for waiting in self._waiting:
            size += waiting.size_bytes
            pieces += len(waiting.pieces)
            if count and (size > GROUP_BYTES_MAX or pieces > GROUP_PIECES_MAX):
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group


class _Connection(asyncio.BufferedProtocol):
    def __init__(self, writer: _GroupWriter) -> None:
        self._writer = writer
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._end = 0
        self._frame: memoryview | None = None
        self._filled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._filled :]
        return self._scratch[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._frame is not None:
            self._filled += nbytes
            if self._filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._take(frame)
            return
        self._end += nbytes
        at = 0
        while self._end - at >= 4:
            size = int.from_bytes(self._scratch[at : at + 4], "big")
            if self._end - at - 4 < size:
                if size > COPIED_BYTES_MAX:
                    self._begin_frame(size, at + 4)
                    return
                break
            self._take(memoryview(bytes(self._scratch[at + 4 : at + 4 + size])))
            at += 4 + size
        if at:
            left = bytes(self._scratch[at : self._end])
            self._scratch[: len(left)] = left
            self._end = len(left)

    def _begin_frame(self, size: int, at: int) -> None:
        frame = memoryview(bytearray(size))
        self._filled = self._end - at
        frame[: self._filled] = self._scratch[at : self._end]
        self._frame, self._end = frame, 0

    def _take(self, frame: memoryview) -> None:
        header = decode_request_header(frame)
        if header.is_beyond_us:
            raise RuntimeError("this client's ApiVersions is newer than the floor's")
        key = header.api.key
        request: Any = decode_request(key, header.version, frame, header.body_at)
        if key is ApiKey.PRODUCE:
            self._writer.add(_Waiting(self, header, request))
        elif key is ApiKey.API_VERSIONS:
            self.answer(header, _api_versions())
        elif key is ApiKey.METADATA:
            self.answer(header, self._metadata(request))
        elif key is ApiKey.INIT_PRODUCER_ID:
            self.answer(header, InitProducerIdResponse(producer_id=7, producer_epoch=0))
        elif key is ApiKey.CREATE_TOPICS:
            made = [CreatableTopicResult(name=topic.name) for topic in request.topics]
            self.answer(header, CreateTopicsResponse(topics=made))
        else:
            raise RuntimeError(f"the floor does not serve {key.name}")

    def answer(self, header: RequestHeader, response: Any) -> None:
        api, version = header.api, header.version
        body = response_codec(api.key).encode(response, version)
        size = sum(map(len, body))
        head = encode_response_header(api, version, header.correlation_id, size)
        self._transport.write(b"".join((head, *body)))

    def _metadata(self, request: Any) -> MetadataResponse:
        host, port = self._transport.get_extra_info("sockname")[:2]
        topics = []
        for topic in request.topics or ():
            parts = [
                MetadataResponsePartition(
                    partition_index=number,
                    leader_id=1,
                    leader_epoch=0,
                    replica_nodes=[1],
                    isr_nodes=[1],
                )
                for number in range(PARTITIONS)
            ]
            topic_id = (topic.name or "").encode()[:15].ljust(15, b".") + b"x"
            topics.append(
                MetadataResponseTopic(name=topic.name, topic_id=topic_id, partitions=parts)
            )
        broker = MetadataResponseBroker(node_id=1, host=host, port=port)
        return MetadataResponse(
            brokers=[broker], cluster_id="floor", controller_id=1, topics=topics
        )


def _api_versions() -> ApiVersionsResponse:
    """Produce up to 12: names in place of ids. librdkafka sends format 2 only to a server that has
    Fetch 4, too, which is not served."""
    ranges = [
        ApiVersion(
            api_key=key,
            min_version=APIS[key].advertised_first,
            max_version=12 if key is ApiKey.PRODUCE else APIS[key].last,
        )
        for key in (*SERVED, ApiKey.FETCH)
    ]
    return ApiVersionsResponse(api_keys=ranges, finalized_features_epoch=0)


async def _serve(path: Path) -> None:
    writer = _GroupWriter(path)
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(writer), "127.0.0.1", 0
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await writer.run()


@contextmanager
def bare_server(folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Its address and process."""
    folder.mkdir(parents=True, exist_ok=True)
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.kafka.bare", str(folder / "floor.bin")],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        yield f"127.0.0.1:{int(child.stdout.readline())}", psutil.Process(child.pid)
    finally:
        terminate(child, 30)


def main(arguments: Sequence[str]) -> None:
    # As a node does.
    keep_large_blocks()
    collect_rarely()
    asyncio.run(_serve(Path(arguments[0])))


if __name__ == "__main__":
    main(sys.argv[1:])
