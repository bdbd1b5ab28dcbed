"""Metrics of reads: records and bytes from the store and from nodes, in Spark's log of workers.

Spark has no metrics for Python sources. If `spark.sql.pyspark.worker.logging.enabled` is true,
Spark keeps the log of Python workers as a table, and each plan and each attempt of a task adds a
row to it. Otherwise no metrics are kept.
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
class ReadCounts:
    """Counts of one task; bytes are those of record batches, without the blocks' compression."""

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


def tell(what: str, read: str, metrics: Mapping[str, object]) -> None:
    """Adds a row; `what` is plan or task. Values that are None are left out."""
    if IS_KEPT in os.environ:
        log.setLevel(logging.INFO)
    if not log.isEnabledFor(logging.INFO):
        return
    given = {name: str(value) for name, value in metrics.items() if value is not None}
    text = ", ".join(f"{name} {value}" for name, value in given.items())
    log.info(
        "%s of %s: %s", what, read, text, extra={"context": {"what": what, "read": read, **given}}
    )


def read_metrics(spark: Any) -> Any:
    """A DataFrame with a row for each plan (planned counts) and for each attempt of a task (actual
    counts), in the order of `ts`. `is_whole`: the attempt read its whole plan.

    It has reads that began while spark.sql.pyspark.worker.logging.enabled was true. A task that
    Spark ends early, at a limit, may have no row.
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
