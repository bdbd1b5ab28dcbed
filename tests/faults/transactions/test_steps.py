"""A process that ends before or after any step of a transaction leaves all of it, or nothing.

Whatever step it was: the next process ends the transaction by itself or when its client comes
back, readers see all partitions of it or none, and the last stable offsets move on.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from streamlog.coordinator.api import TRANSACTION_STATE_TOPIC, TransactionState
from streamlog.model.partition import TopicPartition
from streamlog.wal.config import WalMode
from tests.faults.transactions.steps import Side, Steps, Strike
from tests.faults.transactions.world import (
    Process,
    World,
    new_producer,
    read_committed,
    retried,
    run,
    until_ended,
    write,
)
from tests.support.every_await import Lab

ID = "steps"
TOPIC = "data"
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(3)]
WATCHED = [TopicPartition(TRANSACTION_STATE_TOPIC, 0), *PARTITIONS]
BEFORE, STRUCK, AFTER = b"before", b"struck", b"after"
"""What the transactions before, at and after the kill write to every partition."""
STEPS_MAX = 200
STATES = {
    True: (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT),
    False: (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT),
}

pytestmark = pytest.mark.timeout(300)


@dataclass(slots=True)
class Told:
    """What the client knows."""

    asked: bool = False
    answered: bool = False


async def _transaction(process: Process, value: bytes, *, is_commit: bool, told: Told) -> None:
    """The partitions are added one after the other, so that the transaction has several records."""
    producer = await new_producer(process, ID)
    coordinator = process.coordinator
    for partition in PARTITIONS:
        one = [partition]
        await retried(lambda one=one: coordinator.add_partitions(ID, producer, one))  # type: ignore[misc]
        await write(process, producer, partition, value, 0)
    told.asked = True
    await coordinator.end(ID, producer, is_commit=is_commit)
    told.answered = True
    await until_ended(process, ID)


async def _life(process: Process, steps: Steps, told: Told, *, is_commit: bool) -> None:
    """The transaction that is struck, then checkpoints and new segments."""
    await process.engine.logs.create_topic(TOPIC, len(PARTITIONS))
    await _transaction(process, BEFORE, is_commit=True, told=Told())
    steps.arm(process.engine.logs, WATCHED)
    await _transaction(process, STRUCK, is_commit=is_commit, told=told)
    for partition in PARTITIONS:
        await (await process.log(partition)).roll()
    await process.engine.drain()
    steps.disarm()


async def _check(process: Process, struck: str, told: Told, *, is_commit: bool) -> None:
    """By what a client finds that comes back."""
    state = await until_ended(process, ID)
    await new_producer(process, ID)
    await until_ended(process, ID)
    logs = [await process.log(partition) for partition in PARTITIONS]
    for opened in logs:
        assert opened.last_stable_offset == opened.high_watermark, f"{struck}: {opened.describe()}"
    seen = [await read_committed(opened) for opened in logs]
    is_there = STRUCK in seen[0]
    assert seen == [[BEFORE, STRUCK] if is_there else [BEFORE]] * len(logs), f"{struck}: {seen}"
    assert is_there == (state is TransactionState.COMPLETE_COMMIT and told.asked), (struck, state)
    if told.answered:
        assert state is STATES[is_commit][1], f"{struck}: {state.name}, though it was answered"
    await _transaction(process, AFTER, is_commit=True, told=Told())
    for opened, values in zip(logs, seen, strict=True):
        assert await read_committed(opened) == [*values, AFTER], struck


def _struck(mode: WalMode, strike: Strike | None, *, is_commit: bool) -> Steps:
    """One run, which ends the process at the strike, if there are so many steps."""
    found: list[Steps] = []

    async def scenario(lab: Lab) -> None:
        world, told = World(lab, mode), Told()
        steps = Steps(strike, world.kill)
        found.append(steps)
        with steps.watching():
            process = await world.start()
            is_killed = await world.until_killed(_life(process, steps, told, is_commit=is_commit))
            steps.disarm()
            if is_killed:
                process = await world.start()
                await _check(process, steps.struck, told, is_commit=is_commit)
        await world.close()

    run(scenario)
    return found[0]


@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("mode", ["disk", "object"])
def test_each_step_leaves_all_or_nothing(mode: WalMode, is_commit: bool) -> None:
    names = _struck(mode, None, is_commit=is_commit).names
    _assert_every_kind(names, is_commit=is_commit)
    for step in range(len(names)):
        for side in Side:
            struck = _struck(mode, Strike(step, side), is_commit=is_commit).struck
            assert struck, f"step {step} was not reached again"


def _assert_every_kind(names: list[str], *, is_commit: bool) -> None:
    """The steps are those that a transaction has."""
    coordinator, *partitions = map(str, WATCHED)
    prepare, complete = (f"{coordinator} {state.name}" for state in STATES[is_commit])
    assert names.count(f"{coordinator} ONGOING") == len(PARTITIONS)
    assert names.count(prepare) == names.count(complete) == 1
    for partition in partitions:
        assert names.count(f"{partition} records") == names.count(f"{partition} marker") == 1
        assert f"{partition} meta" in names, "no checkpoint"
        assert (f"{partition} txn" in names) is not is_commit
    order = [names.index(one) for one in (prepare, f"{partitions[0]} marker", complete)]
    assert order == sorted(order)
