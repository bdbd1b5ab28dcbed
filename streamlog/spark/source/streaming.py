"""A streaming query's driver side: which offsets come next, and the plan of each micro-batch.

1. A partition that appears in mid-query joins the offsets at its start, without records, and is
   read from the next micro-batch on: what Spark logs tells both ends of all that is read.
2. What is gone is DataLost when offsets are looked up, before Spark logs them, so that a restart
   with failOnDataLoss=false can go on.
3. Each plan has a pin, renewed until a plan of another micro-batch is made or the query ends: a
   micro-batch may be planned and read several times, also at once (foreachBatch).
4. With minOffsetsPerTrigger a micro-batch waits until enough records have come. Loss is found, and
   new partitions join, without that wait.
5. Offsets are of a topic by its id. One that was made anew under its name is lost, and then read
   from its start, as a new one is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
)
from streamlog.spark.plan.session import Planned, open_cluster, plan_read, reads_store
from streamlog.spark.trigger_delay import TriggerDelay


class StreamPlanner:
    """One for each run of a query; opens the cluster when first asked. Close it."""

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
        self._facts: dict[str, Any] = {}
        self._told: dict[TopicPartition, str] = {}

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
        topics = cluster.topics()
        partitions = chosen_among(options, topics)
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
        return encode_offsets(found, _ids(topics))

    def prepare_available_now(self) -> None:
        """What is there now is where the query ends."""
        known, self._target_ids = self._known()
        self._targets = {at: found.end for at, found in known.items()}

    def latest(self, start: Mapping[str, Any], rows_max: int | None) -> dict[str, Any]:
        """The end of the next micro-batch, `start` itself when there is nothing new.

        Errors: DataLost, Unavailable.
        """
        begins, begun_ids = decode_offsets(start), decode_topic_ids(start)
        known, ids = self._known()
        self._facts = self._facts or {"readMode": _mode(self._options, self._cluster)}
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
        anew = {name for name, one in begun_ids.items() if ids.get(name, one) != one}
        waiting = {name for name in ids if self._is_for_the_next_run(name, ids[name])}
        for name in sorted(anew - waiting):
            lost(
                self._options,
                f"topic {name} was deleted and made anew, and may have had records that the query "
                "had not read",
            )
        for at, found in known.items():
            if at[0] in waiting:
                if at in begins:
                    ends[at] = begins[at]
            elif at[0] in anew:
                new[at] = found.start
            elif at in begins:
                ends[at] = max(self._target(at, found.end), begins[at])
                self._check(at, begins[at], found)
            elif self._targets is None or at in self._targets:
                new[at] = self._joined(at, found)
        rows = sum(end - begins[at] for at, end in ends.items())
        if rows > 0 and not self._is_due(rows):
            ends = {at: begins[at] for at in ends}
        if rows_max is not None:
            ends = limited(begins, ends, rows_max)
        self._read = {at: found.start for at, found in known.items()}
        self._read.update({at: end for at, end in ends.items() if at[0] not in waiting})
        self._read.update(new)
        kept = {name: one for name, one in begun_ids.items() if name in waiting}
        return encode_offsets({**ends, **new}, {**ids, **kept})

    def _is_due(self, rows: int) -> bool:
        """Whether a micro-batch of `rows` is read now. With AvailableNow it always is: the records
        that it could wait for come after the query's end."""
        return self._delay is None or self._targets is not None or self._delay.is_due(rows)

    def report(self) -> dict[str, Any] | None:
        """For the query's progress, of the last `latest` and the plan before it."""
        if not self._latest:
            return None
        return encode_report(self._latest, self._read, self._facts)

    def _known(self) -> tuple[dict[TopicPartition, Offsets], dict[str, str]]:
        """And the ids of topics, from before the offsets were looked up."""
        cluster = self._cluster
        topics = cluster.topics()
        partitions = self._options.chosen.of(partition_counts(topics))
        return cluster.offsets(partitions), _ids(topics)

    def _is_for_the_next_run(self, topic: str, topic_id: str) -> bool:
        """With AvailableNow, what was made anew since the query began."""
        return self._target_ids.get(topic, topic_id) != topic_id

    def _target(self, at: TopicPartition, end: int) -> int:
        return end if self._targets is None else min(end, self._targets.get(at, 0))

    def _check(self, at: TopicPartition, begin: int, found: Offsets) -> None:
        if begin < found.start:
            self._lost_once(
                at,
                f"offsets {begin} to {found.start} of {at[0]}-{at[1]} were deleted before the "
                "query had read them",
            )
        if begin > found.end:
            self._lost_once(
                at,
                f"{at[0]}-{at[1]} was read to offset {begin} and ends at {found.end}: it was made "
                "anew, or lost records",
            )

    def _lost_once(self, at: TopicPartition, what: str) -> None:
        """Spark looks up offsets many times a second while a micro-batch waits, and each look-up
        finds the same loss: one warning is enough."""
        if self._told.get(at) != what:
            lost(self._options, what)
            self._told[at] = what

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
        begun_ids, ids = decode_topic_ids(start), decode_topic_ids(end)
        known = cluster.offsets(sorted(ends))
        windows: list[OffsetWindow] = []
        for at, stop in sorted(ends.items()):
            topic_id = ids.get(at[0], "")
            # A partition that is not in the start joined without records: it begins where it ends.
            is_new = begun_ids.get(at[0], topic_id) != topic_id
            begin = stop if is_new else begins.get(at, stop)
            if begin >= stop:
                continue
            if at not in known:
                lost(options, f"{at[0]}-{at[1]} is gone, offsets {begin} to {stop} were to be read")
                continue
            window = checked_window(options, at, begin, stop, known[at], topic_id=topic_id)
            if window.count > 0:
                windows.append(window)
        planned = plan_read(options, cluster, windows)
        if "storeRecords" not in self._facts or planned.plan.tasks:
            self._facts = {
                "readMode": planned.read_mode if windows else _mode(options, cluster),
                "storeRecords": planned.plan.store_records,
                "serviceRecords": planned.plan.service_records,
            }
        before: list[int] = []
        if self._keeper is not None and self._planned != (begins, ends):
            before = self._keeper.let_go()
        self._planned = begins, ends
        if planned.place.pin_id is not None:
            if self._keeper is None:
                self._keeper = PinKeeper(open_cluster(options), options.pin_ttl_ms)
            self._keeper.keep(planned.place.pin_id)
        for pin_id in before:
            cluster.unpin(pin_id)
        return planned

    def close(self) -> None:
        """Lets go of the pin. Errors: those of unpinning."""
        cluster, self._opened = self._opened, None
        keeper, self._keeper = self._keeper, None
        try:
            if keeper is not None and cluster is not None:
                for pin_id in keeper.let_go():
                    cluster.unpin(pin_id)
        finally:
            if keeper is not None:
                keeper.close()
            if cluster is not None:
                cluster.close()


def _ids(topics: Mapping[str, Topic]) -> dict[str, str]:
    return {name: one.topic_id for name, one in topics.items()}


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
