"""Copies records from a consumer to stdout, and reports why none come.

A consumer retries for ever and silently. While no records come, `TopicProbe` asks the node itself,
so that a dead node, a deleted topic and a stuck read are reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamlog.cli.output import SILENCE_TOLD_AFTER_S, BytesOut, note
from streamlog.cli.records.record_format import Formatter, value_line
from streamlog.cli.standard_streams import check_reader
from streamlog.client import Admin, Consumer, Tls
from streamlog.errors import (
    CorruptMessage,
    InvalidRecord,
    OffsetOutOfRange,
    StreamlogError,
    Unavailable,
    UnknownTopicOrPartition,
)

if TYPE_CHECKING:
    from streamlog.cli.progress import RecordProgress
    from streamlog.client import FetchedBatch, OffsetReset
    from streamlog.v1.admin_pb2 import PartitionDescription

TopicPartition = tuple[str, int]

OFFSET_MAX = (1 << 63) - 1
POLL_S = 0.5
"""How long a poll waits at the end of a topic, and so how soon Ctrl-C is seen."""
PROBE_TIMEOUT_MS = 1000
PROBE_EVERY_S = 2.0
PARTITIONS_PER_PROBE_S = 500
"""A topic of many partitions is described less often: the answer names each of them."""
REFRESH_EVERY_S = 30.0

now_s = time.monotonic


class TopicProbe:
    """Asks the node for the topic's description, at most every few seconds.

    `ends` are the partitions' ends at the last answer: what a reader gets, who `is_committed` or
    not.
    """

    def __init__(
        self,
        server: str,
        topic: str,
        topic_id: str,
        timeout_s: float,
        tls: Tls | None = None,
        *,
        is_committed: bool = False,
    ) -> None:
        self._server = server
        self._topic = topic
        self._topic_id = topic_id
        self._timeout_s = timeout_s
        self._client = Admin(server, timeout_ms=PROBE_TIMEOUT_MS, tls=tls)
        self._asked_at = self._answered_at = now_s()
        self._every_s = PROBE_EVERY_S
        self._is_told = False
        self._is_committed = is_committed
        self._holding_back: int | None = None
        """The partition whose open transaction was told of."""
        self.ends: dict[TopicPartition, int] = {}

    def close(self) -> None:
        self._client.close()

    def is_due(self, every_s: float = 0.0) -> bool:
        return now_s() - self._asked_at >= max(self._every_s, every_s)

    def heard(self) -> None:
        """Records came, so the node answers."""
        self._answered_at = now_s()
        self._is_told = False

    def ask(self) -> None:
        """Errors: Unavailable where the node has not answered for the time limit;
        UnknownTopicOrPartition where the topic does not exist any more."""
        self._asked_at = now_s()
        try:
            description = self._client.describe_topic(self._topic)
        except Unavailable as error:
            silent_s = now_s() - self._answered_at
            if silent_s >= self._timeout_s:
                raise Unavailable(
                    f"{self._server} has not answered for {silent_s:.0f} s: {error.message}"
                ) from error
            if not self._is_told:
                self._is_told = True
                left_s = self._timeout_s - silent_s
                note(f"{self._server} does not answer; trying for {left_s:.0f} s (--timeout)")
            return
        self.heard()
        if self._topic_id and description.topic_id != self._topic_id:
            raise UnknownTopicOrPartition(
                f"topic {self._topic} was deleted and created anew while it was read; run the "
                "command again to read the new one",
                topic=self._topic,
            )
        self.ends = {
            (self._topic, partition.partition): (
                partition.last_stable_offset if self._is_committed else partition.high_watermark
            )
            for partition in description.partitions
        }
        self._every_s = max(PROBE_EVERY_S, len(self.ends) / PARTITIONS_PER_PROBE_S)
        if self._is_committed:
            self._tell_held_back(description.partitions)

    def _tell_held_back(self, partitions: Sequence[PartitionDescription]) -> None:
        """Says that an open transaction keeps records back, once as long as it is the same one."""
        held = next(
            (one for one in partitions if one.last_stable_offset < one.high_watermark), None
        )
        number = None if held is None else held.partition
        if held is not None and number != self._holding_back:
            count = held.high_watermark - held.last_stable_offset
            note(
                f"an open transaction holds back {count} offsets of {self._topic}-{number}; "
                "`streamlog txn list --state ongoing` shows it"
            )
        self._holding_back = number


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """When a copy ends. `ends` None: never; `new_partitions`: it reads added partitions, too."""

    ends: dict[TopicPartition, int] | None
    count: int | None
    timeout_s: float
    new_partitions: bool


class RecordCopy:
    """Moves records from a consumer to stdout until the ends or the count are reached."""

    def __init__(
        self,
        consumer: Consumer,
        probe: TopicProbe,
        formatter: Formatter,
        limits: CopyLimits,
        progress: RecordProgress,
        waiting: Callable[[], None],
    ) -> None:
        """`waiting` is called whenever no record came for a moment, in a copy without ends."""
        self._consumer = consumer
        self._probe = probe
        self._formatter = formatter
        self._limits = limits
        self._progress = progress
        self._waiting = waiting
        self._room = limits.count
        self._out = BytesOut()
        self._unfinished: set[TopicPartition] | None = None
        self._came_at = now_s()
        self._behind: dict[TopicPartition, int] = {}
        self.records = 0
        self.size_bytes = 0

    def run(self, positions: dict[TopicPartition, int]) -> None:
        """Copies until the limits are reached.

        Records read before an error are written. Ctrl-C writes nothing more: it may come between
        a write and the note that it was done, and a second write would double these records.
        """
        ends = self._limits.ends
        if ends is not None:
            self._unfinished = {tp for tp, end in ends.items() if positions[tp] < end}
        self._came_at = now_s()
        try:
            while self._room != 0 and (self._unfinished is None or self._unfinished):
                self._step()
        except Exception:
            self._out.flush()
            raise
        finally:
            self._progress.done(self.records, self.size_bytes)
            self._tell_skipped()

    def _step(self) -> None:
        try:
            batches = self._consumer.poll_batches(POLL_S)
        except (CorruptMessage, InvalidRecord) as error:
            raise unreadable(error, "consume") from error
        self._tell_skipped()
        for batch in batches:
            if self._room == 0:
                # What follows is not wanted, and so need not be decodable.
                break
            tp = (batch.topic, batch.partition)
            if self._unfinished is not None and tp not in self._unfinished:
                continue
            self._write(batch, tp)
            if self._unfinished is not None and batch.next_offset >= self._ends_at(tp):
                self._unfinished.discard(tp)
        self._out.flush()
        self._progress.show(self.records, self.size_bytes)
        # Markers and what was aborted stand behind the last batch, in the same answer.
        self._drop_passed((batch.topic, batch.partition) for batch in batches)
        if batches:
            self._came_at = now_s()
            self._behind = {}
            self._probe.heard()
        else:
            check_reader()
            self._drop_passed(list(self._unfinished or ()))
            if self._unfinished is None:
                self._waiting()
        if self._probe.is_due(REFRESH_EVERY_S if batches else 0.0):
            self._probe.ask()
            self._add_new_partitions()
            self._check_progress()

    def _tell_skipped(self) -> None:
        for reset in self._consumer.take_offset_resets():
            note(reset_note(reset))

    def _drop_passed(self, partitions: Iterable[TopicPartition]) -> None:
        """Finishes partitions that hold nothing for the reader up to their end, such as deleted
        records."""
        for tp in set(partitions) & (self._unfinished or set()):
            if self._consumer.position(*tp) >= self._ends_at(tp):
                assert self._unfinished is not None
                self._unfinished.discard(tp)

    def _add_new_partitions(self) -> None:
        if not self._limits.new_partitions:
            return
        assigned = self._consumer.assignment()
        new = sorted(self._probe.ends.keys() - set(assigned))
        if new:
            self._consumer.assign([*assigned, *new])
            for tp in new:
                self._consumer.seek(*tp, 0)
            note(f"{new[0][0]} has {len(new)} more partitions; they are read, too")

    def _check_progress(self) -> None:
        """Errors: Unavailable where the node has records and returns none of them in time."""
        silent_s = now_s() - self._came_at
        ends = self._probe.ends if self._limits.ends is None else self._limits.ends
        wanted = self._consumer.assignment() if self._unfinished is None else self._unfinished
        if silent_s < self._limits.timeout_s / 2:
            return
        behind = {}
        for tp in wanted:
            position = self._consumer.position(*tp)
            if position < ends.get(tp, 0):
                behind[tp] = position
        stuck = {
            tp: position for tp, position in behind.items() if self._behind.get(tp) == position
        }
        if stuck and silent_s >= self._limits.timeout_s:
            (topic, partition), position = min(stuck.items())
            raise Unavailable(
                f"{topic}-{partition}: no record came from offset {position} for {silent_s:.0f} s, "
                f"though there are some up to {ends[topic, partition]}; the node answers, so "
                "`streamlog status` may show an alarm"
            )
        self._behind = behind
        if not behind:
            self._came_at = now_s()

    def _ends_at(self, tp: TopicPartition) -> int:
        return OFFSET_MAX if self._limits.ends is None else self._limits.ends[tp]

    def _write(self, batch: FetchedBatch, tp: TopicPartition) -> None:
        try:
            self._write_records(batch, tp)
        except (CorruptMessage, InvalidRecord) as error:
            raise _unreadable(error, batch) from error

    def _write_records(self, batch: FetchedBatch, tp: TopicPartition) -> None:
        """Writes whole batches at once where the format allows it, else record by record."""
        end = self._ends_at(tp)
        fits = self._room is None or batch.record_count <= self._room
        if self._formatter is value_line and fits and batch.next_offset <= end:
            values = batch.values()
            self._took(len(values), joined_lines(values))
            return
        records = [record for record in batch.records() if record.offset < end]
        records = records[: self._room]
        self._took(len(records), b"".join([self._formatter(record) for record in records]))

    def _took(self, count: int, data: bytes) -> None:
        self._out.write(data)
        self.records += count
        self.size_bytes += len(data)
        if self._room is not None:
            self._room -= count


def reset_note(reset: OffsetReset) -> str:
    """A line for people about offsets that were not read."""
    place = f"{reset.topic}-{reset.partition}"
    if reset.is_deleted:
        return (
            f"{place}: skipped {reset.skipped} offsets from {reset.from_offset} on: records below "
            f"offset {reset.to_offset} were deleted while they were read"
        )
    return (
        f"{place}: skipped {reset.skipped} offsets: the log ends at {reset.log_end_offset}, before "
        f"offset {reset.from_offset}; reading goes on at {reset.to_offset}"
    )


def batches_until(
    consumer: Consumer, ends: dict[TopicPartition, int], timeout_s: float
) -> Iterator[FetchedBatch]:
    """Batches in order within each partition until all `ends` (exclusive) are reached, and none
    that begins behind its partition's.

    Partitions whose records are deleted meanwhile count as reached.
    Errors: Unavailable where none comes for `timeout_s`; those of `Consumer.poll_batches`.
    """
    left = {tp for tp, end in ends.items() if consumer.position(*tp) < end}
    came_at, is_told = now_s(), False
    while left:
        batches = consumer.poll_batches(min(POLL_S, timeout_s))
        for batch in batches:
            if batch.base_offset < ends.get((batch.topic, batch.partition), 0):
                yield batch
        came = {(batch.topic, batch.partition): batch.next_offset for batch in batches}
        reached = {tp for tp in left if came.get(tp, 0) >= ends[tp]}
        if batches:
            came_at, is_told = now_s(), False
        else:
            reached = {tp for tp in left if consumer.position(*tp) >= ends[tp]}
        left -= reached
        silent_s = now_s() - came_at
        if left and silent_s >= timeout_s:
            topic, partition = min(left)
            raise Unavailable(
                f"no record of {topic}-{partition} came within {timeout_s:g} s, though there "
                f"are some up to offset {ends[topic, partition]}; look at `streamlog status`, "
                "or give more time with --timeout"
            )
        if left and silent_s >= SILENCE_TOLD_AFTER_S and not is_told:
            is_told = True
            note(f"no record has come for {silent_s:.0f} s; waiting up to {timeout_s:g} s")


def out_of_range(tp: TopicPartition, offset: int, begin: int, end: int) -> OffsetOutOfRange:
    """The partition holds offsets `begin` (inclusive) to `end` (exclusive)."""
    return OffsetOutOfRange(
        f"{tp[0]}-{tp[1]} holds offsets {begin} to {end} (exclusive), not {offset}",
        offset=offset,
        start_offset=begin,
        end_offset=end,
    )


def unreadable(error: StreamlogError, command: str) -> StreamlogError:
    """The error of an undecodable answer, with the command that goes on behind it."""
    fields = error.fields
    if "next_offset" not in fields:
        return error
    topic, partition = fields["topic"], fields["partition"]
    return type(error)(
        f"{error.message}: streamlog {command} {topic} --partition {partition} --from "
        f"{fields['next_offset']}",
        **fields,
    )


def _unreadable(error: StreamlogError, batch: FetchedBatch) -> StreamlogError:
    topic, partition = batch.topic, batch.partition
    return type(error)(
        f"{topic}-{partition}: the batch at offset {batch.base_offset} cannot be read: "
        f"{error.message}; the records before it are written. Go on behind it with: streamlog "
        f"consume {topic} --partition {partition} --from {batch.next_offset}",
        **error.fields,
    )


def joined_lines(values: Sequence[bytes | None]) -> bytes:
    return b"\n".join([value or b"" for value in values]) + b"\n" if values else b""
