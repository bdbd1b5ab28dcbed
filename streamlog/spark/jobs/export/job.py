"""Export: topics into a folder of Parquet files by topic and day, each record once.

A run goes on where the last one ended: the offsets stand in the manifest beside the data. Executors
write the files themselves, so the folder is one that they all reach under the same name.
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
from streamlog.spark.jobs.export.parquet import ParquetTask
from streamlog.spark.jobs.rounds import ROUND_RECORDS, rounds, run_round
from streamlog.spark.options import Bound, ReadOptions, parse_read_options
from streamlog.spark.plan.offsets import checked_window, chosen_partitions, encode_offsets, resolve
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
class Totals:
    """Of one run."""

    records: int = 0
    files: int = 0
    size_bytes: int = 0
    rounds: int = 0


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
        if parsed.start.offsets is not None or parsed.start.timestamps_ms is not None:
            raise Invalid("an export starts at earliest or at one time for all partitions")
        totals = write_rounds(
            spark,
            parsed,
            cluster,
            rounds_behind(parsed, cluster, manifest.offsets, round_records),
            lambda: ParquetTask(str(folder), parsed.include_headers),
            manifest.add,
            progress,
        )
        offsets = dict(manifest.offsets)
        return Exported(**asdict(totals), files_in_all=len(manifest.files), offsets=offsets)


def write_rounds(
    spark: Any,
    options: ReadOptions,
    cluster: Cluster,
    planned: Sequence[Sequence[OffsetWindow]],
    task: Callable[[], Callable[[TaskPlan, ReadPlace], list[F]]],
    keep: Callable[[Sequence[F], Mapping[TopicPartition, int]], None],
    progress: Progress,
) -> Totals:
    """One round after another: `task()` writes its files, `keep` takes them together with the next
    offset of each partition. Interrupted, it leaves whole rounds."""
    totals = Totals()
    total, done = sum(one.count for some in planned for one in some), 0
    for some in planned:
        found = [one for files in run_round(spark, options, cluster, some, task()) for one in files]
        keep(found, {(one.topic, one.partition): one.end for one in some})
        totals.records += sum(one.rows for one in found)
        totals.files += len(found)
        totals.size_bytes += sum(one.size_bytes for one in found)
        totals.rounds += 1
        done += sum(one.count for one in some)
        progress("exporting records", done, total)
    return totals


def rounds_behind(
    options: ReadOptions,
    cluster: Cluster,
    known: Mapping[TopicPartition, int],
    round_records: int,
) -> list[list[OffsetWindow]]:
    """From where the last run ended. Starting offsets are for partitions that are not known.

    Errors: DataLost where what follows is gone; Invalid.
    """
    partitions = chosen_partitions(options, cluster)
    there = cluster.offsets(partitions)
    partitions = [at for at in partitions if at in there]
    new = [at for at in partitions if at not in known]
    starts = dict(known) | resolve(
        _start_of(options.start, new), new, {at: there[at] for at in new}, cluster,
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
    return list(rounds([window for window in windows if window.count > 0], round_records))


def _start_of(start: Bound, partitions: Sequence[TopicPartition]) -> Bound:
    """Without what it says of others."""
    offsets, times = (
        named and {at: value for at, value in named.items() if at in set(partitions)}
        for named in (start.offsets, start.timestamps_ms)
    )
    return replace(start, offsets=offsets, timestamps_ms=times)
