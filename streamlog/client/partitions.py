"""Single appends to partitions, with conditions, and the partitions' fencing tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from streamlog.client import forking
from streamlog.client.calls import partition as partition_calls
from streamlog.client.calls.partition import (
    AppendTries,
    ConditionalAppend,
    PartitionAppendResult,
    PartitionAppends,
    PartitionInfo,
    Record,
)
from streamlog.client.calls.topic import init_producer_id
from streamlog.client.channel import UNARY_TIMEOUT_MS, Retry
from streamlog.client.closing import CallingClient
from streamlog.client.producer_identity import NO_IDENTITY
from streamlog.client.tls import Tls
from streamlog.errors import Invalid, StreamlogError
from streamlog.runtime.buffers import Buffer


class Partitions(CallingClient):
    __doc__ = CallingClient.__doc__

    def __init__(
        self,
        server: str,
        *,
        timeout_ms: int = UNARY_TIMEOUT_MS,
        client_id: str = "",
        tls: Tls | bool | None = None,
    ) -> None:
        super().__init__(server, timeout_ms=timeout_ms, client_id=client_id, tls=tls)
        self._lock = threading.Lock()
        self._turns: dict[tuple[str, int], tuple[threading.Lock, PartitionAppends]] = {}
        forking.watch(self)

    def append(
        self,
        topic: str,
        partition: int,
        records: Buffer | Record | Iterable[Buffer | Record],
        *,
        expected_next_offset: int | None = None,
        fencing_token: bytes | None = None,
    ) -> PartitionAppendResult:
        """Adds records, all or none; durable on return.

        They are one batch. `expected_next_offset` is where the partition must end, `fencing_token`
        the token that it must have, b"": none; None is not tested. Tries that the network loses are
        repeated under one sequence number: what is stored is stored once, and a conflict is never
        with the call's own records. Appends of one client to one partition wait for each other.

        Errors: OffsetConflict (`actual`: where it ends), TokenMismatch (`actual`: the token as
        text): nothing is stored. OutcomeUnknown: the time was up, or the client was closed, before
        the answer came; with expected_next_offset the call may be made again, and if it conflicts
        then, the record at expected_next_offset says whose it is. DeadlinePassed (earlier appends
        took the time), Overloaded, MessageTooLarge, UnknownTopicOrPartition (nothing is stored).
        """
        append = ConditionalAppend.of(
            topic, partition, records, expected_next_offset, fencing_token
        )
        tries = AppendTries(Retry(self._caller, self._timeout_ms))
        with self._turn(topic, partition, tries.retry.left_s()) as appends:
            count = len(append.records)
            if appends.needs_identity(count):
                appends.begin(
                    self._caller.run(
                        init_producer_id(NO_IDENTITY), timeout_ms=tries.retry.left_s() * 1000
                    )
                )
            batch = append.encoded(appends.producer)
            base = self._try(append, batch, tries, appends)
            appends.stored(count)
        return PartitionAppendResult(base, base + count)

    def _try(
        self, append: ConditionalAppend, batch: bytes, tries: AppendTries, appends: PartitionAppends
    ) -> int:
        """The base offset."""
        try:
            while True:
                left_ms = tries.retry.left_s() * 1000
                try:
                    base: int = self._caller.run_once(append.call(batch, left_ms), left_ms)
                    return base
                except StreamlogError as error:
                    wait_s = tries.wait_s(error)
                time.sleep(wait_s)
        except BaseException as error:
            if not tries.used_no_sequence_number(error):
                appends.forget()
            raise

    @contextmanager
    def _turn(self, topic: str, partition: int, wait_s: float) -> Iterator[PartitionAppends]:
        """Errors: DeadlinePassed."""
        lock, appends = self._turn_of(topic, partition)
        if not lock.acquire(timeout=wait_s):
            raise partition_calls.waited_in_vain(topic, partition, self._timeout_ms)
        try:
            yield appends
        finally:
            lock.release()

    def _turn_of(self, topic: str, partition: int) -> tuple[threading.Lock, PartitionAppends]:
        with self._lock:
            key = (topic, partition)
            turn = self._turns.get(key)
            if turn is None:
                turn = self._turns[key] = (threading.Lock(), PartitionAppends())
            return turn

    def set_fencing_token(
        self,
        topic: str,
        partition: int,
        token: bytes,
        *,
        expected_token: bytes | None = None,
        expected_next_offset: int | None = None,
    ) -> None:
        """Refuses appends with another token from now on; b"" removes the token. Durable on return.

        `expected_token`: the token that the partition must have now, b"": none; None: any. Appends
        without a token are never refused for it. Use a token once: whoever had it before would be
        let in again. After OutcomeUnknown, `describe` has the token.
        Errors: TokenMismatch, OffsetConflict, Invalid (over 64 bytes), UnknownTopicOrPartition;
        DeadlinePassed (nothing was changed), OutcomeUnknown.
        """
        self._caller.run(
            partition_calls.set_fencing_token(
                topic, partition, token, expected_token, expected_next_offset, self._timeout_ms
            )
        )

    def describe(self, topic: str, partition: int) -> PartitionInfo:
        """Errors: UnknownTopicOrPartition."""
        info: PartitionInfo = self._caller.run(partition_calls.describe(topic, partition))
        return info

    def after_fork(self, error: Invalid) -> None:
        """In the child process: another thread of the parent may have held a lock; calls raise."""
        self._lock = threading.Lock()
        self._turns = {}


__all__ = ["PartitionAppendResult", "PartitionInfo", "Partitions", "Record"]
