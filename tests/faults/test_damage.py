"""Flipped bits and newer versions in stored files: found, named with their place, never served."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from rocksdict import Options, Rdict

import streamlog
from streamlog.client import Consumer, Producer
from streamlog.codec.crc import crc32c
from streamlog.errors import Corrupt, DataInUse, StreamlogError, UnsupportedVersion
from tests.support.command import run, start_error
from tests.support.node import NodeProcess

RECORDS = 8
INDEX_MAGIC = b"SLIX"
FRAME_ALIGNMENT = 4096
HTTP = ("--http-listen", "127.0.0.1:0")
SMALL_WAL = ("--set", "engine.wal.file_bytes=1048576")
NEVER_UPLOAD = ("--set", "engine.upload.upload_interval_ms=1000000000")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Data of a node with eight records, each in an append of its own; with wal=disk they are in
    the WAL alone."""
    folders: dict[str, Path] = {}
    for wal in ("disk", "object"):
        folders[wal] = tmp_path_factory.mktemp("made") / "data"
        with NodeProcess(folders[wal], wal, (*SMALL_WAL, *NEVER_UPLOAD)) as node:
            with Producer(node.server) as producer:
                for number in range(RECORDS):
                    assert producer.send("t", value(number)).result(30).offset == number
            if wal == "disk":
                node.kill()
    return folders


def value(number: int) -> bytes:
    return b"the record with the number %d" % number


