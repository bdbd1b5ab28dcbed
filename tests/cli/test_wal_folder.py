"""`wal` refuses a folder without a log, and a log whose node runs elsewhere."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog.engine.config import StreamEngineConfig, UploadConfig
from streamlog.errors import Conflict
from streamlog.repair.wal.folder import check_away
from streamlog.wiring import is_shared
from tests.metadata.world import World
from tests.support.command import run
from tests.support.old_records import ALL, counted_records, keeping_node, write_old_records


def test_a_node_that_keeps_its_lease_is_left_alone() -> None:
    async def main() -> None:
        world = World()
        await check_away(world.kv, "test", 1)
        async with world.tenure(1) as metadata:
            with pytest.raises(Conflict, match="node 1 seems to run") as raised:
                await check_away(world.kv, "test", 1)
            assert raised.value.fields["holder"] == str(metadata.tenure)
            await check_away(world.kv, "test", 2)
            # A node that ends gives its lease back.
            await metadata.close(drained=True)
            await check_away(world.kv, "test", 1)

    asyncio.run(main())


def test_metadata_of_one_process_shows_that_no_node_runs() -> None:
    assert not is_shared(None, "local:///data")
    assert not is_shared("rocksdb:///meta", "s3://bucket")
    assert is_shared("etcd://a:1", "s3://bucket")
    assert is_shared("kv://a:1", "s3://bucket")


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    empty = run("wal", "show", tmp_path)
    assert (empty.returncode, empty.stdout) == (2, b"")
    assert b"there is no write-ahead log" in empty.stderr
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "wal-identity").touch()
    above = run("wal", "show", tmp_path)
    assert above.returncode == 2
    assert f"its log is in {tmp_path}/wal".encode() in above.stderr


def test_fsck_makes_no_folder(tmp_path: Path) -> None:
    ended = run("fsck", "--data", tmp_path / "mistyped")
    assert ended.returncode == 2
    assert b"is no node's --data folder" in ended.stderr
    assert not list(tmp_path.iterdir())


def test_an_upload_deletes_no_records(tmp_path: Path) -> None:
    async def leave_log() -> None:
        late = StreamEngineConfig(upload=UploadConfig(upload_interval_ms=600_000))
        async with keeping_node(tmp_path, late) as engine:
            await write_old_records(engine)
            await engine.kill()

    asyncio.run(leave_log())
    places = ("--store", f"local://{tmp_path}/objects", "--meta", f"rocksdb://{tmp_path}/meta")
    uploaded = run("wal", "upload", tmp_path / "wal", *places)
    assert uploaded.returncode == 0, uploaded.stderr
    assert not uploaded.stdout.startswith(b"uploaded 0 ")
    assert asyncio.run(counted_records(tmp_path)) == ALL
