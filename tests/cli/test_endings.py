"""A command that ends early reports its progress: signals, an unreachable node, deletions."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamlog.cli import remote
from streamlog.cli.commands import produce
from streamlog.client import Admin, Consumer
from streamlog.demo.node import NodeProcess
from tests.cli.conftest import COMMAND, Command
from tests.cli.started import start
from tests.client.fake_node import FakeNode

Done = Callable[..., bytes]
WAIT_S = 30


@contextmanager
def silent(node: NodeProcess) -> Iterator[None]:
    """The node's port is open and nothing answers there."""
    os.kill(node.pid, signal.SIGSTOP)
    # The signal alone is under way: the node may answer once more.
    os.waitpid(node.pid, os.WUNTRACED)
    try:
        yield
    finally:
        os.kill(node.pid, signal.SIGCONT)


def write_and_await(process: subprocess.Popen[bytes], done: Done, topic: str) -> None:
    """One line goes in and is stored, while the input stays open."""
    assert process.stdin is not None
    process.stdin.write(b"line\n")
    process.stdin.flush()
    assert done("consume", topic, "--follow", "--count", 1) == b"line\n"


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_says_how_many_lines_are_stored(
    done: Done, environment: dict[str, str], number: signal.Signals, code: int
) -> None:
    topic = f"ended-{number.name}"
    process = start(environment, "produce", topic)
    write_and_await(process, done, topic)
    process.send_signal(number)
    _, stderr = process.communicate(timeout=WAIT_S)
    assert process.returncode == code
    assert stderr.decode() == (
        f"streamlog: interrupted by {number.name}: the first 1 lines are stored\n"
    )


def test_an_error_in_the_middle_says_how_many_lines_are_stored(run: Command) -> None:
    ended = run("produce", "half-keyed", "--key-separator", ":", stdin=b"a:1\nb:2\nc\nd:4\n")
    assert ended.returncode == 1
    stderr = ended.stderr.decode()
    assert "line 3 has no separator ':'; the first 2 lines are stored" in stderr


def test_a_node_that_falls_silent_is_named_within_the_time_limit(
    done: Done, environment: dict[str, str], node: NodeProcess
) -> None:
    producing = start(environment, "produce", "silent", "--timeout", "2")
    write_and_await(producing, done, "silent")
    reading = start(environment, "consume", "silent", "--follow", "--timeout", "2")
    assert reading.stdout is not None
    assert reading.stdout.readline() == b"line\n"
    with silent(node):
        _, producer_stderr = producing.communicate(b"lost\n", timeout=WAIT_S)
        _, reader_stderr = reading.communicate(timeout=WAIT_S)
    assert (producing.returncode, reading.returncode) == (1, 1)
    assert node.server.encode() in producer_stderr
    assert b"the first 1 lines are stored; 1 more were sent, and each" in producer_stderr
    assert f"{node.server} has not answered for".encode() in reader_stderr


def test_a_paused_node_is_reported_and_the_command_goes_on_afterwards(
    done: Done, environment: dict[str, str], node: NodeProcess
) -> None:
    producing = start(environment, "produce", "paused")
    write_and_await(producing, done, "paused")
    reading = start(environment, "consume", "paused", "--follow")
    assert reading.stdout is not None
    assert reading.stderr is not None
    assert reading.stdout.readline() == b"line\n"
    assert b"waiting for new ones" in reading.stderr.readline()
    assert producing.stdin is not None
    assert producing.stderr is not None
    with silent(node):
        producing.stdin.write(b"late\n")
        warning = f"{node.server} has not answered for 3 s; the lines sent are given up after 30 s"
        assert warning.encode() in producing.stderr.readline()
        assert f"{node.server} does not answer; trying".encode() in reading.stderr.readline()
    producing.communicate(timeout=WAIT_S)
    assert producing.returncode == 0
    assert reading.stdout.readline() == b"late\n"
    reading.send_signal(signal.SIGINT)
    reading.communicate(timeout=WAIT_S)


@pytest.mark.parametrize(
    "command", ["status", "topic list", "consume t", "kv list", "kv watch", "stream fetch 1"]
)
def test_a_silent_node_is_named_by_every_command(
    run: Command, node: NodeProcess, command: str
) -> None:
    with silent(node):
        ended = run(*command.split(), "--timeout", "0.5")
    assert ended.returncode == 1
    assert node.server.encode() in ended.stderr
    assert ended.stderr.count(b"\n") == 1


