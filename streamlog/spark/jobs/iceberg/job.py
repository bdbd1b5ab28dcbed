"""Export: topics into an Iceberg table, each record once.

A run goes on where the last run ended: the summaries of the table's snapshots have the offsets,
committed together with the files. Executors write the files through the table's own FileIO.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from streamlog.errors import Invalid
from streamlog.reading.topics import TopicPartition
from streamlog.repair.findings import Progress, no_progress
from streamlog.spark.jobs.export.job import rounds_behind, write_rounds
from streamlog.spark.jobs.iceberg.table import opened_table
from streamlog.spark.jobs.rounds import ROUND_RECORDS
from streamlog.spark.options import parse_read_options
from streamlog.spark.plan.offsets import encode_offsets
from streamlog.spark.plan.session import opened_cluster

_STARTS = {"startingoffsets", "startingtimestamp", "startingoffsetsbytimestamp"}


@dataclass(frozen=True, slots=True)
class IcebergExported:
    """The result of one run. `snapshot_id`: of the table's last round, 0 if there is none."""

    records: int
    files: int
    size_bytes: int
    rounds: int
    snapshot_id: int
    offsets: Mapping[TopicPartition, int]

    def description(self) -> dict[str, Any]:
        names = ("records", "files", "size_bytes", "rounds", "snapshot_id")
        offsets = encode_offsets(self.offsets)["offsets"]
        return {name: getattr(self, name) for name in names} | {"offsets": offsets}


def export_iceberg(
    spark: Any,
    table: str,
    options: Mapping[str, str],
    *,
    catalog_properties: Mapping[str, str] | None = None,
    round_records: int = ROUND_RECORDS,
    progress: Progress = no_progress,
) -> IcebergExported:
    """`table`: CATALOG.NAMESPACE.TABLE, created if it does not exist. `options`: those of a batch
    read; starting offsets apply to partitions of which the table has no records yet.

    A round is one snapshot. An interrupted export leaves whole rounds. Errors: Conflict (another
    export committed first), OutcomeUnknown, ForeignCluster, CatalogFailed, Invalid, DataLost, those
    of a read, TaskFailed.
    """
    parsed = parse_read_options(options, streaming=False)
    headers = parsed.include_headers
    with (
        opened_cluster(parsed) as cluster,
        opened_table(
            table, catalog_properties or {}, cluster.cluster_id, headers=headers
        ) as target,
    ):
        if target.has_foreign_records and not _STARTS & {name.lower() for name in options}:
            raise Invalid(
                f"table {table} has records, and no snapshot in its history has the offsets of an "
                "export: another program wrote it, or the export's snapshots have expired. Name "
                "another table, or give startingOffsets: earliest, or as JSON, max(offset) + 1 of "
                "each topic and partition in the table"
            )
        planned = rounds_behind(parsed, cluster, target.held.exported, round_records)
        if planned:
            target.clean()
        totals = write_rounds(spark, parsed, cluster, planned, target.task, target.add, progress)
        held = target.held
        return IcebergExported(
            **asdict(totals), snapshot_id=held.snapshot_id, offsets=held.exported.offsets
        )
