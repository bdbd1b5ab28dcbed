"""The driver side of a streaming query: its next offsets, and the plan of each micro-batch.

1. A partition that appears during the query joins the offsets at its start, without records, and is
   read from the next micro-batch on. So the offsets that Spark logs have both ends of every read.
2. Lost records raise DataLost when offsets are looked up, before Spark logs them: a restart with
   failOnDataLoss=false can go on.
3. Each plan has a pin. It is renewed until another micro-batch is planned or the query ends: a
   micro-batch may be planned and read several times, also at once (foreachBatch).
4. With minOffsetsPerTrigger a micro-batch waits until enough records have come. Loss is found, and
   new partitions join, without that wait.
5. Offsets belong to a topic by its id. A topic that was deleted and recreated counts as lost,
   and is then read from its start, as a new topic is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streamlog.errors import StreamlogError
from streamlog.model.located import OffsetWindow
from streamlog.reading.topics import Offsets, Topic, TopicPartition
from streamlog.runtime.clock import Clock, SystemClock
from streamlog.spark.cluster.cluster import Cluster
from streamlog.spark.cluster.pin_keeper import PinKeeper
from streamlog.spark.options import ReadOptions
from streamlog.spark.plan.offsets import (
    PartitionOffsets,
    checked_window,
    chosen_among,
    decode_offsets,
    decode_topic_ids,
    encode_offsets,
    encode_report,
    lost,
    partition_counts,
    resolve,
    shown,
)
from streamlog.spark.plan.session import Planned, open_cluster, plan_read, reads_store
from streamlog.spark.trigger_delay import TriggerDelay

log = logging.getLogger(__name__)


class StreamPlanner:
    """One per run of a query. Opens the cluster at the first call. The caller closes it."""

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        self._options = options
        least = options.min_offsets_per_trigger
        self._delay: TriggerDelay | None = None
        if least is not None:
            delay_max_ms = options.max_trigger_delay_ms
            self._delay = TriggerDelay(least, delay_max_ms, clock or SystemClock())
        self._opened: Cluster | None = None
        self._keeper: PinKeeper | None = None
        self._planned: tuple[PartitionOffsets, PartitionOffsets] | None = None
        self._targets: dict[TopicPartition, int] | None = None
        self._target_ids: dict[str, str] = {}
        self._latest: dict[TopicPartition, int] = {}
        self._read: dict[TopicPartition, int] = {}
        self._plan_stats: dict[str, Any] = {}
        self._reported_loss: dict[TopicPartition, str] = {}

    @property
    def _cluster(self) -> Cluster:
        if self._opened is None:
            self._opened = open_cluster(self._options)
        return self._opened

    def let_go(self) -> None:
        """Releases offline metadata between two calls, so that a node may open it."""
        if self._opened is not None:
            self._opened.let_go()

    # offsets

    def initial(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins. Errors: UnknownTopicOrPartition, Invalid."""
        options, cluster = self._options, self._cluster
        topics = cluster.topics()
        partitions = chosen_among(options, topics)
        offsets = cluster.offsets(partitions)
        starts = resolve(
            options.start,
            [partition for partition in partitions if partition in offsets],
            offsets,
            cluster,
            name="startingOffsets",
            is_end=False,
            is_late_an_error=options.is_late_an_error,
        )
        return encode_offsets(starts, _ids(topics))

    def prepare_available_now(self) -> None:
        """Makes the current ends the end of the query."""
        offsets, self._target_ids = self._look_up()
        self._targets = {partition: bounds.end for partition, bounds in offsets.items()}

    def latest(self, start: Mapping[str, Any], rows_max: int | None) -> dict[str, Any]:
        """The end of the next micro-batch, `start` itself when there is nothing new.

        Errors: DataLost, Unavailable.
        """
        begins, begun_ids = decode_offsets(start), decode_topic_ids(start)
        offsets, ids = self._look_up()
        self._plan_stats = self._plan_stats or {"readMode": _mode(self._options, self._cluster)}
        self._latest = {partition: bounds.end for partition, bounds in offsets.items()}
        self._check_gone(begins, offsets)
        recreated = {
            name for name, known_id in begun_ids.items() if ids.get(name) not in (None, known_id)
        }
        waiting = {name for name in ids if self._is_for_the_next_run(name, ids[name])}
        self._check_recreated(recreated - waiting)
        ends: dict[TopicPartition, int] = {}
        joined: dict[TopicPartition, int] = {}
        for partition, bounds in offsets.items():
            topic = partition[0]
            if topic in waiting:
                if partition in begins:
                    ends[partition] = begins[partition]
            elif topic in recreated:
                joined[partition] = bounds.start
            elif partition in begins:
                ends[partition] = max(self._target(partition, bounds.end), begins[partition])
                self._check_bounds(partition, begins[partition], bounds)
            elif self._targets is None or partition in self._targets:
                joined[partition] = self._joined(partition, bounds)
        ends = self._within_limits(begins, ends, rows_max)
        self._read = {partition: bounds.start for partition, bounds in offsets.items()}
        self._read.update({key: end for key, end in ends.items() if key[0] not in waiting})
        self._read.update(joined)
        kept = {name: topic_id for name, topic_id in begun_ids.items() if name in waiting}
        return encode_offsets({**ends, **joined}, {**ids, **kept})

    def _check_gone(
        self, begins: PartitionOffsets, offsets: Mapping[TopicPartition, Offsets]
    ) -> None:
        gone = sorted(partition for partition in begins if partition not in offsets)
        if gone:
            lost(
                self._options,
                f"{len(gone)} partitions that were read are gone, {shown(gone[:1])} among them",
            )

    def _check_recreated(self, topics: Iterable[str]) -> None:
        for name in sorted(topics):
            lost(
                self._options,
                f"topic {name} was deleted and recreated, and may have had records that the query "
                "had not read",
            )

    def _within_limits(
        self, begins: PartitionOffsets, ends: dict[TopicPartition, int], rows_max: int | None
    ) -> dict[TopicPartition, int]:
        """Ends of a micro-batch that is due and has at most about `rows_max` records."""
        rows = sum(end - begins[partition] for partition, end in ends.items())
        if rows > 0 and not self._is_due(rows):
            ends = {partition: begins[partition] for partition in ends}
        return ends if rows_max is None else limited(begins, ends, rows_max)

    def _is_due(self, rows: int) -> bool:
        """Whether a micro-batch of `rows` is read now. With AvailableNow it always is, because any
        records that it could wait for come after the query's end."""
        return self._delay is None or self._targets is not None or self._delay.is_due(rows)

    def report(self) -> dict[str, Any] | None:
        """The query's progress, as of the last `latest` and the plan before it."""
        if not self._latest:
            return None
        return encode_report(self._latest, self._read, self._plan_stats)

    def _look_up(self) -> tuple[dict[TopicPartition, Offsets], dict[str, str]]:
        """Bounds of all chosen partitions, and ids of topics from before that look-up."""
        cluster = self._cluster
        topics = cluster.topics()
        partitions = self._options.chosen.of(partition_counts(topics))
        return cluster.offsets(partitions), _ids(topics)

    def _is_for_the_next_run(self, topic: str, topic_id: str) -> bool:
        """With AvailableNow: whether the topic was recreated since the query began."""
        return self._target_ids.get(topic, topic_id) != topic_id

    def _target(self, partition: TopicPartition, end: int) -> int:
        return end if self._targets is None else min(end, self._targets.get(partition, 0))

    def _check_bounds(self, partition: TopicPartition, begin: int, bounds: Offsets) -> None:
        name = shown([partition])
        if begin < bounds.start:
            self._lost_once(
                partition,
                f"offsets {begin} to {bounds.start} of {name} were deleted before the query had "
                "read them",
            )
        if begin > bounds.end:
            self._lost_once(
                partition,
                f"{name} was read to offset {begin} and ends at {bounds.end}: it was recreated, or "
                "lost records",
            )

    def _lost_once(self, partition: TopicPartition, message: str) -> None:
        """Warns once: while a micro-batch waits, Spark looks up offsets many times a second, and
        each look-up finds the same loss."""
        if self._reported_loss.get(partition) != message:
            lost(self._options, message)
            self._reported_loss[partition] = message

    def _joined(self, partition: TopicPartition, bounds: Offsets) -> int:
        if bounds.start > 0:
            lost(
                self._options,
                f"the new partition {shown([partition])} begins at offset {bounds.start}: records "
                "before were deleted",
            )
        return bounds.start

    # plans

    def plan(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> Planned:
        """Errors: DataLost, Unavailable, Corrupt."""
        options, cluster = self._options, self._cluster
        begins, ends = decode_offsets(start), decode_offsets(end)
        begun_ids, ids = decode_topic_ids(start), decode_topic_ids(end)
        offsets = cluster.offsets(sorted(ends))
        windows: list[OffsetWindow] = []
        for partition, stop in sorted(ends.items()):
            topic_id = ids.get(partition[0], "")
            # A partition that is not in the start joined without records: it begins where it ends.
            is_new = begun_ids.get(partition[0], topic_id) != topic_id
            begin = stop if is_new else begins.get(partition, stop)
            if begin >= stop:
                continue
            if partition not in offsets:
                lost(
                    options,
                    f"{shown([partition])} is gone, offsets {begin} to {stop} were to be read",
                )
                continue
            window = checked_window(
                options, partition, begin, stop, offsets[partition], topic_id=topic_id
            )
            if window.count > 0:
                windows.append(window)
        planned = plan_read(options, cluster, windows)
        if "storeRecords" not in self._plan_stats or planned.plan.tasks:
            self._plan_stats = {
                "readMode": planned.read_mode if windows else _mode(options, cluster),
                "storeRecords": planned.plan.store_records,
                "serviceRecords": planned.plan.service_records,
            }
        old_pins: list[int] = []
        if self._keeper is not None and self._planned != (begins, ends):
            old_pins = self._keeper.let_go()
        self._planned = begins, ends
        if planned.place.pin_id is not None:
            if self._keeper is None:
                self._keeper = PinKeeper(open_cluster(options), options.pin_ttl_ms)
            self._keeper.keep(planned.place.pin_id)
        _remove(cluster, old_pins)
        return planned

    def close(self) -> None:
        """Removes the pins; without the node, they end by themselves."""
        cluster, self._opened = self._opened, None
        keeper, self._keeper = self._keeper, None
        try:
            if keeper is not None and cluster is not None:
                _remove(cluster, keeper.let_go())
        finally:
            if keeper is not None:
                keeper.close()
            if cluster is not None:
                cluster.close()


def _remove(cluster: Cluster, pin_ids: Sequence[int]) -> None:
    try:
        for pin_id in pin_ids:
            cluster.unpin(pin_id)
    except StreamlogError as error:
        log.warning("pins %s could not be removed and end by themselves: %s", pin_ids, error)


def _ids(topics: Mapping[str, Topic]) -> dict[str, str]:
    return {name: topic.topic_id for name, topic in topics.items()}


def _mode(options: ReadOptions, cluster: Cluster) -> str:
    return "store" if reads_store(options, cluster) else "service"


def limited(
    begins: PartitionOffsets, ends: PartitionOffsets, rows_max: int
) -> dict[TopicPartition, int]:
    """Ends with at most about `rows_max` records, shared in proportion to what each partition has.

    As in Spark's Kafka source, a partition with new records gets at least one.
    """
    sizes = {key: end - begins[key] for key, end in ends.items() if end > begins[key]}
    total = sum(sizes.values())
    if total <= rows_max:
        return dict(ends)
    limited_ends = dict(ends)
    for key, size in sizes.items():
        share = rows_max * size // total
        limited_ends[key] = begins[key] + min(max(share, 1), size)
    return limited_ends
