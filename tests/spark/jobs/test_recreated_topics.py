"""Exports of topics that are deleted and recreated under their names: without a JVM."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyiceberg.catalog import load_catalog

from streamlog.client import Admin
from streamlog.spark.errors import DataLost
from streamlog.spark.jobs.export.job import export
from streamlog.spark.jobs.export.manifest import OWN
from streamlog.spark.jobs.iceberg.job import export_iceberg
from tests.spark.in_process import InProcess
from tests.spark.reading import produce
from tests.support.node import NodeProcess

NewTopic = Callable[..., str]
TABLE = "local.logs.events"


def recreate(server: str, topic: str) -> None:
    with Admin(server) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, 1)


class FolderExport:
    def __init__(self, folder: Path) -> None:
        self._folder = folder / "out"

    def run(self, options: dict[str, str], **settings: Any) -> Any:
        return export(InProcess(), self._folder, options, **settings)

    def values(self) -> list[bytes]:
        table = ds.dataset(self._folder, partitioning="hive").to_table()
        return sorted(table.column("value").to_pylist())

    def forget_topic_ids(self) -> None:
        """Leaves the manifest as an older release wrote it."""
        path = self._folder / OWN / "manifest.json"
        manifest = json.loads(path.read_bytes())
        del manifest["topics"]
        path.write_text(json.dumps(manifest))


class IcebergExport:
    def __init__(self, folder: Path) -> None:
        self._properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        }

    def run(self, options: dict[str, str], **settings: Any) -> Any:
        return export_iceberg(
            InProcess(), TABLE, options, catalog_properties=self._properties, **settings
        )

    def values(self) -> list[bytes]:
        catalog = load_catalog("local", **self._properties)
        try:
            table = catalog.load_table("logs.events").scan().to_arrow()
        finally:
            catalog.close()
        return sorted(table.column("value").to_pylist())


Target = type[FolderExport] | type[IcebergExport]
both = pytest.mark.parametrize("target", [FolderExport, IcebergExport])


@both
def test_records_of_a_recreated_topic_are_not_taken_for_those_behind_the_last_export(
    target: Target, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    options = {"server": node.server, "subscribe": topic}
    job = target(tmp_path)
    old, new = [b"old %d" % n for n in range(3)], [b"new %d" % n for n in range(5)]
    produce(node.server, topic, [(0, value) for value in old])
    assert job.run(options).records == 3
    recreate(node.server, topic)
    produce(node.server, topic, [(0, value) for value in new])
    with pytest.raises(DataLost, match=f"topic {topic} was deleted and recreated"):
        job.run(options)
    assert job.values() == old
    done = job.run({**options, "failOnDataLoss": "false"})
    assert (done.records, done.offsets) == (5, {(topic, 0): 5})
    assert job.values() == sorted([*old, *new])
    assert job.run(options).records == 0


@both
def test_an_export_stops_at_a_topic_that_is_recreated_between_two_rounds(
    target: Target, node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    job = target(tmp_path)
    old = [b"old %d" % n for n in range(4)]
    produce(node.server, topic, [(0, value) for value in old])

    def recreate_behind_the_first_round(what: str, done: int, total: int) -> None:
        if done == 2:
            recreate(node.server, topic)
            produce(node.server, topic, [(0, b"new %d" % n) for n in range(5)])

    with pytest.raises(DataLost, match="recreated"):
        job.run(
            {"server": node.server, "subscribe": topic},
            round_records=2,
            progress=recreate_behind_the_first_round,
        )
    assert job.values() == old[:2]


def test_an_export_of_an_older_release_goes_on_without_topic_ids(
    node: NodeProcess, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic(1)
    options = {"server": node.server, "subscribe": topic}
    job = FolderExport(tmp_path)
    for number in range(2):
        produce(node.server, topic, [(0, b"%d" % number)])
        assert job.run(options).records == 1
        job.forget_topic_ids()
