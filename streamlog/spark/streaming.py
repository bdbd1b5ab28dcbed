"""A streaming query's driver side: which offsets come next, and the plan of each micro-batch.

1. A partition that appears in mid-query joins the offsets at its start, without records, and is
   read from the next micro-batch on: what Spark logs tells both ends of all that is read.
2. What is gone is DataLost when offsets are looked up, before Spark logs them, so that a restart
   with failOnDataLoss=false can go on.
3. Each plan has a pin, renewed until the next plan is made or the query ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamlog.model.located import OffsetWindow
from streamlog.spark.cluster import Cluster, Offsets
from streamlog.spark.offsets import (
    PartitionOffsets,
    checked_window,
    chosen_partitions,
    decode_offsets,
    encode_offsets,
    encode_report,
    lost,
    resolve,
)
from streamlog.spark.options import ReadOptions, TopicPartition
from streamlog.spark.pin_keeper import PinKeeper
from streamlog.spark.session import Planned, open_cluster, plan_read, reads_store


class StreamPlanner:
    """One for each run of a query; opens the cluster when first asked. Close it."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._opened: Cluster | None = None
        self._keeper: PinKeeper | None = None
        self._targets: dict[TopicPartition, int] | None = None
        self._latest: dict[TopicPartition, int] = {}
        self._read: dict[TopicPartition, int] = {}
        self._facts: dict[str, Any] = {}

    @property
    def _cluster(self) -> Cluster:
        if self._opened is None:
            self._opened = open_cluster(self._options)
        return self._opened

    def let_go(self) -> None:
        """Between two calls nothing keeps a node from the metadata."""
        if self._opened is not None:
            self._opened.let_go()

    # offsets

    def initial(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins. Errors: UnknownTopicOrPartition, Invalid."""
        options, cluster = self._options, self._cluster
        partitions = chosen_partitions(options, cluster)
        known = cluster.offsets(partitions)
        found = resolve(
            options.start,
            [at for at in partitions if at in known],
            known,
            cluster,
            name="startingOffsets",
            is_end=False,
            is_late_an_error=options.is_late_an_error,
        )
        return encode_offsets(found)

    def prepare_available_now(self) -> None:
        """What is there now is where the query ends."""
        self._targets = {at: found.end for at, found in self._known().items()}

    def latest(self, start: Mapping[str, Any], rows_max: int | None) -> dict[str, Any]:
        """The end of the next micro-batch, `start` itself when there is nothing new.

        Errors: DataLost, Unavailable.
        """
        begins = decode_offsets(start)
        known = self._known()
        self._latest = {at: found.end for at, found in known.items()}
        gone = sorted(at for at in begins if at not in known)
        if gone:
            topic, partition = gone[0]
            lost(
                self._options,
                f"{len(gone)} partitions that were read are gone, {topic}-{partition} among them",
            )
        ends: dict[TopicPartition, int] = {}
        new: dict[TopicPartition, int] = {}
        for at, found in known.items():
            if at in begins:
                ends[at] = max(self._target(at, found.end), begins[at])
                self._check(at, begins[at], found)
            elif self._targets is None or at in self._targets:
                new[at] = self._joined(at, found)
        if rows_max is not None:
            ends = limited(begins, ends, rows_max)
        self._read = {**ends, **new}
        return encode_offsets(self._read)

    def report(self) -> dict[str, Any] | None:
        """For the query's progress, of the last `latest` and the last plan."""
        if not self._latest:
            return None
        return encode_report(self._latest, self._read, self._facts)

    def _known(self) -> dict[TopicPartition, Offsets]:
        cluster = self._cluster
        return cluster.offsets(self._options.chosen.of(cluster.topics()))

    def _target(self, at: TopicPartition, end: int) -> int:
        return end if self._targets is None else min(end, self._targets.get(at, 0))

    def _check(self, at: TopicPartition, begin: int, found: Offsets) -> None:
        if begin < found.start:
            lost(
                self._options,
                f"offsets {begin} to {found.start} of {at[0]}-{at[1]} were deleted before the "
                "query had read them",
            )
        if begin > found.end:
            lost(
                self._options,
                f"{at[0]}-{at[1]} was read to offset {begin} and ends at {found.end}: it was made "
                "anew, or lost records",
            )

    def _joined(self, at: TopicPartition, found: Offsets) -> int:
        if found.start > 0:
            lost(
                self._options,
                f"the new partition {at[0]}-{at[1]} begins at offset {found.start}: records before "
                "were deleted",
            )
        return found.start

    # plans

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Planned:
        """Errors: DataLost, Unavailable, Corrupt."""
        options, cluster = self._options, self._cluster
        begins, ends = decode_offsets(start), decode_offsets(end)
        known = cluster.offsets(sorted(ends))
        windows: list[OffsetWindow] = []
        for at, stop in sorted(ends.items()):
            # A partition that is not in the start joined without records: it begins where it ends.
            begin = begins.get(at, stop)
            if begin >= stop:
                continue
            if at not in known:
                lost(options, f"{at[0]}-{at[1]} is gone, offsets {begin} to {stop} were to be read")
                continue
            window = checked_window(options, at, begin, stop, known[at])
            if window.count > 0:
                windows.append(window)
        planned = plan_read(options, cluster, windows)
        if not self._facts or planned.plan.tasks:
            self._facts = {
                "readMode": planned.read_mode if windows else _mode(options, cluster),
                "storeRecords": planned.plan.store_records,
                "serviceRecords": planned.plan.service_records,
            }
        self._keep(planned.place.pin_id)
        return planned

    def _keep(self, pin_id: int | None) -> None:
        if self._keeper is None:
            if pin_id is None:
                return
            self._keeper = PinKeeper(open_cluster(self._options), self._options.pin_ttl_ms)
        before = self._keeper.set(pin_id)
        if before is not None:
            self._cluster.unpin(before)

    def close(self) -> None:
        """Lets go of the pin. Errors: those of unpinning."""
        cluster, self._opened = self._opened, None
        keeper, self._keeper = self._keeper, None
        try:
            if keeper is not None and cluster is not None:
                pin_id = keeper.set(None)
                if pin_id is not None:
                    cluster.unpin(pin_id)
        finally:
            if keeper is not None:
                keeper.close()
            if cluster is not None:
                cluster.close()


def _mode(options: ReadOptions, cluster: Cluster) -> str:
    return "store" if reads_store(options, cluster) else "service"


def limited(
    begins: PartitionOffsets, ends: PartitionOffsets, rows_max: int
) -> dict[TopicPartition, int]:
    """At most about `rows_max` records, shared by how much each partition has, as Spark's Kafka
    source does it: a partition that has anything gets a record at least.
    """
    sizes = {at: end - begins[at] for at, end in ends.items() if end > begins[at]}
    total = sum(sizes.values())
    if total <= rows_max:
        return dict(ends)
    found = dict(ends)
    for at, size in sizes.items():
        share = rows_max * size // total
        found[at] = begins[at] + min(max(share, 1), size)
    return found
