"""LogCleaner: cleans the compacted logs of a node, the dirtiest first, one at a time.

It knows logs as CleanableLog alone. A log that cannot be cleaned is left for a while and counted;
it grows meanwhile, and nothing of it is lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from streamlog.errors import StreamlogError
from streamlog.log.api.abstract_log import AbstractLog
from streamlog.log.api.cleaning import CleanableLog
from streamlog.log.api.environment import LogEnvironment
from streamlog.log.api.topic_config import TopicConfig
from streamlog.log.cleaning.cleanable import LogToClean, dirtiest, log_to_clean
from streamlog.log.cleaning.cleaner import LogCleaning
from streamlog.model.partition import TopicPartition
from streamlog.runtime.concurrency.byte_pace import BytePace
from streamlog.runtime.offload import Offload

log = logging.getLogger(__name__)

UNCLEANABLE_BACKOFFS = 10
"""Back-offs after which a log that could not be cleaned is tried again."""


class LogCleaner:
    """Its owner calls `clean_one` again and again."""

    def __init__(
        self,
        environment: LogEnvironment,
        offload: Offload,
        bytes_per_s: Callable[[], float],
        is_wanted: Callable[[TopicPartition], bool],
    ) -> None:
        """`bytes_per_s`: what it reads and writes at most, asked anew each time. `is_wanted`:
        whether the partition is there, led here and compacted; a cleaning ends where it is not."""
        config = environment.config
        self._is_wanted = is_wanted
        self._clock = environment.clock
        self._metrics = environment.metrics
        pace = BytePace(bytes_per_s, environment.clock)
        self._cleaning = LogCleaning(offload, config.cleaner_dedupe_buffer_bytes, pace)
        self._retry_s = UNCLEANABLE_BACKOFFS * config.cleaner_backoff_ms / 1000
        self._uncleanable: dict[TopicPartition, float] = {}
        """Until when each is left alone, on the monotonic clock."""
        self._failed_before: set[TopicPartition] = set()
        self._metrics.uncleanable_logs.set_function(lambda: len(self._uncleanable))

    async def clean_one(self, logs: Iterable[tuple[AbstractLog, TopicConfig]]) -> bool:
        """Cleans the dirtiest of the logs; False if none is dirty enough."""
        now, now_ms = self._clock.monotonic(), self._clock.now_ms()
        for partition, until in list(self._uncleanable.items()):
            if until <= now:
                del self._uncleanable[partition]
        candidates: list[tuple[LogToClean, TopicConfig]] = []
        for one, config in logs:
            if isinstance(one, CleanableLog) and one.topic_partition not in self._uncleanable:
                try:
                    candidates.append((log_to_clean(one, config, now_ms), config))
                except StreamlogError as error:
                    # It ends while the others are looked at.
                    self._put_off(one.topic_partition, error)
        chosen = dirtiest(candidates)
        if chosen is None:
            return False
        config = next(config for one, config in candidates if one is chosen)
        await self._clean(chosen, config, now_ms)
        return True

    async def _clean(self, chosen: LogToClean, config: TopicConfig, now_ms: int) -> None:
        partition = chosen.log.topic_partition
        try:
            stats = await self._cleaning.clean(
                chosen,
                config,
                now_ms,
                is_wanted=lambda: self._is_wanted(partition),
                checks_first=partition in self._failed_before,
            )
        except StreamlogError as error:
            if not self._is_wanted(partition):
                self._failed_before.discard(partition)
                log.info("the cleaning of %s was given up: %s", partition, error)
                return
            self._failed_before.add(partition)
            self._put_off(partition, error)
            return
        self._failed_before.discard(partition)
        self._metrics.cleanings.inc()
        self._metrics.cleaned_bytes.inc(stats.bytes_read)
        self._metrics.cleaned_bytes_left.inc(stats.bytes_written)
        log.info(
            "cleaned",
            extra={
                "partition": str(partition),
                "records_read": stats.records_read,
                "records_left": stats.records_written,
                "bytes_read": stats.bytes_read,
                "bytes_left": stats.bytes_written,
            },
        )

    def _put_off(self, partition: TopicPartition, error: StreamlogError) -> None:
        self._metrics.cleaning_errors.inc()
        self._uncleanable[partition] = self._clock.monotonic() + self._retry_s
        log.warning(
            "%s cannot be cleaned and grows; it is tried again in %d s: %s",
            partition,
            self._retry_s,
            error,
            extra={"partition": str(partition)},
        )
