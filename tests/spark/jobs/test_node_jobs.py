"""Compaction and scrub beside a node that runs: real nodes, tasks in this process."""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from streamlog.cli.commands import spark_compact, spark_scrub, spark_stats
from streamlog.cli.main import run as command
from streamlog.cli.support.offline import DataLocations
from streamlog.client import Admin, Producer
from streamlog.compaction.collect.collector import CollectorConfig
from streamlog.engine.config import StreamEngineConfig
from streamlog.errors import Conflict, Invalid, NotFound, StreamlogError, Unavailable
from streamlog.metadata.checkpoint.files import CheckpointReader
from streamlog.metadata.config import MetadataConfig
from streamlog.model.batch import RecordBatch
from streamlog.repair.findings import RepairReport
from streamlog.repair.fsck import objects as check_objects
from streamlog.spark.cluster.cluster import ServerCluster
from streamlog.spark.jobs.compaction.job import CompactionPlaces, compact
from streamlog.spark.jobs.compaction.node import compact_node
from streamlog.spark.jobs.export.job import export
from streamlog.spark.jobs.scrub import job as scrub_module
from streamlog.spark.jobs.scrub.job import scrub
from streamlog.spark.jobs.scrub.node import scrub_node
from streamlog.spark.jobs.stats.job import stats
from tests.spark.in_process import InProcess
from tests.spark.offline_data import deep_fsck, look, places_of
from tests.spark.reading import consumed, produce
from tests.support.node import NodeProcess
from tests.support.old_records import ALL, counted_records, keeping_node, write_old_records
from tests.support.s3 import S3Tests

pytestmark = pytest.mark.timeout(600)

SETTINGS = {
    "compaction.compaction_interval_ms": 3_600_000,
    "compaction.stream_object_bytes_min": 100 << 10,
    "compaction.object_bytes_max": 1 << 20,
    "compaction.compacted_part_bytes": 64 << 10,
    "compaction.block_target_bytes": 8 << 10,
    "metadata.checkpoint_interval_ms": 100,
    "collector.collect_interval_ms": 100,
    "collector.deletion_delay_ms": 0,
}
"""The node compacts for others alone, and deletes at once."""
TOPIC, PARTITIONS = "logs", 3


@contextmanager
def node(folder: Path, **settings: Any) -> Iterator[NodeProcess]:
    arguments = [
        part for name, value in SETTINGS.items() for part in ("--set", f"engine.{name}={value}")
    ]
    data = folder / "data"
    with NodeProcess(data, wal="object", arguments=tuple(arguments), **settings) as running:
        with Admin(running.server) as admin:
            if TOPIC not in [one.name for one in admin.list_topics()]:
                admin.create_topic(TOPIC, PARTITIONS)
        yield running


def fill(server: str, rounds: int, seed: int = 1) -> None:
    """Each round is some objects."""
    noise = random.Random(seed)
    for _ in range(rounds):
        produce(server, TOPIC, [(n % PARTITIONS, noise.randbytes(3000)) for n in range(40)])


def objects(data: Path) -> set[Path]:
    return {path for path in (data / "objects" / "data").rglob("*") if path.is_file()}


def checkpoints(data: Path) -> set[Path]:
    return {path for path in (data / "objects" / "checkpoint").rglob("*") if path.is_file()}


