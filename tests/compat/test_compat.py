"""Data of every version that was ever written is opened, served, written to, opened again.

And data of a version to come is refused, with its name, and left as it is.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from rocksdict import Options, Rdict

from streamlog.codec.crc import crc32c
from streamlog.errors import StreamlogError, UnsupportedVersion
from streamlog.model.batch import OpenStreamOptions
from streamlog.repair.fsck.fsck import FsckOptions, fsck
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import ThreadOffload
from streamlog.runtime.rand import SystemRandom
from streamlog.wiring import open_metadata_store, open_object_store
from tests.compat.story import (
    MODES,
    Mode,
    commit,
    config,
    content,
    fill,
    log_of,
    opened,
    retried,
)

HERE = Path(__file__).resolve().parent
VERSIONS = sorted(path.name for path in HERE.glob("v*") if path.is_dir())


class OnItsDay(SystemClock):
    """The time at which a folder was made, from then on: producers expire after a day."""

    def __init__(self, version: str, mode: Mode) -> None:
        with tarfile.open(HERE / version / f"{mode}.tar.xz") as archive:
            made_s = max(member.mtime for member in archive.getmembers())
        self._age_ms = super().now_ms() - int(made_s * 1000) - 1000

    def now_ms(self) -> int:
        return super().now_ms() - self._age_ms


def unpacked(version: str, mode: Mode, folder: Path) -> tuple[Path, dict[str, Any]]:
    with tarfile.open(HERE / version / f"{mode}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder, json.loads((HERE / version / f"{mode}.json").read_text())


def test_there_is_a_folder_for_every_version() -> None:
    assert VERSIONS == ["v1", "v2"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("version", VERSIONS)
def test_data_is_served_written_to_and_opened_again(
    version: str, mode: Mode, tmp_path: Path
) -> None:
    data, expected = unpacked(version, mode, tmp_path)
    clock = OnItsDay(version, mode)
    waiting = expected.pop("waiting", None)

    async def scenario() -> None:
        async with opened(data, mode, clock) as engine:
            assert await content(engine) == expected
            if waiting is not None:
                # Epochs that were committed are known; what was staged only may be yet.
                for epoch in (0, 1):
                    assert not await commit(engine, epoch, waiting)
                assert await content(engine) == expected
                assert await commit(engine, 2, waiting)
                before = expected["topics"]["staged"]["partitions"][1]["end"]
                assert (await log_of(engine, "staged", 1)).high_watermark == before + 3
            # Producer state is part of it: what was sent twice is stored once.
            log = await log_of(engine, "retried", 0)
            again = await (await log.append(retried(mode)))
            assert (again.is_duplicate, again.base_offset) == (True, 4)
            rows = await engine.streams.list_streams()
            (trimmed,) = (row.stream_id for row in rows if row.tags.get("name") == "trimmed")
            stream = await engine.streams.open_stream(trimmed, OpenStreamOptions())
            await fill(stream, range(18, 20))
            await engine.logs.create_topic("new", 1)
            await engine.drain()
            await engine.compactor.compact_all()
            written = await content(engine)
        assert written["streams"]["trimmed"]["end"] == 20
        await check_clean(data, mode)
        async with opened(data, mode, clock) as engine:
            assert await content(engine) == written

    asyncio.run(asyncio.wait_for(scenario(), 60))


async def check_clean(data: Path, mode: Mode) -> None:
    url = f"local://{data}/objects"
    clock, random, offload = SystemClock(), SystemRandom(), ThreadOffload()
    kv = await open_metadata_store(f"rocksdb://{data}/meta", url, clock, offload)
    store = await open_object_store(url, config(mode), clock, random, offload, CollectorRegistry())
    report = await fsck(
        kv, store, clock=clock, random=random, offload=offload, options=FsckOptions(deep=True)
    )
    await store.close()
    await kv.close()
    await offload.close()
    assert report.is_clean, report.findings


# versions to come

Change = Callable[[bytes], bytes]


def raised(at: int) -> Change:
    """One version higher."""
    return lambda value: value[:at] + bytes([value[at] + 1]) + value[at + 1 :]


def resealed(at: int) -> Change:
    """The same under the value's own CRC."""

    def change(value: bytes) -> bytes:
        body = raised(at)(value)[:-4]
        return body + crc32c(body).to_bytes(4, "little")

    return change


