"""One partition of the coordinator: the transactional ids that it has, and the log that keeps them.

It lives from a load to the first append that fails, or until another node leads the partition. Then
it is dropped as a whole: nothing of it is repaired.

A call is synchronous: it reads the state, decides, applies the record of its decision and queues
it. The answer waits until all records of the partition so far are durable, because it may have seen
any of them; so does an error, and the answer of a call that only read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeVar

from streamlog.coordinator.api import TransactionState
from streamlog.coordinator.replay import Replayed
from streamlog.coordinator.state_log import StateLog
from streamlog.coordinator.transactions.decisions import Decision, is_expired, shown
from streamlog.coordinator.transactions.ends import complete
from streamlog.coordinator.transactions.records import encode_key, encode_value
from streamlog.coordinator.transactions.state import COMPLETED, Transaction
from streamlog.errors import MessageTooLarge, StreamlogError
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.background import Background

T = TypeVar("T")

ENDING_BYTES = 48
"""Room in the record of an open transaction for what the record of its end has in addition: tags of
the next and the previous producer id, the last epoch, the client's version, and the application's
epoch."""

Prepared = Callable[["CoordinatorPartition", Transaction], None]
Failed = Callable[["CoordinatorPartition", StreamlogError], None]


class CoordinatorPartition:
    """Made of a replay that nobody has appended behind. `on_prepared`: called for each transaction
    whose decision is durable, those that the replay found included, by `resume`."""

    def __init__(
        self,
        opened: AbstractLog,
        replayed: Replayed,
        record_bytes_max: int,
        clock: Clock,
        background: Background,
        on_prepared: Prepared,
        on_failure: Failed,
    ) -> None:
        self.log = opened
        self.topic_partition = opened.topic_partition
        self.coordinator_epoch = opened.leader_epoch
        self.table = replayed.table
        self.open_since: dict[str, float] = {}
        """Id with an open transaction → since when, or since the load; monotonic seconds."""
        self._replayed_bytes = replayed.size_bytes
        self._record_bytes_max = record_bytes_max
        self._clock = clock
        self._on_prepared = on_prepared
        self._on_failure = on_failure
        self._ending: dict[str, asyncio.Event] = {}
        """Ids whose transaction is being ended and somebody waits for."""
        self._writer = StateLog(opened, record_bytes_max, clock, background, self._failed)
        for transactional_id, transaction in self.table.transactions.items():
            self._note(transactional_id, transaction)

    @property
    def is_ended(self) -> bool:
        return self._writer.is_ended

    @property
    def log_bytes(self) -> int:
        """Bytes of the records that a replay would read, or were read by the last one."""
        return self._replayed_bytes + self._writer.appended_bytes

    def forget_bytes(self, size_bytes: int) -> None:
        """So many bytes are no longer in the log."""
        self._replayed_bytes -= size_bytes

    def resume(self) -> None:
        """Goes on with the transactions that were decided before the load."""
        for transaction in list(self.table.transactions.values()):
            if transaction.is_prepared:
                self._on_prepared(self, transaction)

    async def call(
        self, transactional_id: str, decide: Callable[[Transaction | None, int], Decision[T]]
    ) -> T:
        """The answer of `decide(state, now_ms)`, once it is durable.

        Errors: what `decide` raises, before anything is changed, and its answer, where that is an
        error; NotCoordinator; MessageTooLarge (a transaction with too many partitions).
        """
        self._writer.check()
        decision = decide(self.table.get(transactional_id), self._clock.now_ms())
        if decision.after is not None:
            self._write(decision.after)
        await self._writer.settled()
        if isinstance(decision.answer, StreamlogError):
            raise decision.answer
        return decision.answer

    async def settled(self) -> None:
        """Returns when all that was decided so far is durable. Errors: NotCoordinator."""
        await self._writer.settled()

    async def until_ended(self, transactional_id: str) -> None:
        """Returns when the id's transaction is not being ended, or this partition has ended."""
        known = self.table.get(transactional_id)
        if known is not None and known.is_prepared and not self.is_ended:
            await self._ending.setdefault(transactional_id, asyncio.Event()).wait()

    def change(self, transactional_id: str, by: Callable[[Transaction, int], Transaction]) -> None:
        """Changes a known id's state without a caller that waits. Errors: NotCoordinator."""
        known = self.table.get(transactional_id)
        if known is not None:
            self._write(by(known, self._clock.now_ms()))

    def complete(self, prepared: Transaction) -> None:
        """All markers of the transaction are written. Does nothing if it is not prepared here."""
        if not self.is_ended and self.table.get(prepared.transactional_id) == prepared:
            self.change(prepared.transactional_id, complete)

    def write_again(self, transactional_id: str) -> None:
        """Appends the id's newest record once more; state and readers see no difference.

        Errors: NotCoordinator.
        """
        known = self.table.get(transactional_id)
        if known is not None:
            self._writer.add(encode_key(transactional_id), encode_value(known))

    def forget(self, transactional_id: str, expiration_ms: int) -> bool:
        """Forgets the id if it is unused for so long; whether it did. Errors: NotCoordinator."""
        known = self.table.get(transactional_id)
        if known is None or not is_expired(known, expiration_ms, self._clock.now_ms()):
            return False
        self._writer.add(encode_key(transactional_id), None)
        self.table.apply(transactional_id, None, 0)
        return True

    def overdue(self) -> Iterator[str]:
        """Ids whose transaction is open for longer than its time-out."""
        now = self._clock.monotonic()
        for transactional_id, since in list(self.open_since.items()):
            known = self.table.get(transactional_id)
            is_same = self.open_since.get(transactional_id) == since
            if is_same and known is not None and now - since > known.timeout_ms / 1000:
                yield transactional_id

    async def stop(self) -> None:
        """Nothing is appended from here once it returns; those who wait get NotCoordinator."""
        self.wake_all()
        await self._writer.stop()
        self.wake_all()

    def _failed(self, error: StreamlogError) -> None:
        self.wake_all()
        self._on_failure(self, error)

    def wake_all(self) -> None:
        """Returns those who wait in `until_ended`; who asks again is told what has changed."""
        for event in self._ending.values():
            event.set()
        self._ending.clear()

    def _write(self, after: Transaction) -> None:
        transactional_id = after.transactional_id
        key, value = encode_key(transactional_id), encode_value(after)
        size = len(key) + len(value)
        self._check_size(after, size)
        then = (lambda: self._on_prepared(self, after)) if after.is_prepared else None
        self._writer.add(key, value, then)
        self.table.apply(transactional_id, after, size)
        self._note(transactional_id, after)

    def _check_size(self, after: Transaction, size: int) -> None:
        """The record of an end is never too large: a transaction that nobody can end would stay.

        Errors: MessageTooLarge.
        """
        size_max = self._record_bytes_max - ENDING_BYTES
        is_end = after.is_prepared or after.state in COMPLETED
        if size > size_max and not is_end:
            raise MessageTooLarge(
                f"the transaction of {shown(after.transactional_id)} has {len(after.partitions)} "
                f"partitions, and its record {size} bytes, more than {size_max}: split it, or "
                "choose a shorter transactional id",
                size_bytes=size,
                max_bytes=size_max,
            )

    def _note(self, transactional_id: str, after: Transaction) -> None:
        if after.state is TransactionState.ONGOING:
            self.open_since.setdefault(transactional_id, self._clock.monotonic())
        else:
            self.open_since.pop(transactional_id, None)
        if not after.is_prepared and (ended := self._ending.pop(transactional_id, None)):
            ended.set()
