"""What reads took from the store and from nodes, told through Spark's log of Python workers.

Spark takes metrics of a Python source for nothing but its own counters. Where
`spark.sql.pyspark.worker.logging.enabled` is true it keeps what Python workers log as a table; each
plan and each attempt of a task leaves a row in it. Where it is not, nothing is told.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

LOGGER = "streamlog.spark.reads"
IS_KEPT = "PYSPARK_SPARK_SESSION_UUID"
"""In the environment of a Python worker whose log Spark keeps."""
_NUMBERS = {
    "tasks": "int",
    "stage": "int",
    "partition": "int",
    "attempt": "int",
    "store_records": "bigint",
    "store_bytes": "bigint",
    "service_records": "bigint",
    "service_bytes": "bigint",
    "is_whole": "boolean",
}

log = logging.getLogger(LOGGER)


@dataclass(slots=True)
class Taken:
    """By one task so far; bytes are those of record batches, after the store's own compression."""

    store_records: int = 0
    store_bytes: int = 0
    service_records: int = 0
    service_bytes: int = 0

    def add_bytes(self, size: int, *, is_stored: bool) -> None:
        if is_stored:
            self.store_bytes += size
        else:
            self.service_bytes += size

    def add_records(self, count: int, *, is_stored: bool) -> None:
        if is_stored:
            self.store_records += count
        else:
            self.service_records += count


def tell(what: str, read: str, facts: Mapping[str, object]) -> None:
    """A row: `what` is plan or task. Values that are None are left out."""
    if IS_KEPT in os.environ:
        log.setLevel(logging.INFO)
    if not log.isEnabledFor(logging.INFO):
        return
    given = {name: str(value) for name, value in facts.items() if value is not None}
    told = ", ".join(f"{name} {value}" for name, value in given.items())
    log.info(
        "%s of %s: %s", what, read, told, extra={"context": {"what": what, "read": read, **given}}
    )


def read_metrics(spark: Any) -> Any:
    """A DataFrame: a row for each plan (what is to come from where) and for each attempt of a task
    (what came), in the order of `ts`. `is_whole`: the attempt gave all that it was to give.

    Of reads that began after spark.sql.pyspark.worker.logging.enabled was true. A task that Spark
    ends early, by a limit, may have no row.
    """
    columns = [f"cast(context['{name}'] as {kind}) {name}" for name, kind in _NUMBERS.items()]
    return (
        spark.tvf.python_worker_logs()
        .where(f"logger = '{LOGGER}'")
        .selectExpr(
            "ts", "context['what'] what", "context['read'] read", "context['mode'] mode", *columns
        )
        .orderBy("ts")
    )
