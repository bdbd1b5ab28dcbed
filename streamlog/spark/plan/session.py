"""The driver's part of a read: opens the cluster, pins objects, plans tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from streamlog.errors import Corrupt, PolicyViolation, UnknownTopicOrPartition
from streamlog.model.located import OffsetWindow
from streamlog.reading.urls import is_node_memory
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.rand import SystemRandom
from streamlog.spark.cluster.cluster import Cluster, ServerCluster
from streamlog.spark.options import ReadOptions
from streamlog.spark.plan.offsets import lost
from streamlog.spark.plan.planning import ReadPlan, plan_service, plan_store
from streamlog.spark.plan.types import ReadPlace
from streamlog.spark.read_metrics import tell

log = logging.getLogger(__name__)


@contextmanager
def opened_cluster(options: ReadOptions) -> Iterator[Cluster]:
    """Errors: Unavailable, DataInUse (a node runs on the metadata), ForeignCluster, Invalid."""
    cluster = open_cluster(options)
    try:
        yield cluster
    finally:
        cluster.close()


def open_cluster(options: ReadOptions) -> Cluster:
    """The caller closes the cluster. Errors: those of `opened_cluster`."""
    if options.server is not None:
        return ServerCluster(
            options.server, options.isolation, store=options.store, tls=options.tls
        )
    from streamlog.spark.cluster.offline_cluster import OfflineCluster

    assert options.store is not None
    return OfflineCluster(
        options.store,
        options.meta,
        options.isolation,
        fail_on_data_loss=options.fail_on_data_loss,
    )


@dataclass(frozen=True, slots=True)
class Planned:
    plan: ReadPlan
    place: ReadPlace

    def tell(self) -> Planned:
        """Adds a row to the read's metrics."""
        metrics = {
            "mode": self.read_mode,
            "tasks": len(self.plan.tasks),
            "store_records": self.plan.store_records,
            "service_records": self.plan.service_records,
        }
        tell("plan", self.place.read_name, metrics)
        return self

    @property
    def read_mode(self) -> str:
        """The plan's mode; with `auto` a task that cannot open the store still uses the node."""
        return "service" if self.place.store_url is None else "store"


def reads_store(options: ReadOptions, cluster: Cluster) -> bool:
    if options.read_mode == "service":
        return False
    if options.read_mode == "store":
        return True
    return not is_node_memory(cluster.store_url)


def plan_read(options: ReadOptions, cluster: Cluster, windows: Sequence[OffsetWindow]) -> Planned:
    """Pins the planned objects. The caller removes the pin, at the next plan or at the end.

    Errors: DataLost, Corrupt, Unavailable; PolicyViolation, where readMode=store is to read a topic
    that has no objects.
    """
    if not reads_store(options, cluster) or not windows:
        plan = plan_service(
            windows,
            max_bytes=options.max_bytes_per_partition,
            min_tasks=options.min_partitions,
        )
        return Planned(plan, _place(options, cluster, None, None)).tell()
    pin_id = cluster.pin(options.pin_ttl_ms)
    try:
        plan = _plan_of_topics(options, cluster, windows)
        for loss in plan.lost:
            lost(
                options,
                f"offsets {loss.start} to {loss.end} of {loss.topic}-{loss.partition} were deleted "
                "while the read was planned",
            )
    except BaseException:
        cluster.unpin(pin_id)
        raise
    return Planned(plan, _place(options, cluster, cluster.store_url, pin_id)).tell()


def _plan_of_topics(
    options: ReadOptions, cluster: Cluster, windows: Sequence[OffsetWindow]
) -> ReadPlan:
    """The plan of the windows whose topics still exist, under the same ids, after the look-up.

    Errors: DataLost; those of _plan_store.
    """
    while True:
        try:
            plan = _plan_twice(options, cluster, windows)
        except UnknownTopicOrPartition:
            left = _left(options, cluster, windows)
            if len(left) == len(windows):
                raise
        else:
            left = _left(options, cluster, windows)
            if len(left) == len(windows):
                return plan
        windows = left


def _left(
    options: ReadOptions, cluster: Cluster, windows: Sequence[OffsetWindow]
) -> Sequence[OffsetWindow]:
    """The windows whose topics still exist under the same id. Errors: DataLost."""
    if cluster.server is None:
        # Offline, all answers are of one moment.
        return windows
    topics = cluster.topics()
    gone: set[str] = set()
    for window in windows:
        topic = topics.get(window.topic)
        if topic is None or window.topic_id not in ("", topic.topic_id):
            gone.add(window.topic)
    for name in sorted(gone):
        lost(
            options,
            f"topic {name} was deleted, or deleted and recreated, before its records were read",
        )
    return [window for window in windows if window.topic not in gone] if gone else windows


def _plan_twice(
    options: ReadOptions, cluster: Cluster, windows: Sequence[OffsetWindow]
) -> ReadPlan:
    try:
        return _plan_store(options, cluster, windows)
    except Corrupt as error:
        # A trim or compaction between two parts of an answer looks like damage.
        log.warning("looking once more where records lie: %s", error)
        return _plan_store(options, cluster, windows)


def _plan_store(
    options: ReadOptions, cluster: Cluster, windows: Sequence[OffsetWindow]
) -> ReadPlan:
    located = cluster.locate(windows)
    if located.without_objects and options.read_mode == "store":
        window = windows[min(located.without_objects)]
        raise PolicyViolation(
            f"topic {window.topic} has no objects in the store, for its records are files of one "
            "node (log.type=unified): read it through that node, with readMode=auto or service"
        )
    return plan_store(
        windows,
        located,
        max_bytes=options.max_bytes_per_partition,
        min_tasks=options.min_partitions,
        has_node=cluster.server is not None,
    )


def _place(
    options: ReadOptions, cluster: Cluster, store_url: str | None, pin_id: int | None
) -> ReadPlace:
    return ReadPlace(
        server=cluster.server,
        tls=options.tls,
        store_url=store_url,
        cluster_id="" if store_url is None else cluster.cluster_id,
        is_store_needed=options.read_mode == "store" or cluster.server is None,
        isolation=options.isolation,
        fail_on_data_loss=options.fail_on_data_loss,
        verify_crc=options.verify_crc,
        pin_id=pin_id,
        pin_ttl_ms=options.pin_ttl_ms,
        planned_ms=SystemClock().now_ms(),
        read_name=options.read_name or str(SystemRandom().uuid()),
    )
