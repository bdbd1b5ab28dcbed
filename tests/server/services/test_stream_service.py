"""Streams over gRPC on a real engine in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from streamlog import errors
from streamlog.model.batch import FetchResult, StreamDescription, StreamState
from streamlog.server.context import RequestContext, allow_all
from streamlog.server.services.records.long_polls import LongPolls
from streamlog.server.services.stream import StreamService
from streamlog.settings.limits import LimitsConfig
from streamlog.v1 import stream_pb2 as pb
from streamlog.v1support.errors import from_proto, from_rpc_error
from tests.engine.remote import LoopClock, virtually
from tests.support.replacing import replace_method
from tests.support.running_node import RunningNode, running_node


async def create(node: RunningNode, **tags: str) -> int:
    answer = await node.streams.CreateStream(pb.CreateStreamRequest(tags=tags))
    return int(answer.stream.stream_id)


async def append(node: RunningNode, *requests: pb.AppendRequest) -> list[pb.AppendResponse]:
    call = node.streams.Append()
    for request in requests:
        await call.write(request)
    await call.done_writing()
    return [answer async for answer in call]


async def refusal(call: Any) -> errors.StreamlogError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value, may_have_happened=False)


async def eventually(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


def test_appends_are_answered_in_order_and_can_be_read() -> None:
    async def main() -> None:
        async with running_node() as node:
            stream = await create(node, purpose="test")
            answers = await append(
                node,
                *(
                    pb.AppendRequest(
                        correlation_id=n,
                        stream_id=stream,
                        record_count=2,
                        payload=b"%d" % n,
                        attributes=b"a",
                    )
                    for n in range(20)
                ),
            )
            assert [a.correlation_id for a in answers] == list(range(20))
            assert [(a.base_offset, a.end_offset) for a in answers] == [
                (2 * n, 2 * n + 2) for n in range(20)
            ]
            fetched = await node.streams.FetchStream(
                pb.FetchStreamRequest(stream_id=stream, start_offset=11)
            )
            assert [b.payload for b in fetched.batches] == [b"%d" % n for n in range(5, 20)]
            assert fetched.batches[0].attributes == b"a"
            assert fetched.confirm_offset == 40
            info = (
                await node.streams.DescribeStream(pb.DescribeStreamRequest(stream_id=stream))
            ).stream
            assert (info.start_offset, info.confirm_offset, dict(info.tags)) == (
                0,
                40,
                {"purpose": "test"},
            )

    asyncio.run(main())


def test_a_refused_append_does_not_end_its_pipeline() -> None:
    async def main() -> None:
        async with running_node() as node:
            stream = await create(node)
            good, conflict, unknown, big = await append(
                node,
                pb.AppendRequest(stream_id=stream, payload=b"a", expected_next_offset=0),
                pb.AppendRequest(stream_id=stream, payload=b"b", expected_next_offset=0),
                pb.AppendRequest(stream_id=999_999, payload=b"c"),
                pb.AppendRequest(stream_id=stream, payload=b"d", attributes=b"x" * 65),
            )
            assert not good.HasField("error")
            error = from_proto(conflict.error)
            assert isinstance(error, errors.OffsetConflict)
            assert isinstance(from_proto(unknown.error), errors.StreamNotFound)
            assert type(from_proto(big.error)) is errors.Invalid

    asyncio.run(main())


def set_token(node: RunningNode, stream: int, token: bytes, **expected: Any) -> Any:
    return node.streams.SetFencingToken(
        pb.SetFencingTokenRequest(stream_id=stream, fencing_token=token, **expected)
    )


def test_an_append_with_another_fencing_token_than_the_streams_is_refused() -> None:
    async def main() -> None:
        async with running_node() as node:
            stream = await create(node)
            await set_token(node, stream, b"one")
            right, wrong, none, untested = await append(
                node,
                pb.AppendRequest(stream_id=stream, payload=b"a", fencing_token=b"one"),
                pb.AppendRequest(stream_id=stream, payload=b"b", fencing_token=b"two"),
                pb.AppendRequest(stream_id=stream, payload=b"c", fencing_token=b""),
                pb.AppendRequest(stream_id=stream, payload=b"d"),
            )
            assert (right.base_offset, untested.base_offset) == (0, 1)
            for refused in (wrong, none):
                assert isinstance(from_proto(refused.error), errors.TokenMismatch)
            await set_token(node, stream, b"")
            (after,) = await append(
                node, pb.AppendRequest(stream_id=stream, payload=b"f", fencing_token=b"")
            )
            assert after.base_offset == 2

    asyncio.run(main())


def test_a_fencing_token_is_changed_where_the_stream_is_as_the_caller_expects() -> None:
    async def main() -> None:
        async with running_node() as node:
            stream = await create(node)
            await set_token(
                node, stream, b"one", expected_fencing_token=b"", expected_next_offset=0
            )
            await append(node, pb.AppendRequest(stream_id=stream, payload=b"a"))
            for call, kind in (
                (set_token(node, stream, b"2", expected_fencing_token=b""), errors.TokenMismatch),
                (set_token(node, stream, b"2", expected_next_offset=0), errors.OffsetConflict),
                (set_token(node, stream, bytes(65)), errors.Invalid),
                (set_token(node, stream, b"2", timeout_ms=-1), errors.Invalid),
                (set_token(node, 999_999, b"2"), errors.StreamNotFound),
            ):
                assert type(await refusal(call)) is kind
            await set_token(
                node, stream, b"two", expected_fencing_token=b"one", expected_next_offset=1
            )
            described = pb.DescribeStreamRequest(stream_id=stream)
            answer = await node.streams.DescribeStream(described)
            assert answer.stream.fencing_token == b"two"
            opened = await node.streams.OpenStream(pb.OpenStreamRequest(stream_id=stream))
            assert opened.stream.fencing_token == b"two"
            (late,) = await append(
                node, pb.AppendRequest(stream_id=stream, payload=b"e", fencing_token=b"one")
            )
            assert isinstance(from_proto(late.error), errors.TokenMismatch)

    asyncio.run(main())


def test_extreme_field_values_fail_their_own_append_at_most() -> None:
    async def main() -> None:
        async with running_node() as node:
            stream = await create(node)
            most, low = (1 << 32) - 1, -(1 << 63)
            answers = await append(
                node,
                pb.AppendRequest(stream_id=stream, record_count=most, base_timestamp_ms=low),
                pb.AppendRequest(stream_id=stream, record_count=most, base_timestamp_ms=-low - 1),
                pb.AppendRequest(stream_id=stream, expected_next_offset=-1),
                pb.AppendRequest(stream_id=(1 << 64) - 1, payload=b"x"),
                pb.AppendRequest(stream_id=stream, payload=b"last"),
            )
            assert [answer.HasField("error") for answer in answers] == [
                False,
                False,
                True,
                True,
                False,
            ]
            assert answers[-1].base_offset == 2 * most
            for offset in (low, -1, 3 * most, -low - 1):
                trim = pb.TrimStreamRequest(stream_id=stream, new_start_offset=offset)
                if offset < 0:
                    assert (await node.streams.TrimStream(trim)).start_offset == 0
                else:
                    error = await refusal(node.streams.TrimStream(trim))
                    assert isinstance(error, errors.OffsetOutOfRange)
            epoch = pb.OpenStreamRequest(stream_id=stream, epoch=(1 << 64) - 1)
            assert isinstance(await refusal(node.streams.OpenStream(epoch)), errors.Invalid)
            (again,) = await append(node, pb.AppendRequest(stream_id=stream, payload=b"x"))
            assert again.base_offset == 2 * most + 1

    asyncio.run(main())


def test_appends_that_wait_for_room_are_dropped_when_their_client_leaves() -> None:
    """The store is away; appends that have their offset wait for it and are stored."""

    async def main() -> None:
        async with running_node(engine__append__append_bytes_max=1 << 20) as node:
            assert node.node.engine is not None
            engine = node.node.engine.engine
            store = engine.parts.store
            put = store.put

            async def away(*_: Any, **__: Any) -> Any:
                raise errors.StoreUnavailable("away", operation="put")

            stream = await create(node)
            replace_method(store, "put", away)
            call = node.streams.Append()
            for _ in range(10):
                await call.write(pb.AppendRequest(stream_id=stream, payload=bytes(400 << 10)))
            await eventually(lambda: engine.budget.waiters == 8)
            call.cancel()
            await eventually(lambda: engine.budget.waiters == 0)
            replace_method(store, "put", put)
            await eventually(lambda: engine.budget.used_bytes == 0)
            (last,) = await append(node, pb.AppendRequest(stream_id=stream, payload=b"last"))
            assert last.base_offset == 2

    asyncio.run(main())


def test_fetch_waits_at_the_end_and_out_of_range_says_the_range() -> None:
    async def main() -> None:
        async with running_node() as node:
            stream = await create(node)
            await append(node, pb.AppendRequest(stream_id=stream, payload=b"a"))
            empty = await node.streams.FetchStream(
                pb.FetchStreamRequest(stream_id=stream, start_offset=1, max_wait_ms=20)
            )
            assert not empty.batches
            poll = asyncio.ensure_future(
                _fetch(
                    node,
                    pb.FetchStreamRequest(stream_id=stream, start_offset=1, max_wait_ms=60_000),
                )
            )
            await eventually(lambda: node.metric("streamlog_long_polls") == 1)
            await append(node, pb.AppendRequest(stream_id=stream, payload=b"b"))
            assert [b.payload for b in (await poll).batches] == [b"b"]
            error = await refusal(
                node.streams.FetchStream(pb.FetchStreamRequest(stream_id=stream, start_offset=9))
            )
            assert isinstance(error, errors.OffsetOutOfRange)
            assert error.fields["end_offset"] == 2

    asyncio.run(main())


async def _fetch(node: RunningNode, request: pb.FetchStreamRequest) -> pb.FetchStreamResponse:
    response: pb.FetchStreamResponse = await node.streams.FetchStream(request)
    return response


def test_read_stream_follows_to_its_end() -> None:
    async def main() -> None:
        async with running_node() as node:
            stream = await create(node)
            call = node.streams.ReadStream(
                pb.ReadStreamRequest(stream_id=stream, start_offset=0, end_offset=3)
            )
            seen: list[bytes] = []
            for payload in (b"a", b"b", b"c", b"d"):
                await append(node, pb.AppendRequest(stream_id=stream, payload=payload))
            async for answer in call:
                seen += [batch.payload for batch in answer.batches]
            assert seen == [b"a", b"b", b"c"]

    asyncio.run(main())


def test_a_reader_that_stops_reading_bounds_the_servers_memory() -> None:
    async def main() -> None:
        async with running_node() as node:
            stream = await create(node)
            payload = b"x" * 500_000
            await append(
                node, *(pb.AppendRequest(stream_id=stream, payload=payload) for _ in range(60))
            )
            calls = [
                node.streams.ReadStream(pb.ReadStreamRequest(stream_id=stream)) for _ in range(4)
            ]
            for call in calls:
                await call.read()
            await eventually(lambda: node.metric("streamlog_read_stream_bytes") > 0)
            # What one call has taken from the engine and not handed over: a chunk and a batch.
            for _ in range(20):
                await asyncio.sleep(0)
                held = node.metric("streamlog_read_stream_bytes")
                assert held <= 4 * (1024 * 1024 + len(payload))
            for call in calls:
                call.cancel()
            await eventually(lambda: node.metric("streamlog_read_stream_bytes") == 0)

    asyncio.run(main())


def test_trim_close_open_delete() -> None:
    async def main() -> None:
        async with running_node() as node:
            stream = await create(node)
            for payload in (b"a", b"b", b"c"):
                await append(node, pb.AppendRequest(stream_id=stream, payload=payload))
            trimmed = await node.streams.TrimStream(
                pb.TrimStreamRequest(stream_id=stream, new_start_offset=2)
            )
            assert trimmed.start_offset == 2
            await node.streams.CloseStream(pb.CloseStreamRequest(stream_id=stream))
            [refused] = await append(node, pb.AppendRequest(stream_id=stream, payload=b"d"))
            assert isinstance(from_proto(refused.error), errors.Conflict)
            opened = await node.streams.OpenStream(pb.OpenStreamRequest(stream_id=stream))
            assert opened.stream.epoch > 1
            [answer] = await append(node, pb.AppendRequest(stream_id=stream, payload=b"d"))
            assert answer.base_offset == 3
            listed = await node.streams.ListStreams(pb.ListStreamsRequest())
            assert stream in [info.stream_id for info in listed.streams]
            await node.streams.DeleteStream(pb.DeleteStreamRequest(stream_id=stream))
            error = await refusal(
                node.streams.DescribeStream(pb.DescribeStreamRequest(stream_id=stream))
            )
            assert isinstance(error, errors.StreamNotFound)

    asyncio.run(main())


def test_a_cancelled_append_is_stored_once_or_not_at_all() -> None:
    async def main() -> None:
        async with running_node() as node:
            stream = await create(node)
            for _ in range(10):
                call = node.streams.Append()
                await call.write(pb.AppendRequest(stream_id=stream, payload=b"x"))
                call.cancel()
            await eventually(lambda: node.metric("streamlog_requests_active") == 0)
            [last] = await append(node, pb.AppendRequest(stream_id=stream, payload=b"last"))
            fetched = await node.streams.FetchStream(pb.FetchStreamRequest(stream_id=stream))
            assert len(fetched.batches) == last.end_offset <= 11
            assert node.metric("streamlog_in_flight_bytes") == 0

    asyncio.run(main())


def test_an_epoch_that_no_format_holds_is_refused_and_the_stream_goes_on() -> None:
    async def main() -> None:
        async with running_node() as node:
            stream = await create(node)
            for epoch in (1 << 31, 1 << 32, (1 << 64) - 1):
                call = node.streams.OpenStream(pb.OpenStreamRequest(stream_id=stream, epoch=epoch))
                assert isinstance(await refusal(call), errors.Invalid)
                (answer,) = await append(node, pb.AppendRequest(stream_id=stream, payload=b"x"))
                assert not answer.HasField("error")
            assert node.node.engine is not None
            await node.node.engine.metadata.checkpoint()

    asyncio.run(main())


def test_reserved_tags_are_refused() -> None:
    async def main() -> None:
        async with running_node() as node:
            error = await refusal(
                node.streams.CreateStream(
                    pb.CreateStreamRequest(tags={"role": "data", "attempt": "x"})
                )
            )
            assert type(error) is errors.Invalid

    asyncio.run(main())


def test_a_reader_of_a_lost_stream_gets_an_error_and_the_next_call_opens_it_again() -> None:
    async def main() -> None:
        async with running_node() as node:
            assert node.node.engine is not None
            streams = node.node.engine.streams
            stream = await create(node)
            (answer,) = await append(node, pb.AppendRequest(stream_id=stream, payload=b"a"))
            reader = node.streams.ReadStream(pb.ReadStreamRequest(stream_id=stream))
            assert [b.payload for b in (await reader.read()).batches] == [b"a"]
            ending = asyncio.ensure_future(refusal(reader.read()))
            await eventually(lambda: node.metric("streamlog_long_polls") == 1)
            await streams.open_stream(stream)
            async with asyncio.timeout(60):
                assert isinstance(await ending, errors.StreamFenced)
            fetched = await _fetch(node, pb.FetchStreamRequest(stream_id=stream))
            assert [b.payload for b in fetched.batches] == [b"a"]
            await streams.open_stream(stream)
            fetch = _fetch(node, pb.FetchStreamRequest(stream_id=stream))
            assert isinstance(await refusal(fetch), errors.StreamFenced)
            fetched = await _fetch(node, pb.FetchStreamRequest(stream_id=stream))
            assert fetched.confirm_offset == answer.end_offset == 1

    asyncio.run(main())


class IdleStream:
    """Open, empty, and never appended to."""

    confirm_offset = 0

    def __init__(self) -> None:
        self.fetches = 0

    async def wait_confirmed(self, offset: int) -> None:
        await asyncio.Event().wait()

    async def fetch(self, *_: object) -> FetchResult:
        self.fetches += 1
        if self.fetches > 100:
            raise RuntimeError("the call spins")
        return FetchResult(())


def test_a_reader_at_the_end_waits_even_where_long_polls_do_not() -> None:
    """With limits.fetch_wait_ms_max = 0 each ReadStream call once kept a core busy."""
    stream = IdleStream()

    class Streams:
        async def describe_stream(self, stream_id: int) -> StreamDescription:
            return StreamDescription(stream_id, 1, StreamState.OPEN, 0, 0, "", {})

        async def open_stream(self, *_: object) -> IdleStream:
            return stream

    polls = LongPolls()
    service = StreamService(
        Streams(),  # type: ignore[arg-type]
        polls,
        clock=LoopClock(),
        authorize=allow_all,
        limits=LimitsConfig(fetch_wait_ms_max=0),
    )

    async def scenario() -> None:
        async def read() -> None:
            async for _ in service.read(RequestContext(), 1, 0, None):
                raise AssertionError("there is nothing to read")

        reading = asyncio.ensure_future(read())
        await asyncio.sleep(600)
        assert not reading.done()
        assert stream.fetches <= 10
        polls.drain()
        await reading

    virtually(scenario)


def test_an_append_that_fails_is_counted_by_its_error() -> None:
    async def main() -> None:
        async with running_node() as node:
            stream = await create(node)
            request = pb.AppendRequest(stream_id=stream, payload=b"a", expected_next_offset=7)
            (answer,) = await append(node, request)
            assert isinstance(from_proto(answer.error), errors.OffsetConflict)
            (answer,) = await append(node, pb.AppendRequest(stream_id=404, payload=b"a"))
            assert isinstance(from_proto(answer.error), errors.StreamNotFound)
            for error in ("OffsetConflict", "StreamNotFound"):
                assert node.metric("streamlog_appends_failed_total", error=error) == 1

    asyncio.run(main())
