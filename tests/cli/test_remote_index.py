"""`remote-index build` and `dump`, on the data of a node that has ended."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from streamlog.client.aio import Admin, Producer
from streamlog.model.partition import TopicPartition
from tests.support.command import run as run_process
from tests.support.running_node import running_node

COUNT = 30
TIERED = {
    "log.type": "unified",
    "remote.storage.enable": "true",
    "segment.bytes": str(1 << 20),
    "index.interval.bytes": "1",
}


async def make_data(folder: Path, **settings: str) -> None:
    """Of a node that copied some segments of `tiered`, and none of `shared`."""
    async with (
        running_node(data=str(folder), **settings) as node,
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


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote_index") / "data"
    asyncio.run(make_data(folder))
    return folder


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


def test_metadata_in_a_topic_has_no_index_from_files(data: Path, tmp_path: Path) -> None:
    config = tmp_path / "node.toml"
    name = '"remote.log.metadata.manager.class.name"'
    config.write_text(f'[broker]\n{name} = "TopicBasedRemoteLogMetadataManager"\n')
    where = ("--data", data, "--config", config, "--out", tmp_path / "out")
    ended = run_process("remote-index", "build", "tiered", "--partition", 0, *where)
    assert (ended.returncode, b"which a node alone can read" in ended.stderr) == (1, True)


def test_metadata_in_a_topic_is_told_also_without_the_nodes_settings(tmp_path: Path) -> None:
    name = "broker.remote.log.metadata.manager.class.name"
    folder = tmp_path / "data"
    asyncio.run(make_data(folder, **{name: "TopicBasedRemoteLogMetadataManager"}))
    where = ("--data", folder, "--out", tmp_path / "out")
    ended = run_process("remote-index", "build", "tiered", "--partition", 0, *where)
    assert (ended.returncode, b"which a node alone can read" in ended.stderr) == (1, True)


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
