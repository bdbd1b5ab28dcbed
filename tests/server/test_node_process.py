"""A node as a process: failures to start, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from streamlog.client import Admin
from streamlog.codec.records import decode
from streamlog.v1 import admin_pb2, log_pb2
from streamlog.v1.admin_pb2_grpc import AdminServiceStub
from streamlog.v1.log_pb2_grpc import LogServiceStub
from tests.support.server_harness import batch

MAIN = """
import json, sys
from streamlog import settings
from streamlog.errors import StreamlogError
from streamlog.server import node
flags, mode, file = json.loads(sys.argv[1])
try:
    loaded = settings.load(file, None, flags)
except StreamlogError as error:
    sys.exit(f"streamlog: {error}")
sys.exit(node.run(loaded, mode=mode, json=True))
"""


def start(
    flags: dict[str, Any],
    *,
    mode: str = "dev",
    file: Path | None = None,
    script: str = MAIN,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[str]:
    flags = {"listen": "127.0.0.1:0", "http_listen": "127.0.0.1:0", **flags}
    environment = {k: v for k, v in os.environ.items() if not k.startswith("STREAMLOG_")}
    return subprocess.Popen(
        [sys.executable, "-c", script, json.dumps([flags, mode, file and str(file)])],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=environment,
    )


@contextmanager
def node(
    data: Path | None, *, script: str = MAIN, **flags: Any
) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    if data is not None:
        flags["data"] = str(data)
    process = start(flags, script=script)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(process.communicate(timeout=30)[1])
        yield process, json.loads(line)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=30)


def failure(flags: dict[str, Any], **how: Any) -> str:
    """The line on stderr of a node that fails to start."""
    process = start(flags, **how)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, (out, err)
    assert "Traceback" not in err
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith("streamlog: ")]
    assert len(lines) == 1, err
    return lines[0]


def test_a_second_process_on_the_same_data_is_told_who_holds_it(tmp_path: Path) -> None:
    with node(tmp_path / "d") as (process, _):
        text = failure({"data": str(tmp_path / "d")})
        assert "DataInUse" in text
        assert str(process.pid) in text


def test_the_error_names_a_port_in_use(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flag in ("listen", "http_listen"):
            text = failure({"data": str(tmp_path / flag), flag: address})
            assert address in text
            assert "in use" in text


def test_a_failure_to_start_is_one_line(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("[node]\nlisen = '127.0.0.1:1'\n")
    assert "did you mean node.listen?" in failure({}, file=wrong)
    assert "--data" in failure({}, mode="serve")
    assert "--insecure" in failure({"data": str(tmp_path / "d"), "listen": "0.0.0.0:0"})
    assert "HOST:PORT" in failure({"data": str(tmp_path / "d"), "listen": "9644"})
    file = tmp_path / "file"
    file.write_text("")
    assert "file" in failure({"data": str(file / "below")})


def test_the_error_of_a_foreign_cluster_names_both_clusters(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with node(tmp_path / name) as (process, _):
            process.terminate()
            process.wait(30)
    text = failure(
        {
            "store": f"local://{tmp_path}/a/objects",
            "meta": f"rocksdb://{tmp_path}/b/meta",
            "wal_dir": str(tmp_path / "wal"),
        }
    )
    assert "ForeignCluster" in text


def test_the_banner_names_the_write_ahead_log_beside_a_local_store(tmp_path: Path) -> None:
    """Acknowledged records are there alone until they are uploaded."""
    with node(None, store=f"local://{tmp_path}/x", wal="disk") as (_, banner):
        assert banner["wal_dir"] == str(tmp_path / "x" / "wal")
    assert list((tmp_path / "x" / "wal").glob("wal-*"))


def test_a_listener_beyond_loopback_prints_a_warning(tmp_path: Path) -> None:
    with node(tmp_path / "d", listen="0.0.0.0:0", insecure=True) as (_, banner):
        assert banner["insecure"] is True
        assert int(banner["grpc"].rpartition(":")[2]) > 0


def produce_request(data: bytes) -> log_pb2.ProduceRequest:
    part = log_pb2.ProducePartition(record_batches=data)
    return log_pb2.ProduceRequest(topics=[log_pb2.ProduceTopic(topic="t", partitions=[part])])


def fetch_request(offset: int, wait_ms: int = 0) -> log_pb2.FetchRequest:
    part = log_pb2.FetchPartition(fetch_offset=offset)
    return log_pb2.FetchRequest(
        max_wait_ms=wait_ms, topics=[log_pb2.FetchTopic(topic="t", partitions=[part])]
    )


def test_sigterm_answers_a_thousand_long_polls_and_data_is_there_afterwards(
    tmp_path: Path,
) -> None:
    async def polls(address: str, process: subprocess.Popen[str]) -> float:
        async with grpc.aio.insecure_channel(address) as channel:
            log = LogServiceStub(channel)
            answer = await log.Produce(produce_request(batch(b"kept")))
            assert answer.topics[0].partitions[0].base_offset == 0
            waiting = [log.Fetch(fetch_request(1, 300_000)) for _ in range(1000)]
            admin = AdminServiceStub(channel)
            await admin.GetStatus(admin_pb2.GetStatusRequest())
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            answers = await asyncio.gather(*waiting, return_exceptions=True)
            code = await asyncio.get_running_loop().run_in_executor(None, process.wait, 30)
            assert code == 0
            # A poll that the signal overtook is refused; none is left hanging.
            answered = [answer for answer in answers if not isinstance(answer, BaseException)]
            assert len(answered) > 500
            assert all(
                answer.code() is grpc.StatusCode.UNAVAILABLE
                for answer in answers
                if isinstance(answer, grpc.aio.AioRpcError)
            )
            return time.monotonic() - began

    with node(tmp_path / "d") as (process, banner):
        seconds = asyncio.run(polls(banner["grpc"], process))
        assert seconds < 20, "the bound is 5 s; this leaves room for a slow machine"
    with node(tmp_path / "d") as (_, banner), grpc.insecure_channel(banner["grpc"]) as channel:
        answer = LogServiceStub(channel).Fetch(fetch_request(0))
        partition = answer.topics[0].partitions[0]
        assert [record[3] for record in decode(partition.record_batches)] == [b"kept"]


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    with node(tmp_path / "d") as (process, banner):
        with grpc.insecure_channel(banner["grpc"]) as channel:
            call = LogServiceStub(channel).ProduceStream(iter(()))
            assert call.code() is grpc.StatusCode.OK
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130)


HANGING = """
import asyncio
from streamlog.runtime.offload import ThreadOffload
async def close(self):
    await asyncio.Event().wait()
