"""A full disk under a running node: typed errors, nothing lost, and it goes on when there is room.

The limit on file sizes of the running process (prlimit) stands for the disk: every write past it
fails, as on a full one, and it works on every Linux without rights. `tests/objectstore` and
`tests/kvstore` have the same on the real system's error numbers.
"""

from __future__ import annotations

import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamlog.client import Admin, Consumer, Producer, Streams
from streamlog.errors import (
    DiskFull,
    OutcomeUnknown,
    Overloaded,
    StreamlogError,
    Unavailable,
)
from streamlog.model.batch import AppendResult
from tests.support.command import start_error
from tests.support.node import NodeProcess


@contextmanager
def full_disk(node: NodeProcess) -> Iterator[None]:
    """No file of the node can be written past its first bytes."""
    process = node.process
    assert process is not None
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        if process.poll() is None:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))


def values(server: str, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    with Consumer(server) as consumer:
        consumer.assign([("t", 0)])
        while len(found) < count:
            found += [record.value for record in consumer.poll(10)]
        assert not consumer.poll(0.2)
    return found


def patiently(append: Callable[[], AppendResult]) -> AppendResult:
    """Repeats what is refused without side effects, as a client does, for 30 s at most."""
    ends_at = time.monotonic() + 30
    while True:
        try:
            return append()
        except Unavailable as error:
            if not error.has_no_side_effects or time.monotonic() > ends_at:
                raise
        time.sleep(0.05)


@pytest.mark.parametrize("wal", ["disk", "object"])
def test_a_full_disk_loses_nothing_and_passes(tmp_path: Path, wal: str) -> None:
    with NodeProcess(tmp_path / "data", wal) as node:
        pid = node.pid
        with Producer(node.server, delivery_timeout_ms=60_000) as producer:
            expected = [b"before"]
            assert producer.send("t", b"before").result(30).offset == 0
            assert producer.send("other", b"before").result(30).offset == 0
            for attempt in range(3):
                with full_disk(node):
                    stuck = [b"stuck %d.%d" % (attempt, number) for number in range(20)]
                    views = [producer.send("t", value) for value in stuck]
                    with Producer(
                        node.server, idempotence=False, delivery_timeout_ms=700
                    ) as impatient:
                        error = impatient.send("other", b"x").exception(30)
                    assert isinstance(error, Unavailable | OutcomeUnknown), error
                    # What is stored is read on, and the node says that it lives.
                    assert values(node.server, len(expected)) == expected
                    with Admin(node.server) as admin:
                        assert admin.status().cluster_id == node.banner["cluster_id"]
                    assert not any(view.done() for view in views)
                assert [view.result(60).offset for view in views] == list(
                    range(len(expected), len(expected) + len(views))
                )
                expected += stuck
        assert node.pid == pid
        node.kill()
        node.start()
        assert values(node.server, len(expected)) == expected


def test_appends_to_a_stream_on_a_full_disk_say_disk_full(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", "disk") as node, Streams(node.server) as streams:
        stream = streams.create().stream_id
        assert streams.append(stream, b"before").base_offset == 0
        refused: list[StreamlogError] = []
        with full_disk(node), Streams(node.server, timeout_ms=1000) as hasty:
            for _ in range(3):
                try:
                    hasty.append(stream, b"during")
                except StreamlogError as error:
                    refused.append(error)
        # The first was in its place when the write failed; those behind it are turned away.
        full = [error for error in refused if isinstance(error, DiskFull)]
        assert full
        assert all("free some space" in error.message for error in full)
        assert all(isinstance(error, DiskFull | OutcomeUnknown) for error in refused)
        last = patiently(lambda: streams.append(stream, b"after"))
        found = [batch.payload for batch in streams.fetch(stream, 0).batches]
        assert found[0] == b"before"
        assert found[-1] == b"after"
        assert found[1:-1] in ([], [b"during"])
        assert last.base_offset == len(found) - 1


def test_an_append_that_ran_out_of_time_is_stored_once_or_not_at_all(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", "object") as node, Streams(node.server) as streams:
        stream = streams.create().stream_id
        for number in range(3):
            with (
                full_disk(node),
                Streams(node.server, timeout_ms=300) as hasty,
                pytest.raises(OutcomeUnknown),
            ):
                hasty.append(stream, b"hasty %d" % number)
            streams.append(stream, b"after %d" % number)
        found = [bytes(batch.payload) for batch in streams.fetch(stream, 0).batches]
        assert [one for one in found if one.startswith(b"after")] == [
            b"after %d" % number for number in range(3)
        ]
        assert len(set(found)) == len(found)


def test_a_producer_that_outruns_the_node_blocks_and_then_fails(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", "object") as node:
        value = b"x" * 10_000
        with Admin(node.server) as admin:
            admin.create_topic("t")
        with Producer(
            node.server, buffer_memory_bytes=1 << 20, max_block_ms=1_000, batch_size_bytes=64 << 10
        ) as producer:
            producer.send("t", value).result(30)
            views = []
            assert node.process is not None
            node.process.send_signal(signal.SIGSTOP)
            try:
                refusal: Overloaded | None = None
                while refusal is None:
                    began = time.monotonic()
                    try:
                        views.append(producer.send("t", value))
                    except Overloaded as error:
                        refusal = error
                assert time.monotonic() - began >= 0.4, "it waited for room first"
                assert refusal.fields["bound_bytes"] == 1 << 20
                assert 50 <= len(views) <= (1 << 20) // len(value)
            finally:
                node.process.send_signal(signal.SIGCONT)
            assert [view.result(60).offset for view in views] == list(range(1, len(views) + 1))


def test_a_second_signal_stops_a_node_that_cannot_drain(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "data", "disk") as node:
        process = node.process
        assert process is not None
        with Producer(node.server) as producer:
            assert producer.send("t", b"first").result(30).offset == 0
            with full_disk(node):
                stuck = producer.send("t", b"stuck")
                with pytest.raises(TimeoutError):
                    stuck.result(0.5)
                process.send_signal(signal.SIGTERM)
                with pytest.raises(subprocess.TimeoutExpired):
                    process.wait(1)
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 130
            node.kill()
            node.start()
            assert stuck.result(60).offset == 1
        assert values(node.server, 2) == [b"first", b"stuck"]


def test_a_node_does_not_start_on_a_full_disk(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))

    said = start_error("--data", tmp_path / "data", preexec_fn=limit)
    assert said.startswith("DiskFull: ")
    assert "free some space" in said
    with NodeProcess(tmp_path / "data") as node, Producer(node.server) as producer:
        assert producer.send("t", b"x").result(30).offset == 0
