"""Export: topics into a folder of Parquet files by topic and day, each record once.

A run goes on where the last one ended: the offsets stand in the manifest beside the data. Executors
write the files themselves, so the folder is one that they all reach under the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamlog.errors import Invalid
from streamlog.model.located import OffsetWindow
from streamlog.repair.findings import Progress, no_progress
from streamlog.runtime.lockfile import hold
from streamlog.spark.cluster import Cluster
from streamlog.spark.jobs.manifest import OWN, Manifest
from streamlog.spark.jobs.parquet import ParquetTask
from streamlog.spark.jobs.rounds import ROUND_RECORDS, rounds, run_round
from streamlog.spark.offsets import checked_window, chosen_partitions, resolve
from streamlog.spark.options import ReadOptions, TopicPartition, parse_read_options
from streamlog.spark.session import opened_cluster


@dataclass(frozen=True, slots=True)
class Exported:
    """By one run; `files_in_all`: of all runs."""

    records: int
    files: int
    size_bytes: int
    rounds: int
    files_in_all: int
    offsets: Mapping[TopicPartition, int]

    def facts(self) -> dict[str, Any]:
        nested: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(self.offsets.items()):
            nested.setdefault(topic, {})[str(partition)] = offset
        names = ("records", "files", "size_bytes", "rounds", "files_in_all")
        return {name: getattr(self, name) for name in names} | {"offsets": nested}


def export(
    spark: Any,
    folder: Path,
    options: Mapping[str, str],
    *,
    round_records: int = ROUND_RECORDS,
    progress: Progress = no_progress,
) -> Exported:
    """`options`: those of a batch read. Starting offsets are for partitions of which the folder
    holds nothing yet.

    Interrupted, it leaves whole rounds. Errors: DataInUse (another export writes there),
    ForeignCluster, DataLost, those of a read, TaskFailed, OSError.
    """
    parsed = parse_read_options(options, streaming=False)
    folder = folder.absolute()
    (folder / OWN).mkdir(parents=True, exist_ok=True)
    with hold(str(folder / OWN / "lock")), opened_cluster(parsed) as cluster:
        manifest = Manifest.open(folder, cluster.cluster_id)
        manifest.check()
        windows = _windows(parsed, cluster, manifest.offsets)
        total = sum(window.count for window in windows)
        work = ParquetTask(str(folder), parsed.include_headers)
        records = files = size = done = count = 0
        for some in rounds(windows, round_records):
            found = [one for task in run_round(spark, parsed, cluster, some, work) for one in task]
            manifest.add(found, {(one.topic, one.partition): one.end for one in some})
            records += sum(one.rows for one in found)
            files += len(found)
            size += sum(one.size_bytes for one in found)
            done += sum(window.count for window in some)
            count += 1
            progress("exporting records", done, total)
        offsets = dict(manifest.offsets)
        return Exported(records, files, size, count, len(manifest.files), offsets)


def _windows(
    options: ReadOptions, cluster: Cluster, known: Mapping[TopicPartition, int]
) -> list[OffsetWindow]:
    """From where the last run ended. Errors: DataLost where that is gone; Invalid."""
    if options.start.offsets is not None or options.start.timestamps_ms is not None:
        raise Invalid("an export starts at earliest or at one time for all partitions")
    partitions = chosen_partitions(options, cluster)
    there = cluster.offsets(partitions)
    partitions = [at for at in partitions if at in there]
    new = [at for at in partitions if at not in known]
    starts = dict(known) | resolve(
        options.start, new, {at: there[at] for at in new}, cluster,
        name="startingOffsets", is_end=False, is_late_an_error=options.is_late_an_error,
    )  # fmt: skip
    ends = resolve(
        options.end, partitions, there, cluster,
        name="endingOffsets", is_end=True, is_late_an_error=False,
    )  # fmt: skip
    windows = []
    for at in partitions:
        # An end before what is exported already asks for nothing.
        end = max(starts[at], ends[at])
        windows.append(checked_window(options, at, starts[at], end, there[at]))
    return [window for window in windows if window.count > 0]
