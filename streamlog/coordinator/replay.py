"""Reads a coordinator's log from its start to its end: the newest record of each id is its state.

`TransactionTable` is what records make: live and on load, state changes by its `apply` alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from streamlog.codec.batch import scan
from streamlog.codec.records import iterate
from streamlog.coordinator.api import TransactionState
from streamlog.coordinator.transactions.records import decode_key, decode_value
from streamlog.coordinator.transactions.state import Transaction
from streamlog.log.api.abstract_log import AbstractLog, Isolation

log = logging.getLogger(__name__)

FETCH_BYTES = 1 << 20
RECORDS_AT_ONCE = 200
"""Read or decoded before other tasks get a turn: about 1 ms."""


class TransactionTable:
    """The transactional ids of one partition."""

    def __init__(self) -> None:
        self.transactions: dict[str, Transaction] = {}
        self.sizes: dict[str, int] = {}
        """Id → bytes of its newest record."""
        self.live_bytes = 0
        self.counts = dict.fromkeys(TransactionState, 0)

    def get(self, transactional_id: str) -> Transaction | None:
        return self.transactions.get(transactional_id)

    def apply(self, transactional_id: str, after: Transaction | None, size_bytes: int) -> None:
        """The record says that the id has this state; None: that it is forgotten."""
        before = self.transactions.pop(transactional_id, None)
        self.live_bytes -= self.sizes.pop(transactional_id, 0)
        if before is not None:
            self.counts[before.state] -= 1
        if after is not None:
            self.transactions[transactional_id] = after
            self.sizes[transactional_id] = size_bytes
            self.live_bytes += size_bytes
            self.counts[after.state] += 1


@dataclass(frozen=True, slots=True)
class Replayed:
    table: TransactionTable
    size_bytes: int
    """Keys and values of all records that were read, also of those that later ones replaced."""
    records: int


async def replay(opened: AbstractLog) -> Replayed:
    """The state at the log's end. Call it when nobody appends.

    Errors: those of fetching; Corrupt, UnsupportedVersion.
    """
    newest: dict[bytes, bytes | None] = {}
    size_bytes = records = 0
    offset, end = opened.log_start_offset, opened.log_end_offset
    while offset < end:
        # What a writer before this one has sequenced counts, once it is durable.
        await opened.wait_for(offset, Isolation.READ_UNCOMMITTED)
        fetched = await opened.fetch(offset, FETCH_BYTES)
        for key, value in _records(b"".join(fetched.parts), offset):
            newest[key] = value
            size_bytes += len(key) + len(value or b"")
            records += 1
            if records % RECORDS_AT_ONCE == 0:
                await asyncio.sleep(0)
        offset = max(fetched.next_offset, opened.log_start_offset)
    return Replayed(await _table(newest), size_bytes, records)


def _records(data: bytes, start: int) -> Iterator[tuple[bytes, bytes | None]]:
    for header, view in scan(data):
        if header.is_control:
            continue
        for offset, _, key, value, _ in iterate(view):
            if offset >= start:
                yield bytes(key or b""), None if value is None else bytes(value)


async def _table(newest: dict[bytes, bytes | None]) -> TransactionTable:
    table = TransactionTable()
    for number, (key, value) in enumerate(newest.items(), 1):
        transactional_id = decode_key(key)
        if transactional_id is None:
            log.warning("a record of a kind that this version does not know was passed over")
        elif value is not None:
            transaction = decode_value(transactional_id, value)
            table.apply(transactional_id, transaction, len(key) + len(value))
        if number % RECORDS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return table
