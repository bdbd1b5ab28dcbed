"""The checks and probes behind a node's alarms."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from streamlog.compaction.compactor import Compactor
from streamlog.engine.cluster import CLUSTER_KEY as META_CLUSTER_KEY
from streamlog.engine.engine import Engine
from streamlog.log.manager import LogManager
from streamlog.metadata.session import MetadataSession
from streamlog.objectstore.keys import CLUSTER_KEY
from streamlog.runtime.concurrency.answers import Probes
from streamlog.runtime.progress import TICK_S, Due, ProgressConfig, ProgressWatch
from streamlog.wiring.log_folder import LocalLogs
from streamlog.wiring.stores import OpenStores


def watch_progress(
    config: ProgressConfig,
    registry: CollectorRegistry,
    engine: Engine,
    metadata: MetadataSession,
    logs: LogManager,
    compactor: Compactor | None,
    stores: OpenStores,
    local: LocalLogs,
) -> ProgressWatch:
    """Adds the checks of all parts: a part that waits for another one comes behind it."""
    watch = ProgressWatch(config, engine.parts.clock, registry)
    store, kv = stores.store_answers, stores.kv_answers
    unanswered_after_s = config.unanswered_after_ms / 1000
    stalled_after_s = config.stalled_after_ms / 1000

    def full_disk() -> Due | None:
        return engine.full_disk() or store.full() or kv.full() or local.full_disk()

    watch.watch("store_unavailable", lambda: store.unanswered(unanswered_after_s))
    watch.watch("metadata_unavailable", lambda: kv.unanswered(unanswered_after_s))
    watch.watch("disk_full", full_disk)
    engine.watch_progress(watch)
    metadata.watch_progress(watch)
    if compactor is not None:
        running = compactor
        watch.watch("compaction", lambda: running.progress(stalled_after_s))
    watch.watch("partition_opens", logs.progress)
    return watch


def run_checks(engine: Engine, watch: ProgressWatch, stores: OpenStores) -> None:
    """Runs all checks, and probes stores that have been silent, until the engine ends."""
    background, clock, config = engine.background, engine.parts.clock, watch.config
    probes = (
        Probes(
            stores.store_answers,
            lambda: stores.store.head(CLUSTER_KEY),
            config,
            clock,
            background,
        ),
        Probes(
            stores.kv_answers, lambda: stores.kv.get(META_CLUSTER_KEY), config, clock, background
        ),
    )

    async def tick() -> None:
        for probe in probes:
            probe.tick()
        watch.tick()

    background.every(lambda: TICK_S, tick, name="progress")
