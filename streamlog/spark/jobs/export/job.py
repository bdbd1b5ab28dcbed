"""Export: topics into a folder of Parquet files by topic and day, each record once.

A run goes on where the last run ended: the manifest beside the data has the offsets. Executors
write the files themselves, so they must all reach the folder under the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from streamlog.errors import Invalid
from streamlog.model.located import OffsetWindow
from streamlog.reading.topics import TopicPartition
from streamlog.repair.findings import Progress, no_progress
from streamlog.runtime.disk.lockfile import hold
from streamlog.spark.cluster.cluster import Cluster
from streamlog.spark.jobs.export.manifest import OWN, Manifest
from streamlog.spark.jobs.export.offsets import ExportedOffsets
from streamlog.spark.jobs.export.parquet import ParquetTask
from streamlog.spark.jobs.rounds import ROUND_RECORDS, rounds, run_round
from streamlog.spark.options import Bound, ReadOptions, parse_read_options
from streamlog.spark.plan.offsets import (
    checked_window,
    chosen_among,
    encode_offsets,
    lost,
    resolve,
)
from streamlog.spark.plan.session import opened_cluster
from streamlog.spark.plan.types import ReadPlace, TaskPlan


class HasSize(Protocol):
    """A file that a task wrote."""

    @property
    def rows(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...


F = TypeVar("F", bound=HasSize)


@dataclass(slots=True)
class ExportTotals:
    """Sums of one run."""

    records: int = 0
    files: int = 0
    size_bytes: int = 0
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Exported:
    """The result of one run; `files_in_all`: files of all runs."""

    records: int
    files: int
    size_bytes: int
    rounds: int
    files_in_all: int
    offsets: Mapping[TopicPartition, int]

    def description(self) -> dict[str, Any]:
        names = ("records", "files", "size_bytes", "rounds", "files_in_all")
        offsets = encode_offsets(self.offsets)["offsets"]
        return {name: getattr(self, name) for name in names} | {"offsets": offsets}


def export(
    spark: Any,
    folder: Path,
    options: Mapping[str, str],
    *,
    round_records: int = ROUND_RECORDS,
    progress: Progress = no_progress,
) -> Exported:
    """`options`: those of a batch read. Starting offsets apply to partitions of which the folder
    has no records yet.

    An interrupted export leaves whole rounds. Errors: DataInUse (another export writes there),
    ForeignCluster, DataLost, those of a read, TaskFailed, OSError.
    """
    parsed = parse_read_options(options, streaming=False)
    folder = folder.absolute()
    (folder / OWN).mkdir(parents=True, exist_ok=True)
    with hold(str(folder / OWN / "lock")), opened_cluster(parsed) as cluster:
        manifest = Manifest.open(folder, cluster.cluster_id)
        manifest.check()
        if parsed.start.offsets is not None or parsed.start.timestamps_ms is not None:
            raise Invalid("an export starts at earliest or at one time for all partitions")
        totals = write_rounds(
            spark,
            parsed,
            cluster,
            rounds_behind(parsed, cluster, manifest.exported, round_records),
            lambda: ParquetTask(str(folder), parsed.include_headers),
            manifest.add,
            progress,
        )
        offsets = manifest.exported.offsets
        return Exported(**asdict(totals), files_in_all=len(manifest.files), offsets=offsets)


def write_rounds(
    spark: Any,
    options: ReadOptions,
    cluster: Cluster,
    planned: Sequence[Sequence[OffsetWindow]],
    task: Callable[[], Callable[[TaskPlan, ReadPlace], list[F]]],
    keep: Callable[[Sequence[F], Sequence[OffsetWindow]], None],
    progress: Progress,
) -> ExportTotals:
    """Runs one round after another: tasks write files, then `keep` takes the files together with
    the windows that are in them. An interrupted run leaves whole rounds."""
    totals = ExportTotals()
    total, done = sum(window.count for windows in planned for window in windows), 0
    for windows in planned:
        results = run_round(spark, options, cluster, windows, task())
        files = [file for written in results for file in written]
        keep(files, windows)
        totals.records += sum(file.rows for file in files)
        totals.files += len(files)
        totals.size_bytes += sum(file.size_bytes for file in files)
        totals.rounds += 1
        done += sum(window.count for window in windows)
        progress("exporting records", done, total)
    return totals


def rounds_behind(
    options: ReadOptions,
    cluster: Cluster,
    exported: ExportedOffsets,
    round_records: int,
) -> list[list[OffsetWindow]]:
    """Rounds from where the last run ended. Starting offsets apply to partitions that are not
    exported yet.

    Errors: DataLost, if records after the last run's end are gone, or a topic was recreated;
    Invalid.
    """
    topics = cluster.topics()
    partitions = chosen_among(options, topics)
    existing = cluster.offsets(partitions)
    partitions = [partition for partition in partitions if partition in existing]
    recreated = exported.recreated(topics) & {topic for topic, _ in partitions}
    for name in sorted(recreated):
        lost(
            options,
            f"topic {name} was deleted and recreated since the last export, and may have had "
            "records that were not exported",
        )
    nexts = {key: offset for key, offset in exported.offsets.items() if key[0] not in recreated}
    new = [partition for partition in partitions if partition not in nexts]
    starts = nexts | resolve(
        _start_of(options.start, new), new, {key: existing[key] for key in new}, cluster,
        name="startingOffsets", is_end=False, is_late_an_error=options.is_late_an_error,
    )  # fmt: skip
    ends = resolve(
        options.end, partitions, existing, cluster,
        name="endingOffsets", is_end=True, is_late_an_error=False,
    )  # fmt: skip
    windows = []
    for key in partitions:
        # An end within the exported offsets makes an empty window.
        end = max(starts[key], ends[key])
        topic_id = topics[key[0]].topic_id
        windows.append(
            checked_window(options, key, starts[key], end, existing[key], topic_id=topic_id)
        )
    return list(rounds([window for window in windows if window.count > 0], round_records))


def _start_of(start: Bound, partitions: Sequence[TopicPartition]) -> Bound:
    """The bound, without offsets and times of other partitions."""
    offsets, times = (
        named and {key: value for key, value in named.items() if key in set(partitions)}
        for named in (start.offsets, start.timestamps_ms)
    )
    return replace(start, offsets=offsets, timestamps_ms=times)
