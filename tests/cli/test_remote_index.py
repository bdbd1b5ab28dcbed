"""`remote-index build` and `dump`, on the data of a node that has ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from streamlog.client.aio import Admin, Producer
from streamlog.kvstore.rocks.store import RocksKVStore
from streamlog.model.partition import TopicPartition
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from tests.support.command import run as run_process
from tests.support.running_node import running_node

COUNT = 30
TIERED = {
    "log.type": "unified",
    "remote.storage.enable": "true",
    "segment.bytes": str(1 << 20),
    "index.interval.bytes": "1",
}


async def make_data(
    folder: Path, settings: Mapping[str, str] | None = None, *, is_killed: bool = False
) -> None:
    """Of a node that copied some segments of `tiered`, and none of `shared`."""
    async with (
        running_node(data=str(folder), **(settings or {})) as node,
        Admin(node.banner.grpc) as admin,
    ):
        await admin.create_topic("tiered", 1, TIERED)
        await admin.create_topic("shared", 1)
        async with Producer(node.banner.grpc, linger_ms=0) as producer:
            for number in range(COUNT):
                await (await producer.send("tiered", bytes([number]) * 120_000, partition=0))
        engine = node.node.engine
        assert engine is not None
        assert engine.tiers is not None
        await engine.tiers.run_tasks()
        assert engine.tiers.highest_offset(TopicPartition("tiered", 0)) > COUNT // 2
        if is_killed:
            await engine.kill()


MANAGER = "remote.log.metadata.manager.class.name"
IN_A_TOPIC = {f"broker.{MANAGER}": "TopicBasedRemoteLogMetadataManager"}


@pytest.fixture(scope="module")
def data_of_kv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote_index") / "data"
    asyncio.run(make_data(folder))
    return folder


@pytest.fixture(scope="module")
def data_of_topic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote_index_of_topic") / "data"
    asyncio.run(make_data(folder, IN_A_TOPIC))
    return folder


@pytest.fixture(scope="module", params=["metadata in the store", "metadata in a topic"])
def data(request: pytest.FixtureRequest) -> Path:
    """Commands do not get the node's settings: the data say where the metadata is."""
    name = "data_of_topic" if request.param.endswith("topic") else "data_of_kv"
    folder: Path = request.getfixturevalue(name)
    return folder


def config_of(folder: Path, *lines: str) -> Path:
    path = folder / "node.toml"
    manager = f'"{MANAGER}" = "TopicBasedRemoteLogMetadataManager"'
    path.write_text("\n".join(("[broker]", manager, *lines)))
    return path


def built(data: Path, out: Path, *more: str) -> list[dict[str, Any]]:
    ended = run_process(
        *("remote-index", "build", "tiered", "--partition", 0, "--data", data, "--out", out),
        *("--json", *more),
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def test_what_was_built_is_shown(data: Path, tmp_path: Path) -> None:
    (written,) = built(data, tmp_path / "index")
    assert written["path"] == str(tmp_path / "index" / f"{0:020d}.remotelogindex")
    names = sorted(path.name for path in (tmp_path / "index").iterdir())
    stem = f"{0:020d}"
    assert names == [f"{stem}.remote{kind}index" for kind in ("log", "offset", "time")]
    shown = run_process("remote-index", "dump", tmp_path / "index", "--json")
    assert shown.returncode == 0, shown.stderr
    entries = [json.loads(line) for line in shown.stdout.splitlines()]
    assert len(entries) == written["entries"] > 1
    assert [one["first_offset"] for one in entries[1:]] == [
        one["last_offset"] + 1 for one in entries[:-1]
    ]
    segments = {path.stem for path in (data / "objects").rglob("*.segment")}
    assert {f"{one['first_offset']:020d}.{one['rdi'][:32]}" for one in entries} == segments
    text = run_process("remote-index", "dump", tmp_path / "index").stdout.decode()
    assert text.splitlines()[0].split()[:3] == ["file", "position", "first_offset"]
    many = built(data, tmp_path / "small", "--file-bytes", "1")
    assert [one["entries"] for one in many] == [1] * len(entries)


def test_damage_is_named_and_ends_with_1(data: Path, tmp_path: Path) -> None:
    built(data, tmp_path)
    path = tmp_path / f"{0:020d}.remotetimeindex"
    path.write_bytes(path.read_bytes()[:-1])
    shown = run_process("remote-index", "dump", tmp_path)
    assert shown.returncode == 1
    assert b"remotetimeindex does not agree" in shown.stderr
    path.unlink()
    shown = run_process("remote-index", "dump", tmp_path)
    assert (shown.returncode, b"is missing" in shown.stderr) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "says", "code"),
    [
        (("build", "none", "--partition", 0), b"there is no topic none", 1),
        (("build", "tiered", "--partition", 1), b"has partitions 0 to 0, not 1", 1),
    ],
)
def test_what_cannot_be_built_is_told(
    data: Path, tmp_path: Path, arguments: tuple[str | int, ...], says: bytes, code: int
) -> None:
    out = ("--data", data, "--out", tmp_path / "out")
    ended = run_process("remote-index", *arguments, *out)
    assert ended.returncode == code
    assert says in ended.stderr


