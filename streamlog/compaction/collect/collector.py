"""Deletes objects that nothing needs: dead objects after a delay, orphans at once.

1. A dead object stays dead, so a stale view of the metadata is safe. One that died while a clock
   was ahead stays for the delay from when a run first sees it, not until the clock has caught up.
2. The collector reads the dead objects before the pins. It keeps an object that died after a pinned
   revision.
3. The metadata names the orphans. They are deleted whether they exist or not.
4. `Guard` is asked before each run. When it objects, deletion stops with an alarm in log, metric
   and status. Some objections may pass: they are checked again at each run, and deletion goes on
   when they have passed. After the others a start with `force` is needed.
5. The store's lineage is compared before each request, because a recovery may have made newer
   metadata. A node that saw the older lineage may still delete objects that are dead in a
   checkpoint that the recovery reads, and orphans, for which the recovery waits
   (`repair/recover/handover.py`).
A failed run is repeated at the next tick; to delete twice is harmless. A store that refuses to
delete, or unreadable metadata, stops no node: every run logs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge

from streamlog.compaction.collect.guard import CollectorMetadata, Guard, Objection
from streamlog.errors import (
    Conflict,
    Corrupt,
    Invalid,
    OutcomeUnknown,
    QuotaExceeded,
    StoreUnavailable,
    Unauthorized,
    Unavailable,
)
from streamlog.metadata.interface import DeadObject, Orphans
from streamlog.objectstore.interface import ObjectStore
from streamlog.objectstore.keys import data_key
from streamlog.runtime.clock import Clock
from streamlog.runtime.config import setting

log = logging.getLogger(__name__)

ORPHAN_REQUEST_S = 10.0
"""Time-out of a request that deletes orphans; the next run sends it again. A recovery treats
orphans as data, and trusts that no such request takes effect after its grace of 15 s."""
_DELETED_MAX = 100_000
"""Most dead objects that one run deletes."""
REFUSALS = (Unauthorized, Invalid, Conflict, QuotaExceeded, Corrupt)
"""Answers of a store to a deletion (object lock, no such operation), and damage. The next run tries
again: objects that stay are no reason to end a node."""
_PAUSE_S = 0.1
"""Shortest pause between two runs."""


@dataclass(frozen=True, slots=True)
class CollectorConfig:
    """Deletion of objects without live data."""

    deletion_delay_ms: int = setting(
        600_000,
        "How long an object without live data stays, for readers that still hold its place. A "
        "new one is noticed by the next checkpoint.",
        minimum=0,
    )
    collect_interval_ms: int = setting(60_000, "Time between two runs.", minimum=1)
    delete_batch_max: int = setting(500, "Objects deleted by one store request.", minimum=1)
    orphans_per_tenure_max: int = setting(
        1024,
        "Orphans that one ended process may leave; with more in one run deletion stops with an "
        "alarm. Not below metadata.put_window of any node.",
        minimum=1,
    )
    probed_ids: int = setting(
        64,
        "Before the orphans of an ended process are deleted so many ids past them are looked for, "
        "one HEAD each: an object there shows that the metadata is older than the store. Below "
        "metadata.put_window it may miss one.",
        minimum=1,
    )
    force: bool = setting(
        False,
        "Delete although the guard objects (foreign, empty or old metadata). Set it for one start, "
        "after streamlog fsck has found the metadata right.",
    )


class Collector:
    """The collector of one tenure; `tick` is one run."""

    def __init__(
        self,
        metadata: CollectorMetadata,
        store: ObjectStore,
        clock: Clock,
        config: CollectorConfig,
        registry: CollectorRegistry,
        *,
        deletes_dead: bool = True,
    ) -> None:
        """`deletes_dead` False: it deletes orphans alone, which nobody reads, and for which uploads
        may wait; how long dead objects stay for readers is the node's to say."""
        self._deletes_dead = deletes_dead
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
        self._failed = Counter(
            "streamlog_collector_failed_runs",
            "Runs in which the store refused to delete, or something could not be read.",
            registry=registry,
        )
        self._guard = Guard(metadata, store, config.orphans_per_tenure_max, config.probed_ids)
        self._objection: Objection | None = None
        self._ahead: dict[int, float] = {}
        """Dead objects with a time of death that has not come, by a clock that was ahead, and the
        monotonic second at which this was seen."""
        stopped = Gauge(
            "streamlog_collector_stopped",
            "1: the guard has stopped deletion; look at the log, and at streamlog status.",
            registry=registry,
        )
        stopped.set_function(lambda: 1.0 if self.alarm else 0.0)

    @property
    def alarm(self) -> str:
        """Why deletion has stopped, and what to do; empty: it has not."""
        objection = self._objection
        return "" if objection is None else f"{objection.reason}; {_remedy(objection)}"

    async def run(self) -> None:
        """Runs every `collect_interval_ms`, and at once when uploads wait for a run.

        Uploads wait when abandoned objects hold all ids that may be uncommitted. Ends by
        cancellation.
        """
        interval_s = self._config.collect_interval_ms / 1000
        while True:
            # The pause keeps a run that cannot delete from being repeated in a tight loop.
            pause_s = min(interval_s, _PAUSE_S)
            await asyncio.sleep(pause_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s - pause_s):
                    await self._metadata.sweep_wanted.wait()
            self._metadata.sweep_wanted.clear()
            await self.tick()

    async def tick(self) -> None:
        """Deletes what is due. The next run repeats what fails. Errors: LineageFenced."""
        if self._objection is not None and not self._objection.may_pass:
            return
        try:
            due_ms = self._clock.now_ms() - self._config.deletion_delay_ms
            dead = self._metadata.dead_objects(_DELETED_MAX)
            orphans = await self._metadata.orphan_candidates()
            if await self._may_delete(orphans, due_ms):
                if self._deletes_dead:
                    await self._dead(self._due(dead, due_ms))
                await self._orphans(orphans)
        except (Unavailable, OutcomeUnknown) as error:
            log.warning("the collector goes on at its next run", extra={"reason": str(error)})
        except REFUSALS as error:
            self._failed.inc()
            log.error("nothing was deleted in this run: %s", error)

    def _due(self, dead: Sequence[DeadObject], due_ms: int) -> list[DeadObject]:
        """Those that are dead for the delay: by their time, or since that was seen to be ahead."""
        now_s, delay_ms = self._clock.monotonic(), self._config.deletion_delay_ms
        self._ahead = {
            one.object_id: self._ahead.get(one.object_id, now_s)
            for one in dead
            if one.died_ms > due_ms + delay_ms
        }
        seen_s = now_s - delay_ms / 1000
        return [
            one
            for one in dead
            if one.died_ms <= due_ms or self._ahead.get(one.object_id, now_s) <= seen_s
        ]

    async def _may_delete(self, orphans: Sequence[Orphans], due_ms: int) -> bool:
        objection = await self._guard.objection(orphans, due_ms)
        if objection is None:
            if self._objection is not None:
                log.warning("deletion goes on, what stood against it has passed")
                self._objection = None
            return True
        if self._config.force:
            log.warning("deletion is forced against the guard", extra={"reason": objection.reason})
            return True
        if objection != self._objection:
            self._objection = objection
            log.error("nothing is deleted any more: %s", self.alarm)
        return False

    async def _dead(self, dead: Sequence[DeadObject]) -> None:
        if not dead:
            return
        pin = await self._metadata.oldest_pin()
        ids = [one.object_id for one in dead if pin is None or pin >= one.revision]
        size = self._config.delete_batch_max
        for first in range(0, len(ids), size):
            batch = ids[first : first + size]
            await self._delete(batch)
            await self._metadata.forget_objects(batch)
            self._deleted.labels("dead").inc(len(batch))

    async def _orphans(self, candidates: Sequence[Orphans]) -> None:
        for orphans in candidates:
            try:
                async with asyncio.timeout(ORPHAN_REQUEST_S):
                    await self._delete(orphans.object_ids)
            except TimeoutError:
                raise StoreUnavailable(
                    "the store did not delete orphans in time", operation="delete"
                ) from None
            await self._metadata.orphans_deleted(orphans)
            self._deleted.labels("orphan").inc(len(orphans.object_ids))

    async def _delete(self, object_ids: Sequence[int]) -> None:
        if not object_ids:
            return
        if not await self._guard.still_may_delete():
            raise StoreUnavailable("cluster.json changed during the run", operation="delete")
        await self._store.delete([data_key(object_id) for object_id in object_ids])


def _remedy(objection: Objection) -> str:
    force = (
        "check the metadata with streamlog fsck, then start once with engine.collector.force=true"
    )
    if objection.may_pass:
        return f"deletion goes on by itself once that is mended; if the metadata is right, {force}"
    return force
