"""How far topics are exported: what the manifest of a folder and the snapshots of a table note."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from streamlog.model.located import OffsetWindow
from streamlog.reading.topics import Topic, TopicPartition


@dataclass(frozen=True, slots=True)
class ExportedOffsets:
    """The next offset of each exported partition, and the ids of their topics.

    A topic that was deleted and recreated has another id, and its records are not exported. Older
    releases noted no ids; their topics are known by name alone until the next round.
    """

    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    def recreated(self, topics: Mapping[str, Topic]) -> Set[str]:
        """The names that other topics have now."""
        return {
            name
            for name, topic_id in self.topic_ids.items()
            if name in topics and topics[name].topic_id != topic_id
        }

    def after(self, windows: Iterable[OffsetWindow]) -> ExportedOffsets:
        """The offsets once `windows` are exported; nothing stays of an earlier topic of a name."""
        ids = dict(self.topic_ids)
        offsets = dict(self.offsets)
        for window in windows:
            name, topic_id = window.topic, window.topic_id
            if ids.get(name, topic_id) != topic_id:
                offsets = {key: offset for key, offset in offsets.items() if key[0] != name}
            ids[name] = topic_id
            offsets[name, window.partition] = window.end
        return ExportedOffsets(offsets, ids)
