"""One partition of `__remote_log_metadata`: its log, and the state that the log's records make.

1. A write appends one record as a batch of its own, waits until it is durable, and reads the log up
   to it. What the record met there is the call's answer: others may have written in between.
2. Reading is the one way in which the state changes, so that it is the same for whoever reads. A
   read that is cancelled or fails has got to `next_offset`, and the next one goes on from there.
3. Writes of one user partition come one after the other, so that the next one is tested against the
   state that the one before left; those of others are under way at the same time.
4. Whoever is to change a user partition, or to say that nothing of it is left, waits for the
   appends that writers before it gave up: such a record would come behind the look, and nobody
   would miss it. Readers of segments do not wait for them.

Nothing here waits on a clock: who calls bounds the call. Cancelling a write leaves the append under
way, and nothing else: a later read finds the record, or it was never stored.
"""

from __future__ import annotations

import asyncio
import logging

from streamlog.codec.records import encode_values
from streamlog.errors import (
    Corrupt,
    Invalid,
    MessageTooLarge,
    StreamlogError,
    Unavailable,
)
from streamlog.log.api.abstract_log import AbstractLog, Isolation
from streamlog.runtime.buffers import Buffer
from streamlog.runtime.clock import Clock
from streamlog.runtime.concurrency.keyed_lock import KeyedLock
from streamlog.tiered.api import TopicIdPartition
from streamlog.tiered.metadata.records import RemoteLogRecord, encode, partition_of
from streamlog.tiered.metadata.replay import RemoteMetadataReplay
from streamlog.tiered.metadata.state import RemoteMetadataState

log = logging.getLogger(__name__)

FETCH_BYTES = 1 << 20
RECORDS_AT_ONCE = 200
"""Applied before other tasks get a turn: some milliseconds."""


class MetadataPartition:
    """Of one open log: another log of the partition gets another one, which reads all again."""

    def __init__(self, opened: AbstractLog, clock: Clock) -> None:
        self.log = opened
        self.next_offset = opened.log_start_offset
        """All records below it are in the state."""
        self._clock = clock
        self._replay = RemoteMetadataReplay(str(opened.topic_partition))
        self._replay_end = opened.log_end_offset
        """What a writer before this one has sequenced counts, once it is durable."""
        self._reading = asyncio.Lock()
        self._writing = KeyedLock[TopicIdPartition]()
        self._appending: dict[TopicIdPartition, set[asyncio.Future[int]]] = {}
        """Appends under way, of writers that wait for them or have given them up."""
        self._writers = 0
        self._refused: dict[int, Invalid] = {}
        """By offset: records that changed nothing, read while somebody waits for his own."""

    @property
    def is_appending(self) -> bool:
        return bool(self._appending)

    async def state(self) -> RemoteMetadataState:
        """With all records that were durable when the call came. It changes with the next await.

        Errors: Unavailable, Corrupt, UnsupportedVersion.
        """
        await self._read_to(max(self._replay_end, self.log.high_watermark))
        return self._replay.state

    async def settled(self, partition: TopicIdPartition) -> RemoteMetadataState:
        """As `state`, with all that was written of the user partition, or given up, before."""
        while appending := self._appending.get(partition):
            await asyncio.wait(appending)
        return await self.state()

    async def write(self, record: RemoteLogRecord) -> None:
        """The record is durable on return, and in the state.

        Errors: Invalid, NotFound (the tables of states), MessageTooLarge; Unavailable (its
        `has_no_side_effects` says whether the record may be there), Corrupt, UnsupportedVersion.
        """
        value = encode(record)
        partition = partition_of(record)
        async with self._writing.holding(partition):
            (await self.settled(partition)).check(record)
            self._writers += 1
            try:
                offset = await self._append(partition, value)
                await self._read_to(offset + 1)
                refusal = self._refused.get(offset)
            finally:
                self._writers -= 1
                if not self._writers:
                    self._refused.clear()
        if refusal is not None:
            raise refusal

    async def _append(self, partition: TopicIdPartition, value: bytes) -> int:
        """The offset of the record, once it is durable."""
        task = asyncio.ensure_future(self._stored(value))
        self._appending.setdefault(partition, set()).add(task)
        task.add_done_callback(lambda done: self._appended(partition, done))
        return await asyncio.shield(task)

    def _appended(self, partition: TopicIdPartition, task: asyncio.Future[int]) -> None:
        appending = self._appending[partition]
        appending.discard(task)
        if not appending:
            del self._appending[partition]
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            self._replay_end = max(self._replay_end, task.result() + 1)
        elif not isinstance(error, StreamlogError):
            # A writer that waits hears of it, too; one that gave up would be the only one to know.
            log.error("an append to %s failed by a bug", self._name, exc_info=error)

    async def _stored(self, value: bytes) -> int:
        batch = encode_values((value,), timestamp_ms=self._clock.now_ms()).data
        try:
            ack = await self.log.append(batch)
        except (Unavailable, MessageTooLarge):
            raise
        except StreamlogError as error:
            raise Unavailable(f"{self._name} takes no record: {error}; retry") from error
        try:
            return (await ack).last_offset
        except StreamlogError as error:
            unknown = Unavailable(
                f"a record may be in {self._name}, or not: {error}; retry with the same one"
            )
            unknown.has_no_side_effects = False
            raise unknown from error

    async def _read_to(self, end_offset: int) -> None:
        while self.next_offset < end_offset:
            async with self._reading:
                if self.next_offset < end_offset:
                    await self._read_on()

    async def _read_on(self) -> None:
        offset = max(self.next_offset, self.log.log_start_offset)
        try:
            await self.log.wait_for(offset, Isolation.READ_UNCOMMITTED)
            fetched = await self.log.fetch(offset, FETCH_BYTES)
        except (Unavailable, Corrupt):
            raise
        except StreamlogError as error:
            raise Unavailable(f"{self._name} cannot be read: {error}; retry") from error
        if fetched.next_offset <= offset:
            raise Unavailable(f"{self._name} ended at offset {offset}: retry, it is opened again")
        records = self._replay.records(b"".join(fetched.parts), offset)
        for number, (at, value) in enumerate(records, 1):
            self._apply(at, value)
            self.next_offset = at + 1
            if number % RECORDS_AT_ONCE == 0:
                await asyncio.sleep(0)
        self.next_offset = fetched.next_offset

    def _apply(self, offset: int, value: Buffer | None) -> None:
        refusal = self._replay.apply(offset, value)
        if refusal is not None and self._writers:
            self._refused[offset] = refusal

    @property
    def _name(self) -> str:
        return str(self.log.topic_partition)
