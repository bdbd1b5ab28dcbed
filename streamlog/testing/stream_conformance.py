"""What every Stream and StreamClient does: inherit `StreamConformance` and say how to make one.

Each test shows a sentence of `streamlog.model.stream` through its protocols alone. A medium that
passes carries shared logs.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, cast

import pytest

from streamlog.errors import (
    Closed,
    Conflict,
    Fenced,
    Invalid,
    OffsetConflict,
    OffsetOutOfRange,
    Overloaded,
    StreamFenced,
    StreamlogError,
    StreamNotFound,
    TokenMismatch,
)
from streamlog.model.batch import (
    AppendContext,
    AppendResult,
    CreateStreamOptions,
    DeleteStreamOptions,
    OpenStreamOptions,
    RecordBatch,
    StoredBatch,
    StreamState,
)
from streamlog.model.stream import Stream, StreamClient
from streamlog.runtime.buffers import join


class MediumUnderTest(Protocol):
    """`client` is the process at work; `room_bytes` about what fits into the append queue."""

    client: StreamClient
    room_bytes: int

    async def restarted(self) -> None:
        """Closes `client` in order; a new process takes its place."""
        ...

    async def crashed(self) -> None:
        """Ends `client` with whatever is under way; a new process takes its place."""
        ...

    async def other(self) -> StreamClient:
        """A second process beside `client`, on the same medium."""
        ...

    def hold(self) -> None:
        """Appends stay under way until `release`."""
        ...

    def release(self) -> None: ...

    def deadline(self, seconds: float) -> float:
        """On the scale of AppendContext.deadline, that many seconds from now."""
        ...


def record(text: str, count: int = 1, attributes: bytes = b"", stamp: int = 5) -> RecordBatch:
    half = len(text) // 2
    data = text.encode()
    return RecordBatch(count, stamp, (data[:half], memoryview(data)[half:]), attributes)


def texts(batches: Sequence[StoredBatch]) -> list[str]:
    return [bytes(join(batch.parts)).decode() for batch in batches]


async def everything(stream: Stream) -> list[str]:
    found: list[str] = []
    position = stream.start_offset
    while position < stream.confirm_offset:
        batches = (await stream.fetch(position, stream.confirm_offset, 100)).batches
        assert batches
        assert batches[0].base_offset <= position < batches[0].end_offset
        for batch in batches:
            assert batch is batches[0] or batch.base_offset == position
            position = batch.end_offset
        found += texts(batches)
    return found


async def refused(error: type[StreamlogError], work: Awaitable[object]) -> StreamlogError:
    with pytest.raises(error) as caught:
        await work
    return caught.value


class StreamConformance(ABC):
    @abstractmethod
    def make(self) -> AbstractAsyncContextManager[MediumUnderTest]:
        """An empty medium with one process on it."""

    can_have_two_processes = True

    def run(self, test: Callable[[MediumUnderTest], Awaitable[None]]) -> None:
        async def body() -> None:
            async with self.make() as medium:
                await test(medium)

        asyncio.run(body())

    # Append

    def test_offsets_move_at_the_call_and_are_confirmed_in_order(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            assert stream.start_offset == stream.confirm_offset == stream.next_offset == 0
            m.hold()
            acked: list[AppendResult] = []

            async def acknowledge(wait: Awaitable[AppendResult]) -> None:
                acked.append(await wait)

            waits = []
            for count in (1, 3, 2):
                waits.append(asyncio.ensure_future(acknowledge(stream.append(record("x", count)))))
                await asyncio.sleep(0)
            assert (stream.confirm_offset, stream.next_offset) == (0, 6)
            m.release()
            await asyncio.gather(*waits)
            assert acked == [AppendResult(0, 1), AppendResult(1, 4), AppendResult(4, 6)]
            assert stream.confirm_offset == stream.next_offset == 6

        self.run(test)

    def test_a_cancelled_append_may_still_be_stored(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            m.hold()
            wait = asyncio.ensure_future(stream.append(record("a")))
            await asyncio.sleep(0)
            wait.cancel()
            m.release()
            result = await stream.append(record("b"))
            found = await everything(stream)
            assert found[-1] == "b"
            assert len(found) == result.end_offset == stream.next_offset

        self.run(test)

    def test_expected_next_offset_and_token(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            m.hold()
            first = stream.append(record("a", 2), AppendContext(expected_next_offset=0))
            wrong = asyncio.ensure_future(
                stream.append(record("b"), AppendContext(expected_next_offset=1))
            )
            right = stream.append(record("c"), AppendContext(expected_next_offset=2))
            await asyncio.sleep(0)
            assert not wrong.done(), "a refusal waits for what it reveals"
            m.release()
            assert (await first).end_offset == 2
            error = await refused(OffsetConflict, wrong)
            assert (error.expected, error.actual) == (1, 2)
            assert (await right).base_offset == 2
            await refused(
                TokenMismatch, stream.append(record("d"), AppendContext(fencing_token=b"other"))
            )
            assert await everything(stream) == ["a", "c"]

        self.run(test)

    def test_what_no_stream_can_have_is_no_conflict(self) -> None:
        """Who refreshes and tries anew after a conflict would do so for ever."""

        async def test(m: MediumUnderTest) -> None:
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            other_types: list[Any] = [
                AppendContext(expected_next_offset=cast(int, "0")),
                AppendContext(fencing_token=cast(bytes, "text")),
            ]
            for wrong in other_types:
                await refused(Invalid, stream.append(record("a"), wrong))
                await refused(Invalid, stream.set_fencing_token(b"a", wrong))
            text = cast(int, str(stream.stream_id))
            await refused(Invalid, m.client.open_stream(text, OpenStreamOptions()))
            await refused(Invalid, m.client.describe_stream(text))
            assert (await stream.append(record("a"))).base_offset == 0

        self.run(test)

    # Fencing tokens

    def test_appends_with_another_token_are_refused(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            await stream.append(record("none"), AppendContext(fencing_token=b""))
            await stream.set_fencing_token(b"one")
            await stream.append(record("one"), AppendContext(fencing_token=b"one"))
            await stream.append(record("untested"))
            for token in (b"", b"two", b"on", b"one "):
                wrong = stream.append(record("wrong"), AppendContext(fencing_token=token))
                await refused(TokenMismatch, wrong)
            await stream.set_fencing_token(b"two")
            await refused(
                TokenMismatch, stream.append(record("wrong"), AppendContext(fencing_token=b"one"))
            )
            await stream.append(record("two"), AppendContext(fencing_token=b"two"))
            await stream.set_fencing_token(b"")
            await refused(
                TokenMismatch, stream.append(record("wrong"), AppendContext(fencing_token=b"two"))
            )
            await stream.append(record("none"), AppendContext(fencing_token=b""))
            assert await everything(stream) == ["none", "one", "untested", "two", "none"]

        self.run(test)

    def test_a_token_is_changed_under_conditions(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            none = AppendContext(fencing_token=b"")
            await stream.set_fencing_token(b"a", none)
            await refused(TokenMismatch, stream.set_fencing_token(b"b", none))
            await stream.append(record("a", 2))
            behind = AppendContext(expected_next_offset=1, fencing_token=b"a")
            error = await refused(OffsetConflict, stream.set_fencing_token(b"b", behind))
            assert (error.expected, error.actual) == (1, 2)
            await refused(Invalid, stream.set_fencing_token(b"x" * 65))
            known = await m.client.describe_stream(stream.stream_id)
            assert known.fencing_token == b"a"
            at_end = AppendContext(expected_next_offset=2, fencing_token=b"a")
            await stream.set_fencing_token(b"x" * 64, at_end)
            assert stream.next_offset == 2

        self.run(test)

    def test_a_change_of_the_token_has_its_place_among_appends(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            other = await m.client.create_and_open_stream(CreateStreamOptions())
            await stream.set_fencing_token(b"old")
            m.hold()
            old, new = AppendContext(fencing_token=b"old"), AppendContext(fencing_token=b"new")
            before = asyncio.ensure_future(stream.append(record("before"), old))
            change = asyncio.ensure_future(stream.set_fencing_token(b"new", old))
            await asyncio.sleep(0)
            late = asyncio.ensure_future(stream.append(record("late"), old))
            after = asyncio.ensure_future(stream.append(record("after"), new))
            beside = asyncio.ensure_future(other.append(record("beside")))
            left = asyncio.ensure_future(stream.append(record("left"), new))
            for _ in range(10):
                await asyncio.sleep(0)
            left.cancel()
            for waiting in (before, change, late, after):
                assert not waiting.done(), "nothing is told before what it rests on is durable"
            m.release()
            assert (await before).base_offset == 0
            await change
            await refused(TokenMismatch, late)
            assert (await after).base_offset >= 1
            assert (await beside).base_offset == 0
            found = await everything(stream)
            assert [one for one in found if one != "left"] == ["before", "after"]

        self.run(test)

    def test_a_token_outlives_crashes_and_opens(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            own = AppendContext(fencing_token=b"own")
            await stream.set_fencing_token(b"own")
            await stream.append(record("a"), own)
            await m.crashed()
            stream = await m.client.open_stream(stream.stream_id, OpenStreamOptions())
            await refused(
                TokenMismatch, stream.append(record("x"), AppendContext(fencing_token=b""))
            )
            await stream.append(record("b"), own)
            await stream.close()
            await m.restarted()
            known = await m.client.describe_stream(stream.stream_id)
            assert known.fencing_token == b"own"
            again = await m.client.open_stream(stream.stream_id, OpenStreamOptions())
            await refused(Closed, stream.set_fencing_token(b"closed"))
            newest = await m.client.open_stream(stream.stream_id, OpenStreamOptions())
            await refused(Fenced, again.set_fencing_token(b"old epoch"))
            await newest.append(record("c"), own)
            assert await everything(newest) == ["a", "b", "c"]
            await newest.destroy()
            with pytest.raises(StreamlogError):
                await newest.set_fencing_token(b"gone")

        self.run(test)

    def test_what_cannot_be_stored_is_refused(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            other = await m.client.create_and_open_stream(CreateStreamOptions())
            for wrong in (
                record("a", 0),
                record("a", 1 << 32),
                record("a", stamp=1 << 63),
                record("a", stamp=-(1 << 63) - 1),
                record("a", attributes=b"x" * 65),
                RecordBatch(1, 0, (b"a",), payload_crc32c=1 << 32),
                RecordBatch(1, 0, (b"a",), payload_crc32c=12345),
            ):
                await refused(Invalid, stream.append(wrong))

                def first(
                    ids: Sequence[int], batch: RecordBatch = wrong
                ) -> list[tuple[int, RecordBatch]]:
                    return [(ids[0], batch)]

                create = m.client.create_and_open_streams([CreateStreamOptions()], first)
                await refused(Invalid, create)
            large = CreateStreamOptions(tags={"k": "v" * 1024})
            await refused(Invalid, m.client.create_and_open_stream(large))
            assert stream.next_offset == 0
            # Other streams are unaffected.
            assert (await other.append(record("b"))).end_offset == 1
            most = (1 << 32) - 1
            assert (await stream.append(record("a", most, stamp=-1))).end_offset == most

        self.run(test)

    def test_a_reservation_sequences_at_the_call(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            m.hold()
            big = await stream.reserve(m.room_bytes)
            second = asyncio.ensure_future(stream.reserve(10))
            third = asyncio.ensure_future(stream.reserve(10))
            await asyncio.sleep(0)
            assert not second.done(), "there is no more room"
            await refused(Overloaded, stream.reserve(10, AppendContext(deadline=m.deadline(0.01))))
            text = "x" * m.room_bytes
            first = stream.append(record(text), AppendContext(reservation=big))
            big.release()
            assert stream.next_offset == 1
            m.release()
            assert await first == AppendResult(0, 1)
            one, two = await second, await third
            appended = stream.append(record("b"), AppendContext(reservation=two))
            one.release()
            one.release()
            assert (await appended).base_offset == 1

        self.run(test)

    def test_without_room_an_append_waits_its_turn(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            m.hold()
            text = "x" * m.room_bytes
            first = stream.append(record(text))
            late = stream.append(record("late"), AppendContext(deadline=m.deadline(0.01)))
            second = stream.append(record("second"))
            await asyncio.sleep(0)
            assert stream.next_offset == 1
            error = await refused(Overloaded, late)
            assert error.has_no_side_effects
            m.release()
            assert (await first).base_offset == 0
            assert (await second).base_offset == 1
            assert await everything(stream) == [text, "second"]

        self.run(test)

    # Fetch and attributes

    def test_fetch_returns_whole_batches_from_the_one_that_contains_the_start(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            for i in range(5):
                await stream.append(record(f"{i}" * 10, 2, b"a%d" % i, stamp=100 + i))
            whole = (await stream.fetch(0, 10, 1 << 20)).batches
            assert texts(whole) == [f"{i}" * 10 for i in range(5)]
            assert [(b.base_offset, b.record_count) for b in whole] == [
                (2 * i, 2) for i in range(5)
            ]
            assert [b.base_timestamp_ms for b in whole] == [100, 101, 102, 103, 104]
            assert [b.attributes for b in whole] == [b"a%d" % i for i in range(5)]
            inside = (await stream.fetch(3, 6, 1 << 20)).batches
            assert [b.base_offset for b in inside] == [2, 4]
            least = (await stream.fetch(3, 10, 1)).batches
            assert [b.base_offset for b in least] == [2]
            assert len((await stream.fetch(0, 10, 11)).batches) <= 2
            assert (await stream.fetch(4, 4, 100)).batches == ()
            assert stream.start_offset <= stream.tail_offset <= stream.confirm_offset
            found = await stream.attributes(3, 7)
            assert [(a.base_offset, a.record_count) for a in found] == [(2, 2), (4, 2), (6, 2)]
            assert [a.attributes for a in found] == [b"a1", b"a2", b"a3"]
            assert [a.base_timestamp_ms for a in found] == [101, 102, 103]
            assert list(await stream.attributes(4, 4)) == []

        self.run(test)

    def test_ranges_outside_are_refused(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            await stream.append(record("a", 4))
            m.hold()
            under_way = stream.append(record("b"))
            await stream.trim(2)
            for start, end in ((1, 4), (2, 5), (0, 1)):
                await refused(OffsetOutOfRange, stream.fetch(start, end, 10))
                await refused(OffsetOutOfRange, stream.attributes(start, end))
            m.release()
            await under_way
            assert len((await stream.fetch(2, 5, 100)).batches) == 2

        self.run(test)

    def test_waiting_for_a_confirmed_offset(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            await stream.wait_confirmed(0)
            far = asyncio.ensure_future(stream.wait_confirmed(2))
            near = asyncio.ensure_future(stream.wait_confirmed(1))
            await asyncio.sleep(0)
            await stream.append(record("a"))
            await near
            assert not far.done()
            await stream.close()
            await refused(Closed, far)

        self.run(test)

    # Trim

    def test_trim(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            for i in range(3):
                await stream.append(record(f"{i}", 2))
            await stream.trim(3)
            await stream.trim(1)
            assert stream.start_offset == 3
            assert (await stream.fetch(3, 6, 1)).batches[0].base_offset == 2
            await refused(OffsetOutOfRange, stream.trim(7))
            await m.crashed()
            stream = await m.client.open_stream(stream.stream_id, OpenStreamOptions())
            assert (stream.start_offset, stream.next_offset) == (3, 6)
            assert await everything(stream) == ["1", "2"]
            await stream.trim(6)
            assert await everything(stream) == []
            assert (await stream.append(record("3"))).base_offset == 6

        self.run(test)

    # Creating, opening, closing, deleting

    def test_streams_are_created_together_with_their_first_batches(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            told: list[int] = []

            def first_batches(ids: Sequence[int]) -> list[tuple[int, RecordBatch]]:
                told.extend(ids)
                return [(ids[2], record("two", 2)), (ids[0], record("zero")), (ids[2], record("2"))]

            options = [CreateStreamOptions(tags={"n": str(i)}) for i in range(3)]
            streams = await m.client.create_and_open_streams(options, first_batches)
            assert [stream.stream_id for stream in streams] == told
            assert len(set(told)) == 3
            assert [stream.next_offset for stream in streams] == [1, 0, 3]
            assert [stream.confirm_offset for stream in streams] == [1, 0, 3]
            await m.crashed()
            listed = await m.client.list_streams()
            assert [(one.stream_id, one.tags["n"]) for one in listed] == list(
                zip(told, "012", strict=True)
            )
            again = await m.client.open_stream(told[2], OpenStreamOptions())
            assert await everything(again) == ["two", "2"]

        self.run(test)

    def test_opening_raises_the_epoch_and_fences_the_last_one(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            client = m.client
            old = await client.create_and_open_stream(CreateStreamOptions())
            await old.append(record("a"))
            own = OpenStreamOptions(epoch=old.stream_epoch)
            same = await client.open_stream(old.stream_id, own)
            assert same.stream_epoch == old.stream_epoch
            assert (await same.append(record("b"))).base_offset == 1
            waiting = asyncio.ensure_future(old.wait_confirmed(100))
            await asyncio.sleep(0)
            new = await client.open_stream(old.stream_id, OpenStreamOptions())
            assert new.stream_epoch > old.stream_epoch
            assert new.next_offset == new.confirm_offset == 2
            await refused(Fenced, old.append(record("x")))
            await refused(Fenced, old.trim(1))
            await refused(Fenced, waiting)
            await refused(StreamFenced, client.open_stream(old.stream_id, own))
            assert (await new.append(record("c"))).base_offset == 2
            much = await client.open_stream(old.stream_id, OpenStreamOptions(epoch=50))
            assert much.stream_epoch == 50
            assert await everything(much) == ["a", "b", "c"]

        self.run(test)

    def test_durable_data_survives_a_crash_and_the_rest_leaves_no_hole(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            for i in range(10):
                await stream.append(record(f"{i}"))
            m.hold()
            lost = asyncio.ensure_future(stream.append(record("lost")))
            await asyncio.sleep(0)
            await m.crashed()
            m.release()
            with pytest.raises(StreamlogError):
                await lost
            stream = await m.client.open_stream(stream.stream_id, OpenStreamOptions())
            found = await everything(stream)
            assert found[:10] == [f"{i}" for i in range(10)]
            assert found[10:] in ([], ["lost"])
            assert stream.next_offset == len(found)

        self.run(test)

    def test_close_waits_and_a_closed_stream_can_be_opened(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            wait = stream.append(record("a"))
            await stream.close()
            assert (await wait).end_offset == 1
            await refused(Closed, stream.append(record("b")))
            described = await m.client.describe_stream(stream.stream_id)
            assert described.state is StreamState.CLOSED
            assert (described.start_offset, described.end_offset) == (0, 1)
            await m.restarted()
            again = await m.client.open_stream(stream.stream_id, OpenStreamOptions())
            assert await everything(again) == ["a"]
            await m.client.close_stream(again.stream_id)
            await refused(Closed, again.append(record("b")))

        self.run(test)

    def test_what_another_living_process_holds_cannot_be_opened(self) -> None:
        if not self.can_have_two_processes:
            pytest.skip("the medium is of one process at a time")

        async def test(m: MediumUnderTest) -> None:
            stream = await m.client.create_and_open_stream(CreateStreamOptions())
            other = await m.other()
            await refused(Conflict, other.open_stream(stream.stream_id, OpenStreamOptions()))
            asked = OpenStreamOptions(epoch=0)
            await refused(StreamFenced, other.open_stream(stream.stream_id, asked))
            await stream.append(record("a"))
            await stream.close()
            taken = await other.open_stream(stream.stream_id, OpenStreamOptions())
            assert await everything(taken) == ["a"]
            await refused(Conflict, m.client.open_stream(stream.stream_id, OpenStreamOptions()))

        self.run(test)

    def test_deleted_streams_are_gone(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            client = m.client
            streams = [await client.create_and_open_stream(CreateStreamOptions()) for _ in range(3)]
            one, two, three = (stream.stream_id for stream in streams)
            await streams[0].append(record("a"))
            await streams[0].destroy()
            newer = await client.open_stream(two, OpenStreamOptions(epoch=9))
            await refused(Fenced, client.delete_stream(two, DeleteStreamOptions(epoch=3)))
            await client.delete_stream(two, DeleteStreamOptions(epoch=newer.stream_epoch))
            for gone in (one, two):
                for epoch in (None, 0):
                    asked = OpenStreamOptions(epoch=epoch)
                    await refused(StreamNotFound, client.open_stream(gone, asked))
                await refused(StreamNotFound, client.describe_stream(gone))
                await refused(StreamNotFound, client.delete_stream(gone))
            await refused(StreamFenced, client.open_stream(three, OpenStreamOptions(epoch=0)))
            assert (await streams[2].append(record("b"))).end_offset == 1
            with pytest.raises(StreamlogError):
                await streams[0].append(record("b"))
            assert [row.stream_id for row in await client.list_streams()] == [three]
            await m.crashed()
            assert [row.stream_id for row in await m.client.list_streams()] == [three]

        self.run(test)

    def test_streams_are_listed_by_id_in_pages(self) -> None:
        async def test(m: MediumUnderTest) -> None:
            options = [CreateStreamOptions(tags={"k": "v"}) for _ in range(5)]
            ids = [one.stream_id for one in await m.client.create_and_open_streams(options)]
            assert ids == sorted(ids)
            first = await m.client.list_streams(limit=2)
            rest = await m.client.list_streams(after=first[-1].stream_id)
            assert [row.stream_id for row in [*first, *rest]] == ids
            assert rest[0].state is StreamState.OPEN
            assert rest[0].tags == {"k": "v"}

        self.run(test)