def waited_for(condition: Callable[[], bool]) -> None:
    """As long as the test may run."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.02)


def scrubbed(spark: Any, server: str, **more: Any) -> RepairReport:
    return asyncio.run(scrub_node(spark, server, **more))


# compaction


def test_a_node_is_compacted_while_it_takes_appends(tmp_path: Path) -> None:
    with node(tmp_path) as running:
        fill(running.server, 4)
        ended = threading.Event()
        sent: list[bytes] = []

        def append() -> None:
            with Producer(running.server) as producer:
                while not ended.is_set():
                    sent.append(b"beside %d" % len(sent))
                    producer.send(TOPIC, value=sent[-1], partition=1)
                    producer.flush()

        appending = threading.Thread(target=append)
        appending.start()
        try:
            spark = InProcess(lambda: waited_for(lambda: len(sent) > 3))
            done = compact_node(spark, running.server)
        finally:
            ended.set()
            appending.join()
        assert done.failed == []
        assert done.specs >= 1
        assert done.inputs > done.outputs >= done.specs
        assert done.bytes_written > 400_000
        assert spark.tags == set()
        records = consumed(running.server, TOPIC, PARTITIONS)
        values = [row[5] for row in records]
        noise = random.Random(1)
        assert sorted(values) == sorted([noise.randbytes(3000) for _ in range(160)] + sent)
        again = compact_node(InProcess(), running.server)
        assert again.bytes_written < done.bytes_written
        assert running.metric("streamlog_compaction_quarantined_objects") == 0
    assert deep_fsck(places_of(tmp_path / "data")).is_clean


class Killed(BaseException):
    """Stands for SIGKILL: no handler catches it."""


def test_a_driver_that_dies_leaves_the_node_its_merges(tmp_path: Path) -> None:
    with node(tmp_path) as running:
        fill(running.server, 3)
        expected = consumed(running.server, TOPIC, PARTITIONS)

        def second_driver() -> None:
            with pytest.raises(Conflict, match="the first carries out"):
                compact_node(InProcess(), running.server, owner="the second")
            raise Killed

        with pytest.raises(Killed):
            compact_node(InProcess(second_driver), running.server, owner="the first")
        waited_for(lambda: running.metric("streamlog_compaction_lent") == 0)
        done = compact_node(InProcess(), running.server, owner="the third")
        assert done.specs >= 1
        assert consumed(running.server, TOPIC, PARTITIONS) == expected
    assert deep_fsck(places_of(tmp_path / "data")).is_clean


def test_a_node_that_dies_ends_the_job(tmp_path: Path) -> None:
    with node(tmp_path) as running:
        fill(running.server, 3)
        expected = consumed(running.server, TOPIC, PARTITIONS)
        with pytest.raises(Unavailable):
            compact_node(InProcess(running.kill), running.server)
    # Outputs that tasks stored after its death are orphans and are deleted.
    with node(tmp_path) as running:
        assert compact_node(InProcess(), running.server).specs >= 1
        assert consumed(running.server, TOPIC, PARTITIONS) == expected
    report = deep_fsck(places_of(tmp_path / "data"))
    assert not [one for one in report.findings if one.severity.name == "ERROR"]


def test_a_damaged_input_is_reported_and_left(tmp_path: Path) -> None:
    with node(tmp_path) as running:
        fill(running.server, 3)
        damaged = max(objects(tmp_path / "data"), key=lambda path: path.stat().st_size)
        whole = damaged.read_bytes()
        at = len(whole) // 4
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        done = compact_node(InProcess(), running.server)
        assert [told.startswith("Corrupt: ") for told in done.failed] == [True]
        assert running.metric("streamlog_compaction_quarantined_objects") == 1
        assert damaged.exists()
        report = scrubbed(InProcess(), running.server)
        assert set(report.by_kind) == {"object-corrupt"}
        damaged.write_bytes(whole)
        assert scrubbed(InProcess(), running.server).is_clean


def test_compaction_at_rest_deletes_nothing(tmp_path: Path) -> None:
    """Neither records nor what it has merged: how long that stays is the node's to say."""

    async def write() -> None:
        async with keeping_node(tmp_path) as engine:
            await write_old_records(engine)
            for _ in range(4):
                stream = await engine.streams.create_and_open_stream()
                await stream.append(RecordBatch(1, 0, (b"x" * 5000,)))
                await engine.drain()

    asyncio.run(write())
    before = objects(tmp_path)
    at_once = StreamEngineConfig(
        metadata=MetadataConfig(checkpoint_interval_ms=10),
        collector=CollectorConfig(deletion_delay_ms=0, collect_interval_ms=1),
    )
    places = CompactionPlaces(
        f"local://{tmp_path}/objects", f"rocksdb://{tmp_path}/meta", "disk", str(tmp_path / "wal")
    )
    done = asyncio.run(compact(InProcess(), places, at_once))
    assert (done.failed, done.specs >= 1) == ([], True)
    assert objects(tmp_path) >= before
    assert asyncio.run(counted_records(tmp_path)) == ALL