ThreadOffload.close = close
from streamlog.server import node
node.SLACK_S = {slack_s}
"""
"""A disk that does not answer holds a thread, for which a clean stop would wait for ever."""
HURRIED = {"shutdown_grace_ms": 0, "engine.append.drain_timeout_ms": 0}


def test_a_second_signal_ends_a_stop_that_hangs_and_says_so(tmp_path: Path) -> None:
    script = HANGING.format(slack_s=600) + MAIN
    with node(tmp_path / "d", script=script) as (process, _):
        process.send_signal(signal.SIGINT)
        await_line(process, "draining")
        process.send_signal(signal.SIGINT)
        assert "stopped at once by a second signal" in await_line(process, "second signal")
        assert process.wait(30) == 130


def test_a_stop_that_hangs_ends_at_its_bound_and_says_so(tmp_path: Path) -> None:
    script = HANGING.format(slack_s=0.5) + MAIN
    with node(tmp_path / "d", script=script, **HURRIED) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert "what was acknowledged is stored" in await_line(process, "not stopped within 0.5 s")
        assert process.wait(30) == 1


HANGING_LOGS = """
from threading import Event
from streamlog.unified.disk.log_files import LogFiles
def hang(self, *_, **__):
    print("hangs", flush=True)
    Event().wait()
