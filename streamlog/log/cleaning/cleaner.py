"""Cleans one log: learns keys of its dirty part, filters everything before, swaps segments.

1. The map learns keys from the first dirty offset until it is full or meets the first offset that
   cannot be cleaned. Where it is full, this round ends there, and the next begins there.
2. All segments below that end are filtered, group by group; each group is swapped in at once.
3. The log remembers the end. A crash between 2 and 3 makes the next round clean again what is
   clean, which changes nothing but delete horizons that are due.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from streamlog.errors import Invalid, StreamlogError
from streamlog.log.api.abstract_log import AbstractLogSegment
from streamlog.log.api.cleaning import CleanableLog
from streamlog.log.api.topic_config import TopicConfig
from streamlog.log.cleaning.batch_filter import BatchFilter, CleaningStats, add_keys, check
from streamlog.log.cleaning.cleanable import LogToClean, group_by_size
from streamlog.log.cleaning.cleaned_transactions import CleanedTransactions
from streamlog.log.cleaning.offset_map import KeyOffsetMap
from streamlog.runtime.concurrency.byte_pace import BytePace
from streamlog.runtime.offload import Lane, Offload

logger = logging.getLogger(__name__)


class LogCleaning:
    """`memory_bytes_max`: of the key map (log.cleaner.dedupe.buffer.size)."""

    def __init__(
        self, offload: Offload, memory_bytes_max: int, pace: BytePace | None = None
    ) -> None:
        """`pace`: of the bytes that are read and written; None: as fast as it goes."""
        self._pace = pace
        self._offload = offload
        self._memory_bytes_max = memory_bytes_max

    async def clean(
        self,
        chosen: LogToClean,
        config: TopicConfig,
        now_ms: int,
        *,
        is_wanted: Callable[[], bool] = lambda: True,
        checks_first: bool = False,
    ) -> CleaningStats:
        """One round; `clean_end_offset` tells how far it came. Durable on return.

        `is_wanted` is asked before each group is begun and swapped in. `checks_first`: all batches
        are read once before anything is written, because a log may keep what a failed round has
        written until a later one succeeds, and rounds that meet an unreadable batch again and
        again would fill the store.

        Cancelling it leaves groups that were swapped, and the rest as it was. Errors: those of the
        log; CorruptMessage, InvalidRecord; Invalid (the map has no room for one key; it is not
        wanted any more).
        """
        log = chosen.log
        offsets = KeyOffsetMap(self._memory_bytes_max)
        await self._learn(chosen, offsets)
        end = min(offsets.latest_offset + 1, chosen.first_uncleanable_offset)
        if end <= chosen.first_dirty_offset:
            # Only holes are left in the range.
            await log.set_clean_end_offset(chosen.first_uncleanable_offset)
            return CleaningStats()
        segments = [one for one in log.segments if not one.is_active and one.base_offset < end]
        if not segments:
            raise Invalid(f"{log.topic_partition} lost the segments below {end} while it was read")
        aborted = await log.aborted_transactions(log.log_start_offset, segments[-1].end_offset)
        rules = BatchFilter(
            offsets,
            CleanedTransactions(aborted),
            log.last_records_of_producers(),
            now_ms,
            config.delete_retention_ms,
            end,
        )
        if checks_first:
            await self._check(log, segments)
        for group in group_by_size(segments, config.segment_bytes):
            await self._replace(log, group, rules, is_wanted)
        await log.set_clean_end_offset(end)
        return rules.stats

    async def _learn(self, chosen: LogToClean, offsets: KeyOffsetMap) -> None:
        log, start = chosen.log, chosen.first_dirty_offset
        end = chosen.first_uncleanable_offset
        transactions = CleanedTransactions(await log.aborted_transactions(start, end))
        for segment in [*log.segments]:
            if segment.is_active or segment.end_offset <= start or segment.base_offset >= end:
                continue
            async for batches in log.read_for_cleaning(segment, start):
                await self._moved(len(batches))
                if not await self._offload.run(
                    Lane.CPU, add_keys, batches, start, end, offsets, transactions
                ):
                    return

    async def _moved(self, size_bytes: int) -> None:
        """Waits where the bytes, read or written, are more than the pace allows."""
        if self._pace is not None:
            await self._pace.spend(size_bytes)

    async def _check(self, log: CleanableLog, segments: Sequence[AbstractLogSegment]) -> None:
        """Errors: those that `keep` would have for a batch."""
        for segment in segments:
            async for batches in log.read_for_cleaning(segment, segment.base_offset):
                await self._offload.run(Lane.CPU, check, batches)
                await self._moved(len(batches))

    async def _replace(
        self,
        log: CleanableLog,
        group: Sequence[AbstractLogSegment],
        rules: BatchFilter,
        is_wanted: Callable[[], bool],
    ) -> None:
        _check_wanted(log, is_wanted)
        replacement = await log.replace_segments(group)
        try:
            for segment in group:
                async for batches in log.read_for_cleaning(segment, segment.base_offset):
                    kept = await self._offload.run(Lane.CPU, rules.keep, batches)
                    if kept:
                        await replacement.append(kept)
                    await self._moved(len(batches) + len(kept))
            _check_wanted(log, is_wanted)
            await replacement.commit()
        except BaseException:
            try:
                await replacement.abandon()
            except StreamlogError as error:
                # A cancellation, which has to go on, may be why it is given up.
                partition = log.topic_partition
                logger.warning(
                    "%s keeps files of a cleaning until its next open: %s", partition, error
                )
            raise


def _check_wanted(log: CleanableLog, is_wanted: Callable[[], bool]) -> None:
    if not is_wanted():
        raise Invalid(f"{log.topic_partition} is not compacted here any more")
