"""What time does to transactional ids: open transactions are aborted, unused ids forgotten."""

from __future__ import annotations

import asyncio

from streamlog.coordinator.partition import CoordinatorPartition
from streamlog.coordinator.transactions.decisions import fence
from streamlog.errors import NotCoordinator

AT_ONCE = 100
"""Ids that are looked at before other tasks get a turn: about 2 ms where each is aborted."""


async def abort_overdue(partition: CoordinatorPartition) -> int:
    """Aborts, under the next epoch, transactions past their time-out; returns how many."""
    aborted = 0
    try:
        for transactional_id in partition.overdue():
            partition.change(transactional_id, fence)
            aborted += 1
            if aborted % AT_ONCE == 0:
                await asyncio.sleep(0)
    except NotCoordinator:
        pass  # Its next coordinator gives each transaction a whole time-out.
    return aborted


async def forget_unused(partition: CoordinatorPartition, expiration_ms: int) -> int:
    """Forgets ids that are unused for so long; returns how many."""
    forgotten = 0
    try:
        for number, transactional_id in enumerate(list(partition.table.transactions), 1):
            forgotten += partition.forget(transactional_id, expiration_ms)
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
    except NotCoordinator:
        pass  # Its next coordinator does it.
    return forgotten
