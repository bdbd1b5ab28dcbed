"""Clients that go away or stop reading: nothing of them stays behind on a real node."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from streamlog.client import Admin, Producer, Streams
from tests.support.command import environment, start_error
from tests.support.node import NodeProcess

POLLS = 2000

POLLING_CLIENT = """
import asyncio, sys
import grpc.aio
from streamlog.v1 import log_pb2
from streamlog.v1.log_pb2_grpc import LogServiceStub

async def main(server, topic, polls):
    async with grpc.aio.insecure_channel(server) as channel:
        part = log_pb2.FetchPartition(partition=0, fetch_offset=1)
        request = log_pb2.FetchRequest(
            topics=[log_pb2.FetchTopic(topic=topic, partitions=[part])], max_wait_ms=300_000
        )
        stub = LogServiceStub(channel)
        await asyncio.gather(*(stub.Fetch(request) for _ in range(polls)))

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""

STALLED_READER = """
import sys, threading
import grpc
from streamlog.v1 import stream_pb2
from streamlog.v1.stream_pb2_grpc import StreamServiceStub

server, stream, readers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with grpc.insecure_channel(server) as channel:
    stub = StreamServiceStub(channel)
    request = stream_pb2.ReadStreamRequest(stream_id=stream)
    calls = [stub.ReadStream(request) for _ in range(readers)]
    for call in calls:
        next(call)
    print("reading no more", flush=True)
    threading.Event().wait()
"""


def eventually(condition: Callable[[], bool], seconds: float = 30) -> None:
    """The promise is 5 s; the bound leaves room for a busy machine."""
    ends_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends_at, f"not within {seconds} s"
        time.sleep(0.05)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_long_polls_of_a_client_that_died_leave_nothing(
    tmp_path: Path, how: signal.Signals
) -> None:
    with NodeProcess(tmp_path / "data") as node:
        with Producer(node.server) as producer:
            producer.send("t", b"x").result(30)
        # The producer's stream ends a moment after the producer.
        eventually(lambda: node.metric("streamlog_requests_active") == 0)
        for _ in range(2):
            client = subprocess.Popen(
                [sys.executable, "-c", POLLING_CLIENT, node.server, "t", str(POLLS)],
                env=environment(),
                stderr=subprocess.DEVNULL,
            )
            eventually(lambda: node.metric("streamlog_long_polls") == POLLS, 60)
            client.send_signal(how)
            client.wait(60)
            eventually(lambda: node.metric("streamlog_long_polls") == 0)
            eventually(lambda: node.metric("streamlog_requests_active") == 0)
            eventually(lambda: node.metric("streamlog_connections") == 0)
        assert node.metric("streamlog_in_flight_bytes") == 0
        with Producer(node.server) as producer:
            assert producer.send("t", b"y").result(30).offset == 1


def test_readers_that_stop_reading_are_bounded_in_memory(tmp_path: Path) -> None:
    """Ten readers of 100 MiB: what the node holds for them stays far below one stream's bytes."""
    readers, payload = 10, os.urandom(1 << 20)
    with NodeProcess(tmp_path / "data") as node, Streams(node.server) as streams:
        stream = streams.create().stream_id
        for _ in streams.append_many(stream, (payload for _ in range(100))):
            pass
        client = subprocess.Popen(
            [sys.executable, "-c", STALLED_READER, node.server, str(stream), str(readers)],
            env=environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert client.stdout is not None
        with client.stdout:
            assert client.stdout.readline() == "reading no more\n"
            held = [node.metric("streamlog_read_stream_bytes") for _ in range(20)]
            assert 0 < max(held) <= readers * 2 * len(payload)
            with Admin(node.server) as admin:
                before = admin.status().rss_bytes
                for _ in range(10):
                    assert len(streams.fetch(stream, 50, 51).batches) == 1
                assert admin.status().rss_bytes < before + (32 << 20)
            client.kill()
            client.wait(60)
        eventually(lambda: node.metric("streamlog_read_stream_bytes") == 0)


def without_rights_of_root() -> None:
    """Run in the child before exec: root, too, then needs the permission bits."""
    pr_capbset_drop, dac_override, dac_read_search = 24, 1, 2
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() == 0:
        for capability in (dac_override, dac_read_search):
            if libc.prctl(pr_capbset_drop, capability, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "dropping a capability")


@pytest.mark.parametrize("part", ["", "meta", "wal"])
def test_an_unwritable_folder_is_named_and_left_alone(tmp_path: Path, part: str) -> None:
    data = tmp_path / "data"
    with NodeProcess(data) as node, Producer(node.server) as producer:
        assert producer.send("t", b"kept").result(30).offset == 0
    closed = data / part if part else tmp_path
    files = sorted(closed.rglob("*"))
    mode = closed.stat().st_mode
    closed.chmod(0o500)
    try:
        target = data if part else tmp_path / "new"
        said = start_error("--data", target, preexec_fn=without_rights_of_root)
    finally:
        closed.chmod(mode)
    assert str(closed) in said
    assert "write" in said or "right" in said
    assert sorted(closed.rglob("*")) == files
    with NodeProcess(data) as node, Producer(node.server) as producer:
        assert producer.send("t", b"next").result(30).offset == 1


def test_a_folder_below_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    said = start_error("--data", file / "data")
    assert str(file) in said
    assert file.read_text() == "mine"