LogFiles.start = lambda self, *_, **__: False
LogFiles.carry_out = hang
from streamlog.server import node
node.WORDS_EVERY_S = 0.1
"""


def test_a_stop_that_waits_for_the_log_folder_names_it(tmp_path: Path) -> None:
    script = HANGING_LOGS + MAIN
    with node(tmp_path / "d", script=script, shutdown_grace_ms=0) as (process, banner):
        with Admin(banner["grpc"]) as admin:
            admin.create_topic("t", 1, {"log.type": "unified"})
        with grpc.insecure_channel(banner["grpc"]) as channel:
            waiting = LogServiceStub(channel).Produce.future(produce_request(batch(b"waits")))
            assert process.stdout is not None
            assert process.stdout.readline() == "hangs\n"
            process.send_signal(signal.SIGTERM)
            folder = f"in the log folder {tmp_path / 'd' / 'logs'}"
            assert folder in await_line(process, "still stopping")
            waiting.cancel()


HANG_UP = """
import signal
signal.signal(signal.SIGHUP, signal.{})
"""


def test_a_terminal_that_closes_stops_a_node_in_order(tmp_path: Path) -> None:
    with node(tmp_path / "d", script=HANG_UP.format("SIG_DFL") + MAIN) as (process, _):
        process.send_signal(signal.SIGHUP)
        assert await_line(process, "draining")
        assert process.wait(30) == 0


def test_a_second_hang_up_does_not_cut_the_stop_short(tmp_path: Path) -> None:
    """The terminal sends one, and its shell another."""
    script = HANG_UP.format("SIG_DFL") + HANGING.format(slack_s=0.5) + MAIN
    with node(tmp_path / "d", script=script, **HURRIED) as (process, _):
        process.send_signal(signal.SIGHUP)
        await_line(process, "draining")
        process.send_signal(signal.SIGHUP)
        assert await_line(process, "not stopped within 0.5 s")
        assert process.wait(30) == 1


def test_a_node_under_nohup_goes_on(tmp_path: Path) -> None:
    with node(tmp_path / "d", script=HANG_UP.format("SIG_IGN") + MAIN) as (process, banner):
        process.send_signal(signal.SIGHUP)
        with grpc.insecure_channel(banner["grpc"]) as channel:
            AdminServiceStub(channel).GetStatus(admin_pb2.GetStatusRequest())
        process.terminate()
        assert process.wait(30) == 0


TOLD_LOG = """
import logging
import signal
emit = logging.StreamHandler.emit
def told(self, record):
    # As for a signal that comes just before the system call: it does not end the call.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    print("logs", record.getMessage(), flush=True)
    emit(self, record)
logging.StreamHandler.emit = told
from streamlog.server import node
node.SLACK_S = 0.5
"""


@pytest.mark.parametrize(("signals", "code"), [(1, 1), (2, 130)])
def test_signals_end_a_node_whose_log_nobody_reads(tmp_path: Path, signals: int, code: int) -> None:
    """As in front of a pager: the pipe is full, and the event loop hangs in the next line."""
    reads, writes = os.pipe()
    flags = {"data": str(tmp_path / "d"), **(HURRIED if signals == 1 else {})}
    process = start(flags, script=TOLD_LOG + MAIN, stderr=writes)
    try:
        assert process.stdout is not None
        assert next(line for line in process.stdout if line.startswith("{"))
        fill(writes)
        process.send_signal(signal.SIGTERM)
        assert next(line for line in process.stdout if "logs draining" in line)
        if signals == 2:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == code
    finally:
        process.kill()
        process.communicate(timeout=30)
        os.close(reads)
        os.close(writes)


def fill(pipe: int) -> None:
    """Through an end of its own, so that the writes of others go on waiting for room."""
    end = os.open(f"/proc/self/fd/{pipe}", os.O_WRONLY | os.O_NONBLOCK)
    with suppress(BlockingIOError):
        while True:
            os.write(end, b"." * 4096)
    with suppress(BlockingIOError):
        while True:
            os.write(end, b".")
    os.close(end)


def await_line(process: subprocess.Popen[str], words: str) -> str:
    """The next line of the node's log with these words."""
    assert process.stderr is not None
    return next(line for line in process.stderr if words in line)


def test_a_killed_node_starts_again_with_what_was_acknowledged(tmp_path: Path) -> None:
    for wal in ("disk", "object"):
        data = tmp_path / wal
        with node(data, wal=wal) as (process, banner):
            with grpc.insecure_channel(banner["grpc"]) as channel:
                LogServiceStub(channel).Produce(produce_request(batch(b"a", b"b")))
            process.kill()
            process.wait(30)
        with node(data, wal=wal) as (_, banner), grpc.insecure_channel(banner["grpc"]) as channel:
            answer = LogServiceStub(channel).Fetch(fetch_request(0))
            partition = answer.topics[0].partitions[0]
            assert [record[3] for record in decode(partition.record_batches)] == [b"a", b"b"]


def test_data_of_a_newer_version_is_refused_with_both_versions(tmp_path: Path) -> None:
    data = tmp_path / "d"
    with node(data) as (process, _):
        process.terminate()
        process.wait(30)
    [file] = (data / "objects").rglob("cluster.json")
    document = json.loads(file.read_text())
    file.write_text(json.dumps({**document, "format_version": 99}))
    text = failure({"data": str(data)})
    assert "UnsupportedVersion" in text
    assert "99" in text
