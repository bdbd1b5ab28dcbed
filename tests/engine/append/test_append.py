"""Appends: offsets, acks, conditions, room, deadlines, failures below."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest

from streamlog.engine.append.group import Group
from streamlog.engine.config import AppendConfig
from streamlog.errors import (
    Closed,
    DiskFull,
    Invalid,
    MessageTooLarge,
    OffsetConflict,
    OutcomeUnknown,
    Overloaded,
    StreamFenced,
    TenureFenced,
    TokenMismatch,
)
from streamlog.model.batch import AppendContext, CreateStreamOptions, RecordBatch
from streamlog.runtime.clock import SystemClock
from streamlog.wal.config import WalMode
from tests.engine.harness import QUICK, World, batch, error_of, read_all, run, sent, until
from tests.support.metrics import value_of
from tests.support.replacing import replace_method

MODES: list[WalMode] = ["disk", "object"]
both = pytest.mark.parametrize("mode", MODES)
CLOCK = SystemClock()


def within(seconds: float, **kwargs: Any) -> AppendContext:
    return AppendContext(deadline=CLOCK.monotonic() + seconds, **kwargs)


@both
def test_offsets_are_assigned_at_the_call_and_acks_keep_the_order(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine() as (streams, _):
            stream = await streams.create_and_open_stream()
            acked: list[int] = []
            futures = []
            for number in range(500):
                future = sent(stream.append(batch(b"%d" % number, records=3)))
                assert stream.next_offset == 3 * (number + 1)
                future.add_done_callback(lambda done: acked.append(done.result().base_offset))
                futures.append(future)
            assert stream.confirm_offset == 0
            results = await asyncio.gather(*futures)
            assert [result.base_offset for result in results] == list(range(0, 1500, 3))
            assert acked == sorted(acked)
            assert stream.confirm_offset == 1500
            assert await read_all(stream) == [b"%d" % number for number in range(500)]

    run(scenario)


@both
def test_a_wrong_expected_offset_is_refused_after_what_came_before_is_durable(
    mode: WalMode,
) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine() as (streams, _):
            stream = await streams.create_and_open_stream()
            world.gate.clear()
            first = sent(stream.append(batch(b"a")))
            refused = sent(stream.append(batch(b"b"), AppendContext(expected_next_offset=0)))
            taken = stream.append(batch(b"c"), AppendContext(expected_next_offset=1))
            await asyncio.sleep(0.02)
            assert not refused.done()
            world.gate.set()
            error = await error_of(refused)
            assert isinstance(error, OffsetConflict)
            assert error.fields == {"expected": 0, "actual": 1}
            assert first.done()
            assert (await taken).base_offset == 1
            wrong = await error_of(
                stream.append(batch(b"d"), AppendContext(fencing_token=b"somebody"))
            )
            assert isinstance(wrong, TokenMismatch)
            assert await read_all(stream) == [b"a", b"c"]

    run(scenario)


@both
def test_bad_batches_are_refused(mode: WalMode) -> None:
    async def scenario() -> None:
        config = dataclasses.replace(QUICK, append=AppendConfig(batch_bytes_max=1024))
        async with World(mode, config).engine() as (streams, _):
            stream = await streams.create_and_open_stream()
            too_large = await error_of(stream.append(batch(bytes(1025))))
            assert isinstance(too_large, MessageTooLarge)
            assert isinstance(await error_of(stream.append(batch(b"", records=0))), Invalid)
            attributes = await error_of(stream.append(batch(b"", attributes=bytes(65))))
            assert isinstance(attributes, Invalid)
            assert stream.next_offset == 0

    run(scenario)


@both
def test_appends_wait_for_room_and_are_overloaded_at_their_deadline(mode: WalMode) -> None:
    async def scenario() -> None:
        append = AppendConfig(append_bytes_max=1 << 20, batch_overhead_bytes=0)
        world = World(mode, dataclasses.replace(QUICK, append=append))
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            world.metadata.gate.clear()
            full = [stream.append(batch(bytes(256 << 10))) for _ in range(4)]
            offset = stream.next_offset
            waiting = sent(stream.append(batch(b"waits")))
            late = stream.append(batch(b"late"), within(0.01))
            reserving = asyncio.ensure_future(stream.reserve(10, within(0.01)))
            assert stream.next_offset == offset
            error = await error_of(late)
            assert isinstance(error, Overloaded)
            assert error.is_retryable
            assert error.has_no_side_effects
            assert isinstance(await error_of(reserving), Overloaded)
            assert stream.next_offset == offset
            assert value_of(engine.metrics.queued_appends) == 3
            world.metadata.gate.set()
            assert (await waiting).base_offset == offset
            await asyncio.gather(*full)
            await engine.drain()
            assert engine.budget.used_bytes == 0
            assert len(await read_all(stream)) == 5

    run(scenario)


@both
def test_a_reservation_lets_an_append_sequence_at_the_call(mode: WalMode) -> None:
    async def scenario() -> None:
        append = AppendConfig(append_bytes_max=1 << 20, batch_overhead_bytes=0)
        world = World(mode, dataclasses.replace(QUICK, append=append))
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            reservation = await stream.reserve(1000)
            unused = await stream.reserve(1000)
            world.metadata.gate.clear()
            large = stream.append(batch(bytes((1 << 20) - 2000)))
            blocked = stream.append(batch(b"blocked"))
            assert stream.next_offset == 1
            reserved = stream.append(batch(bytes(1000)), AppendContext(reservation=reservation))
            assert stream.next_offset == 2
            unused.release()
            assert stream.next_offset == 3
            world.metadata.gate.set()
            offsets = [(await future).base_offset for future in (large, reserved, blocked)]
            assert offsets == [0, 1, 2]
            await engine.drain()
            assert engine.budget.used_bytes == 0

    run(scenario)


@both
def test_a_cancelled_wait_for_room_takes_no_room(mode: WalMode) -> None:
    async def scenario() -> None:
        append = AppendConfig(append_bytes_max=1 << 20, batch_overhead_bytes=0)
        world = World(mode, dataclasses.replace(QUICK, append=append))
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            held = await stream.reserve(1 << 20)
            reserving = asyncio.ensure_future(stream.reserve(10))
            waiting = sent(stream.append(batch(b"x")))
            await asyncio.sleep(0)
            reserving.cancel()
            waiting.cancel()
            await asyncio.wait([reserving])
            held.release()
            assert stream.next_offset == 0
            assert engine.budget.used_bytes == 0
            assert (await stream.append(batch(b"y"))).base_offset == 0

    run(scenario)


@both
def test_a_passed_deadline_says_outcome_unknown_and_the_batch_stays(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine() as (streams, _):
            stream = await streams.create_and_open_stream()
            world.gate.clear()
            hasty = stream.append(batch(b"a"), within(0.01))
            patient = stream.append(batch(b"b"), within(60))
            error = await error_of(hasty)
            assert isinstance(error, OutcomeUnknown)
            assert not error.has_no_side_effects
            world.gate.set()
            assert (await patient).base_offset == 1
            assert await read_all(stream) == [b"a", b"b"]

    run(scenario)


def test_while_the_wal_fails_sequenced_appends_stay_and_new_ones_are_refused() -> None:
    async def scenario() -> None:
        world = World("disk")
        assert world.wal is not None
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            other = await streams.create_and_open_stream()
            reservation = await other.reserve(10)
            world.wal.failures = 1 << 30
            first = sent(stream.append(batch(b"a")))
            hasty = stream.append(batch(b"b"), within(0.02))
            await until(lambda: engine.sequencer.admission_error is not None)
            refused = await error_of(stream.append(batch(b"c")))
            assert isinstance(refused, DiskFull)
            assert refused.has_no_side_effects
            reserved = other.append(batch(b"r"), AppendContext(reservation=reservation))
            assert isinstance(await error_of(hasty), OutcomeUnknown)
            assert not first.done()
            world.wal.failures = 0
            assert (await first).base_offset == 0
            assert (await reserved).base_offset == 0
            assert (await stream.append(batch(b"d"))).base_offset == 2
            assert await read_all(stream) == [b"a", b"b", b"d"]

    run(scenario)


def test_appends_are_admitted_again_when_the_failing_group_lost_all_its_streams() -> None:
    async def scenario() -> None:
        world = World("disk")
        assert world.wal is not None
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            other = await streams.create_and_open_stream()
            world.wal.failures = 1 << 30
            lost = sent(stream.append(batch(b"a")))
            await until(lambda: engine.sequencer.admission_error is not None)
            world.metadata.steal(stream.stream_id)
            assert isinstance(await error_of(lost), StreamFenced)
            world.wal.failures = 0
            await until(lambda: engine.sequencer.admission_error is None)
            assert (await other.append(batch(b"b"))).base_offset == 0

    run(scenario)


def test_an_append_whose_stream_is_lost_during_the_write_fails() -> None:
    """The group is answered between the loss and the pass over unconfirmed appends."""

    async def scenario() -> None:
        world = World("disk")
        assert world.wal is not None
        async with world.engine() as (streams, _):
            stream = await streams.create_and_open_stream()
            world.wal.gate.clear()
            lost = sent(stream.append(batch(b"a")))
            await until(lambda: world.wal is not None and world.wal.is_writing)
            world.wal.gate.set()
            world.metadata.steal(stream.stream_id)
            assert isinstance(await error_of(lost), StreamFenced)

    run(scenario)


def test_successive_deadlines_cost_few_passes_over_all_appends() -> None:
    async def scenario() -> None:
        world = World("object")
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            world.metadata.gate.clear()
            looks = 0
            unconfirmed = engine.uploader.unconfirmed

            def counted() -> Iterable[Group]:
                nonlocal looks
                looks += 1
                return unconfirmed()

            replace_method(engine.uploader, "unconfirmed", counted)
            appends = [stream.append(batch(b"x"), within(0.02 + n / 2000)) for n in range(200)]
            for append in appends:
                assert isinstance(await error_of(append), OutcomeUnknown)
            assert looks < 10
            world.metadata.gate.set()

    run(scenario)


@both
def test_failing_puts_are_repeated_until_they_work(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine() as (streams, engine):
            many = await streams.create_and_open_streams([CreateStreamOptions()] * 3)
            world.store.puts_to_fail = 5
            for number in range(9):
                await many[number % 3].append(batch(b"%d" % number))
            await engine.drain()
            for index, stream in enumerate(many):
                expected = [b"%d" % number for number in range(index, 9, 3)]
                assert await read_all(stream) == expected
        # Orphans or second copies would show as objects that no commit names.
        names = {new.row.object_id for entry in world.metadata.commits for new in entry.objects}
        listed = (await world.store.list("data/")).objects
        assert len(listed) == len(names)

    run(scenario)


@both
def test_losing_streams_fails_only_their_appends(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine() as (streams, _):
            many = await streams.create_and_open_streams([CreateStreamOptions()] * 20)
            world.gate.clear()
            futures = [stream.append(batch(b"x")) for stream in many]
            waiter = asyncio.ensure_future(many[0].wait_confirmed(1))
            await asyncio.sleep(0.01)
            world.metadata.steal(*[stream.stream_id for stream in many[:10]])
            for future in futures[:10]:
                error = await error_of(future)
                assert isinstance(error, StreamFenced)
                assert error.fields["epoch"] == 2
            assert isinstance(await error_of(waiter), StreamFenced)
            assert isinstance(await error_of(many[0].append(batch(b"y"))), StreamFenced)
            assert isinstance(await error_of(many[0].fetch(0, 0, 1)), StreamFenced)
            world.gate.set()
            for stream, future in zip(many[10:], futures[10:], strict=True):
                await future
                assert await read_all(stream) == [b"x"]

    run(scenario)


@both
def test_a_sealed_tenure_stops_the_engine_for_every_caller(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            other = await streams.create_and_open_stream()
            waiter = asyncio.ensure_future(other.wait_confirmed(5))
            await asyncio.sleep(0)
            world.metadata.is_fenced = True
            append = asyncio.ensure_future(error_of(stream.append(batch(b"x"))))
            reason = await engine.wait_stopped()
            assert isinstance(reason, TenureFenced)
            assert isinstance(await error_of(waiter), TenureFenced)
            assert isinstance(await error_of(stream.append(batch(b"y"))), TenureFenced)
            assert isinstance(await error_of(stream.reserve(1)), TenureFenced)
            assert isinstance(await error_of(streams.create_and_open_stream()), TenureFenced)
            if mode == "object":
                assert isinstance(await append, TenureFenced)

    run(scenario)


@both
def test_killing_fails_appends_under_way_with_outcome_unknown(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine(crash=True) as (streams, engine):
            stream = await streams.create_and_open_stream()
            world.gate.clear()
            under_way = stream.append(batch(b"x"))
            await asyncio.sleep(0.005)
            await engine.kill()
            assert isinstance(await error_of(under_way), OutcomeUnknown)
            assert isinstance(await error_of(stream.append(batch(b"y"))), Closed)
            world.gate.set()

    run(scenario)


@both
def test_payload_pieces_come_back_joined(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            pieces = (b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3])
            await stream.append(RecordBatch(2, 77, pieces, b"note"))
            await engine.drain()
            (stored,) = (await stream.fetch(0, 2, 1)).batches
            assert b"".join(stored.parts) == b"abcdef"
            assert (stored.record_count, stored.base_timestamp_ms) == (2, 77)
            assert stored.attributes == b"note"
            stream_id = stream.stream_id
        async with world.engine() as (streams, _):
            stream = await streams.open_stream(stream_id)
            (stored,) = (await stream.fetch(1, 2, 1)).batches
            assert b"".join(stored.parts) == b"abcdef"
            assert stored.attributes == b"note"

    run(scenario)
