"""Jobs on real Spark: scrub, statistics, export; each stopped and gone on with."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyarrow import parquet
from pyiceberg.catalog import load_catalog

from streamlog.client import Admin, Producer
from streamlog.compaction.plan.config import CompactionConfig
from streamlog.engine.config import StreamEngineConfig
from streamlog.errors import DataInUse, Invalid, OffsetOutOfRange
from streamlog.repair.findings import RepairReport
from streamlog.spark.jobs.compaction.job import CompactionPlaces, compact
from streamlog.spark.jobs.compaction.node import compact_node
from streamlog.spark.jobs.export.job import export
from streamlog.spark.jobs.export.load import import_files
from streamlog.spark.jobs.export.manifest import OWN, Manifest
from streamlog.spark.jobs.iceberg.job import IcebergExported, export_iceberg
from streamlog.spark.jobs.scrub import job as scrub_module
from streamlog.spark.jobs.scrub.job import scrub
from streamlog.spark.jobs.scrub.node import scrub_node
from streamlog.spark.jobs.stats.job import over_time, stats
from streamlog.spark.jobs.tasks import TaskFailed, run_tasks
from tests.spark.offline_data import deep_fsck, look, places_of
from tests.spark.reading import ORDER, consumed, produce, rows, started
from tests.support.node import NodeProcess

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.slow,
    # A session starts in 8 s on two quiet cores, in minutes beside others.
    pytest.mark.timeout(900),
]

NewTopic = Callable[..., str]
DAY_MS = 86_400_000


class Stopped(Exception):
    """As a Ctrl-C between two waves."""


def stop_after(count: int) -> Callable[[str, int, int], None]:
    """A progress that stops its job when it is told the `count`th time."""
    calls = iter(range(1, count))

    def progress(what: str, done: int, total: int) -> None:
        if next(calls, None) is None:
            raise Stopped

    return progress


# tasks


def test_results_come_in_order_and_errors_as_they_were_raised(spark: Any) -> None:
    # Within, so that it travels by value: executors do not have this module.
    def _square(number: int) -> int:
        if number == 7:
            raise OffsetOutOfRange("seven is out of range", start_offset=1)
        if number == 9:
            raise ValueError("nine is no good")
        return number * number

    assert run_tasks(spark, _square, []) == []
    assert run_tasks(spark, _square, [3, 1, 2]) == [9, 1, 4]
    with pytest.raises(OffsetOutOfRange, match="seven") as raised:
        run_tasks(spark, _square, [1, 7])
    assert raised.value.fields == {"start_offset": 1}
    with pytest.raises(TaskFailed, match="ValueError: nine is no good"):
        run_tasks(spark, _square, [9])


# scrub


@pytest.fixture(scope="module")
def stopped_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of a node that has ended, with some objects."""
    folder = tmp_path_factory.mktemp("offline") / "data"
    with started(folder, wal="object") as node:
        for number in range(6):
            produce(node.server, "logs", [(0, b"value %d %d" % (number, n)) for n in range(50)])
    return folder


def _scrub(spark: Any, data: Path, **more: Any) -> RepairReport:
    return look(
        places_of(data),
        lambda at: scrub(
            spark,
            at.kv,
            at.store,
            f"local://{data}/objects",
            clock=at.clock,
            random=at.random,
            offload=at.offload,
            **more,
        ),
    )


def _fsck(data: Path) -> RepairReport:
    return deep_fsck(places_of(data))


def _objects(data: Path) -> list[Path]:
    """Largest first."""
    files = [path for path in (data / "objects" / "data").rglob("*") if path.is_file()]
    return sorted(files, key=lambda path: (-path.stat().st_size, path))


