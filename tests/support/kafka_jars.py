"""The Java libraries of Apache Kafka 4.1.1, server, clients and tools, fetched once by Maven.

They lie in the folder of built tools; processes that ask at the same time fetch them once.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.spark.jars import KAFKA, kafka_jars, kafka_storage_test_jars

__all__ = [
    "KAFKA",
    "class_path",
    "clients_jar",
    "storage_jar",
    "tiered_storage_jar",
    "transactions_jar",
]


def class_path() -> str:
    """What `java -cp` takes. Errors: Unavailable, without Java, Maven or Maven Central."""
    return os.pathsep.join(map(str, kafka_jars().paths))


def clients_jar() -> Path:
    """The jar that holds Kafka's message definitions and its Java client. Errors: Unavailable."""
    return _jar("kafka-clients")


def transactions_jar() -> Path:
    """The jar that holds the transaction coordinator's records. Errors: Unavailable."""
    return _jar("kafka-transaction-coordinator")


def storage_jar() -> Path:
    """The jar that holds the records of remote segments. Errors: Unavailable."""
    return _jar("kafka-storage")


def tiered_storage_jar() -> Path:
    """The jar that holds Kafka's LocalTieredStorage. Errors: Unavailable."""
    (jar,) = kafka_storage_test_jars().paths
    return jar


def _jar(name: str) -> Path:
    (jar,) = (path for path in kafka_jars().paths if path.name == f"{name}-{KAFKA}.jar")
    return jar
