"""Single appends to partitions, with conditions, and their fencing tokens, for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from streamlog.client.aio.channel import CallingClient
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
from streamlog.client.producer_identity import NO_IDENTITY
from streamlog.client.tls import Tls
from streamlog.errors import StreamlogError
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
        self._turns: dict[tuple[str, int], tuple[asyncio.Lock, PartitionAppends]] = {}

    async def append(
        self,
        topic: str,
        partition: int,
        records: Buffer | Record | Iterable[Buffer | Record],
        *,
        expected_next_offset: int | None = None,
        fencing_token: bytes | None = None,
    ) -> PartitionAppendResult:
        """As `streamlog.client.Partitions.append`. Cancelled, the records may still be stored."""
        append = ConditionalAppend.of(
            topic, partition, records, expected_next_offset, fencing_token
        )
        tries = AppendTries(Retry(self._caller, self._timeout_ms))
        async with self._turn(topic, partition, tries.retry.left_s()) as appends:
            count = len(append.records)
            if appends.needs_identity(count):
                appends.begin(
                    await self._caller.run(
                        init_producer_id(NO_IDENTITY), timeout_ms=tries.retry.left_s() * 1000
                    )
                )
            batch = append.encoded(appends.producer)
            base = await self._try(append, batch, tries, appends)
            appends.stored(count)
        return PartitionAppendResult(base, base + count)

    @asynccontextmanager
    async def _turn(
        self, topic: str, partition: int, wait_s: float
    ) -> AsyncIterator[PartitionAppends]:
        """Errors: DeadlinePassed."""
        lock, appends = self._turns.setdefault(
            (topic, partition), (asyncio.Lock(), PartitionAppends())
        )
        try:
            async with asyncio.timeout(wait_s):
                await lock.acquire()
        except TimeoutError:
            raise partition_calls.waited_in_vain(topic, partition, self._timeout_ms) from None
        try:
            yield appends
        finally:
            lock.release()

    async def _try(
        self, append: ConditionalAppend, batch: bytes, tries: AppendTries, appends: PartitionAppends
    ) -> int:
        """The base offset."""
        try:
            while True:
                left_ms = tries.retry.left_s() * 1000
                try:
                    base: int = await self._caller.run_once(append.call(batch, left_ms), left_ms)
                    return base
                except StreamlogError as error:
                    wait_s = tries.wait_s(error)
                await asyncio.sleep(wait_s)
        except BaseException as error:
            if not tries.used_no_sequence_number(error):
                appends.forget()
            raise

    async def set_fencing_token(
        self,
        topic: str,
        partition: int,
        token: bytes,
        *,
        expected_token: bytes | None = None,
        expected_next_offset: int | None = None,
    ) -> None:
        """As `streamlog.client.Partitions.set_fencing_token`. Cancelled, it may still be set."""
        await self._caller.run(
            partition_calls.set_fencing_token(
                topic, partition, token, expected_token, expected_next_offset, self._timeout_ms
            )
        )

    async def describe(self, topic: str, partition: int) -> PartitionInfo:
        """Errors: UnknownTopicOrPartition."""
        info: PartitionInfo = await self._caller.run(partition_calls.describe(topic, partition))
        return info


__all__ = ["PartitionAppendResult", "PartitionInfo", "Partitions", "Record"]
