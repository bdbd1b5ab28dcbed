"""What the APIs have in common that ask something of each partition that they name.

Each partition has its own answer: an error of one is no other's.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamlog.errors import Invalid, StreamlogError
from streamlog.kafka.protocol.errors import KafkaError, code_of
from streamlog.log.api.abstract_log import Isolation
from streamlog.server.services.ports import NamesPartitions, check_partitions
from streamlog.settings.limits import LimitsConfig


def isolation(level: int) -> Isolation:
    """Errors: Invalid."""
    try:
        return Isolation(level)
    except ValueError:
        raise Invalid(
            f"isolation level {level} is unknown: give 0 (read_uncommitted) or 1 (read_committed)"
        ) from None


def check_count(topics: Sequence[NamesPartitions], limits: LimitsConfig) -> None:
    """Errors: Invalid. A request without partitions is a legal one in Kafka."""
    check_partitions(topics, limits.partitions_per_request_max, may_be_empty=True)


def check_consumer(replica_id: int) -> None:
    """Errors: Invalid, for a follower. -1 is a consumer, -2 a tool."""
    if replica_id >= 0:
        raise Invalid(
            f"replica {replica_id} asks as a follower, but the store replicates: there are no "
            "followers here; ask as a consumer, with replica id -1"
        )


def partition_code(error: StreamlogError) -> KafkaError:
    """The code of one partition's error, which clients retry where it passes by itself.

    REQUEST_TIMED_OUT would say that a partition which is being opened answers too slowly; clients
    know KAFKA_STORAGE_ERROR as one to try again.
    """
    code = code_of(error)
    if code in (KafkaError.REQUEST_TIMED_OUT, KafkaError.THROTTLING_QUOTA_EXCEEDED):
        return KafkaError.KAFKA_STORAGE_ERROR
    return code
