"""The demonstration's job, on few lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.dom.minidom import parse

import pyarrow.dataset as ds
import pytest

from streamlog.demo import corpus, generator
from streamlog.errors import StreamlogError
from streamlog.spark.demo.lines import level_table, parsed
from streamlog.spark.demo.pipeline import HOUR_MS, run, wait_for_source
from tests.spark.reading import consumed, started

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.slow, pytest.mark.timeout(900)]

BEGIN_MS = 28_333_333 * 60_000

LINES = [
    (
        "2015-10-18 18:01:47,978 INFO [main] org.apache.hadoop.MRAppMaster: Created 3 of 0x1f",
        ("INFO", "org.apache.hadoop.MRAppMaster", "<*> <*> INFO [main] "
         "org.apache.hadoop.MRAppMaster: Created <*> of <*>"),
    ),
    (
        "Dec 10 06:55:46 LabSZ sshd[24200]: Failed password for root from 10.0.0.1 port 22 ssh2",
        ("OTHER", "sshd", "Dec <*> <*> LabSZ sshd[<*>]: Failed password for root from <*> port "
         "<*> ssh<*>"),
    ),
    (
        "[Sun Dec 04 04:47:44 2005] [error] mod_jk child in error state 6",
        ("ERROR", "-", "[Sun Dec <*> <*> <*>] [error] mod_jk child in error state <*>"),
    ),
    (
        "03-17 16:13:38.811  1702  2395 W WindowManager: it waits",
        ("WARN", "WindowManager", "<*> <*>  <*>  <*> W WindowManager: it waits"),
    ),
    ("", ("OTHER", "-", "")),
]  # fmt: skip


def test_lines_are_parsed(spark: Any) -> None:
    rows = [(number, line.encode()) for number, (line, _) in enumerate(LINES)]
    frame = spark.createDataFrame(rows, "topic int, value binary").selectExpr(
        "cast(topic AS string) topic", "value", "timestamp_millis(0) timestamp"
    )
    found = parsed(frame, level_table(spark)).orderBy("source").collect()
    assert [(row.level, row.component, row.template) for row in found] == [
        expected for _, expected in LINES
    ]


def test_every_line_is_counted_once_in_the_topic_and_in_parquet(spark: Any, tmp_path: Path) -> None:
    generator.write_samples(tmp_path / "logs", seed=4, lines=40)
    sources = corpus.load(tmp_path / "logs", line_bytes_max=1 << 20)
    lines = {source.topic: source.lines for source in sources[:3]}
    lines["one"] = [b"a single line"]
    told: list[str] = []
    with started(tmp_path / "node", wal="object") as node:
        outcome = run(spark, node.server, lines, tmp_path, BEGIN_MS, told.append)
        in_topic = consumed(node.server, "line-counts", 1)
    assert outcome.is_good
    assert outcome.lines == 121
    assert len(in_topic) == outcome.rows_in_topic > 60
    per_topic = dict.fromkeys(lines, 0)
    for (topic, _), count in outcome.counts.items():
        per_topic[topic] += count
    assert per_topic == {topic: len(some) for topic, some in lines.items()}
    files = sorted(outcome.parquet.glob("*.parquet"))
    table = ds.dataset(files).to_table()
    assert sum(table.column("lines").to_pylist()) == 121
    minutes = {moment.timestamp() // 60 * 60 for moment in table.column("minute").to_pylist()}
    assert min(minutes) * 1000 >= BEGIN_MS
    assert max(minutes) * 1000 < BEGIN_MS + HOUR_MS
    assert outcome.templates[0][2] > 1
    assert parse(str(outcome.picture)).getElementsByTagName("rect").length > len(minutes)
    assert len(told) == 5


class StartingQuery:
    """Has data after `polls` looks, or ends then."""

    def __init__(self, polls: int, ends: bool) -> None:
        self.polls = polls
        self._ends = ends

    @property
    def status(self) -> dict[str, bool]:
        return {"isDataAvailable": self.polls == 0 and not self._ends}

    def awaitTermination(self, timeout: float) -> bool:
        self.polls -= 1
        return self.polls == 0 and self._ends


@pytest.mark.parametrize("ends", [False, True])
def test_a_second_query_starts_once_the_first_has_its_reader_or_has_ended(ends: bool) -> None:
    query = StartingQuery(3, ends)
    wait_for_source(query)
    assert query.polls == 0


def test_a_query_that_reads_nothing_is_given_up() -> None:
    query = StartingQuery(1 << 30, ends=False)
    with pytest.raises(StreamlogError, match="nothing within 1800 s"):
        wait_for_source(query)
    assert query.polls == (1 << 30) - 36_000
