"""`streamlog topic adopt`: topics of another log folder come into a node's own, as they are."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from streamlog.client import Admin, Consumer, Producer
from tests.support.command import run
from tests.support.node import NodeProcess
from tests.support.old_records import ALL, counted_records, keeping_node, write_old_records

CONFIGS = {"log.type": "unified", "internal.segment.bytes": "4000"}
COUNT = 300
TRIMMED = 40


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log folder of a stopped node, with a topic of two partitions."""
    data = tmp_path_factory.mktemp("source")
    with NodeProcess(data, wal="disk") as node:
        with Admin(node.server) as admin:
            admin.create_topic("taken", 2, CONFIGS)
            with Producer(node.server) as producer:
                for number in range(COUNT):
                    producer.send("taken", b"%d" % number, partition=number % 2)
                producer.flush(30)
            admin.delete_records("taken", 1, TRIMMED)
        node.stop()
    return data / "logs"


def read(server: str) -> list[tuple[int, int, bytes | None]]:
    found: list[tuple[int, int, bytes | None]] = []
    with Consumer(server) as consumer:
        consumer.assign([("taken", 0), ("taken", 1)])
        while len(found) < COUNT - TRIMMED:
            found += [(one.partition, one.offset, one.value) for one in consumer.poll(10)]
    return sorted(found)


def test_a_topic_keeps_its_id_offsets_and_start(source: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, wal="disk") as node:
        node.stop()
    adopted = run("topic", "adopt", source, "--data", data, "--json")
    assert adopted.returncode == 0, adopted.stderr
    (told,) = [json.loads(line) for line in adopted.stdout.splitlines()]
    assert (told["name"], told["partitions"]) == ("taken", 2)
    with NodeProcess(data, wal="disk") as node:
        with Admin(node.server) as admin:
            described = admin.describe_topic("taken")
            assert described.topic_id == told["topic_id"]
            assert [one.log_start_offset for one in described.partitions] == [0, TRIMMED]
            configs = {one.name: one.value for one in admin.describe_configs(topic="taken")}
            kept = ("cleanup.policy", "retention.ms", "retention.bytes")
            assert [configs[name] for name in kept] == ["delete", "-1", "-1"]
        values = [(n % 2, n // 2, b"%d" % n) for n in range(COUNT)]
        expected = sorted(one for one in values if one[0] == 0 or one[1] >= TRIMMED)
        assert read(node.server) == expected
        with Producer(node.server) as producer:
            # Its id is none that the topic's producers had in the other cluster.
            assert producer.send("taken", b"on", partition=0).result(30).offset == COUNT // 2
        node.stop()
    again = run("topic", "adopt", source, "--data", data)
    assert again.returncode == 1
    assert b"is there already" in again.stderr
    # The source was not touched, and the topic's own folder is not another's.
    assert sorted(path.name for path in source.iterdir() if path.is_dir()) == ["taken-0", "taken-1"]


def test_the_settings_of_an_adopted_topic_can_be_given(source: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, wal="disk") as node:
        node.stop()
    adopt = ("topic", "adopt", source, "--data", data, "--topic-config")
    refused = run(*adopt, "retention.ms=long")
    assert refused.returncode != 0
    assert b"retention.ms" in refused.stderr
    assert [one for one in (data / "logs").iterdir() if one.is_dir()] == []
    adopted = run(*adopt, "cleanup.policy=compact")
    assert adopted.returncode == 0, adopted.stderr
    with NodeProcess(data, wal="disk") as node:
        with Admin(node.server) as admin:
            configs = {one.name: one.value for one in admin.describe_configs(topic="taken")}
        node.stop()
    names = ("log.type", "cleanup.policy", "retention.ms")
    assert [configs[name] for name in names] == ["unified", "compact", "-1"]


def test_a_folder_without_topics_makes_no_cluster(tmp_path: Path) -> None:
    """A mistyped --data would pass every later check for a node's folder."""
    empty, data = tmp_path / "empty", tmp_path / "data"
    empty.mkdir()
    refused = run("topic", "adopt", empty, "--data", data)
    assert refused.returncode == 1
    assert b"does not hold any topic" in refused.stderr
    assert not data.exists()


def test_what_was_put_aside_comes_from_the_nodes_own_folder(source: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, wal="disk") as node:
        node.stop()
    for number in range(2):
        aside = f"taken-{number}.{number:032x}-stray"
        shutil.copytree(source / f"taken-{number}", data / "logs" / aside)
    adopted = run("topic", "adopt", data / "logs", "--data", data)
    assert adopted.returncode == 0, adopted.stderr
    assert b"adopted taken with 2 partitions" in adopted.stderr


def test_what_a_recovered_node_has_in_its_own_folder_is_taken_at_once(tmp_path: Path) -> None:
    """No start in between has put it aside; one partition was never opened."""
    data = tmp_path / "data"
    with NodeProcess(data, wal="disk") as node:
        with Admin(node.server) as admin:
            admin.create_topic("taken", 3, CONFIGS)
        node.stop()
    for round in range(2):
        with NodeProcess(data, wal="disk") as node:
            with Producer(node.server) as producer:
                for number in range(2):
                    # The copy that the round before put aside does not have it.
                    sent = producer.send("taken", b"new", partition=number).result(30)
                    assert sent.offset == round
            node.stop()
        shutil.rmtree(data / "meta")
        recovered = run("recover", "--data", data, "--grace", "0")
        assert recovered.returncode == 0, recovered.stderr
        adopted = run("topic", "adopt", data / "logs", "--data", data)
        assert adopted.returncode == 0, adopted.stderr
        # What was there is put aside, once.
        names = sorted(path.name.split(".")[0] for path in (data / "logs").glob("taken-*"))
        assert names == sorted([f"taken-{number}" for number in range(3)] * (round + 2))
    with NodeProcess(data, wal="disk") as node:
        with Producer(node.server) as producer:
            ends = [producer.send("taken", b"", partition=n).result(30).offset for n in range(3)]
        node.stop()
    assert ends == [2, 2, 0]


def test_the_folder_of_a_running_node_is_refused(tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    with NodeProcess(other, wal="disk") as node:
        node.stop()
    with NodeProcess(data, wal="disk") as node:
        with Admin(node.server) as admin:
            admin.create_topic("used", 1, CONFIGS)
        refused = run("topic", "adopt", data / "logs", "--data", other)
        node.stop()
    assert refused.returncode != 0
    assert b"is held by process" in refused.stderr


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: shutil.rmtree(folder / "taken-0"), b"only the partitions [1]"),
        (lambda folder: (folder / "taken-0" / "partition.metadata").write_text("x"), b"has no"),
        (lambda folder: [shutil.rmtree(one) for one in folder.glob("taken-*")], b"does not hold"),
    ],
    ids=["a partition is missing", "its metadata is damaged", "nothing is there"],
)
def test_what_is_not_whole_is_refused(source: Path, tmp_path: Path, damage, says: bytes) -> None:  # type: ignore[no-untyped-def]
    broken = tmp_path / "broken"
    shutil.copytree(source, broken)
    damage(broken)
    data = tmp_path / "data"
    with NodeProcess(data, wal="disk") as node:
        node.stop()
    refused = run("topic", "adopt", broken, "--data", data)
    assert refused.returncode != 0
    assert says in refused.stderr
    assert [one for one in (data / "logs").iterdir() if one.is_dir()] == []