def change_key(data: Path, letter: bytes, change: Change) -> None:
    """The last metadata value whose key begins with the letter; RocksDB's own part is 25 bytes."""
    database: Any = Rdict(str(data / "meta"), Options(raw_mode=True))
    keys = [key for key in database.keys() if key[:5] == b"\x03/sl/"]  # noqa: SIM118
    (*_, key) = (key for key in sorted(keys) if key.split(b"/", 3)[3].startswith(letter))
    value = database[key]
    database[key] = value[:25] + change(value[25:])
    database.close()


def digest(data: Path) -> dict[str, str]:
    """Of objects and WAL; the metadata's by content, for RocksDB writes files when it is opened."""
    found = {}
    for path in sorted([*(data / "objects").rglob("*"), *(data / "wal").rglob("*")]):
        if path.is_file() and "lock" not in path.name.lower():
            found[str(path.relative_to(data))] = hashlib.sha256(path.read_bytes()).hexdigest()
    database: Any = Rdict(str(data / "meta"), Options(raw_mode=True))
    for key, value in database.items():
        # The state tells of leases that ended, and nothing of the cluster.
        if key[:1] == b"\x03":
            found[repr(key)] = hashlib.sha256(value).hexdigest()
    database.close()
    return found


@pytest.mark.parametrize(
    ("letter", "change", "named"),
    [
        (b"k", resealed(0), "the checkpoint key"),
        (b"c/", resealed(0), "a commit record"),
        (b"f/", raised(0), "a fence"),
        (b"h/", raised(0), "a head"),
        (b"i/", raised(0), "an id counter"),
        (b"n/", raised(0), "a node"),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_metadata_of_a_newer_version_is_refused_and_left_as_it_is(
    mode: Mode, letter: bytes, change: Change, named: str, tmp_path: Path
) -> None:
    data, _ = unpacked(VERSIONS[-1], mode, tmp_path)
    change_key(data, letter, change)
    before = digest(data)
    error = open_error(data, mode)
    assert isinstance(error, UnsupportedVersion), error
    assert named in error.message
    assert "newer version" in error.message
    assert (error.fields["found"], error.fields["supported"]) == (2, 1)
    assert digest(data) == before


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    data, _ = unpacked(VERSIONS[-1], "object", tmp_path)
    path = data / "objects" / "cluster.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 3}))
    before = digest(data)
    error = open_error(data, "object")
    assert isinstance(error, UnsupportedVersion), error
    assert (error.fields["found"], error.fields["supported"]) == (3, 2)
    assert digest(data) == before


def test_a_log_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    data, _ = unpacked(VERSIONS[-1], "disk", tmp_path)
    path = next(one for one in sorted((data / "wal").iterdir()) if one.stat().st_size > 1 << 16)
    page = path.read_bytes()
    head = page[:8] + (2).to_bytes(2, "little") + page[10:68]
    path.write_bytes(head + crc32c(head).to_bytes(4, "little") + page[72:])
    before = digest(data)
    error = open_error(data, "disk")
    assert isinstance(error, UnsupportedVersion), error
    assert path.name in error.message
    assert digest(data) == before


def test_an_object_of_a_newer_version_is_named_by_whoever_reads_it(tmp_path: Path) -> None:
    data, _ = unpacked(VERSIONS[-1], "object", tmp_path)
    for path in (data / "objects" / "data").rglob("*"):
        if path.is_file():
            whole = path.read_bytes()
            trailer = whole[-56:-16] + b"\x03\x00" + whole[-14:-12]
            crc = crc32c(trailer).to_bytes(4, "little")
            path.write_bytes(whole[:-56] + trailer + crc + whole[-8:])

    async def scenario() -> None:
        url = f"local://{data}/objects"
        clock, random, offload = SystemClock(), SystemRandom(), ThreadOffload()
        kv = await open_metadata_store(f"rocksdb://{data}/meta", url, clock, offload)
        store = await open_object_store(
            url, config("object"), clock, random, offload, CollectorRegistry()
        )
        report = await fsck(kv, store, clock=clock, random=random, offload=offload)
        await store.close()
        await kv.close()
        await offload.close()
        assert report.findings
        for finding in report.findings:
            assert finding.key.startswith("data/")
            assert "version" in finding.detail

    asyncio.run(asyncio.wait_for(scenario(), 60))


def open_error(data: Path, mode: Mode) -> StreamlogError:
    async def attempt() -> None:
        async with opened(data, mode):
            pass

    with pytest.raises(StreamlogError) as caught:
        asyncio.run(asyncio.wait_for(attempt(), 60))
    return caught.value
