"""The parts of a shared log that an append passes, in the order in which it does."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.log.api.environment import LogEnvironment
from streamlog.log.partition.ack_queue import AckQueue
from streamlog.log.partition.lifecycle import LogLifecycle
from streamlog.log.partition.view.visibility import Visibility
from streamlog.log.shared.durable.meta_jobs import MetaJobs
from streamlog.log.shared.state.recovery import OpenStreams
from streamlog.log.shared.state.segment import SharedLogSegment
from streamlog.log.shared.state.tail import LogTail
from streamlog.model.partition import TopicPartition


@dataclass(frozen=True, slots=True)
class LogParts:
    """An append goes one way: LogWriter → stream → `acks` → `visibility` → `jobs`.

    Failures of any part go to `lifecycle`, which every part asks before it takes work.
    """

    partition: TopicPartition
    streams: OpenStreams
    tail: LogTail
    environment: LogEnvironment
    lifecycle: LogLifecycle
    jobs: MetaJobs
    visibility: Visibility[SharedLogSegment]
    acks: AckQueue[SharedLogSegment]