def test_what_no_backup_and_no_object_holds_is_said(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, wal="disk") as node:
        with Admin(node.server) as admin:
            admin.create_topic("shared", 1)
        made = run("topic", "create", "local", "--config", "log.type=unified", server=node.server)
        assert b"files on its leader's disk alone" in made.stderr
        assert b"alone" not in run("topic", "create", "other", server=node.server).stderr
        described = run("topic", "describe", "local", server=node.server).stdout
        assert b"files on its leader's disk alone" in described
        file = tmp_path / "backup"
        backup = run("backup", "--out", file, server=node.server)
        assert b"lie in a node's log folder: local" in backup.stderr
        node.stop()
    looked = run("fsck", "--data", data)
    assert looked.returncode == 0, looked.stderr
    assert b"1 topics lie in a node's log folder and are not looked at: local" in looked.stdout
    dumped = run("log", "dump", "local", "--partition", 0, "--data", data)
    assert dumped.returncode == 1
    assert b"readMode=service" in dumped.stderr
    for command in (("recover",), ("restore", file)):
        shutil.rmtree(data / "meta")
        rebuilt = run(*command, "--data", data, "--grace", "0")
        assert rebuilt.returncode == 0, rebuilt.stderr
        assert b"no store has them: local" in rebuilt.stderr


def test_a_log_that_lost_its_end_opens_when_the_loss_is_accepted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, wal="disk") as node:
        with Admin(node.server) as admin:
            admin.create_topic("cut", 1, {"log.type": "unified"})
        with Producer(node.server) as producer:
            for number in range(2):
                producer.send("cut", b"%d" % number).result()
        node.stop()
    (segment,) = (data / "logs" / "cut-0").glob("*.log")
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size - 1)
    for arguments, lost in (((), b"--accept-data-loss"), (("--accept-data-loss",), b"")):
        with NodeProcess(data, wal="disk", arguments=arguments) as node:
            until = ("--from", "earliest", "--until-end", "--timeout", "5")
            read = run("consume", "cut", *until, server=node.server)
            assert (read.returncode == 0) == (not lost)
            assert lost in read.stderr
            node.stop()
    assert read.stdout == b"0\n"


@pytest.mark.parametrize("has_file", [True, False])
def test_the_nodes_other_topics_keep_their_records(
    source: Path, tmp_path: Path, has_file: bool
) -> None:
    async def write() -> None:
        async with keeping_node(tmp_path) as engine:
            await write_old_records(engine)

    asyncio.run(write())
    file = tmp_path / "node.toml"
    file.write_text("[broker]\nlog.retention.ms = -1\n[log]\ncleaner_enable = false\n")
    config = ("--config", file) if has_file else ()
    adopted = run("topic", "adopt", source, "--data", tmp_path, *config)
    assert adopted.returncode == 0, adopted.stderr
    assert asyncio.run(counted_records(tmp_path)) == ALL


def test_the_nodes_own_settings_hold(source: Path, tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "node.toml"
    with NodeProcess(data, wal="disk") as node:
        node.stop()
    file.write_text("[log]\npartitions_per_topic_max = 1\n")
    refused = run("topic", "adopt", source, "--data", data, "--config", file)
    assert refused.returncode == 1
    assert b"a topic has 1 to 1 partitions, not 2" in refused.stderr