def test_a_scrub_finds_what_fsck_finds(
    spark: Any, stopped_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = _scrub(spark, stopped_data)
    assert clean.is_clean
    expected = _fsck(stopped_data)
    for name in ("streams", "records", "objects", "object_bytes", "blocks", "read_bytes"):
        assert clean.counts[name] == expected.counts[name] > 0
    # A flipped bit in the middle of one object; another one is gone.
    damaged, gone = _objects(stopped_data)[:2]
    whole = damaged.read_bytes(), gone.read_bytes()
    at = len(whole[0]) // 4
    damaged.write_bytes(whole[0][:at] + bytes([whole[0][at] ^ 1]) + whole[0][at + 1 :])
    gone.unlink()
    try:
        expected = _fsck(stopped_data)
        report = _scrub(spark, stopped_data)
        assert not report.is_clean
        assert sorted(map(str, report.findings)) == sorted(map(str, expected.findings))
        assert set(report.by_kind) == {"object-corrupt", "object-missing"}
        # Stopped behind a wave, then gone on with: nothing is read twice, nothing forgotten.
        monkeypatch.setattr(scrub_module, "TASK_OBJECTS_MAX", 1)
        monkeypatch.setattr(scrub_module, "wave_size", lambda spark: 1)
        file = tmp_path / "scrub.json"
        with pytest.raises(Stopped):
            _scrub(spark, stopped_data, state_file=file, progress=_stop_at_objects(2))
        assert json.loads(file.read_bytes())["counts"]["objects"] == 2
        resumed = _scrub(spark, stopped_data, state_file=file)
        assert resumed.counts == report.counts
        assert sorted(map(str, resumed.findings)) == sorted(map(str, report.findings))
        assert not file.exists()
    finally:
        damaged.write_bytes(whole[0])
        gone.write_bytes(whole[1])


def _stop_at_objects(count: int) -> Callable[[str, int, int], None]:
    def progress(what: str, done: int, total: int) -> None:
        if what == "checking objects" and done >= count:
            raise Stopped

    return progress


# statistics


def test_statistics_are_those_of_the_records(
    spark: Any, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2)
    keys = [b"often"] * 60 + [b"key %d" % n for n in range(40)]
    with Producer(node.server) as producer:
        for number, key in enumerate(keys):
            producer.send(topic, b"12345", key=key, partition=0, timestamp_ms=number * 1000)
        producer.send(topic, None, partition=1, timestamp_ms=300_000)
        producer.flush()
    options = {"server": node.server, "subscribe": topic}
    file = tmp_path / "stats.json"
    with pytest.raises(Stopped):
        stats(spark, options, state_file=file, round_records=70, progress=stop_after(1))
    # What comes now is not for the run that was begun.
    produce(node.server, topic, [(1, b"later")])
    result = stats(spark, options, state_file=file, round_records=70)
    counts = result.description()["topics"][topic]
    assert not file.exists()
    assert counts["records"] == 101
    assert counts["key_bytes"] == sum(map(len, keys))
    assert counts["value_bytes"] == 500
    assert (counts["without_key"], counts["without_value"]) == (1, 1)
    assert (counts["first_ms"], counts["last_ms"]) == (0, 300_000)
    assert counts["partitions"]["0"]["records_per_s"] == round(100 / 99, 3)
    assert counts["skew"] == 2
    assert counts["keys"]["distinct_about"] == pytest.approx(41, abs=1)
    assert counts["keys"]["top"][0] == {"key": "often", "records_at_least": 60}
    assert counts["minutes"] == {"0": 60, "1": 40, "5": 1}
    assert over_time(result.topics, 3) == ([0, 120_000, 240_000], {topic: [100, 0, 1]})
    assert stats(spark, options).description()["topics"][topic]["records"] == 102


# export


def _exported(folder: Path) -> list[tuple[Any, ...]]:
    """(partition, offset, key, value) as any reader of Parquet folders sees them, sorted."""
    table = ds.dataset(folder, partitioning="hive", exclude_invalid_files=False).to_table()
    names = ("partition", "offset", "key", "value")
    return sorted(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def _expected(server: str, topic: str) -> list[tuple[Any, ...]]:
    return [(row[1], row[2], row[4], row[5]) for row in consumed(server, topic, 2)]


def test_an_export_goes_on_where_it_was_stopped(
    spark: Any,
    node: NodeProcess,
    new_topic: NewTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = new_topic(2)
    with Producer(node.server) as producer:
        for number in range(90):
            at = DAY_MS * (20_000 + number // 40)
            producer.send(topic, b"%d" % number, partition=number % 2, timestamp_ms=at)
        producer.flush()
    folder = tmp_path / "out"
    options = {"server": node.server, "subscribe": topic}
    with pytest.raises(Stopped):
        export(spark, folder, options, round_records=40, progress=stop_after(1))
    assert _exported(folder) == _expected(node.server, topic)[:40]
    # A task that was killed leaves this; a crash behind the manifest leaves files where they were.
    stray = Manifest.pending(folder) / "stray.parquet"
    stray.write_bytes(b"half a file")
    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "_move", _crash)
        with pytest.raises(Stopped):
            export(spark, folder, options, round_records=40)
    assert len(_exported(folder)) == 40
    assert len(list(Manifest.pending(folder).iterdir())) > 0
    done = export(spark, folder, options, round_records=40)
    assert (done.records, done.rounds) == (10, 1)
    assert _exported(folder) == _expected(node.server, topic)
    assert list(Manifest.pending(folder).iterdir()) == []
    days = {path.parent.name for path in folder.rglob("*.parquet")}
    assert days == {"date=2024-10-04", "date=2024-10-05", "date=2024-10-06"}
    named = json.loads((folder / OWN / "manifest.json").read_bytes())
    assert named["offsets"] == {topic: {"0": 45, "1": 45}}
    spans = Counter[str]()
    for file in named["files"]:
        assert (folder / file["path"]).stat().st_size == file["bytes"]
        spans.update({p: end - first for p, (first, end) in file["offsets"].items()})
    assert spans == {"0": 45, "1": 45}
    assert export(spark, folder, options).records == 0
    produce(node.server, topic, [(1, b"more")])
    assert export(spark, folder, options).records == 1
    assert _exported(folder) == _expected(node.server, topic)


def _crash(self: Manifest, paths: list[str]) -> None:
    if paths:
        raise Stopped


def test_an_offline_export_and_its_refusals(spark: Any, stopped_data: Path, tmp_path: Path) -> None:
    options = {
        "store": f"local://{stopped_data}/objects",
        "meta": f"rocksdb://{stopped_data}/meta",
        "subscribe": "logs",
    }
    folder = tmp_path / "out"
    done = export(spark, folder, {**options, "includeHeaders": "true"}, round_records=200)
    assert (done.records, done.rounds) == (300, 2)
    assert [row[3] for row in _exported(folder)][:2] == [b"value 0 0", b"value 0 1"]
    assert "headers" in ds.dataset(folder, partitioning="hive").schema.names
    next(folder.rglob("topic=*/*/*.parquet")).unlink()
    with pytest.raises(Exception, match="named by the manifest and is gone"):
        export(spark, folder, options)
    with pytest.raises(Invalid, match="starts at earliest"):
        export(spark, tmp_path / "other", {**options, "startingOffsets": '{"logs": {"0": 5}}'})
    from streamlog.runtime.disk.lockfile import hold

    with hold(str(folder / OWN / "lock")), pytest.raises(DataInUse):
        export(spark, folder, options)


def test_an_export_into_an_iceberg_table_by_executors(
    spark: Any, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(2)
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }

    def into_table(**more: Any) -> IcebergExported:
        options = {"server": node.server, "subscribe": topic, "includeHeaders": "true"}
        name = "local.logs.events"
        return export_iceberg(spark, name, options, catalog_properties=properties, **more)

    def check() -> None:
        with load_catalog("local", **properties) as catalog:
            table = catalog.load_table("logs.events").scan().to_arrow().sort_by(ORDER)
        assert rows(table) == consumed(node.server, topic, 2)

    produce(node.server, topic, [(n % 2, b"%d" % n) for n in range(50)])
    with pytest.raises(Stopped):
        into_table(round_records=30, progress=stop_after(1))
    assert into_table(round_records=30).records == 20
    check()
    produce(node.server, topic, [(1, b"more")])
    assert into_table().records == 1
    check()


# import


def test_an_import_takes_each_file_once(
    spark: Any, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, files = new_topic(1), tmp_path / "files"
    (files / "date=2026-01-05").mkdir(parents=True)
    lines = [b"plain", b"", b"\xff not UTF-8", b"ends in CR\r"]
    (files / "a.log").write_bytes(codecs.BOM_UTF8 + b"\n".join(lines) + b"\n")

    def load(kind: Any = "text", folder: Path = files, **more: Any) -> int:
        check = tmp_path / f"check-{kind}"
        return import_files(
            spark, str(folder), node.server, topic, check, kind=kind, files_per_batch=1, **more
        ).records

    assert load() == 4
    assert load() == 0
    (files / "date=2026-01-05" / "b.log").write_bytes(b"new")
    assert load() == 1
    assert [row[5] for row in consumed(node.server, topic, 1)] == [*lines, b"new"]
    objects = tmp_path / "objects"
    objects.mkdir()
    line = b'{"id": 7, "tags": ["x", ""], "none": null}'
    (objects / "a.json").write_bytes(codecs.BOM_UTF8 + line + b"\n\n")
    assert load("json", objects, key="id") == 1
    assert consumed(node.server, topic, 1)[-1][4:6] == (b"7", line)
    with pytest.raises(Invalid, match="no column nothing; there are value"):
        load(value="nothing")
    for kind in ("json", "parquet"):
        with pytest.raises(Invalid, match="cannot be imported"):
            load(kind, tmp_path / "nowhere")


def _import(
    spark: Any, folder: Path, server: str, topic: str, kind: Any = "text", **more: Any
) -> int:
    checkpoint = folder.with_name(f"{folder.name}.checkpoint")
    return import_files(spark, str(folder), server, topic, checkpoint, kind=kind, **more).records


def _values(server: str, topic: str) -> list[bytes]:
    return [row[5] for row in consumed(server, topic, 1)]


def test_an_import_takes_files_of_any_age_once(
    spark: Any, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, files = new_topic(1), tmp_path / "files"
    files.mkdir()

    def write(name: str, age_days: int) -> None:
        (files / name).write_text(name)
        touch(name, age_days)

    def touch(name: str, age_days: int) -> None:
        modified_s = time.time() - age_days * 86400
        os.utime(files / name, (modified_s, modified_s))

    write("new", 0)
    write("old", 400)
    assert _import(spark, files, node.server, topic) == 2
    write("newer", 0)
    write("copied with its time", 30)
    assert _import(spark, files, node.server, topic) == 2
    touch("old", 0)
    assert _import(spark, files, node.server, topic) == 0
    values = sorted(_values(node.server, topic))
    assert values == [b"copied with its time", b"new", b"newer", b"old"]


def test_an_import_stops_at_a_line_that_is_no_json_and_goes_on_there(
    spark: Any, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, files = new_topic(1), tmp_path / "files"
    files.mkdir()

    def write(name: str, *lines: str) -> None:
        (files / name).write_text("".join(f"{line}\n" for line in lines))

    def load() -> int:
        return _import(spark, files, node.server, topic, "json", files_per_batch=1)

    write("a.json", '{"value": "whole"}')
    assert load() == 1
    # A file that was taken is not looked at again.
    write("a.json", '{"value": "whole"}', '{"value": "grow')
    write("b.json", '{"value": "next", "n": 5}')
    os.utime(files / "b.json", (10**9, 10**9))
    write("c.json", '{"value": "first", "n": ""}', '{"value": "cut o')
    with pytest.raises(TaskFailed, match=r"c\.json has a line that is no JSON object: .*cut o"):
        load()
    assert _values(node.server, topic) == [b"whole", b"next"]
    write("c.json", '{"value": "first", "n": ""}', '{"value": "cut off"}')
    assert load() == 2
    assert _values(node.server, topic) == [b"whole", b"next", b"first", b"cut off"]


def test_an_import_of_parquet_takes_the_columns_of_all_files(
    spark: Any, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, files = new_topic(1), tmp_path / "files"
    files.mkdir()
    parquet.write_table(pa.table({"a": [1]}), files / "one.parquet")
    parquet.write_table(pa.table({"a": [2], "b": ["more"]}), files / "two.parquet")
    assert _import(spark, files, node.server, topic, "parquet") == 2
    values = sorted(_values(node.server, topic))
    assert [json.loads(value) for value in values] == [{"a": 1}, {"a": 2, "b": "more"}]
    parquet.write_table(pa.table({"a": ["text"]}), files / "three.parquet")
    with pytest.raises(Invalid, match=r"cannot be imported: .*BIGINT.*STRING.* with --value"):
        _import(spark, files, node.server, topic, "parquet")


def test_an_import_of_a_parquet_column_takes_files_that_disagree_on_others(
    spark: Any, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, files = new_topic(1), tmp_path / "files"
    files.mkdir()

    _write_parquet(files / "one", value=["a"], n=[1])
    _write_parquet(files / "two", value=[b"b"], n=["text"], key=["k"])
    assert _import(spark, files, node.server, topic, "parquet") == 2
    assert _pairs(node.server, topic) == [(None, b"a"), (b"k", b"b")]


def test_an_import_of_parquet_takes_nested_fields_that_only_some_files_have(
    spark: Any, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, files = new_topic(1), tmp_path / "files"
    files.mkdir()
    # The columns n cannot be merged, and nobody reads them. Spark takes [two] for a pattern.
    _write_parquet(files / "one", value=[{"a": 1}], key=[{"a": 1}], n=[1])
    _write_parquet(files / "[two] %20", value=[{"a": 2, "b": [{"c": 1}]}], key=[{"b": 1}], n=["x"])
    _write_parquet(files / "3", value=[{"b": [{"d": 1}]}], key=[{"b": 2}], n=[1])
    assert _import(spark, files, node.server, topic, "parquet") == 3
    assert _pairs(node.server, topic) == [
        (b'{"a":1}', b'{"a":1}'),
        (b'{"b":1}', b'{"a":2,"b":[{"c":1}]}'),
        (b'{"b":2}', b'{"b":[{"d":1}]}'),
    ]
    _write_parquet(files / "4", value=[{"b": "text"}], n=["x"])
    with pytest.raises(
        Invalid, match=r"cannot be imported: value\.b is array.* and string in anoth"
    ):
        _import(spark, files, node.server, topic, "parquet")


@pytest.mark.parametrize("n", [2, "x"])
def test_an_import_of_parquet_takes_a_key_of_any_type_that_only_some_files_have(
    spark: Any, node: NodeProcess, new_topic: NewTopic, tmp_path: Path, n: object
) -> None:
    topic, files = new_topic(1), tmp_path / "files"
    files.mkdir()
    _write_parquet(files / "1", value=[b"a"], n=[1])
    _write_parquet(files / "2", value=[b"b"], key=[7], n=[n])
    assert _import(spark, files, node.server, topic, "parquet") == 2
    assert _pairs(node.server, topic) == [(None, b"a"), (b"7", b"b")]
    _write_parquet(files / "3", value=[b"c"], key=["k"], n=[n])
    with pytest.raises(Invalid, match=r"cannot be imported: key is bigint in one file and string"):
        _import(spark, files, node.server, topic, "parquet")


def _write_parquet(path: Path, **columns: list[Any]) -> None:
    parquet.write_table(pa.table(columns), f"{path}.parquet")


def _pairs(server: str, topic: str) -> list[tuple[bytes | None, bytes]]:
    return sorted((row[4:6] for row in consumed(server, topic, 1)), key=str)


def test_an_export_can_be_imported(
    spark: Any, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    source, target = new_topic(2), new_topic(2)
    produce(node.server, source, [(n % 2, b"\xfe%d" % n) for n in range(20)])
    export(spark, tmp_path / "out", {"server": node.server, "subscribe": source})
    done = import_files(
        spark,
        str(tmp_path / "out"),
        node.server,
        target,
        tmp_path / "check",
        kind="parquet",
        keep_partitions=True,
    )
    assert done.records == 20
    imported = [(row[1], row[4], row[5]) for row in consumed(node.server, target, 2)]
    expected = [(row[1], row[4], row[5]) for row in consumed(node.server, source, 2)]
    assert sorted(imported, key=str) == sorted(expected, key=str)


# compaction

SMALL = StreamEngineConfig(
    compaction=CompactionConfig(
        stream_object_bytes_min=100 << 10,
        object_bytes_max=1 << 20,
        compacted_part_bytes=64 << 10,
        block_target_bytes=8 << 10,
    )
)


def test_compaction_at_rest_keeps_every_record(spark: Any, tmp_path: Path) -> None:
    data, noise = tmp_path / "data", random.Random(3)
    with started(data, wal="object") as node:
        with Admin(node.server) as admin:
            admin.create_topic("logs", 6)
        for _ in range(5):
            values = [(n % 3 and n % 6, noise.randbytes(4000)) for n in range(60)]
            produce(node.server, "logs", values)
        expected = consumed(node.server, "logs", 6)
    before = _fsck(data).counts["ranges"]
    places = CompactionPlaces(
        f"local://{data}/objects", f"rocksdb://{data}/meta", "disk", str(data / "wal")
    )
    done = asyncio.run(compact(spark, places, SMALL))
    assert done.failed == []
    assert done.outputs > done.specs >= 1
    report = _fsck(data)
    assert report.is_clean
    assert report.counts["ranges"] < before
    again = asyncio.run(compact(spark, places, SMALL))
    assert again.bytes_written < done.bytes_written // 2
    with started(data, wal="object") as node:
        assert consumed(node.server, "logs", 6) == expected
        with pytest.raises(DataInUse):
            asyncio.run(compact(spark, places, SMALL))


def test_inputs_that_executors_cannot_merge_are_reported_and_stay(
    spark: Any, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with started(data, wal="object") as node:
        for number in range(4):
            produce(node.server, "logs", [(0, b"%d %d" % (number, n)) for n in range(400)])
    damaged = _objects(data)[0]
    whole = damaged.read_bytes()
    at = len(whole) // 4
    damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    places = CompactionPlaces(
        f"local://{data}/objects", f"rocksdb://{data}/meta", "disk", str(data / "wal")
    )
    done = asyncio.run(compact(spark, places, StreamEngineConfig()))
    assert any(told.startswith("Corrupt: ") for told in done.failed)
    damaged.write_bytes(whole)
    assert _fsck(data).is_clean


def test_compaction_and_scrub_beside_a_node(spark: Any, tmp_path: Path) -> None:
    """More of it without a JVM: test_node_jobs."""
    data, noise = tmp_path / "data", random.Random(4)
    settings = ("stream_object_bytes_min=102400", "object_bytes_max=1048576")
    arguments = [part for one in settings for part in ("--set", f"engine.compaction.{one}")]
    with started(data, *arguments, wal="object") as node:
        for _ in range(4):
            produce(node.server, "logs", [(0, noise.randbytes(4000)) for _ in range(60)])
        expected = consumed(node.server, "logs", 1)
        assert asyncio.run(scrub_node(spark, node.server)).is_clean
        done = compact_node(spark, node.server)
        assert (done.failed, done.specs >= 1) == ([], True)
        assert done.bytes_written > 4 * 60 * 4000
        assert consumed(node.server, "logs", 1) == expected
        report = asyncio.run(scrub_node(spark, node.server))
        assert report.is_clean
        assert report.counts["records"] >= len(expected)
    assert not [one for one in _fsck(data).findings if one.severity.name == "ERROR"]
