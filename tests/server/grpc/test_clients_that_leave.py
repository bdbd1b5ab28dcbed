"""Connections that break while answers are written: no error, no traceback, nothing left behind."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import grpc
import grpc.aio
import pytest
from grpc._cython.cygrpc import ExecuteBatchError  # type: ignore[import-not-found]
from prometheus_client import CollectorRegistry

from streamlog.model.partition import TopicPartition
from streamlog.server.grpc.calls import Calls
from streamlog.server.grpc.library.ended_calls import GRPC_LOGGER
from streamlog.v1 import log_pb2
from streamlog.v1.log_pb2_grpc import LogServiceStub
from tests.engine.harness import until
from tests.support.server_harness import batch, listener_resources, running

ROUNDS = 30
POLLS = 40
ENDED = ExecuteBatchError('Failed "execute_batch": (SendMessageOperation,)')
MISUSED = ExecuteBatchError("Failed grpc_call_start_batch: 8")


class Relay:
    """Forwards bytes until it is cut, as the kernel cuts the connections of a killed process."""

    def __init__(self, address: str) -> None:
        self._host, _, self._port = address.rpartition(":")
        self._writers: list[asyncio.StreamWriter] = []
        self.address = ""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Relay]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield self
            self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(self._host, int(self._port))
        self._writers += (writer, far_writer)
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(reader, far_writer))
            group.create_task(_copy(far_reader, writer))

    def cut(self) -> None:
        """A reset where bytes were not read, as after kill -9."""
        for writer in self._writers:
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        self._writers.clear()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


async def _ended(poll: grpc.aio.UnaryUnaryCall[Any, Any]) -> None:
    with suppress(grpc.aio.AioRpcError):
        await poll


def test_long_polls_that_are_cut_while_they_are_answered_leave_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with running() as node, Relay(node.service.grpc_address).running() as relay:
            log = await node.logs.log(TopicPartition("t", 0))
            for number in range(ROUNDS):
                part = log_pb2.FetchPartition(partition=0, fetch_offset=log.log_end_offset)
                request = log_pb2.FetchRequest(
                    topics=[log_pb2.FetchTopic(topic="t", partitions=[part])], max_wait_ms=300_000
                )
                async with grpc.aio.insecure_channel(
                    relay.address,
                    options=[
                        ("grpc.use_local_subchannel_pool", 1),
                        ("grpc.max_receive_message_length", -1),
                    ],
                ) as channel:
                    stub = LogServiceStub(channel)
                    polls = [stub.Fetch(request) for _ in range(POLLS)]
                    await until(lambda: node.metric("streamlog_long_polls") == POLLS)
                    # Large answers: some are written, some under way, some not begun.
                    await (await log.append(batch(b"x" * 500_000)))
                    for _ in range(number):
                        await asyncio.sleep(0)
                    relay.cut()
                    await asyncio.gather(*map(_ended, polls))
                await until(lambda: node.metric("streamlog_requests_active") == 0)

    with caplog.at_level(logging.WARNING):
        asyncio.run(asyncio.wait_for(scenario(), 120))
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize(("error", "is_told"), [(ENDED, False), (MISUSED, True)])
def test_only_the_failed_write_to_an_ended_call_is_quiet(
    error: ExecuteBatchError, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The record is the one that gRPC logs when the write of a unary answer fails."""

    async def scenario() -> None:
        async with running():
            try:
                raise error
            except ExecuteBatchError:
                logging.getLogger(GRPC_LOGGER).exception("ExecuteBatchError raised in core")

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert bool([record for record in caplog.records if record.levelno >= logging.ERROR]) == is_told


class _Context:
    """The part of an Rpc that is used before its handler runs."""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def time_remaining(self) -> None:
        return None

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def set_trailing_metadata(self, _: object) -> None: ...

    def set_code(self, _: object) -> None: ...

    def set_details(self, _: str) -> None: ...


@pytest.mark.parametrize(("error", "status"), [(ENDED, "CANCELLED"), (MISUSED, "INTERNAL")])
def test_a_stream_whose_client_left_is_counted_as_cancelled(
    error: ExecuteBatchError, status: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    calls = Calls(listener_resources(registry))

    async def write(_: object, __: object, ___: object) -> None:
        raise error

    async def scenario() -> None:
        call, context = calls.streaming("Read", write), cast(Any, _Context())
        if error is ENDED:
            with pytest.raises(ExecuteBatchError):
                await call(None, context)
        else:
            await call(None, context)

    asyncio.run(scenario())
    labels = {"method": "Read", "status": status}
    assert registry.get_sample_value("streamlog_requests_total", labels) == 1
    assert bool(caplog.records) == (error is MISUSED)