# scrub


def test_a_scrub_pins_the_objects_that_it_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its snapshot and its checks the node merges everything and writes checkpoints."""
    data = tmp_path / "data"
    monkeypatch.setattr(check_objects, "OBJECTS_MAX", 2)
    monkeypatch.setattr(CheckpointReader, "_keep", lambda *_: None)
    monkeypatch.setattr(scrub_module, "TASK_OBJECTS_MAX", 1)
    monkeypatch.setattr(scrub_module, "wave_size", lambda spark: 1)
    with node(tmp_path) as running:
        fill(running.server, 3)
        waited_for(lambda: bool(checkpoints(data)))

        def change() -> None:
            if spark.waves > 1:
                return
            before, files = objects(data), checkpoints(data)
            assert compact_node(InProcess(), running.server).inputs > 1
            fill(running.server, 1, seed=2)
            waited_for(
                lambda: (
                    running.metric("streamlog_metadata_dead_objects") > 1
                    or not before <= objects(data)
                )
            )
            waited_for(lambda: not files & checkpoints(data))
            assert before <= objects(data)

        spark = InProcess(change)
        report = scrubbed(spark, running.server)
        assert report.is_clean
        assert report.counts["objects"] == spark.waves > 3
        assert report.counts["records"] >= 120
        # Without its pin what died goes.
        waited_for(lambda: running.metric("streamlog_metadata_dead_objects") == 0)
        later = scrubbed(InProcess(), running.server)
        assert later.is_clean
        assert later.counts["records"] > report.counts["records"]


def test_a_scrub_whose_pin_has_ended_reports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with node(tmp_path) as running:
        fill(running.server, 1)
        pins: list[int] = []
        take = ServerCluster.pin

        def noted(self: ServerCluster, ttl_ms: int) -> int:
            pins.append(take(self, ttl_ms))
            return pins[-1]

        monkeypatch.setattr(ServerCluster, "pin", noted)

        def unpinned() -> None:
            ServerCluster(running.server, "read_committed").unpin(pins[-1])

        with pytest.raises(NotFound, match="has ended"):
            scrubbed(InProcess(unpinned), running.server)


def test_a_scrub_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub_module, "TASK_OBJECTS_MAX", 1)
    monkeypatch.setattr(scrub_module, "wave_size", lambda spark: 1)
    file = tmp_path / "state.json"
    with node(tmp_path) as running:
        fill(running.server, 2)

        def stop() -> None:
            if first.waves == 3:
                raise Killed

        first = InProcess(stop)
        with pytest.raises(Killed):
            scrubbed(first, running.server, state_file=file)
        second = InProcess()
        report = scrubbed(second, running.server, state_file=file)
        assert report.is_clean
        assert report.counts["objects"] == second.waves + 2
        assert not file.exists()


def test_a_node_that_is_not_there(tmp_path: Path) -> None:
    running = NodeProcess(tmp_path / "data")
    with pytest.raises(StreamlogError):
        compact_node(InProcess(), running.server)


# S3, and the commands


def test_jobs_on_s3(s3: S3Tests, tmp_path: Path) -> None:
    """Beside the node, then offline; executors find their credentials in the environment."""
    url, meta = s3.new_url(), f"rocksdb://{tmp_path}/meta"
    with node(tmp_path, places=("--store", url, "--meta", meta)) as running:
        fill(running.server, 3)
        expected = consumed(running.server, TOPIC, PARTITIONS)
        assert scrubbed(InProcess(), running.server).is_clean
        done = compact_node(InProcess(), running.server)
        assert (done.failed, done.specs >= 1) == ([], True)
        assert consumed(running.server, TOPIC, PARTITIONS) == expected
        fill(running.server, 2, seed=2)
        expected = consumed(running.server, TOPIC, PARTITIONS)
        assert scrubbed(InProcess(), running.server, store=url).is_clean
    places = CompactionPlaces(url, meta, "object")
    offline = asyncio.run(compact(InProcess(), places, StreamEngineConfig()))
    assert (offline.failed, offline.specs >= 1) == ([], True)
    where = DataLocations(url, meta, StreamEngineConfig())
    report = look(
        where,
        lambda at: scrub(
            InProcess(),
            at.kv,
            at.store,
            url,
            clock=at.clock,
            random=at.random,
            offload=at.offload,
        ),
    )
    assert report.is_clean
    assert report.counts["records"] >= len(expected) == 200
    assert deep_fsck(where).is_clean
    options = {"store": url, "meta": meta, "subscribe": TOPIC}
    assert export(InProcess(), tmp_path / "out", options).records == 200
    assert stats(InProcess(), options).description()["topics"][TOPIC]["records"] == 200


def test_a_state_of_statistics_is_of_the_records_that_were_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "state"

    def killed(*_: object) -> None:
        raise Killed

    with node(tmp_path) as running:
        produce(running.server, TOPIC, [(0, b"%d" % n) for n in range(5)])
        produce(running.server, "other", [(0, b"one")])

        def counted(topic: str = TOPIC, **more: Any) -> dict[str, int]:
            options = {"server": running.server, "subscribe": topic}
            options |= more.pop("options", {})
            result = stats(InProcess(), options, state_file=file, round_records=2, **more)
            return {name: counts.whole.records for name, counts in result.topics.items()}

        with pytest.raises(Killed):
            counted(progress=killed)
        with pytest.raises(Invalid, match=f'"{TOPIC}".*"other".*name another file'):
            counted("other")
        with pytest.raises(Invalid, match="startingOffsets"):
            counted(options={"startingOffsets": f'{{"{TOPIC}": {{"0": 4}}}}'})
        with pytest.raises(Invalid, match="read_uncommitted"):
            counted(options={"kafka.isolation.level": "read_uncommitted"})
        assert counted(options={"readName": "again"}) == {TOPIC: 5}
        assert not file.exists()
        with pytest.raises(Killed):
            counted(progress=killed)
        state = json.loads(file.read_text())
        del state["selection"]  # as an older release
        file.write_text(json.dumps(state))
        assert counted() == {TOPIC: 5}


@pytest.fixture
def in_process_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def session(*_: object) -> Iterator[InProcess]:
        yield InProcess()

    for module in (spark_compact, spark_scrub, spark_stats):
        monkeypatch.setattr(module, "spark_session", session)


@pytest.mark.usefixtures("in_process_commands")
def test_statistics_show_times_that_no_calendar_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    microseconds, picture = 1_700_000_000_000_000, tmp_path / "picture.svg"
    with node(tmp_path) as running:
        with Admin(running.server) as admin:
            admin.create_topic("times", 1, {"message.timestamp.after.max.ms": str(1 << 62)})
        with Producer(running.server) as producer:
            producer.send("times", b"early", timestamp_ms=0)
            producer.send("times", b"late", timestamp_ms=microseconds)
        arguments = ("--topic", "times", "--svg", str(picture), "--server", running.server)
        assert command(["spark", "stats", *arguments]) == 0
    shown = capsys.readouterr().out
    assert "1970-01-01 00:00:00" in shown
    assert f"{microseconds} ms" in shown
    assert " ms</text>" in picture.read_text()


@pytest.mark.usefixtures("in_process_commands")
def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer_of(*arguments: str) -> tuple[int, Any]:
        code = command(["spark", *arguments, "--json"])
        out = capsys.readouterr().out
        return code, json.loads(out) if out else None

    with node(tmp_path) as running:
        fill(running.server, 3)
        code, answer = answer_of("scrub", "--server", running.server)
        assert (code, answer["findings"]) == (0, [])
        code, answer = answer_of("compact", "--server", running.server)
        assert (code, answer["failed"]) == (0, [])
        assert answer["specs"] >= 1
        assert answer_of("scrub", "--server", running.server, "--data", "x")[0] == 2
        assert answer_of("compact", "--data", str(tmp_path / "data"))[0] == 1
    code, answer = answer_of("scrub", "--data", str(tmp_path / "data"))
    assert (code, answer["findings"]) == (0, [])
