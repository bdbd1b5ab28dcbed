"""One real node for all tests of the command line, and a way to run commands against it."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile

import grpc
import pytest

from streamlog.cli import main
from streamlog.codec.batch import CRC_START, Compression
from streamlog.codec.crc import crc32c
from streamlog.codec.records import encode_values
from streamlog.demo.node import NodeProcess
from streamlog.v1 import log_pb2
from streamlog.v1.log_pb2_grpc import LogServiceStub

Command = Callable[..., "subprocess.CompletedProcess[bytes]"]
NOW_MS = 1_767_225_600_000
COMMAND = [sys.executable, "-m", "streamlog.cli"]


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path_factory.mktemp("node"), wal="disk")
    node.start()
    yield node
    node.stop()


@pytest.fixture(scope="session")
def environment(node: NodeProcess) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STREAMLOG_")}
    return kept | {"STREAMLOG_SERVER": node.server}


@pytest.fixture(scope="session")
def run(environment: dict[str, str]) -> Command:
    """Runs one command line; `stdin` is bytes or a file's path.

    In the test's own process: the start of an interpreter would cost more than most commands.
    Tests of signals, pipes and the command's own streams start a process (COMMAND).
    """

    def run_command(
        *arguments: str | int, stdin: bytes | Path = b""
    ) -> subprocess.CompletedProcess[bytes]:
        words = [str(argument) for argument in arguments]
        out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
        with ExitStack() as stack:
            source: io.TextIOBase
            if isinstance(stdin, bytes):
                source = stack.enter_context(TemporaryFile("w+"))
                source.buffer.write(stdin)
                source.seek(0)
            else:
                source = stack.enter_context(stdin.open())
            patched = stack.enter_context(pytest.MonkeyPatch.context())
            patched.setattr(sys, "stdin", source)
            patched.setattr(sys, "stdout", out)
            patched.setattr(sys, "stderr", err)
            patched.setenv("STREAMLOG_SERVER", environment["STREAMLOG_SERVER"])
            code = main.run(words)
        return subprocess.CompletedProcess(
            words,
            code,
            out.buffer.getvalue(),
            err.buffer.getvalue(),
        )

    return run_command


@pytest.fixture(scope="session")
def done(run: Command) -> Callable[..., bytes]:
    """As `run`, for a command that must succeed; its stdout."""

    def run_well(*arguments: str | int, stdin: bytes | Path = b"") -> bytes:
        ended = run(*arguments, stdin=stdin)
        assert ended.returncode == 0, ended.stderr.decode()
        return ended.stdout

    return run_well


@pytest.fixture(scope="session")
def bad_batch(node: NodeProcess) -> Callable[[str], None]:
    """Stores a batch in partition 0 of a topic whose compressed records cannot be decoded.

    The node checks the CRC, how the records begin and where their blocks end; it does not
    decompress.
    """

    def store(topic: str) -> None:
        value = b" ".join(b"%d" % (number * number) for number in range(200))
        made = encode_values([value], timestamp_ms=NOW_MS, compression=Compression.ZSTD)
        batch = bytearray(made.data)
        batch[-60:-20] = bytes(40)
        struct.pack_into(">I", batch, CRC_START - 4, crc32c(batch[CRC_START:]))
        request = log_pb2.ProduceRequest(acks=log_pb2.ACKS_ALL)
        request.topics.add(topic=topic).partitions.add(partition=0, record_batches=bytes(batch))
        with grpc.insecure_channel(node.server) as channel:
            answer = LogServiceStub(channel).Produce(request, timeout=30)
        assert not answer.topics[0].partitions[0].HasField("error")

    return store