def test_metadata_that_is_empty_is_told(data_of_kv: Path, tmp_path: Path) -> None:
    async def make_empty() -> None:
        offload = ThreadOffload()
        kv = await RocksKVStore.open(tmp_path / "meta", SystemClock(), offload)
        await kv.close()
        await offload.close()

    asyncio.run(make_empty())
    where = ("--store", f"local://{data_of_kv}/objects", "--meta", f"rocksdb://{tmp_path}/meta")
    out = ("--out", tmp_path / "out")
    ended = run_process("remote-index", "build", "tiered", "--partition", 0, *where, *out)
    assert ended.returncode == 1
    assert b"ForeignCluster" in ended.stderr
    assert b"streamlog recover" in ended.stderr


def test_metadata_in_a_topic_is_found_with_the_nodes_settings_too(
    data_of_topic: Path, tmp_path: Path
) -> None:
    found = built(data_of_topic, tmp_path / "found")
    told = built(data_of_topic, tmp_path / "told", "--config", str(config_of(tmp_path)))
    assert [one["entries"] for one in told] == [one["entries"] for one in found]
    for one in (tmp_path / "found").iterdir():
        assert one.read_bytes() == (tmp_path / "told" / one.name).read_bytes()


def test_settings_that_look_for_metadata_elsewhere_are_refused(
    data_of_kv: Path, tmp_path: Path
) -> None:
    where = ("--data", data_of_kv, "--config", config_of(tmp_path), "--out", tmp_path / "out")
    ended = run_process("remote-index", "build", "tiered", "--partition", 0, *where)
    assert (ended.returncode, b"set it back to empty" in ended.stderr) == (1, True), ended.stderr


def test_a_storage_that_the_command_was_not_told_is_asked_for(tmp_path: Path) -> None:
    storage = {
        "remote.log.storage.manager.class.name": (
            "streamlog.tiered.storage.local_tiered_storage:LocalTieredStorage"
        ),
        "rsm.config.dir": str(tmp_path / "tier"),
    }
    named = {f"broker.{name}": value for name, value in storage.items()}
    asyncio.run(make_data(tmp_path / "data", {**IN_A_TOPIC, **named}))
    where = ("--data", tmp_path / "data", "--out", tmp_path / "out")
    ended = run_process("remote-index", "build", "tiered", "--partition", 0, *where)
    says = b"if the node's --config names another storage, give it"
    assert (ended.returncode, says in ended.stderr) == (1, True), ended.stderr
    lines = (f'"{name}" = "{value}"' for name, value in storage.items())
    config = config_of(tmp_path, *lines)
    (written,) = built(tmp_path / "data", tmp_path / "out", "--config", str(config))
    assert written["entries"] > 1


def test_metadata_that_is_in_a_write_ahead_log_alone_is_told(tmp_path: Path) -> None:
    """Of a node that did not end well: an index without its last segments would be a wrong one."""
    asyncio.run(make_data(tmp_path / "data", IN_A_TOPIC, is_killed=True))
    where = ("--data", tmp_path / "data", "--out", tmp_path / "out")
    ended = run_process("remote-index", "build", "tiered", "--partition", 0, *where)
    assert (ended.returncode, b"streamlog wal upload" in ended.stderr) == (1, True), ended.stderr
    assert not (tmp_path / "out").exists()


def test_folders_that_do_not_fit_are_wrong_usage(data: Path, tmp_path: Path) -> None:
    empty = run_process("remote-index", "dump", tmp_path)
    assert (empty.returncode, b"has no remote index" in empty.stderr) == (2, True)
    shared = ("build", "shared", "--partition", 0, "--data", data, "--out", tmp_path)
    nothing = run_process("remote-index", *shared)
    assert (nothing.returncode, b"has nothing of shared-0" in nothing.stderr) == (0, True)
    built(data, tmp_path)
    again = ("build", "tiered", "--partition", 0, "--data", data, "--out", tmp_path)
    ended = run_process("remote-index", *again)
    assert (ended.returncode, b"has a remote index already" in ended.stderr) == (2, True)
