"""`with producer.transaction():` where the block is interrupted, cancelled, or its abort fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count
from random import Random
from typing import Any

import pytest

from streamlog.client import Producer, aio
from streamlog.errors import (
    CoordinatorLoadInProgress,
    NotCoordinator,
    OutcomeUnknown,
    TransactionAbortable,
    Unavailable,
)
from tests.client.fake_node import FakeNode, Fault
from tests.client.fake_transactions import CoordinatorFault
from tests.client.transactions.conftest import MakeProducer
from tests.client.transactions.producers import FAST, WAIT_S


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_block_aborts(node: FakeNode, kind: type[BaseException]) -> None:
    node.create("t")
    with Producer(node.server, transactional_id="x", **FAST) as producer:

        def work() -> None:
            with producer.transaction():
                producer.send("t", b"v").result(WAIT_S)
                raise kind

        with pytest.raises(kind):
            work()
        assert node.transactions.calls[-1] == "Abort"


def test_an_abort_that_fails_is_a_note_of_the_block_s_error(
    node: FakeNode, make: MakeProducer
) -> None:
    node.create("t")
    producer = make(delivery_timeout_ms=1_000, request_timeout_ms=200)

    def work() -> None:
        with producer.transaction():
            producer.send("t", b"v").result(WAIT_S)
            node.transactions.faults.extend([CoordinatorFault.HANG] * 20)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        work()
    assert "the coordinator aborts it" in caught.value.__notes__[0]
    node.transactions.faults.clear()


def test_the_next_block_tries_an_abort_again_that_was_not_confirmed(
    node: FakeNode, make: MakeProducer
) -> None:
    node.create("t")
    producer = make(delivery_timeout_ms=600, request_timeout_ms=100)

    def send(value: bytes) -> None:
        with producer.transaction():
            producer.send("t", value).result(WAIT_S)

    def fail() -> None:
        with producer.transaction():
            producer.send("t", b"v").result(WAIT_S)
            node.transactions.faults.extend([CoordinatorFault.HANG] * 20)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    node.transactions.faults.clear()
    node.transactions.faults.extend([NotCoordinator("moved just now")] * 1_000)
    with pytest.raises(Unavailable, match=r"did not confirm the abort .*moved just now"):
        send(b"w")
    node.transactions.faults.clear()
    send(b"x")
    assert node.committed_values("t") == [b"x"]


def test_a_block_behind_a_cancelled_abort_waits_for_it(node: FakeNode) -> None:
    node.create("t")

    async def main() -> None:
        async with aio.Producer(
            node.server, transactional_id="x", request_timeout_ms=200, **FAST
        ) as producer:
            await producer.begin_transaction()
            await (await producer.send("t", b"v"))
            node.transactions.faults.append(CoordinatorFault.HANG)
            abort = asyncio.create_task(producer.abort_transaction())
            while "Abort" not in node.transactions.calls:  # noqa: ASYNC110 - a thread's list
                await asyncio.sleep(0.001)
            abort.cancel()
            with pytest.raises(asyncio.CancelledError):
                await abort
            async with producer.transaction():
                await producer.send("t", b"w")

    asyncio.run(asyncio.wait_for(main(), WAIT_S))
    assert node.committed_values("t") == [b"w"]


def test_a_cancelled_task_aborts(node: FakeNode) -> None:
    node.create("t")

    async def main() -> None:
        async with aio.Producer(node.server, transactional_id="x", **FAST) as producer:
            sent = asyncio.Event()

            async def work() -> None:
                async with producer.transaction():
                    await (await producer.send("t", b"v"))
                    sent.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(work())
            await sent.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert node.transactions.calls[-1] == "Abort"
            async with producer.transaction():
                await producer.send("t", b"w")

    asyncio.run(asyncio.wait_for(main(), WAIT_S))
    assert node.committed_values("t") == [b"w"]


def test_a_cancelled_commit_goes_on(node: FakeNode) -> None:
    node.create("t")

    async def main() -> None:
        async with aio.Producer(
            node.server, transactional_id="x", request_timeout_ms=200, **FAST
        ) as producer:
            await producer.begin_transaction()
            await (await producer.send("t", b"v"))
            node.transactions.faults.append(CoordinatorFault.HANG)
            task = asyncio.create_task(producer.commit_transaction())
            while "Commit" not in node.transactions.calls:  # noqa: ASYNC110 - a thread's list
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await producer.commit_transaction()

    asyncio.run(asyncio.wait_for(main(), WAIT_S))
    assert node.committed_values("t") == [b"v"]


PRODUCE_FAULTS = [None, None, None, Fault.LOSE_ANSWER, Fault.BREAK, Fault.REFUSE]
COORDINATOR_FAULTS: list[Any] = [
    *(None, None, None, CoordinatorFault.LOSE_ANSWER, CoordinatorFault.BREAK),
    *(NotCoordinator("moved"), CoordinatorLoadInProgress("replaying")),
]


@pytest.mark.parametrize("seed", range(8))
def test_random_faults(node: FakeNode, make: MakeProducer, seed: int) -> None:
    """What a commit said is there, once; what an abort said is not; and nothing is there in part.

    Deadlines are short, so that records and commits also run out of time. However many do on a
    machine that is busy: six transactions are committed in the end.
    """
    choose = Random(seed)
    node.create("t", 2)
    node.faults.extend(choose.choice(PRODUCE_FAULTS) for _ in range(150))
    node.transactions.faults.extend(choose.choice(COORDINATOR_FAULTS) for _ in range(150))
    committed: set[bytes] = set()
    unknown: set[bytes] = set()
    producer = make(delivery_timeout_ms=choose.choice([60, 2000]), request_timeout_ms=1000)
    for number in count():
        if number >= 40 and len(committed) > 5:
            break
        value = b"%d" % number
        try:
            producer.begin_transaction()
            for partition in range(2):
                for _ in range(choose.randint(1, 3)):
                    producer.send("t", value, partition=partition)
            if choose.random() < 0.2:
                _abort(producer)
                continue
            producer.commit_transaction()
            committed.add(value)
        except TransactionAbortable:
            _abort(producer)
        except OutcomeUnknown:
            unknown.add(value)
            _commit_again(producer)
    seen = [Counter(node.committed_values("t", partition)) for partition in range(2)]
    for partition in range(2):
        assert committed <= seen[partition].keys() <= committed | unknown
    assert all((value in seen[0]) == (value in seen[1]) for value in unknown)
    assert max(seen[0].values()) <= 3


def _abort(producer: Any) -> None:
    while True:
        try:
            producer.abort_transaction()
        except Unavailable:
            # The time was over; the abort may be tried again.
            continue
        return


def _commit_again(producer: Any) -> None:
    while True:
        try:
            producer.commit_transaction()
        except OutcomeUnknown:
            continue
        except TransactionAbortable:
            _abort(producer)
        return
