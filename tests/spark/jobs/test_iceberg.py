"""Export into an Iceberg table, without a JVM: rounds, crashes, other writers, other exports."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import SetLocationUpdate
from pyiceberg.types import LongType, NestedField

from streamlog.client import Producer
from streamlog.errors import Conflict, ForeignCluster, Invalid, OutcomeUnknown
from streamlog.spark.jobs.iceberg import table as iceberg_table
from streamlog.spark.jobs.iceberg.files import PARTITIONS, table_schema
from streamlog.spark.jobs.iceberg.job import IcebergExported, export_iceberg
from streamlog.spark.jobs.iceberg.table import BASE, OFFSETS, CatalogFailed, ExportTable
from tests.spark.in_process import InProcess
from tests.spark.reading import consumed, produce, rows
from tests.support.node import NodeProcess
from tests.support.s3 import S3Tests

NewTopic = Callable[..., str]
DAY_MS = 86_400_000
NAME = "local.logs.events"


class Crash(BaseException):
    """As the end of the process."""


class Lake:
    """A catalog of its own, and exports into one of its tables."""

    def __init__(
        self, folder: Path, server: str, topic: str, store: tuple[fs.FileSystem, str], **more: str
    ) -> None:
        """`store`: where tables are, and the scheme of their URLs; `more`: catalog properties."""
        self.server = server
        self.topic = topic
        self._store, self._scheme = store
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
            **more,
        }
        self.catalog: Catalog = load_catalog("local", **self.properties)

    def export(self, *, round_records: int = 1000, **options: str) -> IcebergExported:
        given = {"server": self.server, "subscribe": self.topic, "includeHeaders": "true"}
        return export_iceberg(
            InProcess(),
            NAME,
            {**given, **options},
            catalog_properties=self.properties,
            round_records=round_records,
        )

    @property
    def table(self) -> Table:
        return self.catalog.load_table("logs.events")

    def rows(self, **scan: Any) -> list[tuple[Any, ...]]:
        """As any reader sees them."""
        table_rows = rows(self.table.scan(**scan).to_arrow())
        return sorted(table_rows, key=lambda row: row[:3])

    def check(self) -> None:
        """The table has what a consumer gets, and its folders nothing else."""
        assert self.rows() == consumed(self.server, self.topic, 2)
        named = set(self.table.inspect.files().column("file_path").to_pylist())
        assert set(self.files()) == named

    def files(self) -> list[str]:
        """Data files in the table's folders, of which the table may know nothing."""
        root = self.properties["warehouse"].removeprefix(self._scheme)
        entries = self._store.get_file_info(fs.FileSelector(root, recursive=True))
        return [self._scheme + entry.path for entry in entries if entry.extension == "parquet"]

    def summaries(self) -> list[dict[str, str]]:
        snapshots = self.table.snapshots()
        return [
            snapshot.summary.additional_properties for snapshot in snapshots if snapshot.summary
        ]


SEEDS = range(int(os.environ.get("ICEBERG_CHAOS_RUNS", "2")))
LOCAL = (fs.LocalFileSystem(), "file://")


@pytest.fixture
def lake(node: NodeProcess, new_topic: NewTopic, tmp_path: Path) -> Iterator[Lake]:
    topic = new_topic(2, message_timestamp_after_max_ms=str(1 << 62))
    made = Lake(tmp_path, node.server, topic, LOCAL)
    yield made
    made.catalog.close()


