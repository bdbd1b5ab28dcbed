"""fsck of the engine's own values: topics, their partitions, and the streams of those."""

from __future__ import annotations

from streamlog.engine.kv_client import check_namespace
from streamlog.errors import StreamlogError
from streamlog.log.api.log_factory import LogKind
from streamlog.log.topics.topic_record import (
    PARTITION_NAMESPACE,
    TOPIC_NAMESPACE,
    TopicRecord,
    TopicState,
    decode_partition,
    decode_topic,
)
from streamlog.repair.findings import Finding, FindingKind, RepairReport, Severity
from streamlog.repair.fsck.keys import shown
from streamlog.repair.view import MetadataView

VALUE_VERSION = 1


async def check_topics(view: MetadataView, report: RepairReport) -> None:
    """Errors: MetadataUnavailable."""
    topics: dict[str, TopicRecord] = {}
    partitions: dict[tuple[str, int], int] = {}
    base = view.prefix + b"u/"
    async for kv in view.keys(base):
        report.counts["values"] += 1
        namespace, _, name = kv.key[len(base) :].partition(b"/")
        try:
            check_namespace(namespace.decode("ascii", "replace"))
            if kv.value[:1] != bytes([VALUE_VERSION]):
                raise ValueError(f"its first byte is {kv.value[:1]!r}")
            if namespace == TOPIC_NAMESPACE.encode():
                topics[name.decode()] = decode_topic(name.decode(), kv.value[1:])
            elif namespace == PARTITION_NAMESPACE.encode():
                topic, _, number = name.decode().rpartition("/")
                partitions[topic, int(number)] = decode_partition(name, kv.value[1:])
        except (StreamlogError, ValueError) as error:
            report.add(
                Finding(
                    FindingKind.KEY_UNREADABLE,
                    Severity.ERROR,
                    f"the value of {shown(kv.key)} cannot be read: {error}",
                    "write it again, or restore the metadata from a backup",
                    key=shown(kv.key),
                )
            )
    report.counts["topics"] = len(topics)
    report.counts["partitions"] = len(partitions)
    local = sorted(name for name, one in topics.items() if one.log_kind is not LogKind.SHARED)
    if local:
        report.add(
            Finding(
                FindingKind.TOPIC,
                Severity.NOTE,
                f"{len(local)} topics lie in a node's log folder and are not looked at: "
                f"{', '.join(local[:10])}{' and others' if len(local) > 10 else ''}",
            )
        )
    for topic, record in sorted(topics.items()):
        for index in range(record.partitions):
            if (topic, index) not in partitions and record.state is TopicState.LIVE:
                report.add(_wrong(f"partition {index} of topic {topic} has no key"))
    for (topic, index), stream_id in sorted(partitions.items()):
        owner = topics.get(topic)
        if owner is None:
            report.add(
                _wrong(f"partition {index} is of topic {topic}, which there is not", Severity.NOTE)
            )
        elif owner.log_kind is not LogKind.SHARED:
            continue
        elif stream_id not in view.state.fold.info and owner.state is TopicState.LIVE:
            report.add(
                _wrong(
                    f"partition {index} of topic {topic} lies on stream {stream_id}, which there "
                    "is not"
                )
            )


def _wrong(detail: str, severity: Severity = Severity.ERROR) -> Finding:
    advice = "rebuild the metadata with streamlog recover" if severity > Severity.NOTE else ""
    return Finding(FindingKind.TOPIC, severity, detail, advice)
