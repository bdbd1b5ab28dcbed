"""Deletes objects that nothing needs: dead ones after a delay, orphans at once.

1. A dead object lives no more, for good: a stale look at the metadata is safe.
2. Pins are read after the deaths they are held against; an object that died after a pinned revision
   stays.
3. Orphans are named by the metadata and deleted blindly: whether they exist does not matter.
A run that fails is repeated at the next tick; to delete twice is harmless.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter

from streamlog.errors import OutcomeUnknown, Unavailable
from streamlog.metadata.interface import Metadata
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.runtime.clock import Clock
from streamlog.runtime.config import setting

log = logging.getLogger(__name__)

_LOOKED_AT_MAX = 100_000


@dataclass(frozen=True, slots=True)
class CollectorConfig:
    """Deletion of objects without live data."""

    deletion_delay_ms: int = setting(
        600_000,
        "How long an object without live data stays, for readers that still hold its place. A "
        "death is noticed by the next checkpoint.",
        minimum=0,
    )
    collect_interval_ms: int = setting(60_000, "Time between two runs.", minimum=1)
    delete_batch_max: int = setting(500, "Objects deleted by one store request.", minimum=1)


class Collector:
    """One tenure's; `tick` is one run."""

    def __init__(
        self,
        metadata: Metadata,
        store: ObjectStore,
        clock: Clock,
        config: CollectorConfig,
        registry: CollectorRegistry,
    ) -> None:
        self._metadata = metadata
        self._store = store
        self._clock = clock
        self._config = config
        self._deleted = Counter(
            "streamlog_collector_deleted_objects",
            "Objects deleted, by kind (dead, orphan).",
            ["kind"],
            registry=registry,
        )

    async def tick(self) -> None:
        """Deletes what may go now. What fails is left for the next run."""
        try:
            await self._dead()
            await self._orphans()
        except (Unavailable, OutcomeUnknown) as error:
            log.warning("the collector goes on at its next run", extra={"reason": str(error)})

    async def _dead(self) -> None:
        due_ms = self._clock.now_ms() - self._config.deletion_delay_ms
        dead = [
            found
            for found in self._metadata.dead_objects(_LOOKED_AT_MAX)
            if found.died_ms <= due_ms
        ]
        if not dead:
            return
        pin = await self._metadata.oldest_pin()
        ids = [found.object_id for found in dead if pin is None or pin >= found.revision]
        size = self._config.delete_batch_max
        for first in range(0, len(ids), size):
            batch = ids[first : first + size]
            await self._delete(batch)
            await self._metadata.forget_objects(batch)
            self._deleted.labels("dead").inc(len(batch))

    async def _orphans(self) -> None:
        for orphans in await self._metadata.orphan_candidates():
            await self._delete(orphans.object_ids)
            await self._metadata.orphans_deleted(orphans)
            self._deleted.labels("orphan").inc(len(orphans.object_ids))

    async def _delete(self, object_ids: Sequence[int]) -> None:
        if object_ids:
            await self._store.delete([data_key(object_id) for object_id in object_ids])
