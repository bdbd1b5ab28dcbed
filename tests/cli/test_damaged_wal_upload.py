"""`streamlog wal upload` of a damaged log follows the rules of a node's start."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import streamlog
from streamlog.engine.config import StreamEngineConfig, UploadConfig
from streamlog.model.batch import RecordBatch
from streamlog.wal.config import WalMode
from streamlog.wiring import OpenEngine
from tests.support.command import run

CONFIG = dataclasses.replace(StreamEngineConfig(), upload=UploadConfig(upload_interval_ms=600_000))


def opened(data: Path, *, node_id: int, wal: WalMode) -> AbstractAsyncContextManager[OpenEngine]:
    return streamlog.open(
        f"local://{data}/objects",
        meta=f"rocksdb://{data}/meta",
        wal=wal,
        wal_dir=data / "wal" if wal == "disk" else None,
        node_id=node_id,
        config=CONFIG,
    )


def leave_log(data: Path) -> tuple[int, int]:
    """A dead node's folder: four appends, not uploaded, each a group; the streams' ids."""

    async def write() -> tuple[int, int]:
        async with opened(data, node_id=1, wal="disk") as engine:
            harmed, whole = [await engine.streams.create_and_open_stream() for _ in range(2)]
            for stream, payload in (
                (harmed, b"before"),
                (harmed, b"harmed"),
                (harmed, b"behind"),
                (whole, b"kept"),
            ):
                await stream.append(RecordBatch(1, 0, (payload * 100,)))
            await engine.kill()
            return harmed.stream_id, whole.stream_id

    return asyncio.run(write())


def harm(folder: Path, payload: bytes) -> None:
    (path,) = (path for path in folder.glob("wal-0*") if payload in path.read_bytes())
    path.write_bytes(path.read_bytes().replace(payload, payload.swapcase(), 1))


def upload(data: Path, *more: str) -> subprocess.CompletedProcess[bytes]:
    places = ("--store", f"local://{data}/objects", "--meta", f"rocksdb://{data}/meta")
    return run("wal", "upload", data / "wal", *places, *more)


def ends(data: Path, streams: tuple[int, ...]) -> list[int]:
    """Of the streams, when any other node opens them without the log."""

    async def read() -> list[int]:
        async with opened(data, node_id=2, wal="object") as engine:
            handles = [await engine.streams.open_stream(stream_id) for stream_id in streams]
            return [stream.confirm_offset for stream in handles]

    return asyncio.run(read())


def test_a_damaged_log_goes_up_where_its_loss_is_accepted(tmp_path: Path) -> None:
    streams = leave_log(tmp_path)
    harm(tmp_path / "wal", b"harmed" * 100)

    refused = upload(tmp_path)
    assert refused.returncode == 1
    assert "--set engine.wal.accept_data_loss=true" in refused.stderr.decode()

    accepted = upload(tmp_path, "--json", "--set", "engine.wal.accept_data_loss=true")
    assert accepted.returncode == 0, accepted.stderr
    assert "group 2 is damaged" in accepted.stderr.decode()
    done = json.loads(accepted.stdout)
    assert (done["appends"], done["streams"]) == (2, 2)
    assert done["given_up"] == [streams[0]]
    assert ends(tmp_path, streams) == [1, 1]

    # What was kept is in the store: the folder is in order again.
    again = upload(tmp_path, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["appends"] == 0
