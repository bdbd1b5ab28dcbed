"""A real Apache Kafka for tests: a short life on few cores, and records that stay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from benchmarks import kafka_server

DAY_MS = 86_400_000
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""A short life on few cores: little is worth compiling well."""
SETTINGS = {
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
    "share.coordinator.state.topic.replication.factor": 1,
    "share.coordinator.state.topic.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "log.index.size.max.bytes": 65536,
    # Records of tests are old, and stay: nothing is deleted by time.
    "log.initial.task.delay.ms": DAY_MS,
    "log.retention.check.interval.ms": DAY_MS,
    "num.io.threads": 2,
    "num.network.threads": 1,
}
FEATURES: Mapping[str, int] = MappingProxyType({"transaction.version": 1})
"""As a node's: clients then use transactions as they do with it (KIP-890, version 1)."""

NEWEST_FEATURES: Mapping[str, int] = MappingProxyType({})
"""As a Kafka 4.1 has them where nobody says otherwise: version 2 of transactions, too."""


class KafkaServer(kafka_server.KafkaServer):
    """In `with` it is killed at the end: the data goes with the test's folder."""

    def __init__(
        self,
        folder: Path,
        advertised: str | None = None,
        features: Mapping[str, int] = FEATURES,
        settings: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """`settings`: beside those of this module, or in their place."""
        jvm = ("-Xmx700m", *QUICK)
        both = {**SETTINGS, **settings}
        super().__init__(folder, advertised, jvm=jvm, settings=both, features=features)

    def __exit__(self, *_: object) -> None:
        self.kill()
