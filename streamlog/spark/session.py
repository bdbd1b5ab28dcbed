"""The driver's part: opens the cluster, pins, plans."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from streamlog.errors import StreamlogError
from streamlog.model.located import OffsetWindow
from streamlog.objectstore.url import MemoryUrl, parse_store_url
from streamlog.spark.cluster import Cluster, ServerCluster
from streamlog.spark.offsets import lost
from streamlog.spark.options import ReadOptions
from streamlog.spark.plan_types import ReadPlace
from streamlog.spark.planning import Plan, plan_service, plan_store

log = logging.getLogger(__name__)

PINS_PER_TTL = 3
"""A pin is renewed so many times before it would end."""


@contextmanager
def opened_cluster(options: ReadOptions) -> Iterator[Cluster]:
    """Errors: Unavailable, DataInUse (a node runs on the metadata), ForeignCluster, Invalid."""
    cluster = open_cluster(options)
    try:
        yield cluster
    finally:
        cluster.close()


def open_cluster(options: ReadOptions) -> Cluster:
    """The caller's to close. Errors: as for `opened_cluster`."""
    if options.server is not None:
        return ServerCluster(options.server, options.isolation, store=options.store)
    from streamlog.spark.rest_cluster import RestCluster

    assert options.store is not None
    return RestCluster(options.store, options.meta, fail_on_data_loss=options.fail_on_data_loss)


@dataclass(frozen=True, slots=True)
class Planned:
    plan: Plan
    place: ReadPlace

    @property
    def read_mode(self) -> str:
        """What the plan is for; a task of `auto` that cannot open the store uses the node."""
        return "service" if self.place.store_url is None else "store"


def reads_store(options: ReadOptions, cluster: Cluster) -> bool:
    if options.read_mode == "service":
        return False
    if options.read_mode == "store":
        return True
    return not isinstance(parse_store_url(cluster.store_url), MemoryUrl)


def plan_read(options: ReadOptions, cluster: Cluster, windows: Sequence[OffsetWindow]) -> Planned:
    """Pins what is planned; who plans next, or ends, takes the pin away.

    Errors: DataLost, Corrupt, Unavailable.
    """
    max_bytes, min_tasks = options.max_bytes_per_partition, options.min_partitions
    if not reads_store(options, cluster) or not windows:
        plan = plan_service(windows, max_bytes=max_bytes, min_tasks=min_tasks)
        return Planned(plan, _place(options, cluster, None, None))
    pin_id = cluster.pin(options.pin_ttl_ms)
    try:
        located = cluster.locate(windows)
        plan = plan_store(
            windows,
            located,
            max_bytes=max_bytes,
            min_tasks=min_tasks,
            has_node=cluster.server is not None,
        )
        for one in plan.lost:
            lost(
                options,
                f"offsets {one.start} to {one.end} of {one.topic}-{one.partition} were deleted "
                "while the read was planned",
            )
    except BaseException:
        cluster.unpin(pin_id)
        raise
    return Planned(plan, _place(options, cluster, cluster.store_url, pin_id))


def _place(
    options: ReadOptions, cluster: Cluster, store_url: str | None, pin_id: int | None
) -> ReadPlace:
    return ReadPlace(
        server=cluster.server,
        store_url=store_url,
        cluster_id="" if store_url is None else cluster.cluster_id,
        is_store_needed=options.read_mode == "store" or cluster.server is None,
        isolation=options.isolation,
        fail_on_data_loss=options.fail_on_data_loss,
        verify_crc=options.verify_crc,
        pin_id=pin_id,
        pin_ttl_ms=options.pin_ttl_ms,
    )


class PinKeeper:
    """Renews one pin at a time from a thread, for as long as it is set."""

    def __init__(self, cluster: Cluster, ttl_ms: int) -> None:
        """`cluster` is used by this thread alone."""
        self._cluster = cluster
        self._interval_s = ttl_ms / 1000 / PINS_PER_TTL
        self._changed = threading.Condition()
        self._pin_id: int | None = None
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def set(self, pin_id: int | None) -> int | None:
        """The pin to keep; returns the one before."""
        with self._changed:
            before, self._pin_id = self._pin_id, pin_id
            if pin_id is not None and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pins", daemon=True)
                self._thread.start()
            return before

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._cluster.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, self._interval_s)
                if self._is_closed:
                    return
                pin_id = self._pin_id
            if pin_id is None:
                continue
            try:
                if not self._cluster.renew(pin_id):
                    log.warning("pin %d has ended: objects that are read may be deleted", pin_id)
            except StreamlogError as error:
                log.warning("pin %d could not be renewed: %s", pin_id, error)
