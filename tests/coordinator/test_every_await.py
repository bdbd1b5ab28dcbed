"""Every await of two transactions fails in turn, and their caller is cancelled at each of its own.

Whatever was struck: every call is answered, and what was decided is ended, unless the engine has
failed. Then the process is killed. The next one ends what was decided; read_committed readers see
each transaction whole or not at all, and whole if its commit was answered; the ids go on.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, suppress
from typing import cast

import pytest

import streamlog
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.coordinator.api import ProducerIdAndEpoch, TransactionState
from streamlog.coordinator.config import TransactionConfig
from streamlog.coordinator.transactions.state import IDLE
from streamlog.engine.config import StreamEngineConfig
from streamlog.errors import StreamlogError
from streamlog.model.partition import TopicPartition
from streamlog.testing.logs.transaction_conformance import transactional
from streamlog.wiring import OpenEngine, WalMode
from tests.coordinator.world import retried, seen
from tests.support.every_await import Kind, Lab, every, start

PLACES = (TopicPartition("t", 0), TopicPartition("t", 1))
CONFIG = StreamEngineConfig(
    compaction=CompactionConfig(compaction_process="inline", compaction_interval_ms=10**9)
)
TRANSACTIONS = TransactionConfig(state_partitions=1)
IDS = ("mine", "other")


def opened(lab: Lab, wal: WalMode) -> AbstractAsyncContextManager[OpenEngine]:
    return streamlog.open(
        "memory://",
        meta="memory://",
        wal=wal,
        config=CONFIG,
        transactions=TRANSACTIONS,
        components=lab.components(has_disk=wal == "disk"),
    )


async def init(engine: OpenEngine, name: str) -> ProducerIdAndEpoch:
    return await retried(lambda: engine.transactions.init_producer_id(name, 60_000))


async def transact(engine: OpenEngine, name: str, pair: ProducerIdAndEpoch) -> None:
    await engine.transactions.add_partitions(name, pair, PLACES)
    for place in PLACES:
        opened = await engine.logs.log(place)
        opened.verified(*pair)
        await (await opened.append(transactional([name.encode()], *pair)))
    await engine.transactions.end(name, pair, is_commit=True)


async def idle(engine: OpenEngine, name: str) -> TransactionState | None:
    """The id's state, once it is not being ended; None: the engine has failed, and says why."""
    for _ in range(1000):
        with suppress(StreamlogError):
            described = await engine.transactions.describe(name)
            if described.state in IDLE or described.state is TransactionState.ONGOING:
                return described.state
        if engine.engine.failure is not None:
            return None
        await asyncio.sleep(0.1)
    raise AssertionError(f"{name} stays prepared")


async def scenario(lab: Lab, wal: WalMode) -> None:
    answered: dict[str, bool] = {}
    async with opened(lab, wal) as engine:
        await engine.logs.create_topic("t", 2)
        pairs = {name: await init(engine, name) for name in IDS}
        victim = lab.striker.arm(transact(engine, "mine", pairs["mine"]))
        other = start("other transaction", transact(engine, "other", pairs["other"]))
        await lab.answered(victim, other)
        for name, task in zip(IDS, (victim, other), strict=True):
            answered[name] = not task.cancelled() and task.exception() is None
        for name, is_done in answered.items():
            state = await idle(engine, name)
            assert not is_done or state in (TransactionState.COMPLETE_COMMIT, None)
        lab.striker.disarm()
        await engine.kill()
    lab.restart()
    async with opened(lab, wal) as engine:
        for name in IDS:
            assert await idle(engine, name) is not None
            again = await init(engine, name)
            assert again.producer_epoch > pairs[name].producer_epoch
        views = [await seen(await engine.logs.log(place)) for place in PLACES]
        assert views[0] == views[1], lab.striker.struck
        for name, is_done in answered.items():
            assert name in views[0] or not is_done, lab.striker.struck
    await lab.close()


@pytest.mark.parametrize("wal", ["disk", "object"])
@pytest.mark.parametrize("kind", ["fail", "cancel"])
def test_whatever_fails_a_transaction_is_whole(kind: Kind, wal: str) -> None:
    count = every(kind, lambda lab: scenario(lab, cast("WalMode", wal)))
    assert count > 20
