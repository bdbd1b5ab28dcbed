"""The WAL of a node that is gone: shown, uploaded, and read by another node."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from streamlog.client import Admin, Producer
from tests.support.command import run
from tests.support.node import NodeProcess
from tests.support.stored_records import Place, stored_records

TOPIC = "kept"
PARTITIONS = 3
RECORDS = 600
NOT_UPLOADED = ("--set", "engine.upload.upload_interval_ms=600000")


def places(data: Path) -> tuple[str, ...]:
    return ("--store", f"local://{data}/objects", "--meta", f"rocksdb://{data}/meta")


def fingerprint(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def said(ended: subprocess.CompletedProcess[bytes]) -> Any:
    return json.loads(ended.stdout)


def refused(ended: subprocess.CompletedProcess[bytes]) -> str:
    text = ended.stderr.decode()
    assert (ended.returncode, ended.stdout) == (1, b""), text
    assert "Traceback" not in text
    return text


def write(node: NodeProcess) -> dict[Place, bytes]:
    """Acknowledged records by partition and offset."""
    with Producer(node.server, linger_ms=1) as producer:
        views = []
        for number in range(RECORDS):
            value = b"%d" % number
            views.append((value, producer.send(TOPIC, value, partition=number % PARTITIONS)))
            if number % 50 == 0:
                producer.flush(30)
        producer.flush(30)
        return {
            (found.partition, found.offset): value
            for value, view in views
            for found in (view.result(30),)
        }


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Place, bytes]]:
    """The data of a killed node, and what it had acknowledged and not uploaded."""
    with NodeProcess(tmp_path_factory.mktemp("dead") / "data", arguments=NOT_UPLOADED) as node:
        with Admin(node.server) as admin:
            admin.create_topic(TOPIC, PARTITIONS)
        acknowledged = write(node)
        assert len(acknowledged) == RECORDS
        assert refused(run("wal", "upload", node.data / "wal", *places(node.data))).startswith(
            f"streamlog: DataInUse: {node.data}/wal/wal-lock is held by process {node.pid}"
        )
        running = said(run("wal", "show", node.data / "wal", "--json"))
        assert running["in_use"].startswith(f"process {node.pid} ")
        node.kill()
        return node.data, acknowledged


def test_a_damaged_log_is_shown_and_not_uploaded(
    dead: tuple[Path, dict[Place, bytes]], tmp_path: Path
) -> None:
    data, _ = dead
    folder = tmp_path / "wal"
    shutil.copytree(data / "wal", folder)
    content = said(run("wal", "show", folder, "--json"))
    (file,) = (one["name"] for one in content["files"] if one["state"] == "active")
    path = folder / file
    harmed = bytearray(path.read_bytes())
    # The first frame begins behind the superblock.
    harmed[4096 + 100] ^= 1
    path.write_bytes(harmed)
    shown = run("wal", "show", folder, "--json")
    assert shown.returncode == 1
    (damage,) = said(shown)["damage"]
    assert (damage["file"], damage["start"]) == (file, 4096)
    assert said(shown)["appends"] < content["appends"]
    assert f"damaged: {file}, bytes 4096 to " in run("wal", "show", folder).stdout.decode()
    before = fingerprint(folder)
    text = refused(run("wal", "upload", folder, *places(data)))
    assert f"Corrupt: {folder}: {file}" in text
    assert "--set engine.wal.accept_data_loss=true" in text
    assert fingerprint(folder) == before


def test_what_a_dead_node_has_not_uploaded_is_shown(
    dead: tuple[Path, dict[Place, bytes]],
) -> None:
    data, _ = dead
    folder = data / "wal"
    before = fingerprint(folder)
    shown = run("wal", "show", folder, "--json", *places(data))
    assert shown.returncode == 0, shown.stderr
    content = said(shown)
    assert fingerprint(folder) == before
    assert content["in_use"] is None
    assert content["tenures"] == ["1.1"]
    assert {one["state"] for one in content["streams"]} == {"pending"}
    records = sum(one["end_offset"] - one["start_offset"] for one in content["streams"])
    assert records >= RECORDS
    assert content["appends"] == len(content["entries"]) >= PARTITIONS
    text = run("wal", "show", folder, "--entries", *places(data)).stdout.decode()
    assert "pending" in text
    assert all(f"  {one['size_bytes']}" in text for one in content["entries"])


@pytest.mark.slow
def test_a_log_is_uploaded_to_no_store_but_its_own(
    dead: tuple[Path, dict[Place, bytes]], tmp_path: Path
) -> None:
    """Not to another cluster's store, nor to an empty one; and a folder that is no log is told."""
    data, _ = dead
    folder = data / "wal"
    before = fingerprint(folder)
    with NodeProcess(tmp_path / "other"):
        pass
    for strange, told in (("other", "ForeignCluster"), ("empty", "there is no folder")):
        assert told in refused(run("wal", "upload", folder, *places(tmp_path / strange)))
    assert not (tmp_path / "empty" / "objects" / "cluster.json").exists()
    assert not (tmp_path / "empty" / "meta").exists()
    nothing = run("wal", "upload", tmp_path, *places(data))
    assert nothing.returncode == 2
    assert b"there is no write-ahead log in" in nothing.stderr
    assert fingerprint(folder) | {"wal-lock": ""} == before | {"wal-lock": ""}


@pytest.mark.slow
def test_what_a_dead_node_acknowledged_is_uploaded_and_read_by_another(
    dead: tuple[Path, dict[Place, bytes]], tmp_path: Path
) -> None:
    data, acknowledged = tmp_path / "data", dead[1]
    shutil.copytree(dead[0], data)
    folder = data / "wal"
    appends = said(run("wal", "show", folder, "--json", *places(data)))["appends"]
    uploaded = run("wal", "upload", folder, "--json", *places(data))
    assert uploaded.returncode == 0, uploaded.stderr
    done = said(uploaded)
    assert f"uploading {done['appends']} appends of node 1".encode() in uploaded.stderr
    assert (done["node_id"], done["appends"], done["left"]) == (1, appends, [])
    assert said(run("wal", "show", folder, "--json", *places(data)))["appends"] == 0
    again = said(run("wal", "upload", folder, "--json", *places(data)))
    assert (again["appends"], again["streams"]) == (0, 0)

    # The folder is not needed any more: another node, which never had it, takes the streams.
    folder.rename(tmp_path / "taken away")
    second = NodeProcess(data, wal="object", arguments=("--set", "node.node_id=2"))
    with second:
        assert second.banner["node_id"] == 2
        assert stored_records(second.server, TOPIC, PARTITIONS) == acknowledged
