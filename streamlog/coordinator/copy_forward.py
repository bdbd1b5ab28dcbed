"""Bounds the replay of a coordinator's log: live records are appended again, then the log's start
is raised to where that began.

Source: this is what a log cleaner does for Kafka's coordinators.
"""

from __future__ import annotations

import logging

from streamlog.coordinator.partition import CoordinatorPartition
from streamlog.coordinator.state_log import BATCH_BYTES
from streamlog.errors import NotCoordinator, StreamlogError

log = logging.getLogger(__name__)

TIMES_LIVE = 4
SLACK_BYTES = 16 << 20


def is_due(partition: CoordinatorPartition) -> bool:
    return partition.log_bytes > TIMES_LIVE * partition.table.live_bytes + SLACK_BYTES


async def copy_forward(partition: CoordinatorPartition) -> None:
    """Ends early where the partition ends. A crash leaves a longer log, and the same state.

    Everything that is known when this begins gets a record behind `start`, and so does everything
    that is decided later: what lies before it is no longer needed. An id that was forgotten has no
    record behind `start`, or its tombstone.
    """
    start, before = partition.log.log_end_offset, partition.log_bytes
    pending = 0
    try:
        for transactional_id in list(partition.table.transactions):
            partition.write_again(transactional_id)
            pending += partition.table.sizes.get(transactional_id, 0)
            if pending >= BATCH_BYTES:
                await partition.settled()
                pending = 0
        await partition.settled()
        await partition.log.raise_start(start)
    except NotCoordinator:
        return
    except StreamlogError as error:
        log.warning("%s keeps its old records: %s", partition.topic_partition, error)
        return
    partition.forget_bytes(before)
    log.info("%s starts at %d now", partition.topic_partition, start)
