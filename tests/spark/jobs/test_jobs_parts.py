"""Parts of the jobs that need no JVM."""

from __future__ import annotations

import errno
import io
import json
import os
import random
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.dom.minidom import parseString

import click
import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest
from click.testing import CliRunner

from streamlog.cli.commands.spark_export import export
from streamlog.cli.state import State
from streamlog.cli.support.spark_session import source_options
from streamlog.errors import Corrupt, ForeignCluster, StreamlogError, UnsupportedVersion
from streamlog.model.located import ObjectTable, OffsetWindow
from streamlog.spark.arrow import COLUMNS
from streamlog.spark.errors import DataLost
from streamlog.spark.jobs.batches import runs
from streamlog.spark.jobs.export import parquet
from streamlog.spark.jobs.export.manifest import OWN, Manifest, WrittenOffsets
from streamlog.spark.jobs.export.offsets import ExportedOffsets
from streamlog.spark.jobs.export.parquet import ParquetTask
from streamlog.spark.jobs.rounds import rounds
from streamlog.spark.jobs.scrub.state import ScrubState
from streamlog.spark.jobs.stats.sketches import KEYS_MAX, Distinct, Frequent
from streamlog.spark.jobs.stats.state import StatsState
from streamlog.spark.jobs.stats.topic_stats import TopicStats
from streamlog.spark.local import JavaMissing, find_java
from streamlog.spark.picture import BANDS_MAX, OTHERS, bars
from streamlog.spark.plan.types import ReadPlace, TaskPlan


def test_rounds_take_one_partition_after_the_other() -> None:
    windows = [OffsetWindow("a", 0, 5, 12), OffsetWindow("a", 1, 0, 2), OffsetWindow("b", 0, 0, 9)]
    planned = list(rounds(windows, 8))
    assert planned == [
        [OffsetWindow("a", 0, 5, 12), OffsetWindow("a", 1, 0, 1)],
        [OffsetWindow("a", 1, 1, 2), OffsetWindow("b", 0, 0, 7)],
        [OffsetWindow("b", 0, 7, 9)],
    ]
    assert list(rounds([], 8)) == []


def test_runs_are_rows_of_one_partition() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": pa.array(["a", "a", "b", "b", "b", "a"]),
            "partition": pa.array([0, 0, 0, 1, 1, 0], pa.int32()),
        }
    )
    assert list(runs(batch)) == [(0, 2), (2, 3), (3, 5), (5, 6)]
    assert list(runs(batch.slice(0, 1))) == [(0, 1)]


