"""The commands, as a user runs them, on a real node's files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from streamlog.client import KV, Admin, Consumer, Producer
from streamlog.errors import DataInUse
from streamlog.objectstore.keys import data_key
from tests.support.command import run
from tests.support.node import NodeProcess

RECORDS = 300


def values(server: str, count: int) -> list[bytes]:
    consumed: list[tuple[int, bytes | None]] = []
    with Consumer(server) as consumer:
        consumer.assign([("t", 0), ("t", 1)])
        while len(consumed) < count:
            consumed += [(record.partition, record.value) for record in consumer.poll(10)]
    return sorted(value for _, value in consumed if value is not None)


def produce(server: str, numbers: range) -> None:
    with Producer(server) as producer:
        sent = [
            producer.send("t", b"%06d" % number, partition=number % 2, headers=[])
            for number in numbers
        ]
        for one in sent:
            one.result(30)


def new_node(data: Path) -> NodeProcess:
    return NodeProcess(data, "object", ("--set", "engine.metadata.checkpoint_interval_ms=300"))


def test_the_metadata_of_a_running_node_is_its_own(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with new_node(data):
        refused = run("fsck", "--data", data)
        assert refused.returncode == 2
        assert DataInUse.__name__.encode() in refused.stderr
        assert b"stop it first" in refused.stderr
        assert b"--server" not in refused.stderr.rpartition(b"; ")[2]
        assert run("recover", "--data", data).returncode == 1


def test_a_missing_object_is_reported_as_a_loss(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with new_node(data) as node:
        with Admin(node.server) as admin:
            admin.create_topic("t", 2)
        produce(node.server, range(RECORDS))
        node.kill()
    objects = [path for path in (data / "objects" / "data").rglob("*") if path.is_file()]
    # The largest holds acknowledged records; a small one may be an upload that the kill cut short.
    max(objects, key=lambda path: path.stat().st_size).unlink()
    checked = run("fsck", "--data", data, "--repair", "--json")
    assert checked.returncode == 1
    (missing,) = [
        one for one in json.loads(checked.stdout)["findings"] if one["kind"] == "object-missing"
    ]
    assert missing["lost"]


def test_a_dry_run_tells_scripts_that_data_is_lost(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with new_node(data):
        pass
    stray = data / "objects" / data_key(1 << 40)
    stray.parent.mkdir(exist_ok=True)
    stray.write_bytes(b"no object" * 100)
    shutil.rmtree(data / "meta")
    dry = run("recover", "--data", data, "--dry-run", "--json")
    assert dry.returncode == 1
    (finding,) = json.loads(dry.stdout)["findings"]
    assert finding["severity"] == "error"
    accepted = run("recover", "--data", data, "--dry-run", "--accept-data-loss")
    assert accepted.returncode == 0
    assert b"nothing was written" in accepted.stdout


@pytest.mark.parametrize(
    "command",
    ["fsck", "backup --out {}/out", "log dump t --partition 0", "wal show {}/data/wal"],
)
def test_a_command_that_looks_makes_no_metadata(tmp_path: Path, command: str) -> None:
    """The objects of `--data D` lie in D/objects, and its metadata does not lie among them."""
    data = tmp_path / "data"
    with NodeProcess(data, "disk"):
        pass
    words = command.format(*[tmp_path] * 2).split()
    where = ("--store", f"local://{data}/objects")
    looked = run(*words, *where)
    assert looked.returncode != 0
    assert f"there is no metadata in {data}/objects/meta".encode() in looked.stderr
    typo = run(*words, *where, "--meta", f"rocksdb://{tmp_path}/typo")
    assert f"there is no metadata in {tmp_path}/typo".encode() in typo.stderr
    assert not (data / "objects" / "meta").exists()
    assert not (tmp_path / "typo").exists()
    for full in (data, data / "objects"):
        before = sorted(full.iterdir())
        wrong = run(*words, *where, "--meta", f"rocksdb://{full}")
        assert wrong.returncode != 0
        assert f"there is no metadata in {full}: look whether --meta is right" in (
            wrong.stderr.decode()
        )
        assert sorted(full.iterdir()) == before


@pytest.mark.parametrize("command", ["fsck", "backup --out {}/out", "recover --grace 0"])
def test_a_mistyped_store_is_refused_and_not_made(tmp_path: Path, command: str) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    for folder in (data, other):
        with NodeProcess(folder, "disk"):
            pass
    words = command.format(tmp_path).split()
    meta = ("--meta", f"rocksdb://{data}/meta")
    typo = run(*words, "--store", f"local://{tmp_path}/typo", *meta)
    assert typo.returncode != 0
    assert f"there is no folder {tmp_path}/typo: look whether --store" in typo.stderr.decode()
    assert not (tmp_path / "typo").exists()
    wrong = run(*words, "--store", f"local://{other}/objects", *meta)
    assert wrong.returncode != 0
    assert b"ForeignCluster" in wrong.stderr


def test_a_dry_run_makes_no_metadata(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with new_node(data):
        pass
    where = ("--store", f"local://{data}/objects", "--meta", f"rocksdb://{data}")
    before = sorted(data.iterdir())
    assert run("recover", *where, "--dry-run").returncode == 0
    assert sorted(data.iterdir()) == before
    shutil.rmtree(data / "meta")
    assert run("recover", "--data", data, "--dry-run").returncode == 0
    assert not (data / "meta").exists()
    assert run("recover", "--data", data, "--grace", 0).returncode == 0
    assert run("fsck", "--data", data).returncode == 0


@pytest.mark.slow
def test_metadata_is_lost_and_comes_back(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "meta.backup"
    node = new_node(data)
    with node:
        with Admin(node.server) as admin:
            admin.create_topic("t", 2)
        with KV(node.server) as kv:
            kv.put(b"name", b"value")
        produce(node.server, range(RECORDS))
        done = run("backup", "--out", file, "--json", server=node.server)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["size_bytes"] == file.stat().st_size
        produce(node.server, range(RECORDS, 2 * RECORDS))
        node.kill()
    checked = run("fsck", "--data", data, "--deep", "--json")
    assert checked.returncode == 0, checked.stdout
    assert json.loads(checked.stdout)["clean"] is True

    for command in (("recover",), ("restore", file)):
        shutil.rmtree(data / "meta")
        dry = run(*command, "--data", data, "--dry-run", "--json")
        assert dry.returncode == 0, dry.stderr
        assert json.loads(dry.stdout)["counts"]["partitions"] == 2
        done = run(*command, "--data", data, "--grace", 0)
        assert done.returncode == 0, done.stderr
        assert b"written; nodes may start" in done.stdout
        again = run(*command, "--data", data)
        assert again.returncode == 1
        assert b"--overwrite" in again.stderr
        count = 2 * RECORDS + (RECORDS if command[0] == "restore" else 0)
        with node:
            expected = sorted(b"%06d" % number for number in range(count))
            assert values(node.server, count) == expected
            produce(node.server, range(count, count + RECORDS))
            with KV(node.server) as kv:
                kept = kv.get(b"name")
            assert (kept is not None) is (command[0] == "restore")
            node.kill()
        checked = run("fsck", "--data", data)
        assert checked.returncode == 0, checked.stdout.decode()
        assert b"clean" in checked.stdout

    offline = tmp_path / "offline.backup"
    assert run("backup", "--out", offline, "--data", data).returncode == 0
    assert not list(tmp_path.glob("*.part"))
