"""Runs: several batches in one call keep every promise that single appends have."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from streamlog.engine.config import AppendConfig
from streamlog.engine.engine import Engine
from streamlog.errors import (
    Closed,
    Invalid,
    MessageTooLarge,
    OutcomeUnknown,
    Overloaded,
    StreamFenced,
    StreamlogError,
)
from streamlog.model.run import AppendsRuns
from streamlog.runtime.concurrency.run_ack import RunAck
from streamlog.wal.config import WalMode
from tests.engine.appended_runs import append_run, reserved
from tests.engine.harness import QUICK, World, batch, error_of, read_all, run, sent, until

both = pytest.mark.parametrize("mode", ["disk", "object"])


def small(**changes: int) -> World:
    append = dataclasses.replace(QUICK.append, **changes)
    return World("disk", dataclasses.replace(QUICK, append=append))


async def reason(ack: RunAck, count: int) -> StreamlogError:
    with pytest.raises(StreamlogError) as caught:
        await ack.reached(count)
    return caught.value


async def gives_all_back(engine: Engine) -> None:
    await engine.drain()
    # A stream that was lost is not waited for.
    await until(lambda: engine.budget.used_bytes == 0)


@both
def test_a_run_has_its_offsets_at_the_call_and_comes_back(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            before = sent(stream.append(batch(b"before")))
            ack = append_run(stream, [batch(b"%d" % n, records=n + 1) for n in range(9)])
            assert (stream.next_offset, ack.durable) == (46, 0)
            after = sent(stream.append(batch(b"after")))
            assert await ack.reached(1) == await ack.reached(9) == 9
            assert before.done()
            assert stream.confirm_offset >= 46
            await after
            expected = [b"before", *(b"%d" % n for n in range(9)), b"after"]
            assert await read_all(stream) == expected
            await gives_all_back(engine)
            assert await read_all(stream) == expected

    run(scenario)


@both
def test_a_run_is_appended_whole_or_not_at_all(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            assert isinstance(stream, AppendsRuns)
            good, most = batch(b"good"), engine.sequencer.batch_bytes_max
            for bad, error in (
                (batch(b"bad", records=0), Invalid),
                (batch(bytes(most + 1)), MessageTooLarge),
            ):
                reservation = reserved(stream, [good] * 3)
                assert reservation is not None
                with pytest.raises(error):
                    stream.append_run([good, bad, good], reservation, [""] * 3)
                reservation.release()
            assert reserved(stream, [good, batch(bytes(most + 1))]) is None
            assert reserved(stream, []) is None
            assert (stream.next_offset, engine.budget.used_bytes) == (0, 0)

    run(scenario)


def test_a_run_takes_no_room_that_it_does_not_use_and_overtakes_no_append() -> None:
    async def scenario() -> None:
        world = small(append_bytes_max=64 << 10, batch_bytes_max=40 << 10)
        assert world.wal is not None
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            assert isinstance(stream, AppendsRuns)
            part = batch(bytes(10 << 10))
            reservation = reserved(stream, [part] * 5)
            assert reservation is not None
            assert reserved(stream, [part] * 5) is None
            world.wal.gate.clear()
            ack = stream.append_run([part], reservation, [""])
            used = engine.budget.used_bytes
            assert 10 << 10 < used < 20 << 10
            waiting = sent(stream.append(batch(bytes(38 << 10))))
            late = sent(stream.append(batch(bytes(38 << 10))))
            # There is room for a small run, but an earlier append waits for more.
            assert reserved(stream, [batch(b"small")]) is None
            assert not late.done()
            world.wal.gate.set()
            await asyncio.gather(ack.reached(1), waiting, late)
            await gives_all_back(engine)
            assert reserved(stream, [part] * 7) is None, "more than the whole bound"

    run(scenario)


def test_the_batches_of_a_run_over_two_groups_become_durable_one_group_after_another() -> None:
    async def scenario() -> None:
        world = small(group_bytes_max=3000)
        wal = world.wal
        assert wal is not None
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            wal.gate.clear()
            ack = append_run(stream, [batch(bytes(1000)) for _ in range(5)])
            await until(lambda: wal.is_writing)
            wal.gate.set()
            wal.gate.clear()
            assert await ack.reached(1) == 3
            assert stream.confirm_offset == 3
            last = asyncio.ensure_future(ack.reached(5))
            await until(lambda: wal.is_writing)
            world.metadata.steal(stream.stream_id)
            assert isinstance(await error_of(last), StreamFenced)
            assert await ack.reached(3) == 3
            assert isinstance(await reason(ack, 4), StreamFenced)
            wal.gate.set()
            await gives_all_back(engine)

    run(scenario)


@both
def test_a_run_ends_with_its_stream(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine() as (streams, engine):
            lost = await streams.create_and_open_stream()
            kept = await streams.create_and_open_stream()
            world.gate.clear()
            acks = [append_run(one, [batch(b"a"), batch(b"b")]) for one in (lost, kept)]
            reservation = reserved(lost, [batch(b"c")])
            assert reservation is not None
            await asyncio.sleep(0.01)
            world.metadata.steal(lost.stream_id)
            assert isinstance(await reason(acks[0], 1), StreamFenced)
            assert reserved(lost, [batch(b"c")]) is None
            assert isinstance(lost, AppendsRuns)
            with pytest.raises(StreamFenced):
                lost.append_run([batch(b"c")], reservation, [""])
            reservation.release()
            world.gate.set()
            assert await acks[1].reached(2) == 2
            await gives_all_back(engine)

    run(scenario)


@both
def test_killing_answers_a_run_with_outcome_unknown(mode: WalMode) -> None:
    async def scenario() -> None:
        world = World(mode)
        async with world.engine(crash=True) as (streams, engine):
            stream = await streams.create_and_open_stream()
            world.gate.clear()
            ack = append_run(stream, [batch(b"a"), batch(b"b")])
            under_way = asyncio.ensure_future(ack.reached(2))
            await asyncio.sleep(0.005)
            await engine.kill()
            assert isinstance(await error_of(under_way), OutcomeUnknown)
            assert reserved(stream, [batch(b"c")]) is None
            assert isinstance(await error_of(stream.append(batch(b"c"))), Closed)
            world.gate.set()

    run(scenario)


def test_a_run_does_not_pass_a_barrier() -> None:
    async def scenario() -> None:
        world = World("disk")
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            assert isinstance(stream, AppendsRuns)
            early = reserved(stream, [batch(b"early")])
            assert early is not None
            world.metadata.gate.clear()
            change = asyncio.ensure_future(stream.set_fencing_token(b"mine"))
            await asyncio.sleep(0.005)
            assert reserved(stream, [batch(b"a")]) is None
            with pytest.raises(Overloaded):
                stream.append_run([batch(b"early")], early, [""])
            early.release()
            world.metadata.gate.set()
            await change
            assert await append_run(stream, [batch(b"a")]).reached(1) == 1
            await gives_all_back(engine)

    run(scenario)


def test_a_caller_that_stops_waiting_leaves_the_run_under_way() -> None:
    async def scenario() -> None:
        world = World("disk")
        assert world.wal is not None
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            world.wal.gate.clear()
            ack = append_run(stream, [batch(b"a"), batch(b"b")])
            waiting = asyncio.ensure_future(ack.reached(1))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            world.wal.gate.set()
            assert await ack.reached(2) == 2
            assert await read_all(stream) == [b"a", b"b"]
            await gives_all_back(engine)

    run(scenario)


def test_metrics_count_the_batches_of_a_run() -> None:
    async def scenario() -> None:
        world = World("object", dataclasses.replace(QUICK, append=AppendConfig()))
        async with world.engine() as (streams, engine):
            stream = await streams.create_and_open_stream()
            await append_run(stream, [batch(b"x" * 100) for _ in range(4)]).reached(4)
            registry = engine.parts.registry
            assert registry.get_sample_value("streamlog_engine_appends_total") == 4
            assert registry.get_sample_value("streamlog_engine_append_bytes_total") == 400
            assert registry.get_sample_value("streamlog_engine_upload_backlog_bytes") == 0

    run(scenario)
