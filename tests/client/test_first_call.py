"""Streaming calls are retried until their first answer, as unary calls are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from streamlog.client import KV, Streams, aio, forking
from streamlog.client.calls.kv import WATCH
from streamlog.client.calls.stream import READ
from streamlog.errors import Closed, Invalid, StreamlogError, Unavailable
from streamlog.v1 import kv_pb2, stream_pb2

FAILURES = 2


class StartingNode:
    """The first calls find a node that still starts; `calls` counts all of them."""

    def __init__(
        self, failures: int, *, ends_after: bool = False, stays_silent: bool = False
    ) -> None:
        self.failures = failures
        self.calls = 0
        self.ends_after = ends_after
        self.stays_silent = stays_silent

    def answer(self, context: Any, answer: Any) -> Iterator[Any]:
        self.calls += 1
        if self.calls <= self.failures:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the node starts")
        yield answer
        if self.ends_after:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the node stops")
        while self.stays_silent and context.is_active():
            time.sleep(0.01)

    def watch(self, request: Any, context: Any) -> Iterator[Any]:
        answer = kv_pb2.WatchKvsResponse(revision=7)
        answer.changes.add().key.name = b"k"
        yield from self.answer(context, answer)

    def read(self, request: Any, context: Any) -> Iterator[Any]:
        answer = stream_pb2.ReadStreamResponse()
        answer.batches.add(base_offset=3, record_count=1, payload=b"v")
        yield from self.answer(context, answer)


@contextmanager
def served(node: StartingNode) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4))
    for path, handle, request_class in (
        (WATCH, node.watch, kv_pb2.WatchKvsRequest),
        (READ, node.read, stream_pb2.ReadStreamRequest),
    ):
        service, method = path[1:].split("/")
        handler = grpc.unary_stream_rpc_method_handler(
            handle,
            request_deserializer=request_class.FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )
        server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(service, {method: handler})]
        )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def watched(server: str, timeout_ms: int = 20_000) -> int:
    with KV(server, timeout_ms=timeout_ms) as kv:
        return next(kv.watch()).revision


def read(server: str, timeout_ms: int = 20_000) -> int:
    with Streams(server, timeout_ms=timeout_ms) as streams:
        return next(streams.read(1, 0)).base_offset


def watched_aio(server: str, timeout_ms: int = 20_000) -> int:
    async def main() -> int:
        async with aio.KV(server, timeout_ms=timeout_ms) as kv:
            return (await anext(await kv.watch())).revision

    return asyncio.run(main())


def read_aio(server: str, timeout_ms: int = 20_000) -> int:
    async def main() -> int:
        async with aio.Streams(server, timeout_ms=timeout_ms) as streams:
            return (await anext(streams.read(1, 0))).base_offset

    return asyncio.run(main())


CALLS = [(watched, 7), (watched_aio, 7), (read, 3), (read_aio, 3)]


@pytest.mark.parametrize(("call", "expected"), CALLS)
def test_a_node_that_still_starts_is_asked_again(call: Callable[[str], int], expected: int) -> None:
    node = StartingNode(FAILURES)
    with served(node) as server:
        assert call(server) == expected
    assert node.calls == FAILURES + 1


@pytest.mark.parametrize(("call", "expected"), CALLS)
def test_a_node_that_does_not_start_in_time_is_named(
    call: Callable[[str, int], int], expected: int
) -> None:
    with (
        served(StartingNode(1 << 30)) as server,
        pytest.raises(Unavailable, match=f"{server} was not reached within 0.2 s"),
    ):
        call(server, 200)


@pytest.mark.parametrize("call", [watched, watched_aio])
def test_a_watch_that_gets_no_answer_ends_in_time(
    silent: str,
    call: Callable[[str, int], int],
) -> None:
    with pytest.raises(Unavailable, match=f"{silent} was not reached within 0.2 s"):
        call(silent, 200)


def test_a_read_that_has_begun_is_not_begun_anew() -> None:
    node = StartingNode(0, ends_after=True)
    with served(node) as server, Streams(server) as streams:
        batches = streams.read(1, 0)
        assert next(batches).payload == b"v"
        with pytest.raises(Unavailable):
            next(batches)
    assert node.calls == 1


def test_one_guard_says_why_calls_do_not_start() -> None:
    guard = forking.CallGuard()
    start = guard.checked(lambda: "started")
    assert start() == "started"
    assert guard.close()
    assert not guard.close()
    with pytest.raises(Closed):
        start()
    guard.after_fork(Invalid("forked"))
    with pytest.raises(Invalid, match="forked"):
        guard.check()


def _refusal(call: Callable[[], object]) -> type[StreamlogError]:
    with pytest.raises(StreamlogError) as caught:
        call()
    return type(caught.value)


def test_a_closed_client_refuses_streamed_calls_too() -> None:
    kv, streams = KV("127.0.0.1:1"), Streams("127.0.0.1:1")
    kv.close()
    streams.close()
    assert _refusal(kv.watch) is Closed
    assert _refusal(lambda: next(streams.read(1, 0))) is Closed


def test_a_watch_that_waits_in_asyncio_gets_closed_and_is_not_cancelled() -> None:
    async def main(server: str) -> None:
        kv = aio.KV(server)
        changes = await kv.watch()
        await anext(changes)
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.1)
        await kv.close()
        with pytest.raises(Closed, match="open another one"):
            await asyncio.wait_for(waiting, 20)

    with served(StartingNode(0, stays_silent=True)) as server:
        asyncio.run(main(server))
