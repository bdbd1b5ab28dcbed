"""Runs of a log on the engine: what is not in the contract of a log, and a mutant would break."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from streamlog.engine.engine import Engine
from streamlog.errors import Internal, OutcomeUnknown, Unavailable
from streamlog.log.api.abstract_log import LogAppend
from streamlog.log.api.config import LogConfig
from streamlog.testing.logs.log_conformance import acked, encoded, refused
from tests.engine.appended_runs import append_run
from tests.engine.harness import QUICK, World, batch, run, until
from tests.log.harness import SharedLogUnderTest

VALUE = bytes(1000)


@asynccontextmanager
async def log_over(world: World) -> AsyncIterator[tuple[SharedLogUnderTest, Engine]]:
    async with world.engine() as (streams, engine):

        async def client_of(_clock: object) -> Any:
            return streams

        config = LogConfig(checkpoint_interval_batches=5)
        under_test = SharedLogUnderTest(client_of, {}, config)
        await under_test.start()
        yield under_test, engine
        await under_test.log.kill()


def small_groups() -> World:
    append = dataclasses.replace(QUICK.append, group_bytes_max=3000)
    return World("disk", dataclasses.replace(QUICK, append=append))


def test_a_run_is_acknowledged_up_to_the_group_that_is_durable() -> None:
    async def scenario() -> None:
        world = small_groups()
        assert world.wal is not None
        async with log_over(world) as (t, _):
            world.wal.gate.clear()
            outcomes = await t.log.append_many([LogAppend(encoded([VALUE])) for _ in range(5)])
            waits = [asyncio.ensure_future(acked(one)) for one in outcomes]
            await until(lambda: world.wal is not None and world.wal.is_writing)
            world.wal.gate.set()
            world.wal.gate.clear()
            await waits[0]
            await until(lambda: world.wal is not None and world.wal.is_writing)
            assert [wait.done() for wait in waits] == [True] * 3 + [False] * 2
            assert (t.log.high_watermark, t.log.log_end_offset) == (3, 5)
            await t.log.kill()
            for wait in waits[3:]:
                await refused(OutcomeUnknown, wait)
            world.wal.gate.set()

    run(scenario)


def test_runs_under_way_have_no_task_of_their_log() -> None:
    async def scenario() -> None:
        world = small_groups()
        assert world.wal is not None
        async with log_over(world) as (t, _):
            world.wal.gate.clear()
            names = {task.get_name() for task in asyncio.all_tasks()}
            outcomes = await t.log.append_many([LogAppend(encoded([VALUE])) for _ in range(2)])
            await until(lambda: world.wal is not None and world.wal.is_writing)
            assert {task.get_name() for task in asyncio.all_tasks()} == names
            world.wal.gate.set()
            for outcome in outcomes:
                await acked(outcome)
            assert t.log.high_watermark == 2

    run(scenario)


def test_single_appends_and_runs_are_acknowledged_in_their_order() -> None:
    async def scenario() -> None:
        world = small_groups()
        assert world.wal is not None
        async with log_over(world) as (t, _):
            world.wal.gate.clear()
            run_of_one = await t.log.append(encoded([VALUE]))
            # Two batches in one call are no run: each is awaited by itself.
            single = await t.log.append(encoded([VALUE]) + encoded([VALUE]))
            run_of_two = await t.log.append_many([LogAppend(encoded([VALUE])) for _ in range(2)])
            answers: list[int] = []

            async def answered(outcome: Any) -> None:
                answers.append((await acked(outcome)).base_offset)

            waits = [
                asyncio.ensure_future(answered(one)) for one in (*run_of_two, single, run_of_one)
            ]
            await until(lambda: world.wal is not None and world.wal.is_writing)
            world.wal.gate.set()
            await asyncio.gather(*waits)
            assert answers == sorted(answers) == [0, 1, 3, 4]
            assert t.log.high_watermark == 5

    run(scenario)


def test_a_bug_while_a_run_is_acknowledged_fails_its_log_alone() -> None:
    def fail() -> None:
        raise RuntimeError("a reader's bug")

    async def scenario() -> None:
        async with log_over(World("disk")) as (t, engine):
            t.log.subscribe(fail)
            (outcome,) = await t.log.append_many([LogAppend(encoded([VALUE]))])
            await refused(OutcomeUnknown, acked(outcome))
            (outcome,) = await t.log.append_many([LogAppend(encoded([VALUE]))])
            assert isinstance(outcome, Internal)
            assert "a reader's bug" in outcome.message
            assert engine.failure is None

    run(scenario)


def test_two_runs_that_share_a_group_are_counted_apart() -> None:
    async def scenario() -> None:
        world = small_groups()
        assert world.wal is not None
        async with world.engine() as (streams, _):
            one, other = [await streams.create_and_open_stream() for _ in range(2)]
            world.wal.gate.clear()
            first = append_run(one, [batch(VALUE)] * 2)
            second = append_run(other, [batch(VALUE)] * 4)
            await until(lambda: world.wal is not None and world.wal.is_writing)
            world.wal.gate.set()
            world.wal.gate.clear()
            assert await first.reached(2) == 2
            await until(lambda: world.wal is not None and world.wal.is_writing)
            assert (second.durable, other.confirm_offset) == (1, 1)
            world.wal.gate.set()
            assert await second.reached(4) == 4

    run(scenario)


def test_a_run_of_resends_gives_its_room_back() -> None:
    async def scenario() -> None:
        world = World("disk")
        async with log_over(world) as (t, engine):
            sent = [LogAppend(encoded([VALUE], producer=(1, 0, n))) for n in range(3)]
            for outcome in await t.log.append_many(sent):
                await acked(outcome)
            await until(lambda: engine.budget.used_bytes == 0)
            for outcome in await t.log.append_many(sent):
                assert (await acked(outcome)).is_duplicate
            assert engine.budget.used_bytes == 0

    run(scenario)


def test_a_resend_inside_its_own_run_waits_until_the_batch_is_durable() -> None:
    async def scenario() -> None:
        world = World("disk")
        assert world.wal is not None
        async with log_over(world) as (t, _):
            world.wal.gate.clear()
            sent = [LogAppend(encoded([VALUE], producer=(n, 0, 0))) for n in range(3)]
            outcomes = await t.log.append_many([*sent, sent[1], sent[0], sent[2]])
            waits = [asyncio.ensure_future(acked(one)) for one in outcomes]
            await until(lambda: world.wal is not None and world.wal.is_writing)
            assert [wait.done() for wait in waits] == [False] * 6
            world.wal.gate.set()
            infos = [await wait for wait in waits]
            assert [info.base_offset for info in infos] == [0, 1, 2, 1, 0, 2]
            assert [info.is_duplicate for info in infos] == [False] * 3 + [True] * 3
            assert t.log.log_end_offset == 3

    run(scenario)


def test_a_run_does_not_overtake_an_append_that_waits_for_its_turn() -> None:
    async def scenario() -> None:
        world = World("disk")
        async with log_over(world) as (t, _):
            async with t.log.attaching():
                late = asyncio.ensure_future(t.log.append(encoded([b"first"])))
                await asyncio.sleep(0)
            # The turn is nobody's, and the append that is next in line has not run yet.
            run_of = await t.log.append_many([LogAppend(encoded([b"second"]))] * 2)
            assert (await (await late)).base_offset == 0
            assert [(await acked(one)).base_offset for one in run_of] == [1, 2]

            async with t.log.attaching():
                waiting = asyncio.ensure_future(t.log.append_many([LogAppend(encoded([b"x"]))]))
                await asyncio.sleep(0.01)
                assert t.log.log_end_offset == 3, "a commit holds the turn"
            await acked((await waiting)[0])

    run(scenario)


def test_runs_take_checkpoints() -> None:
    async def scenario() -> None:
        async with log_over(World("disk")) as (t, _):
            sent = [LogAppend(encoded([b"a"], producer=(1, 0, n))) for n in range(7)]
            for outcome in await t.log.append_many(sent):
                await acked(outcome)
            meta = t.log._streams.meta.state
            async with asyncio.timeout(5):
                await until(lambda: meta.checkpoint is not None and meta.checkpoint.offset == 7)

    run(scenario)


def test_no_run_is_taken_while_the_wal_cannot_be_written() -> None:
    async def scenario() -> None:
        world = World("disk")
        assert world.wal is not None
        async with log_over(world) as (t, engine):
            world.wal.failures = 1 << 30
            (early,) = await t.log.append_many([LogAppend(encoded([b"early"]))])
            await until(lambda: engine.sequencer.admission_error is not None)
            for outcome in await t.log.append_many([LogAppend(encoded([b"late"]))] * 2):
                assert isinstance(outcome, Unavailable)
            end = t.log.log_end_offset
            assert isinstance(early, asyncio.Future)
            assert not early.done()
            world.wal.failures = 0
            assert (await acked(early)).base_offset == 0
            assert t.log.log_end_offset == end

    run(scenario)