@pytest.mark.parametrize("count", [0, 1, 500, 50_000])
def test_distinct_is_near_and_merges(count: int) -> None:
    rng = np.random.default_rng(7)
    hashes = rng.integers(0, 1 << 64, count, np.uint64)
    whole, left, right = Distinct(), Distinct(), Distinct()
    whole.add(hashes)
    whole.add(hashes)
    left.add(hashes[: count // 2])
    right.add(hashes[count // 3 :])
    left.merge(right)
    assert left.estimate() == whole.estimate() == pytest.approx(count, rel=0.05)


def test_frequent_keys_lie_within_their_bounds() -> None:
    rng = random.Random(5)
    true = Counter[bytes]()
    parts = []
    for _ in range(6):
        part = Counter[bytes](b"%d" % int(rng.paretovariate(0.5)) for _ in range(4000))
        true.update(part)
        summary = Frequent()
        summary.add(list(part), np.array(list(part.values())))
        parts.append(summary)
    merged = parts[0]
    for summary in parts[1:]:
        merged.merge(summary)
    assert 0 < len(merged.counts) <= KEYS_MAX
    assert merged.missed > 0
    for key, count in true.items():
        assert merged.counts.get(key, 0) <= count <= merged.counts.get(key, 0) + merged.missed
    assert merged.top(1)[0][0] == true.most_common(1)[0][0]


def _facts() -> TopicStats:
    names = ("key", "value", "timestamp")
    values = ([b"a", None, b"a\xff"], [b"1", b"22", None], [0, 60_000_000, 61_000_000])
    arrays = [pa.array(v, COLUMNS[n]) for n, v in zip(names, values, strict=True)]
    facts = TopicStats()
    facts.add(3, pa.RecordBatch.from_arrays(arrays, names=list(names)))
    return facts


def test_statistics_come_back_from_their_state(tmp_path: Path) -> None:
    file = tmp_path / "state"
    state = StatsState.read(file, "c", {})
    assert state.left is None
    state.add([{"t": _facts()}, {"t": _facts()}], [OffsetWindow("t", 3, 5, 9)])
    state.write()
    again = StatsState.read(file, "c", {})
    assert again.left == [OffsetWindow("t", 3, 5, 9)]
    restored, original = again.topics["t"], state.topics["t"]
    assert (restored.partitions, restored.minutes, restored.frequent) == (
        original.partitions,
        original.minutes,
        original.frequent,
    )
    assert (restored.distinct.registers == original.distinct.registers).all()
    assert restored.whole.records == 6
    restored.distinct.add(np.array([1], np.uint64))
    with pytest.raises(ForeignCluster, match="cluster c"):
        StatsState.read(file, "d", {})
    with pytest.raises(Corrupt, match="no state of a scrub"):
        ScrubState.read(file, "c")
    whole = json.loads(file.read_text())
    no_registers = {"t": {**whole["topics"]["t"], "registers": ""}}
    for damaged in ("{", {**whole, "topics": [5]}, {**whole, "topics": no_registers}):
        file.write_text(damaged if isinstance(damaged, str) else json.dumps(damaged))
        with pytest.raises(Corrupt, match="no state of statistics"):
            StatsState.read(file, "c", {})


@pytest.mark.parametrize("topic", ["_hidden", ".hidden", "t" * 249])
def test_exported_files_have_names_that_every_reader_takes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, topic: str
) -> None:
    def read_task(_: object, __: object, schema: pa.Schema) -> list[pa.RecordBatch]:
        row = {"topic": topic, "partition": 0, "offset": 7, "timestamp": 5, "timestampType": 0}
        return [pa.RecordBatch.from_pylist([row], schema)]

    monkeypatch.setattr(parquet, "read_task", read_task)
    manifest = Manifest.open(tmp_path, "c")
    place = ReadPlace(None, None, "", False, "read_committed", True, True)
    written = ParquetTask(str(tmp_path), headers=False)(TaskPlan((), ObjectTable()), place)
    manifest.add(written, [OffsetWindow(topic, 0, 7, 8)])
    assert [file.path for file in written] == [
        f"topic={topic}/date=1970-01-01/{file.name}" for file in written
    ]
    table = pa.dataset.dataset(tmp_path, format="parquet").to_table()
    assert table.column("offset").to_pylist() == [7]


class FullDisk(io.BytesIO):
    """A file object of a task; writes fail once `is_full`. It is its own DayFile."""

    is_full = False
    is_given_up = False

    @property
    def sink(self) -> io.BytesIO:
        return self

    def write(self, data: Any) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space")
        return super().write(data)

    def finish(self, *_: object) -> None:
        raise AssertionError("a file of a failed task is finished")

    def give_up(self) -> None:
        self.is_given_up, self.is_full = True, False


@pytest.mark.parametrize("fails", ["read", "close"])
def test_all_files_of_a_task_that_fails_are_given_up_and_its_own_error_is_raised(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    files: list[FullDisk] = []

    def create(topic: str, day: int) -> FullDisk:
        files.append(FullDisk())
        return files[-1]

    def read_task(_: object, __: object, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for day in range(2):
            row = {"topic": "t", "partition": 0, "offset": day, "timestampType": 0}
            row["timestamp"] = day * parquet.DAY_US
            yield pa.RecordBatch.from_pylist([row], schema)
        for file in files:
            file.is_full = True
        if fails == "read":
            raise DataLost("records are gone")

    monkeypatch.setattr(parquet, "read_task", read_task)
    place = ReadPlace(None, None, "", False, "read_committed", True, True)
    plan, schema = TaskPlan((), ObjectTable()), parquet.file_schema(headers=False)
    with pytest.raises(DataLost if fails == "read" else OSError):
        parquet.write_days(plan, place, schema, create)
    assert [file.is_given_up for file in files] == [True, True]


def test_a_manifest_is_for_one_cluster_and_known_versions(tmp_path: Path) -> None:
    manifest = Manifest.open(tmp_path, "c")
    (Manifest.pending(tmp_path) / "x.parquet").write_bytes(b"1")
    written = WrittenOffsets("topic=t/date=2026-01-05", "x.parquet", 1, 1, {0: (4, 5)})
    manifest.add([written], [OffsetWindow("t", 0, 4, 5, "id")])
    again = Manifest.open(tmp_path, "c")
    again.check()
    assert again.exported == ExportedOffsets({("t", 0): 5}, {"t": "id"})
    assert again.files == [written.description()]
    assert (tmp_path / written.path).read_bytes() == b"1"
    with pytest.raises(ForeignCluster):
        Manifest.open(tmp_path, "d")
    path = tmp_path / "_streamlog" / "manifest.json"
    whole = path.read_text()
    path.write_text(whole.replace('"version": 1', '"version": 2'))
    with pytest.raises(UnsupportedVersion):
        Manifest.open(tmp_path, "c")
    for damaged in (
        whole[:-5],
        "[]",
        json.dumps({**json.loads(whole), "files": [5]}),
        json.dumps({**json.loads(whole), "files": [{"rows": 1}]}),
        json.dumps({**json.loads(whole), "topics": ["t"]}),
    ):
        path.write_text(damaged)
        with pytest.raises(Corrupt):
            Manifest.open(tmp_path, "c")
    path.write_text(whole)
    (tmp_path / written.path).unlink()
    with pytest.raises(StreamlogError, match="is gone"):
        Manifest.open(tmp_path, "c").check()


def test_each_folder_that_an_export_makes_is_synced_into_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut must not take a folder away whose files the manifest names."""
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    folder = tmp_path / "out"
    manifest = Manifest.open(folder, "c")
    assert {str(tmp_path), str(folder), str(folder / OWN)} <= set(synced)
    (Manifest.pending(folder) / "x.parquet").write_bytes(b"1")
    written = WrittenOffsets("topic=t/date=2026-01-05", "x.parquet", 1, 1, {0: (4, 5)})
    synced.clear()
    manifest.add([written], [OffsetWindow("t", 0, 4, 5)])
    assert {str(folder), str(folder / "topic=t"), str(folder / written.folder)} <= set(synced)


def test_a_picture_has_a_bar_for_each_count() -> None:
    series = {f"<{n}>": [n, 0, 2] for n in range(BANDS_MAX + 3)}
    picture = parseString(bars("a & b", [0, 60_000, 120_000], series))
    texts = [text.firstChild.data for text in picture.getElementsByTagName("text")]  # type: ignore[union-attr]
    assert texts[0] == "a & b"
    assert texts[-1] == OTHERS
    # Background, one each in the legend, two bars of each band.
    assert len(picture.getElementsByTagName("rect")) == 1 + BANDS_MAX + 2 * BANDS_MAX
    assert parseString(bars("nothing", [], {}))


def _java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return folder


def test_java_is_found_or_the_error_says_how_to_install_it(tmp_path: Path) -> None:
    old, new = _java(tmp_path / "old", "1.8.0_392"), _java(tmp_path / "new", "21.0.5")
    path = os.pathsep.join((str(new / "bin"), "/bin"))
    assert find_java({"JAVA_HOME": str(new), "PATH": ""}) == new
    assert find_java({"JAVA_HOME": str(old), "PATH": path}) == new
    with pytest.raises(JavaMissing, match="is Java 8: install Java 17 or newer"):
        find_java({"JAVA_HOME": str(old), "PATH": "/nowhere"})
    with pytest.raises(JavaMissing, match="no Java on this machine: install"):
        find_java({"PATH": "/nowhere"})


def test_command_line_options_become_options_of_the_source() -> None:
    state = State(server="h:1")
    nowhere = (None, None, None)
    assert source_options(state, ("a", "b"), None, {}, nowhere) == {
        "subscribe": "a,b",
        "server": "h:1",
    }
    assert source_options(state, (), None, {"readMode": "store"}, (None, "s3://b/p", None)) == {
        "subscribePattern": ".*",
        "readMode": "store",
        "store": "s3://b/p",
        "server": "h:1",
    }
    assert source_options(state, (), "x.*", {}, ("/d", None, None)) == {
        "subscribePattern": "x.*",
        "store": "local:///d/objects",
        "meta": "rocksdb:///d/meta",
    }
    with pytest.raises(click.UsageError):
        source_options(state, ("a",), "x", {}, nowhere)
    with pytest.raises(click.UsageError):
        source_options(state, (), None, {}, ("/d", "local:///x", None))


@pytest.mark.parametrize("given", [[], ["folder", "--iceberg", "a.b.c"]])
def test_an_export_has_one_target(given: list[str]) -> None:
    ran = CliRunner().invoke(export, given, obj=State())
    assert ran.exit_code == 2
    assert "give FOLDER or --iceberg" in ran.output