def test_rounds_are_snapshots_that_tell_their_offsets(lake: Lake) -> None:
    with Producer(lake.server) as producer:
        for number in range(90):
            producer.send(
                lake.topic,
                b"%d" % number,
                key=b"k" if number % 2 else None,
                headers=[("h", b"x"), ("h", None)] if number % 3 else [],
                partition=number % 2,
                timestamp_ms=DAY_MS * (20_000 + number // 40) + number,
            )
        producer.flush()
    done = lake.export(round_records=40)
    assert (done.records, done.rounds) == (90, 3)
    assert done.offsets == {(lake.topic, 0): 45, (lake.topic, 1): 45}
    lake.check()
    told = [json.loads(one[OFFSETS])[lake.topic] for one in lake.summaries()]
    assert told == [{"0": 40}, {"0": 45, "1": 35}, {"0": 45, "1": 45}]
    ids = [one.snapshot_id for one in lake.table.snapshots()]
    assert [one[BASE] for one in lake.summaries()] == ["0", str(ids[0]), str(ids[1])]
    assert done.snapshot_id == ids[2]
    # Time travel: a snapshot has what its summary says.
    assert lake.rows(snapshot_id=ids[0]) == consumed(lake.server, lake.topic, 2)[:40]
    # Partitions prune: a day's files are found by their partition.
    day = {"row_filter": "timestamp >= '2024-10-06T00:00:00+00:00'"}
    assert len(list(lake.table.scan(**day).plan_files())) == 2
    assert len(lake.rows(**day)) == 10
    assert lake.export().rounds == 0
    assert len(lake.table.snapshots()) == 3
    produce(lake.server, lake.topic, [(1, b"more")])
    assert lake.export().records == 1
    lake.check()


def test_files_carry_the_field_ids_of_the_table(lake: Lake) -> None:
    produce(lake.server, lake.topic, [(0, b"1"), (0, b"2")])
    lake.export()
    ids: dict[str, int] = {}

    def walk(at: str, field: pa.Field) -> None:
        ids[at] = int(field.metadata[b"PARQUET:field_id"])
        if pa.types.is_list(field.type):
            walk(f"{at}.element", field.type.value_field)
        if pa.types.is_struct(field.type):
            for one in field.type:
                walk(f"{at}.{one.name}", one)

    for field in pq.read_schema(lake.files()[0].removeprefix("file://")):
        walk(field.name, field)
    schema = lake.table.schema()
    assert ids == {name: schema.find_field(name).field_id for name in schema.column_names}
    assert "headers.element.value" in ids


def crash(*_: object) -> None:
    raise Crash


def killed(lake: Lake, monkeypatch: pytest.MonkeyPatch, where: object, name: str) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(where, name, crash)
        with pytest.raises(Crash):
            lake.export(round_records=20)


def test_files_of_a_killed_run_are_removed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    produce(lake.server, lake.topic, [(n % 2, b"%d" % n) for n in range(30)])
    killed(lake, monkeypatch, ExportTable, "add")  # files are written
    assert lake.table.current_snapshot() is None
    killed(lake, monkeypatch, SqlCatalog, "commit_table")  # manifests, too
    assert len(lake.files()) == 2
    killed(lake, monkeypatch, ExportTable, "_remove_leftovers")  # committed
    assert len(lake.rows()) == 20
    assert len(lake.files()) == 3
    assert lake.export(round_records=20).records == 10
    lake.check()


@pytest.mark.timeout(900)
def test_tables_on_s3(
    node: NodeProcess,
    new_topic: NewTopic,
    s3: S3Tests,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # This server loses its place in requests with PyArrow's own checksums (docs/spark.md, Traps).
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    endpoint = s3.server.endpoint
    place = urlsplit(s3.new_url())
    root = f"{place.netloc}{place.path}"
    store = fs.S3FileSystem(endpoint_override=endpoint, region="us-east-1")
    lake = Lake(
        tmp_path,
        node.server,
        new_topic(2),
        (store, "s3://"),
        warehouse=f"s3://{root}",
        **{"s3.endpoint": endpoint, "s3.region": "us-east-1"},
    )
    produce(lake.server, lake.topic, [(n % 2, b"%d" % n) for n in range(30)])
    killed(lake, monkeypatch, ExportTable, "add")
    killed(lake, monkeypatch, ExportTable, "_remove_leftovers")
    assert len(lake.files()) >= 2
    produce(lake.server, lake.topic, [(0, b"more")])
    assert lake.export().offsets == {(lake.topic, 0): 16, (lake.topic, 1): 15}
    lake.check()
    lake.catalog.close()


def test_files_stay_when_the_place_of_the_table_is_spelled_anew(lake: Lake) -> None:
    produce(lake.server, lake.topic, [(0, b"1")])
    lake.export()
    place = lake.table.location()
    again = place.replace("file://", "file:")
    updates = (SetLocationUpdate(location=again),)
    lake.catalog.commit_table(lake.table, (), updates)
    assert lake.table.location() == again
    produce(lake.server, lake.topic, [(0, b"2")])
    lake.export()
    assert lake.rows() == consumed(lake.server, lake.topic, 2)


def test_a_commit_whose_answer_is_lost_counts(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    produce(lake.server, lake.topic, [(n % 2, b"%d" % n) for n in range(30)])
    commit = SqlCatalog.commit_table

    def lost(*arguments: Any) -> None:
        commit(*arguments)
        raise ConnectionResetError("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", lost)
        with pytest.raises(OutcomeUnknown, match="no answer"):
            lake.export()
    assert lake.export().records == 0
    lake.check()


def _overtaken(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]
) -> Callable[[], int]:
    """`meanwhile` happens once, before the next commit. How often a commit was tried."""
    commit = SqlCatalog.commit_table
    tried = 0

    def overtaken(self: SqlCatalog, *arguments: Any) -> Any:
        nonlocal tried
        tried += 1
        if tried == 1:
            with monkeypatch.context() as inner:
                inner.setattr(SqlCatalog, "commit_table", commit)
                meanwhile()
        return commit(self, *arguments)

    monkeypatch.setattr(SqlCatalog, "commit_table", overtaken)
    return lambda: tried


@pytest.mark.parametrize("begun", [False, True])
def test_of_two_exports_at_once_one_loses(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    if begun:
        produce(lake.server, lake.topic, [(0, b"before")])
        lake.export()
    produce(lake.server, lake.topic, [(n % 2, b"%d" % n) for n in range(30)])
    _overtaken(monkeypatch, lake.export)
    with pytest.raises(Conflict, match="another export"):
        lake.export()
    lake.check()
    assert lake.export().records == 0


def test_other_writers_do_not_disturb(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    with Producer(lake.server) as producer:
        for number in range(30):
            producer.send(lake.topic, b"", partition=0, timestamp_ms=number // 10 * DAY_MS)
        producer.flush()
    lake.export()
    produce(lake.server, lake.topic, [(0, b"more")])

    def delete(day: int) -> None:
        lake.table.delete(f"timestamp < '1970-01-0{day}T00:00:00+00:00'")

    tried = _overtaken(monkeypatch, lambda: delete(2))
    assert lake.export().records == 1
    assert tried() == 2
    delete(3)
    produce(lake.server, lake.topic, [(0, b"still more")])
    assert lake.export().records == 1
    expected = consumed(lake.server, lake.topic, 2)
    assert lake.rows() == expected[20:]
    # Files that only older snapshots name stay.
    first = lake.table.snapshots()[0].snapshot_id
    assert lake.rows(snapshot_id=first) == expected[:30]
    # Back to an older snapshot: what came after it comes again.
    lake.table.manage_snapshots().rollback_to_snapshot(first).commit()
    undone = lake.table.snapshots()[-1].snapshot_id
    assert lake.export().records == 2
    assert lake.rows() == expected
    assert lake.rows(snapshot_id=undone) == expected[20:]


def test_timestamps_to_the_end_of_the_calendar(lake: Lake) -> None:
    last = 253_402_300_799_999
    with Producer(lake.server) as producer:
        for moment in (0, last):
            producer.send(lake.topic, b"x", partition=0, timestamp_ms=moment)
        producer.flush()
        assert lake.export().files == 2
        assert len(lake.rows(row_filter="timestamp < '2000-01-01T00:00:00+00:00'")) == 1
        producer.send(lake.topic, b"x", partition=0, timestamp_ms=last + 1).result()
    with pytest.raises(Invalid, match="beyond the year 9999"):
        lake.export()
    assert [row[3] for row in lake.rows()] == [0, last]


def test_an_iceberg_export_refuses_unfit_tables(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(lake.server, lake.topic, [(n % 2, b"%d" % n) for n in range(10)])
    for name in ("events", "local.events", "local..events"):
        with pytest.raises(Invalid, match=r"CATALOG\.NAMESPACE\.TABLE"):
            export_iceberg(InProcess(), name, {"server": lake.server, "subscribe": lake.topic})
    with pytest.raises(CatalogFailed, match="nowhere cannot be opened"):
        export_iceberg(InProcess(), "nowhere.a.b", {"server": lake.server, "subscribe": lake.topic})
    lake.catalog.create_namespace("logs")
    lake.catalog.create_table("logs.events", Schema(NestedField(1, "offset", LongType())))
    with pytest.raises(Invalid, match="has no column topic, partition"):
        lake.export()
    lake.catalog.drop_table("logs.events")
    lake.catalog.create_table("logs.events", table_schema(headers=False))
    with pytest.raises(Invalid, match="has no headers"):
        lake.export()
    with pytest.raises(Invalid, match="is partitioned by nothing"):
        lake.export(includeHeaders="false")
    lake.catalog.drop_table("logs.events")
    lake.export()
    with monkeypatch.context() as patched:
        patched.setattr("streamlog.spark.cluster.cluster.ServerCluster.cluster_id", "other")
        with pytest.raises(ForeignCluster, match="name another table"):
            lake.export()
    lake.check()


def test_a_table_of_somebody_else_needs_starting_offsets(lake: Lake) -> None:
    produce(lake.server, lake.topic, [(n % 2, b"%d" % n) for n in range(10)])
    lake.export()
    copied = lake.files()
    lake.catalog.drop_table("logs.events")
    table = lake.catalog.create_table(
        "logs.events", table_schema(headers=True), partition_spec=PARTITIONS
    )
    table.add_files(copied)
    produce(lake.server, lake.topic, [(0, b"new")])
    with pytest.raises(Invalid, match=r"max\(offset\) \+ 1"):
        lake.export()
    asked: dict[str, Any] = {"startingOffsets": json.dumps({lake.topic: {"0": 5, "1": 5}})}
    assert lake.export(**asked).records == 1
    produce(lake.server, lake.topic, [(1, b"newer")])
    # Said of what the table holds, it means nothing.
    assert lake.export(**asked).records == 1
    assert lake.rows() == consumed(lake.server, lake.topic, 2)


def test_a_newer_note_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    produce(lake.server, lake.topic, [(0, b"1")])
    with monkeypatch.context() as patched:
        patched.setattr(iceberg_table, "VERSION", 2)
        lake.export()
    with pytest.raises(Invalid, match="version 2 of what an export notes"):
        lake.export()


def _chaos_step(lake: Lake, rng: Random, monkeypatch: pytest.MonkeyPatch, *, undo: bool) -> None:
    """Records, and an export to which something happens."""
    produce(lake.server, lake.topic, [(n % 2, b"") for n in range(rng.randrange(1, 30))])
    commit = SqlCatalog.commit_table

    def then_crash(*arguments: Any) -> None:
        commit(*arguments)
        raise Crash

    def meddle() -> None:
        """Another writer, who changes nothing."""
        with lake.table.transaction() as change, change.update_snapshot().fast_append():
            pass

    with monkeypatch.context() as patched, suppress(Crash, Conflict):
        match rng.randrange(7 if undo else 6):
            case 0:
                patched.setattr(ExportTable, "add", crash)
            case 1:
                patched.setattr(SqlCatalog, "commit_table", crash)
            case 2:
                patched.setattr(SqlCatalog, "commit_table", then_crash)
            case 3:
                patched.setattr(ExportTable, "_remove_leftovers", crash)
            case 4:
                _overtaken(patched, lake.export)
            case 5:
                _overtaken(patched, meddle)
            case 6:
                before = [one.snapshot_id for one in lake.table.history()]
                current = lake.table.current_snapshot()
                if current is not None and current.parent_snapshot_id in before:
                    change = lake.table.manage_snapshots()
                    change.rollback_to_snapshot(current.parent_snapshot_id).commit()
        lake.export(round_records=rng.randrange(5, 40))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_an_export_loses_and_doubles_no_record(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = Random(seed)
    for _ in range(8):
        _chaos_step(lake, rng, monkeypatch, undo=bool(seed % 2))
        if rng.random() < 0.5:
            lake.export()
            assert lake.rows() == consumed(lake.server, lake.topic, 2)
    produce(lake.server, lake.topic, [(0, b"last")])
    lake.export()
    assert lake.rows() == consumed(lake.server, lake.topic, 2)
    if seed % 2 == 0:
        # After a rollback a folder may be one that no later round looks into.
        lake.check()
