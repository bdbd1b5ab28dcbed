"""The topics that meta streams tell of, and which of several with one name is right. Pure.

1. Of two topics with one name either the older one was deleted and created again, or the newer one
   is left over from an attempt to create the topic that came second. An attempt leaves no records,
   and perhaps not all of its partitions. So the topic with records is right, and of several the one
   that was made last. If a topic without records is wrongly taken for an attempt, its settings are
   lost and a deleted topic comes back; the opposite mistake would lose records.
2. A topic was made after another one if its newest segment was opened later: the older topic was
   deleted by then. The ids of streams do not tell, because each node takes them from blocks of its
   own. The clocks of two nodes may disagree by more than lay between a deletion and the creation,
   so the choice between two topics with records is reported.
3. Two calls that add partitions to a topic at once make the same partitions, and the one that comes
   second removes its own. The same rule chooses. Only one of them can have records, so what the
   other one has is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from streamlog.log.shared.meta.codec import Description
from streamlog.log.shared.meta.state import MetaState
from streamlog.repair.findings import Severity
from streamlog.repair.recover.partition_streams import DATA, reached
from streamlog.repair.recover.recovered import RecoveredStream

Told = tuple[str, Severity]
"""A detail for a finding, and how bad it is."""


@dataclass(slots=True)
class PartitionOfStreams:
    meta_stream_id: int
    described: Description
    state: MetaState

    @property
    def made(self) -> tuple[int, int]:
        """Rises from one life of a partition to the next: when its newest segment was opened."""
        active = self.state.active
        return (-1 if active is None else active.created_ms), self.meta_stream_id

    def has_records(self, streams: Mapping[int, RecoveredStream]) -> bool:
        """Whether there ever was a record, even a deleted or lost one."""
        data = streams.get(self.described.data_stream_id)
        return (
            (data is not None and data.end > 0)
            or bool(self.state.sealed)
            or self.state.log_start_offset > 0
            or reached(self.state, DATA, self.described.data_stream_id) > 0
        )


@dataclass(slots=True)
class TopicOfStreams:
    topic_id: UUID
    partitions: dict[int, PartitionOfStreams] = field(default_factory=dict)

    @property
    def made(self) -> tuple[int, int]:
        return max(partition.made for partition in self.partitions.values())

    def has_records(self, streams: Mapping[int, RecoveredStream]) -> bool:
        return any(one.has_records(streams) for one in self.partitions.values())


def topics_by_name(
    partitions: Sequence[PartitionOfStreams], streams: Mapping[int, RecoveredStream]
) -> tuple[dict[str, list[TopicOfStreams]], list[Told]]:
    """Topics whose partitions each have one meta stream; and what became of the other ones."""
    topics: dict[tuple[str, UUID], TopicOfStreams] = {}
    told: list[Told] = []
    for partition in partitions:
        described = partition.described
        topic = topics.setdefault(
            (described.topic, described.topic_id), TopicOfStreams(described.topic_id)
        )
        right, other = partition, topic.partitions.get(described.partition)
        if other is not None:
            right, other = sorted(
                (partition, other), key=lambda one: (one.has_records(streams), one.made)
            )[::-1]
            told.append(_of_second(right, other, streams))
        topic.partitions[described.partition] = right
    by_name: dict[str, list[TopicOfStreams]] = {}
    for (name, _), topic in topics.items():
        by_name.setdefault(name, []).append(topic)
    return by_name, told


def _of_second(
    right: PartitionOfStreams, other: PartitionOfStreams, streams: Mapping[int, RecoveredStream]
) -> Told:
    where = f"partition {other.described.partition} of topic {other.described.topic}"
    if not other.has_records(streams):
        return (
            f"{where} was made more than once; meta stream {right.meta_stream_id} is taken, and "
            f"{other.meta_stream_id}, which has no records, is left without a name",
            Severity.NOTE,
        )
    return (
        f"{where} has two meta streams with records; {right.meta_stream_id}, whose newest segment "
        f"was opened last, is taken, and the records of {other.meta_stream_id} are left without a "
        "name",
        Severity.ERROR,
    )


def right_topic(
    name: str, topics: Collection[TopicOfStreams], streams: Mapping[int, RecoveredStream]
) -> tuple[TopicOfStreams, list[Told]]:
    """The topic that had this name last, as far as the bucket tells; and why not the others."""
    right = max(topics, key=lambda topic: (topic.has_records(streams), topic.made))
    told: list[Told] = []
    for topic in topics:
        if topic is right:
            continue
        left = (
            f"{len(topic.partitions)} partitions of topic id {topic.topic_id} are left without a "
            "name"
        )
        if topic.has_records(streams):
            told.append(
                (
                    f"topic {name} was deleted and made again: topic id {right.topic_id} is taken, "
                    f"because its newest segment was opened last, by the clocks of the nodes; "
                    f"{left}",
                    Severity.WARNING,
                )
            )
        else:
            told.append(
                (
                    f"topic {name} was made more than once, and one of them has no records; {left}",
                    Severity.NOTE,
                )
            )
    return right, told