def values(server: str, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    with Consumer(server) as consumer:
        consumer.assign([("t", 0)])
        while len(found) < count:
            found += [record.value for record in consumer.poll(10)]
    return found


def holder(folder: Path, piece: bytes) -> tuple[Path, int]:
    """The one file below the folder that has these bytes, and where."""
    found = [
        (path, path.read_bytes().index(piece))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and piece in path.read_bytes()
    ]
    assert len(found) == 1, found
    return found[0]


def overwrite(path: Path, position: int, new: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(new)


def flip(path: Path, position: int) -> None:
    with path.open("rb") as file:
        file.seek(position)
        (byte,) = file.read(1)
    overwrite(path, position, bytes([byte ^ 0x10]))


def open_error(data: Path) -> StreamlogError:
    """Why `streamlog.open` refuses the data of a node."""

    async def attempt() -> None:
        store, meta = f"local://{data}/objects", f"rocksdb://{data}/meta"
        async with streamlog.open(store, meta=meta, wal="disk", wal_dir=data / "wal"):
            pass

    with pytest.raises(StreamlogError) as caught:
        asyncio.run(attempt())
    return caught.value


def frame_of(position: int) -> int:
    """Where the WAL frame with these bytes starts."""
    return position // FRAME_ALIGNMENT * FRAME_ALIGNMENT


@pytest.mark.parametrize("part", ["payload", "entry table", "header"])
def test_a_flipped_bit_in_the_middle_of_the_wal_is_an_error_with_its_place(
    made: dict[str, Path], tmp_path: Path, part: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(made["disk"], data)
    file, position = holder(data / "wal", value(3))
    frame = frame_of(position)
    at = {"payload": position + 5, "entry table": frame + 80, "header": frame + 33}[part]
    flip(file, at)
    error = open_error(data)
    assert isinstance(error, Corrupt)
    assert error.fields["object_key"] == file.name
    assert int(error.fields["start"]) <= at < int(error.fields["end"])
    assert int(error.fields["end"]) - int(error.fields["start"]) <= 2 * FRAME_ALIGNMENT
    said = start_error("--data", data)
    assert said.startswith("Corrupt: ")
    assert file.name in said
    assert str(error.fields["start"]) in said
    flip(file, at)
    with NodeProcess(data, arguments=SMALL_WAL) as node:
        assert values(node.server, RECORDS) == [value(number) for number in range(RECORDS)]


@pytest.mark.parametrize("how", ["torn", "payload", "header"])
def test_a_damaged_wal_tail_is_cut_and_reported(
    made: dict[str, Path], tmp_path: Path, how: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(made["disk"], data)
    file, position = holder(data / "wal", value(RECORDS - 1))
    frame = frame_of(position)
    if how == "torn":
        overwrite(file, position, bytes(100))
    else:
        flip(file, position if how == "payload" else frame + 33)
    with NodeProcess(data, arguments=SMALL_WAL) as node:
        (line,) = (one for one in node.log_path.read_text().splitlines() if "torn write" in one)
        assert " warning " in line
        assert f"file={file.name} start={frame} end=" in line
        assert values(node.server, RECORDS - 1) == [value(number) for number in range(RECORDS - 1)]
        with Producer(node.server) as producer:
            assert producer.send("t", b"next").result(30).offset == RECORDS - 1
        node.kill()
        node.start()
        assert values(node.server, RECORDS)[-1] == b"next"


@pytest.mark.parametrize("part", ["data", "index", "missing"])
def test_damage_in_an_object_is_an_error_with_key_and_range(
    made: dict[str, Path], tmp_path: Path, part: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(made["object"], data)
    file, position = holder(data / "objects" / "data", value(3))
    size = file.stat().st_size
    whole = file.read_bytes()
    if part == "missing":
        file.unlink()
    else:
        flip(file, position + 5 if part == "data" else whole.index(INDEX_MAGIC) + 40)
    key = file.relative_to(data / "objects").as_posix()
    with NodeProcess(data, "object", SMALL_WAL) as node:
        with Consumer(node.server) as consumer:
            consumer.assign([("t", 0)])
            read: list[bytes | None] = []
            while len(read) < 3:
                read += [record.value for record in consumer.poll(10)]
            assert read == [value(number) for number in range(3)]
            with pytest.raises(Corrupt) as caught:
                consumer.poll(10)
        error = caught.value
        assert error.fields["object_key"] == key
        start, end = int(error.fields["start"]), int(error.fields["end"])
        assert 0 <= start <= end <= size
        if part == "data":
            assert start <= position + 5 < end
        elif part == "index":
            assert start == whole.index(INDEX_MAGIC) < end
        ended = run("consume", "t", "--until-end", server=node.server)
        said = ended.stderr.decode()
        assert ended.returncode == 1
        assert ended.stdout == b"".join(value(number) + b"\n" for number in range(3))
        assert said.startswith("streamlog: Corrupt: ")
        assert key in said
        assert "restore" in said
        assert part == "missing" or f"bytes {start} to {end} " in said
        # What is whole is served on: later records, new ones, other topics.
        rest = run("consume", "t", "--from", 4, "--until-end", server=node.server)
        assert rest.stdout.splitlines() == [value(number) for number in range(4, RECORDS)]
        with Producer(node.server) as producer:
            assert producer.send("t", b"new").result(30).offset == RECORDS
            assert producer.send("other", b"new").result(30).offset == 0
        file.write_bytes(whole)
        assert values(node.server, RECORDS + 1)[:RECORDS] == [
            value(number) for number in range(RECORDS)
        ]


def _newer_cluster(data: Path) -> Path:
    path = data / "objects" / "cluster.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 99}))
    return path


def _newer_wal_file(data: Path) -> Path:
    path, _ = holder(data / "wal", value(0))
    page = path.read_bytes()[:68]
    page = page[:8] + struct.pack("<H", 99) + page[10:]
    overwrite(path, 0, page + struct.pack("<I", crc32c(page)))
    return path


def _newer_wal_frame(data: Path) -> Path:
    path, position = holder(data / "wal", value(0))
    frame = frame_of(position)
    head = path.read_bytes()[frame : frame + 68]
    head = head[:4] + struct.pack("<H", 99) + head[6:]
    overwrite(path, frame, head + struct.pack("<I", crc32c(head)))
    return path


def _newer_wal_identity(data: Path) -> Path:
    path = data / "wal" / "wal-identity"
    whole = bytearray(path.read_bytes())
    whole[8:10] = struct.pack("<H", 99)
    whole[24:28] = struct.pack("<I", crc32c(whole[28:], crc32c(whole[:24])))
    path.write_bytes(whole)
    return path


def _newer_metadata(data: Path) -> Path:
    path = data / "meta"
    with_database(path, lambda database: database.put(b"\x00state", b"\x63" + bytes(24)))
    return path


def with_database(path: Path, change: Callable[[Rdict], None]) -> None:
    database = Rdict(str(path), Options(raw_mode=True))
    change(database)
    database.close()


@pytest.mark.parametrize(
    "make_newer",
    [_newer_cluster, _newer_wal_file, _newer_wal_frame, _newer_wal_identity, _newer_metadata],
)
def test_data_of_a_newer_version_is_left_alone(
    made: dict[str, Path], tmp_path: Path, make_newer: Callable[[Path], Path]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(made["disk"], data)
    path = make_newer(data)
    before = path.read_bytes() if path.is_file() else b""
    error = open_error(data)
    assert isinstance(error, UnsupportedVersion)
    supported = 2 if make_newer in (_newer_cluster, _newer_wal_frame) else 1
    assert (error.fields["found"], error.fields["supported"]) == (99, supported)
    said = start_error("--data", data)
    assert said.startswith("UnsupportedVersion: ")
    assert "99" in said
    assert "release" in said or "newer" in said
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_a_second_process_is_told_who_holds_the_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with NodeProcess(data, arguments=SMALL_WAL) as node:
        said = start_error("--data", data)
        assert said.startswith("DataInUse: ")
        assert f"process {node.pid} " in said
        error = open_error(data)
        assert isinstance(error, DataInUse)
        assert error.fields["pid"] == node.pid
        with Producer(node.server) as producer:
            assert producer.send("t", b"still served").result(30).offset == 0


def test_a_port_in_use_is_named_and_its_owner_goes_on(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "one") as node, grpc.insecure_channel(node.server):
        ended = run("dev", "--data", tmp_path / "two", "--listen", node.server, *HTTP)
        said = ended.stderr.decode()
        assert ended.returncode == 1, said
        assert f"cannot listen on {node.server}" in said
        assert "--listen" in said
        with Producer(node.server) as producer:
            assert producer.send("t", b"still served").result(30).offset == 0
    with NodeProcess(tmp_path / "two") as node:
        assert node.banner["grpc"] == node.server


def test_an_object_of_a_newer_version_is_named(made: dict[str, Path], tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(made["object"], data)
    file, _ = holder(data / "objects" / "data", value(3))
    head = file.read_bytes()[:12]
    head = head[:8] + struct.pack("<H", 99) + head[10:]
    overwrite(file, 0, head + struct.pack("<I", crc32c(head)))
    key = file.relative_to(data / "objects").as_posix()
    with NodeProcess(data, "object", SMALL_WAL) as node:
        ended = run("object", "show", key, server=node.server)
        said = ended.stderr.decode()
        assert ended.returncode == 1
        assert said.startswith("streamlog: UnsupportedVersion: ")
        assert key in said
        assert "99" in said
        assert values(node.server, RECORDS) == [value(number) for number in range(RECORDS)]
