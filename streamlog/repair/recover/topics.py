"""Recovery of topics: the first record of a meta stream names its partition.

1. The tags of a meta stream tell its role, if a checkpoint has them; else its first bytes do.
2. Streams that a partition names and that have no object were empty, or are lost (6). Recovery
   creates them again.
3. Of two topics with one name, and of two streams for one partition, one is right
   (`found_topics`).
4. A meta stream begins with its last snapshot, if what is left before it does not stand on its own.
   Where footers do not tell which part of it is the live one, the last with a whole snapshot is: an
   entry is written when those before it are stored, and a trim goes to a whole snapshot.
5. Without the checkpoints that told of trims, the meta stream tells which part of the partition's
   other streams is the live one, if any: it says how far each was trimmed at most, and how far it
   had come.
6. What it says, and no object has, is lost. Data of which nothing is left ends where it was trimmed
   to, so that a write-ahead log that still has the records finds their place. An index of which
   nothing is left ends where it had come to, because segments name offsets of it.
7. A topic has the partitions that its meta streams name, and those that tags in the checkpoint
   name. Where there is no checkpoint, nothing tells of a topic's last partitions when all of their
   objects are lost.
8. A partition whose meta stream cannot be read has no name. Its streams lose the tag by which a
   node would take them for orphans and delete them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from streamlog.errors import Corrupt, ObjectNotFound, UnsupportedVersion
from streamlog.log.shared.meta.codec import decode_entry, is_entry
from streamlog.log.stream_tags import CLEANED_ROLES, belongs_to_log
from streamlog.log.topics.topic_record import (
    TopicRecord,
    encode_partition,
    encode_topic,
    partition_key,
    topic_key,
)
from streamlog.model.partition import TopicPartition
from streamlog.objectstore.interface import ObjectStore
from streamlog.repair.findings import Finding, FindingKind, Progress, Range, RepairReport, Severity
from streamlog.repair.in_flight import in_flight
from streamlog.repair.recover.found_topics import (
    PartitionOfStreams,
    TopicOfStreams,
    right_topic,
    topics_by_name,
)
from streamlog.repair.recover.meta_replay import MetaReplay
from streamlog.repair.recover.partition_streams import DATA, by_role, reached, trimmed_to
from streamlog.repair.recover.recovered import Recovered, RecoveredStream
from streamlog.repair.recover.resolve import Piece
from streamlog.repair.recover.stream_findings import PUT_BACK
from streamlog.repair.recover.stream_reader import read_batches
from streamlog.repair.recover.streams import StreamRecovery
from streamlog.runtime.buffers import join
from streamlog.runtime.offload import Offload

PART_STREAMS = 256
META_ROLE = "meta"
ATTEMPT = "recovered"
DATA_ROLES = (DATA, "cleaned_data")
OFFSETS_AGAIN = ", and its offsets are given out again"


class TopicRecovery:
    def __init__(
        self,
        store: ObjectStore,
        offload: Offload,
        recovered: Recovered,
        streams: StreamRecovery,
        report: RepairReport,
        progress: Progress,
    ) -> None:
        self._store = store
        self._offload = offload
        self._recovered = recovered
        self._streams = streams
        self._report = report
        self._progress = progress

    async def run(self) -> None:
        """Fills in the values, and creates the streams that only meta streams name.

        Errors: StoreUnavailable.
        """
        partitions: list[PartitionOfStreams] = []
        candidates = [
            stream_id
            for stream_id, stream in sorted(self._recovered.streams.items())
            if (not stream.tags or stream.tags.get("role") == META_ROLE) and stream.pieces
        ]
        for low in range(0, len(candidates), PART_STREAMS):
            part = candidates[low : low + PART_STREAMS]
            results = await in_flight(part, self._partition)
            partitions += [partition for partition in results if partition is not None]
            self._progress("looking for topics", low + len(part), len(candidates))
        for partition in partitions:
            self._place(partition)
        streams = self._recovered.streams
        topics, told = topics_by_name(partitions, streams)
        one_each = [
            one
            for of_name in topics.values()
            for topic in of_name
            for one in topic.partitions.values()
        ]
        attempts = [one for one in partitions if not one.has_records(streams)]
        self._keep_nameless(candidates, [*one_each, *attempts])
        ends = self._partitions_by_tags()
        for name, of_name in sorted(topics.items()):
            right, why = right_topic(name, of_name, streams)
            told += why
            self._take(name, right, ends.get((name, str(right.topic_id)), 0))
        for detail, severity in told:
            self._tell(detail, severity)
        self._take_producer_ids(partitions)

    def _keep_nameless(
        self, meta_streams: Iterable[int], sorted_out: Iterable[PartitionOfStreams]
    ) -> None:
        """Keeps the streams of partitions that are not `sorted_out` from being deleted as orphans:
        of damage nobody knows how much can be repaired."""
        streams = self._recovered.streams
        done = {one.meta_stream_id for one in sorted_out}
        nameless = {
            _made_together(streams[stream_id].tags)
            for stream_id in meta_streams
            if stream_id not in done and belongs_to_log(streams[stream_id].tags)
        }
        for stream_id, stream in sorted(streams.items()):
            tags = stream.tags
            if not belongs_to_log(tags) or _made_together(tags) not in nameless:
                continue
            del tags["attempt"]
            if tags["role"] in DATA_ROLES and stream.pieces:
                lost = Range(stream_id, stream.start, stream.end)
                self._tell(
                    f"partition {tags.get('partition')} of topic {tags.get('topic')} is left "
                    f"without a name: its {tags['role']}, {lost}, can be read as a stream only",
                    lost=lost,
                )

    def _partitions_by_tags(self) -> dict[tuple[str, str], int]:
        """Topic and its id → how many partitions the checkpoint's tags tell of at least."""
        ends: dict[tuple[str, str], int] = {}
        for stream in self._recovered.streams.values():
            tags = stream.tags
            number = tags.get("partition", "")
            if tags.get("role") == META_ROLE and number.isdigit():
                topic = tags.get("topic", ""), tags.get("topic_id", "")
                ends[topic] = max(ends.get(topic, 0), int(number) + 1)
        return ends

    async def _partition(self, stream_id: int) -> PartitionOfStreams | None:
        replay = await self._live_part(stream_id)
        if replay is None:
            return None
        stream = self._recovered.streams[stream_id]
        if replay.state.description is None:
            self._tell(
                f"meta stream {stream_id} names no partition: its beginning is lost",
                # Of a topic that was deleted there may be so much left.
                Severity.ERROR if stream.tags else Severity.WARNING,
            )
            return None
        if replay.has_remnant and replay.snapshot_offset is not None:
            stream.begin_at(replay.snapshot_offset)
        return PartitionOfStreams(stream_id, replay.state.description, replay.state)

    async def _live_part(self, stream_id: int) -> MetaReplay | None:
        """The fold of the stream, if it is a meta stream; of several parts the live one is chosen,
        or told that there is none."""
        parts = self._streams.parts(stream_id)
        if parts is None or not parts.is_guess:
            return await self._replayed(stream_id, self._recovered.streams[stream_id].pieces)
        is_meta_stream = False
        for index in range(len(parts.runs) - 1, parts.first - 1, -1):
            replay = await self._replayed(stream_id, parts.runs[index])
            if replay is not None and replay.stands_alone:
                parts.choose(index)
                self._streams.chosen(stream_id)
                return replay
            is_meta_stream |= replay is not None
        if is_meta_stream:
            self._tell(f"meta stream {stream_id}: no part of it begins with a whole snapshot")
        return None

    async def _replayed(self, stream_id: int, pieces: Sequence[Piece]) -> MetaReplay | None:
        """None, if this is no meta stream, or cannot be read, which is told."""
        recovered, replay, is_first = self._recovered, MetaReplay(), True
        try:
            async for batch in read_batches(
                self._store, self._offload, stream_id, pieces, recovered.objects
            ):
                data = join(batch.parts)
                if is_first and not is_entry(data):
                    return None
                is_first = False
                replay.add(batch.base_offset, decode_entry(data))
            replay.check()
        except (Corrupt, UnsupportedVersion, ObjectNotFound) as error:
            if recovered.streams[stream_id].tags or not is_first:
                self._tell(f"meta stream {stream_id} cannot be read: {error}")
            elif not isinstance(error, ObjectNotFound):
                # What lies in objects that are gone is told of any stream.
                self._tell(
                    f"the first record of stream {stream_id} cannot be read; if this is a meta "
                    f"stream, its partition is lost: {error}"
                )
            return None
        return None if is_first else replay

    def _place(self, one: PartitionOfStreams) -> None:
        """Chooses the live parts of the partition's other streams."""
        for role, stream_id in by_role(one.state).items():
            parts = self._streams.parts(stream_id)
            if parts is None:
                continue
            come_to, trimmed = reached(one.state, role, stream_id), trimmed_to(one.state, stream_id)
            if trimmed is None and role in CLEANED_ROLES and parts.is_guess:
                # No segment is left on it. What a cleaning under way may have written is last.
                trimmed = parts.runs[-1][0].start
            parts.trimmed_to = trimmed
            is_doubtful = parts.is_guess or parts.end < come_to
            if trimmed is not None and is_doubtful and self._streams.trims_are_lost:
                parts.choose_by(trimmed, come_to)
                self._streams.chosen(stream_id)

    def _take(self, name: str, topic: TopicOfStreams, partitions_min: int) -> None:
        """`partitions_min`: how many the topic has, even if meta streams name fewer."""
        values, count = self._recovered.values, max(max(topic.partitions) + 1, partitions_min)
        configs = topic.partitions[min(topic.partitions)].described.configs
        key = topic_key(name)
        values[key.namespace, key.name] = encode_topic(TopicRecord(topic.topic_id, count, configs))
        for number, one in sorted(topic.partitions.items()):
            key = partition_key(TopicPartition(name, number))
            values[key.namespace, key.name] = encode_partition(one.meta_stream_id)
            self._streams.written_in_order(one.meta_stream_id)
            self._tell_losses(one)
            self._complete(one)
        missing = [number for number in range(count) if number not in topic.partitions]
        if missing:
            self._tell(
                f"topic {name} has {count} partitions, of which {missing} are lost: no meta "
                "stream tells of them"
            )
        self._report.counts["topics"] += 1
        self._report.counts["partitions"] += len(topic.partitions)

    def _tell_losses(self, one: PartitionOfStreams) -> None:
        """Reports what the meta stream says of the partition's other streams, and they lack."""
        described = one.described
        partition = f"partition {described.partition} of topic {described.topic}"
        for role, stream_id in by_role(one.state).items():
            come_to = reached(one.state, role, stream_id)
            stream, parts = self._recovered.streams.get(stream_id), self._streams.parts(stream_id)
            trimmed = trimmed_to(one.state, stream_id) or 0
            end = trimmed if stream is None else stream.end
            if end < come_to:
                what = "ends at" if stream is not None else "nothing of it is left behind"
                self._tell(
                    f"{partition}: its {role} stream {stream_id} had come to {come_to}, and {what} "
                    f"{end}: what was stored between them is lost"
                    + ("" if stream is None and role != DATA else OFFSETS_AGAIN),
                    lost=Range(stream_id, end, come_to),
                )
            if stream is None or parts is None or parts.untrimmed_from is None:
                continue
            # With its trims known a gap that nothing follows for certain was never acknowledged.
            start = parts.untrimmed_from
            if self._streams.trims_are_lost or parts.before or start < come_to:
                self._tell(
                    f"{partition}: its {role} stream {stream_id} was trimmed to {start} at most, "
                    f"and starts at {stream.start}: what was stored between them is lost",
                    lost=Range(stream_id, start, stream.start),
                )

    def _complete(self, one: PartitionOfStreams) -> None:
        described, streams = one.described, self._recovered.streams
        for role, stream_id in {META_ROLE: one.meta_stream_id, **by_role(one.state)}.items():
            stream = streams.get(stream_id)
            if stream is None:
                end, trimmed = reached(one.state, role, stream_id), trimmed_to(one.state, stream_id)
                if role == DATA and trimmed is not None:
                    end = trimmed
                meta = streams[one.meta_stream_id]
                stream = RecoveredStream(end, end, meta.epoch, meta.holder)
                streams[stream_id] = stream
                self._recovered.stream_id_max = max(self._recovered.stream_id_max, stream_id)
                self._report.counts["streams_made_again"] += 1
            # That of its meta stream: with another one the stream would be an orphan.
            attempt = streams[one.meta_stream_id].tags.get("attempt", ATTEMPT)
            if not stream.tags:
                stream.tags = {
                    "topic": described.topic,
                    "topic_id": str(described.topic_id),
                    "partition": str(described.partition),
                    "role": role,
                }
            # An earlier recovery may have left the partition without a name.
            stream.tags.setdefault("attempt", attempt)

    def _take_producer_ids(self, partitions: Sequence[PartitionOfStreams]) -> None:
        recovered = self._recovered
        for partition in partitions:
            if partition.state.checkpoint is not None:
                ids = (producer.producer_id for producer in partition.state.checkpoint.producers)
                recovered.producer_id_max = max(recovered.producer_id_max, *ids, 0)

    def _tell(
        self, detail: str, severity: Severity = Severity.ERROR, *, lost: Range | None = None
    ) -> None:
        finding = Finding(FindingKind.TOPIC, severity, detail)
        if lost is not None:
            finding = replace(finding, advice=PUT_BACK, stream_id=lost.stream_id, lost=(lost,))
        self._report.add(finding)


def _made_together(tags: Mapping[str, str]) -> tuple[str | None, ...]:
    """The streams of one try to create a partition have this in common."""
    return tuple(tags.get(name) for name in ("topic", "topic_id", "partition", "attempt"))
