"""`streamlog doctor` as a user runs it; a node refuses a store that fails its quick part."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streamlog.cli.main import run as run_here
from streamlog.doctor.examination import Examination
from streamlog.errors import StoreUntrusted
from streamlog.objectstore.memory import MemoryObjectStore
from streamlog.objectstore.trust.scratch import PREFIX
from streamlog.objectstore.url import LocalUrl, parse_store_url
from streamlog.runtime.clock import SystemClock
from streamlog.runtime.offload import Lane, ThreadOffload
from streamlog.settings import load
from streamlog.wiring import Components
from streamlog.wiring import open as open_engine
from tests.doctor.broken import IfAbsentIgnored
from tests.support.command import COMMAND, environment, run
from tests.support.node import NodeProcess
from tests.support.s3 import S3Tests

STORE_CHECKS = {
    f"store.{name}"
    for name in (
        *("read_after_write", "overwrite", "if_absent", "if_match", "racers", "range", "list"),
        *("delete", "multipart", "clock", "latency", "throughput"),
    )
}
META_CHECKS = {
    f"meta.{name}"
    for name in ("limits", "compare_and_set", "revision", "watch", "lease", "latency")
}
OTHERS = {"versions", "machine.memory", "machine.files", "port.grpc", "port.http"}
ANY_PORT = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")


def test_a_data_folder_is_examined(tmp_path: Path) -> None:
    ended = run("doctor", "--data", tmp_path / "d", "--json", *ANY_PORT)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["ok"] is True
    assert told["wal"] == "disk"
    found = {one["name"]: one for one in told["findings"]}
    assert set(found) == STORE_CHECKS | META_CHECKS | OTHERS | {
        *("disk.sync", "disk.room", "logs.sync", "logs.room", "cost.requests")
    }
    assert {one["outcome"] for one in found.values()} <= {"pass", "info", "warn"}
    for name in STORE_CHECKS:
        assert f"… {name}\n".encode() in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_beside_a_running_node_the_rest_is_checked(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "d") as node:
        addresses = ("--listen", node.server, "--http-listen", node.banner["http"])
        ended = run("doctor", "--data", node.data, *addresses)
        assert ended.returncode == 0, ended.stderr
        # What is to be done is said once, for both ports.
        assert b"\nwarn port.grpc, port.http: " in ended.stdout
        assert ended.stdout.count(b"or choose another port") == 1
        lines = {line.split()[1]: line for line in ended.stdout.decode().splitlines() if line}
        assert lines["port.grpc"].startswith("warn")
        assert f"process {node.pid} (" in lines["port.grpc"]
        assert lines["meta.open"].startswith("warn")
        assert all(lines[name].startswith("pass") for name in ("store.racers", "store.list"))


def test_the_addresses_of_kafka_are_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        places = ("--store", "memory://", "--meta", "memory://", *ANY_PORT, "--json")
        for listen, name in ((address, "kafka"), (f"IN=127.0.0.1:0,OUT={address}", "OUT")):
            assert run_here(["doctor", *places, "--kafka-listen", listen]) == 0
            told = json.loads(capsys.readouterr().out)["findings"]
            in_use = [one["name"] for one in told if f"{address} is in use" in one["detail"]]
            assert in_use == [f"port.{name}"]
    assert "port.IN" in {one["name"] for one in told}


def test_a_store_that_cannot_be_opened_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "objects").write_text("a file where a folder is needed")
    ended = run("doctor", "--data", tmp_path, "--json", *ANY_PORT)
    assert ended.returncode == 1
    found = {one["name"]: one for one in json.loads(ended.stdout)["findings"]}
    assert found["store.open"]["outcome"] == "fail"
    assert "StoreUnavailable" in found["store.open"]["detail"]
    assert found["meta.limits"]["outcome"] == "pass", "one part's failure hides no other's"


def test_an_empty_folder_stays_empty_and_one_with_data_is_examined_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects, meta = tmp_path / "objects", tmp_path / "meta"
    objects.mkdir()
    meta.mkdir()
    command = ["doctor", "--store", f"local://{objects}", "--meta", f"rocksdb://{meta}", *ANY_PORT]
    assert run_here(command) == 0
    assert [*objects.iterdir(), *meta.iterdir()] == []
    # A fresh file system has one of these; doctors that run beside, or were killed, another one.
    others = {objects / "lost+found", objects / ".streamlog-doctor-00"}
    for other in others:
        other.mkdir()
    assert run_here(command) == 0
    assert {*objects.iterdir(), *meta.iterdir()} == others
    (objects / "data").mkdir()
    (meta / "CURRENT").write_text("no RocksDB's")
    assert run_here(command) == 1
    assert f"{meta}" in capsys.readouterr().out
    assert (objects / ".replace").exists()


def test_a_place_that_this_user_may_not_write_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refused(path: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", refused)
    assert run_here(["doctor", "--data", str(tmp_path / "d"), *ANY_PORT]) == 1
    out = capsys.readouterr().out
    assert "Not a place for data: store.open, meta.open failed." in out
    assert f"{tmp_path}/.streamlog-doctor-" in out


def test_without_a_store_the_command_says_what_to_give() -> None:
    ended = run("doctor")
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert b"--data DIR" in ended.stderr


def _with_store(monkeypatch: pytest.MonkeyPatch, store: MemoryObjectStore) -> None:
    async def opened(*_: Any) -> MemoryObjectStore:
        return store

    monkeypatch.setattr("streamlog.doctor.examination.open_object_store", opened)


def test_a_store_that_cannot_be_trusted_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _with_store(monkeypatch, IfAbsentIgnored(SystemClock()))
    assert run_here(["doctor", "--store", "memory://", "--meta", "memory://", *ANY_PORT]) == 1
    out = capsys.readouterr().out
    assert "fail     store.if_absent" in out
    assert "\nfail store.if_absent, store.racers: use a store" in out
    assert out.endswith("Not a place for data: store.if_absent, store.racers failed.\n")


def test_the_costs_of_a_remote_store_follow_from_its_settings() -> None:
    flags = {
        "store": "s3://bucket/prefix",
        "meta": "memory://",
        "engine.flush.put_rate_max_per_s": 1,
    }
    examination = Examination(load(None, {}, flags), print)

    async def costs() -> dict[str, str]:
        return {one.name: one.detail async for one in examination._costs()}

    found = asyncio.run(costs())
    assert "1 PUTs a second ($12.96)" in found["cost.month"]
    assert "S3 Standard, us-east-1, list prices of " in found["cost.month"]
    assert "128 PUTs" in found["cost.gib"]


def test_a_nearly_full_disk_is_not_filled_by_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=100 << 20))
    assert run_here(["doctor", "--data", str(tmp_path / "d"), "--json", *ANY_PORT]) == 0
    told = json.loads(capsys.readouterr().out)
    (found,) = [one for one in told["findings"] if one["name"] == "store.throughput"]
    assert (told["ok"], found["outcome"], found["figures"]) == (True, "warn", {})
    assert "not measured" in found["detail"]
    assert found["advice"] == "free some space, and run it again"


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "doctor", "--data", str(tmp_path), *ANY_PORT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(PYTHONUNBUFFERED="1"),
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line == "… store.multipart\n".encode():
            break
    os.kill(process.pid, signal.SIGINT)
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == 130, rest
    assert f"removing {PREFIX}".encode() in rest
    assert list(tmp_path.iterdir()) == []


def test_an_open_that_is_cancelled_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its thread goes on: it ends here when the doctor waits for its threads, and not before."""
    has_begun, may_end = threading.Event(), threading.Event()

    def slow(folder: Path) -> None:
        has_begun.set()
        may_end.wait()
        folder.mkdir(parents=True, exist_ok=True)

    async def opening(url: str, *others: Any) -> None:
        offload = next(one for one in others if isinstance(one, ThreadOffload))
        found = parse_store_url(url)
        assert isinstance(found, LocalUrl)
        await offload.run(Lane.STORE, slow, Path(found.path) / ".tmp")

    close = ThreadOffload.close

    async def releasing(offload: ThreadOffload) -> None:
        may_end.set()
        await close(offload)

    monkeypatch.setattr("streamlog.doctor.examination.open_object_store", opening)
    monkeypatch.setattr(ThreadOffload, "close", releasing)

    async def cancelled() -> None:
        places = {"store": f"local://{tmp_path / 'd'}", "meta": "memory://", "wal": "object"}
        running = asyncio.ensure_future(Examination(load(None, {}, places), print).run())
        await asyncio.to_thread(has_begun.wait)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_real_s3_server_passes(s3: S3Tests, tmp_path: Path) -> None:
    url = s3.new_url()
    ended = run(
        *("doctor", "--store", url, "--meta", f"rocksdb://{tmp_path}/meta", "--json", *ANY_PORT)
    )
    told = json.loads(ended.stdout)
    # Slow is a warning, and depends on what else this machine does.
    failures = [one for one in told["findings"] if one["outcome"] == "fail"]
    assert (ended.returncode, failures) == (0, [])
    found = {one["name"] for one in told["findings"]}
    assert found >= STORE_CHECKS | META_CHECKS | {"cost.month", "cost.gib"}
    assert told["wal"] == "object"


# the quick part, before an engine opens


def test_an_engine_does_not_open_on_a_store_that_fails_the_quick_part(tmp_path: Path) -> None:
    store = IfAbsentIgnored(SystemClock())

    async def start(check_store: bool) -> None:
        async with open_engine(
            f"local://{tmp_path}/o",
            meta="memory://",
            wal="object",
            components=Components(store=store),
            check_store=check_store,
        ):
            assert check_store is False

    with pytest.raises(StoreUntrusted) as caught:
        asyncio.run(start(True))
    assert caught.value.check == "store.if_absent"
    # Refused before anything was opened: the store is as it was.
    left = asyncio.run(store.list("")).objects
    assert [info.key for info in left if not info.key.startswith(PREFIX)] == []
    asyncio.run(start(False))


def test_the_quick_part_runs_at_the_start_of_a_node_and_takes_little(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "d") as node:
        # It has left its folder, and nothing in it.
        assert list((node.data / "objects" / PREFIX).iterdir()) == []
