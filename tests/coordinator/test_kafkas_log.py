"""A real Kafka's log of transaction states, replayed here, says what that Kafka said of it."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from streamlog.codec.batch import ScannedBatch, scan
from streamlog.coordinator.api import TransactionState
from streamlog.coordinator.replay import TransactionTable, replay
from streamlog.coordinator.transactions.state import Transaction
from streamlog.log.api.abstract_log import AbstractLog, Isolation, LogFetch
from tests.kafka_clients.golden_transactions import SEGMENT, Moment, moments

UNKNOWN_ID = 105
NAMES = {
    "Empty": TransactionState.EMPTY,
    "Ongoing": TransactionState.ONGOING,
    "PrepareCommit": TransactionState.PREPARE_COMMIT,
    "PrepareAbort": TransactionState.PREPARE_ABORT,
    "CompleteCommit": TransactionState.COMPLETE_COMMIT,
    "CompleteAbort": TransactionState.COMPLETE_ABORT,
}


class SegmentLog:
    """As much of a log as a replay reads: Kafka's segment up to an offset."""

    log_start_offset = 0

    def __init__(self, batches: list[ScannedBatch], end: int) -> None:
        self._batches = batches
        self.log_end_offset = end

    async def wait_for(self, offset: int, isolation: Isolation) -> None:
        assert offset < self.log_end_offset

    async def fetch(self, offset: int, max_bytes: int) -> LogFetch:
        """One batch, so that a replay has to go on."""
        found = next(one for one in self._batches if one.header.last_offset >= offset)
        end = found.header.last_offset + 1
        return LogFetch((found.view,), len(found.view), 1, end, end, end, 0)


def replayed(batches: list[ScannedBatch], end: int) -> TransactionTable:
    opened = cast(AbstractLog, SegmentLog(batches, end))
    return asyncio.run(replay(opened)).table


def described(transaction: Transaction) -> dict[str, Any]:
    """In Kafka's words."""
    one = transaction.described()
    (name,) = (name for name, state in NAMES.items() if state is one.state)
    topics = sorted({partition.topic for partition in one.partitions})
    return {
        "error_code": 0,
        "transactional_id": one.transactional_id,
        "transaction_state": name,
        "transaction_timeout_ms": one.timeout_ms,
        "transaction_start_time_ms": one.start_ms,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "topics": [
            [topic, [part.partition for part in one.partitions if part.topic == topic]]
            for topic in topics
        ],
    }


@pytest.fixture(scope="module")
def batches() -> list[ScannedBatch]:
    return scan(SEGMENT.read_bytes())


@pytest.mark.parametrize("moment", moments(), ids=lambda one: f"{one.end}-{one.transactional_id}")
def test_each_moment_is_as_kafka_described_it(batches: list[ScannedBatch], moment: Moment) -> None:
    known = replayed(batches, moment.end).get(moment.transactional_id)
    if moment.described["error_code"] == UNKNOWN_ID:
        assert known is None
    else:
        assert known is not None
        assert described(known) == moment.described


def test_the_moments_hold_every_state_that_is_stored() -> None:
    """But for an abort that cannot be completed: Kafka stores it as it stores a commit."""
    seen = {moment.described["transaction_state"] for moment in moments()}
    assert seen >= NAMES.keys() - {"PrepareAbort"}
