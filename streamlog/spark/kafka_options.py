"""Options of Spark's Kafka source and sink that this source and sink refuse, each with its reason.

An option that was accepted and ignored would mislead a job that moves here. So each is an error
that names the option that does the same, or the reason why none is needed.
"""

from __future__ import annotations

ISOLATION = "kafka.isolation.level"
"""Kafka's name of `isolation`."""
SERVERS = "kafka.bootstrap.servers"
"""Kafka's name of `server`."""

_NO_GROUP = "has no meaning here: no consumer group is used; leave it out"
_NO_FETCHER = (
    "tunes Kafka's consumer, which is not used: a call that fails is repeated until the task's "
    "time is over; leave it out"
)
_NO_FETCHING = (
    "sizes the requests of Kafka's consumer, which is not used: tasks read ranges of objects; "
    "leave it out"
)
_NO_SECURITY = (
    "is a security setting of Kafka's client; TLS to a node is tlsCa and its like, and the store's "
    "credentials are found as boto3 finds them (environment, profile, role); leave it out"
)

REFUSED_READ_OPTIONS = {
    "maxRecordsPerPartition": (
        "is not built: a Spark partition is bounded by its bytes; use maxBytesPerPartition, or "
        "minPartitions"
    ),
    "groupIdPrefix": _NO_GROUP,
    "kafka.group.id": _NO_GROUP,
    "kafkaConsumer.pollTimeoutMs": _NO_FETCHER,
    "fetchOffset.numRetries": _NO_FETCHER,
    "fetchOffset.retryIntervalMs": _NO_FETCHER,
    "kafka.auto.offset.reset": "is startingOffsets here, as in Spark's Kafka source",
    "kafka.enable.auto.commit": "has no meaning here: Spark's checkpoint holds the offsets",
    "kafka.max.poll.records": _NO_FETCHING,
    "kafka.max.partition.fetch.bytes": _NO_FETCHING,
    "kafka.check.crcs": "is verifyCrc here",
    "kafka.client.rack": (
        "has no meaning here: executors read the store, which has no rack; leave it out"
    ),
}
"""Reasons by the name in Spark's documentation."""

REFUSED_WRITE_OPTIONS = {
    "includeHeaders": "is for reading; a column headers is written where there is one",
    "kafka.acks": "has no meaning here: a commit is acknowledged when it is durable; leave it out",
    "kafka.compression.type": "is compression here",
    "kafka.batch.size": "is batchBytes here",
    "kafka.buffer.memory": "is bufferBytes here",
    "kafka.linger.ms": "has no meaning here: a task stores what it has gathered; leave it out",
    "kafka.delivery.timeout.ms": "is timeoutMs here",
    "kafka.request.timeout.ms": "is timeoutMs here",
    "kafka.enable.idempotence": "has no meaning here: a write is exactly once; leave it out",
    "kafka.partitioner.class": (
        "cannot be used: it is Java; give rows a column partition, without which the default "
        "partitioner of Kafka's client decides"
    ),
    "kafka.transactional.id": "is writerId here; a write is exactly once without it, too",
}

_SECURITY_PREFIXES = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")


def refusal(name: str, *, is_write: bool) -> tuple[str, str] | None:
    """The option as the documentation spells it, and why it is refused; None: it is no option of
    Spark's Kafka source or sink. `name` is in lower case."""
    refused = REFUSED_WRITE_OPTIONS if is_write else REFUSED_READ_OPTIONS
    for spelled, why in refused.items():
        if spelled.lower() == name:
            return spelled, why
    if name.startswith(_SECURITY_PREFIXES):
        return name, _NO_SECURITY
    if name.startswith("kafka."):
        return name, "is a setting of Kafka's client, which is not used; leave it out"
    return None
