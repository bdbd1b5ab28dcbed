"""Which transactions a list has."""

from __future__ import annotations

import asyncio

from streamlog.coordinator.api import TransactionDescription, TransactionFilter
from streamlog.coordinator.partition import CoordinatorPartition
from streamlog.coordinator.patterns import Pattern
from streamlog.coordinator.transactions.state import IDLE, Transaction

AT_ONCE = 500
"""Ids that are looked at before other tasks get a turn: about 1 ms."""


class Matcher:
    """A filter at one moment. Errors: Invalid (its pattern)."""

    def __init__(self, wanted: TransactionFilter, now_ms: int) -> None:
        self._wanted = wanted
        self._now_ms = now_ms
        self._pattern = Pattern(wanted.id_pattern) if wanted.id_pattern else None

    async def of(self, partition: CoordinatorPartition) -> list[TransactionDescription]:
        found = []
        transactions = list(partition.table.transactions.values())
        for number, transaction in enumerate(transactions, 1):
            if self._matches(transaction):
                found.append(transaction.described())
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)
        return found

    def _matches(self, one: Transaction) -> bool:
        wanted = self._wanted
        if wanted.states and one.state not in wanted.states:
            return False
        if wanted.producer_ids and one.producer_id not in wanted.producer_ids:
            return False
        if wanted.open_longer_than_ms >= 0 and not self._is_open_longer(one):
            return False
        return self._pattern is None or self._pattern.matches(one.transactional_id)

    def _is_open_longer(self, one: Transaction) -> bool:
        open_ms = self._now_ms - one.start_ms
        return one.state not in IDLE and open_ms > self._wanted.open_longer_than_ms