@pytest.mark.parametrize("command", ["status", "consume t", "backup --out FILE"])
def test_a_command_says_that_the_node_takes_connections_and_is_silent(
    run: Command,
    node: NodeProcess,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
) -> None:
    words = command.replace("FILE", str(tmp_path / "backup")).split()
    with monkeypatch.context() as patched, silent(node):
        patched.setattr(remote, "SILENCE_TOLD_AFTER_S", 0.1)
        ended = run(*words, "--timeout", "0.8")
    assert ended.returncode == 1
    warning = f"{node.server} takes connections and has not answered for 0.1 s; waiting up to 0.8 s"
    assert ended.stderr.decode().startswith(warning)
    assert b"was not reached within 0.8 s" in ended.stderr
    told: list[str] = []
    monkeypatch.setattr(remote, "note", told.append)
    assert run(*words, "--timeout", "5").stderr.count(b"has not answered") == 0
    # The command may end before the thread that waits for the node's greeting.
    for thread in threading.enumerate():
        if "_tell_silence" in thread.name:
            thread.join(WAIT_S)
    assert told == []


def test_until_end_ends_when_the_rest_is_deleted(
    done: Done, environment: dict[str, str], node: NodeProcess
) -> None:
    """The reader stands in a full pipe while the records behind it are deleted."""
    line = b"x" * 999 + b"\n"
    done("produce", "shrinks", stdin=line * 40_000)
    process = start(environment, "consume", "shrinks", "--until-end")
    assert process.stdout is not None
    assert process.stdout.read(1000) == line
    with Admin(node.server) as admin:
        admin.delete_records("shrinks", 0, None)
    out, stderr = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert out == line * (len(out) // 1000)
    assert len(out) // 1000 < 39_999
    read = 1 + len(out) // 1000
    assert (
        b"shrinks-0: skipped %d offsets from %d on: records below offset 40000 were deleted while "
        b"they were read\n" % (40_000 - read, read)
    ) in stderr


def test_follow_waits_for_a_topic_and_for_its_first_record(
    done: Done, environment: dict[str, str]
) -> None:
    process = start(environment, "consume", "not-yet", "--follow", "--from", "latest")
    assert process.stderr is not None
    assert process.stdout is not None
    assert process.stderr.readline() == (
        b"there is no topic not-yet yet; waiting for it (Ctrl-C ends)\n"
    )
    done("topic", "create", "not-yet")
    assert b"no more records in not-yet for now; waiting" in process.stderr.readline()
    done("produce", "not-yet", stdin=b"first\n")
    assert process.stdout.readline() == b"first\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WAIT_S)
    assert process.returncode == 130


def test_follow_reads_partitions_that_are_added(done: Done, environment: dict[str, str]) -> None:
    done("produce", "grows", stdin=b"old\n")
    process = start(environment, "consume", "grows", "--follow")
    assert process.stdout is not None
    assert process.stdout.readline() == b"old\n"
    done("topic", "alter", "grows", "--partitions", 2)
    done("produce", "grows", "--partition", 1, stdin=b"new\n")
    assert process.stdout.readline() == b"new\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=WAIT_S)


def test_follow_says_that_its_topic_was_deleted(done: Done, environment: dict[str, str]) -> None:
    done("produce", "goes", stdin=b"one\n")
    process = start(environment, "consume", "goes", "--follow")
    assert process.stdout is not None
    assert process.stdout.readline() == b"one\n"
    done("topic", "delete", "goes")
    _, stderr = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert b"UnknownTopicOrPartition" in stderr


def test_a_bad_batch_ends_consume_behind_what_came_before_it(
    run: Command, node: NodeProcess, bad_batch: Callable[[str], None]
) -> None:
    run("produce", "damaged", stdin=b"one\ntwo\n")
    bad_batch("damaged")
    run("produce", "damaged", stdin=b"three\n")
    ended = run("consume", "damaged", "--until-end")
    assert (ended.returncode, ended.stdout) == (1, b"one\ntwo\n")
    stderr = ended.stderr.decode()
    assert "damaged-0: the batch at offset 2 cannot be read" in stderr
    assert "streamlog consume damaged --partition 0 --from 3" in stderr
    assert run("consume", "damaged", "--from", 3, "--until-end").stdout == b"three\n"


def test_log_dump_goes_on_behind_a_bad_batch(
    run: Command, bad_batch: Callable[[str], None]
) -> None:
    run("produce", "dumped-bad", stdin=b"one\n")
    bad_batch("dumped-bad")
    run("produce", "dumped-bad", stdin=b"three\n")
    ended = run("log", "dump", "dumped-bad", "--partition", 0, "--records")
    lines = ended.stdout.decode().splitlines()
    assert ended.returncode == 1
    assert any(line.startswith("| records cannot be decoded: ") for line in lines)
    assert lines[-1].endswith("payload: three")
    assert b"1 of 3 batches of dumped-bad-0 cannot be decoded: those at offsets 1" in ended.stderr
    assert run("log", "dump", "dumped-bad", "--partition", 0).returncode == 0


def test_headers_go_in_and_come_out(run: Command, node: NodeProcess) -> None:
    headers = ("--header", "trace=7", "--header", "trace=8", "--header", "null")
    run("produce", "headed", "--key-separator", ":", *headers, stdin=b"k:v\nk:w\n")
    shown = run("consume", "headed", "--until-end", "--format", r"%p %o %k %s %h\n").stdout
    assert shown == b"0 0 k v trace=7,trace=8,null\n0 1 k w trace=7,trace=8,null\n"
    with Consumer(node.server) as consumer:
        consumer.subscribe(["headed"])
        first = consumer.poll(WAIT_S)[0]
    assert first.headers == [("trace", b"7"), ("trace", b"8"), ("null", None)]


def test_from_the_last_records_and_from_a_moment(run: Command) -> None:
    run("produce", "moments", stdin=b"1\n2\n3\n")
    read = ("consume", "moments", "--until-end", "--from")
    assert run(*read, "-2").stdout == b"2\n3\n"
    assert run(*read, "-99").stdout == b"1\n2\n3\n"
    assert run(*read, "-10m").stdout == b"1\n2\n3\n"
    assert run(*read, "2020-01-01").stdout == b"1\n2\n3\n"
    assert run(*read, "2120-01-01T00:00:00Z").stdout == b""


def test_a_signal_that_the_parent_made_the_command_ignore_ends_nothing(
    done: Done, environment: dict[str, str]
) -> None:
    """As `nohup` does, so that the command outlives its terminal."""
    process = subprocess.Popen(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *COMMAND, "produce", "outlives"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        bufsize=0,
    )
    write_and_await(process, done, "outlives")
    process.send_signal(signal.SIGHUP)
    _, stderr = process.communicate(b"later\n", timeout=WAIT_S)
    assert (process.returncode, stderr) == (0, b"")
    assert done("consume", "outlives", "--until-end") == b"line\nlater\n"


def test_a_count_that_is_reached_before_a_bad_batch_is_no_failure(
    run: Command, bad_batch: Callable[[str], None]
) -> None:
    run("produce", "enough", stdin=b"one\ntwo\n")
    bad_batch("enough")
    ended = run("consume", "enough", "--count", 2)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"one\ntwo\n", b"")


@pytest.mark.parametrize("signals", [1, 2])
def test_ctrl_c_ends_a_send_that_waits_for_a_silent_node(
    run: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, signals: int
) -> None:
    """More lines than the producer holds: it waits for room up to --timeout."""
    (tmp_path / "lines").write_bytes((b"x" * 999 + b"\n") * 40_000)
    monkeypatch.setattr(produce, "LAST_ANSWERS_S", 0.2 if signals == 1 else WAIT_S)
    with FakeNode() as node:
        node.create("t")
        node.hold.clear()
        timers = [
            threading.Timer(1.0 + number / 2, os.kill, (os.getpid(), signal.SIGINT))
            for number in range(signals)
        ]
        for timer in timers:
            timer.start()
        begun = time.monotonic()
        ended = run(
            *("--server", node.server, "produce", "t", "--timeout", WAIT_S),
            stdin=tmp_path / "lines",
        )
        assert time.monotonic() - begun < WAIT_S / 2
        for timer in timers:
            timer.join()
    assert ended.returncode == 130
    assert b"streamlog: interrupted by SIGINT: no line is surely stored; " in ended.stderr
