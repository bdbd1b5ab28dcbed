"""Appends that share a call: one that is cancelled or interrupted does no harm to the others."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import grpc
import pytest

from streamlog.client import Streams, aio
from streamlog.client.calls.stream import APPEND
from streamlog.errors import OutcomeUnknown
from streamlog.v1 import stream_pb2
from tests.client.fake_node import until

WAIT_S = 20
LARGE = 8 << 20
"""More than a connection takes while the node reads nothing."""


class AppendingNode:
    """Stores appends in a list. `hold` cleared: it reads and answers nothing further."""

    def __init__(self, *, answers_max: int = 1 << 30) -> None:
        self.payload_sizes: list[int] = []
        self.hold = threading.Event()
        self.hold.set()
        self._answers_max = answers_max
        self._server = grpc.server(
            ThreadPoolExecutor(8), options=[("grpc.max_receive_message_length", -1)]
        )
        service, method = APPEND[1:].split("/")
        handler = grpc.stream_stream_rpc_method_handler(
            self._append,
            request_deserializer=stream_pb2.AppendRequest.FromString,
            response_serializer=stream_pb2.AppendResponse.SerializeToString,
        )
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(service, {method: handler})]
        )
        self.server = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def _append(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:
        for answers, request in enumerate(requests, start=1):
            base = len(self.payload_sizes)
            self.payload_sizes.append(len(request.payload))
            self.hold.wait(WAIT_S)
            yield stream_pb2.AppendResponse(
                correlation_id=request.correlation_id, base_offset=base, end_offset=base + 1
            )
            if answers == self._answers_max:
                context.abort(grpc.StatusCode.UNAVAILABLE, "broken on command")

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.hold.set()
        self._server.stop(None).wait()


def test_a_cancelled_append_leaves_those_beside_it_alone() -> None:
    async def main(node: AppendingNode) -> None:
        async with aio.Streams(node.server) as streams:
            node.hold.clear()
            first = asyncio.create_task(streams.append(1, b"1"))
            await until(lambda: bool(node.payload_sizes))
            # The first of these two is being written, the second waits behind it.
            cancelled = [asyncio.create_task(streams.append(1, bytes(LARGE))) for _ in range(2)]
            last = asyncio.create_task(streams.append(1, b"4"))
            await asyncio.sleep(0.1)
            for task in cancelled:
                task.cancel()
            await asyncio.wait(cancelled)
            node.hold.set()
            async with asyncio.timeout(WAIT_S):
                assert (await first).base_offset == 0
                assert (await last).base_offset == 3

    with AppendingNode() as node:
        asyncio.run(main(node))
    assert node.payload_sizes == [1, LARGE, LARGE, 1]


def test_append_many_ends_where_the_call_broke_between_two_appends() -> None:
    """The first 32 are answered, then the call breaks while the caller does something else."""

    async def main(node: AppendingNode) -> int:
        count = 0
        async with aio.Streams(node.server) as streams:
            results = streams.append_many(1, [b"v"] * 40)
            await anext(results)
            await until(lambda: len(node.payload_sizes) == 32)
            await asyncio.sleep(0.1)
            try:
                async with asyncio.timeout(WAIT_S / 4):
                    async for _ in results:
                        count += 1
            except OutcomeUnknown:
                return count
        raise AssertionError("the call that broke has no end")

    with AppendingNode(answers_max=32) as node:
        assert asyncio.run(main(node)) == 31


def test_an_append_after_an_interrupted_one_gets_its_own_answer() -> None:
    with AppendingNode() as node, Streams(node.server) as streams:
        assert streams.append(1, b"0").base_offset == 0
        node.hold.clear()
        interrupting = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            streams.append(1, b"1")
        interrupting.join()
        node.hold.set()
        assert streams.append(1, b"2").base_offset == 2
