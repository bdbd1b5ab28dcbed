"""A shared log's side of a staged commit: batches are attached in the turn of appends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streamlog.errors import Internal, StreamlogError
from streamlog.log.partition.batch_metadata import decode_batch_metadata
from streamlog.log.shared.parts import LogParts
from streamlog.log.shared.placing import BatchPlacer
from streamlog.model.batch import BatchAttributes

ATTACHED_RUNS_MAX = 32
"""Runs of attached batches after which a checkpoint is due: without it the next open would read the
index of as many objects, and do so for each partition that a commit came to."""

_BATCHES_AT_ONCE = 64
"""Batches accounted before other tasks get a turn: less than a millisecond."""


class SharedLogAttach:
    """Staged batches come into the log from its end `start` on; the turn of appends is held."""

    def __init__(self, parts: LogParts, placer: BatchPlacer) -> None:
        self._parts = parts
        self._data = parts.streams.data
        self._tail = parts.tail
        self._placer = placer
        self._clock = parts.environment.clock
        self._metrics = parts.environment.metrics.of_topic(parts.partition.topic)
        self._is_given_up = False
        self._runs = 0
        self.start = self._tail.end_offset

    @property
    def has_attached(self) -> bool:
        """Whether batches have come into the log since `start`."""
        return self._tail.end_offset != self.start

    def check_producer(self, producer_id: int, producer_epoch: int) -> None:
        """As Attaching.check_producer."""
        now_ms = self._clock.now_ms()
        self._tail.producers.check_attach(producer_id, producer_epoch, now_ms)

    async def ready(self) -> None:
        """As Attaching.ready. The leader epoch of the batches to come is written down, too."""
        await self._parts.visibility.wait_durable(self._tail.end_offset)
        self._placer.begin_epoch()
        await self._parts.jobs.flush_until(self._tail.end_offset)

    def account(self, batches: Sequence[BatchAttributes]) -> None:
        """As Attaching.account."""
        first = batches[0].base_offset - self._tail.active.data_shift
        # The attributes leave out an object that compaction has replaced meanwhile: a gap.
        if not self._is_given_up and first <= self._tail.accounted_end:
            self._account(batches)

    async def finish(self) -> None:
        """As Attaching.finish."""
        if self._is_given_up or not self.has_attached:
            return
        tail, shift = self._tail, self._tail.active.data_shift
        if tail.accounted_end < tail.end_offset:
            missing = await self._data.attributes(
                tail.accounted_end + shift, tail.end_offset + shift
            )
            for low in range(0, len(missing), _BATCHES_AT_ONCE):
                self._account(missing[low : low + _BATCHES_AT_ONCE])
                await asyncio.sleep(0)
        if tail.accounted_end != tail.end_offset:
            raise Internal(
                f"staged batches up to {tail.end_offset} were attached, and only those up to "
                f"{tail.accounted_end} are accounted for"
            )
        if self._placer.is_checkpoint_due or self._runs >= ATTACHED_RUNS_MAX:
            self._placer.checkpoint()

    def show(self) -> None:
        """As Attaching.show."""
        if self.has_attached and not self._is_given_up:
            self._parts.visibility.show_attached(self._tail.segments, self._tail.end_offset)

    def give_up(self, error: StreamlogError) -> None:
        """As Attaching.give_up."""
        if self.has_attached and not self._is_given_up:
            self._is_given_up = True
            self._parts.lifecycle.fail(error)

    def _account(self, batches: Sequence[BatchAttributes]) -> None:
        """Accounts for attached batches as for appended ones.

        Errors: Corrupt, UnsupportedVersion; Internal: they do not follow the batches before them.
        """
        self._runs += 1
        tail, shift = self._tail, self._tail.active.data_shift
        records = size_bytes = 0
        for batch in batches:
            metadata = decode_batch_metadata(batch.attributes)
            span, base = batch.record_count, batch.base_offset - shift
            if base != tail.accounted_end:
                raise Internal(f"a staged batch came to {base}, where {tail.accounted_end} follows")
            self._placer.account_attached(base, span, metadata)
            records += span
            size_bytes += metadata.size_bytes
        self._metrics.appended(len(batches), records, size_bytes)
