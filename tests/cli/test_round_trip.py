"""produce < file, consume | cmp: the same bytes, whatever the file holds."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.cli.conftest import COMMAND, Command

Done = Callable[..., bytes]


def _binary(size: int) -> bytes:
    return Random(5).randbytes(size)


NASTY = {
    "empty": b"",
    "one-lf": b"\n",
    "empty-lines": b"\n" * 1000,
    "crlf": b"one\r\ntwo\r\n\r\n" * 50,
    "cr-only": b"a\rb\rc\n",
    "nul": b"\0\n\0\0\n" * 40,
    "not-utf8": b"\xff\xfe\x80\n\xc3\x28\n",
    "unicode-separators": "a\u2028b\u2029c\x85d\x0be\x0cf\n".encode(),
    "million": b"x" * 1_000_000 + b"\n" + _binary(1_000_000).replace(b"\n", b"\r") + b"\nend\n",
    "binary": _binary(3_000_000) + b"\n",
    "many-small": b"".join(b"%d\n" % number for number in range(50_000)),
}


@pytest.mark.parametrize("name", NASTY)
def test_produced_bytes_are_consumed_unchanged(done: Done, tmp_path: Path, name: str) -> None:
    path = tmp_path / "input"
    path.write_bytes(NASTY[name])
    done("produce", f"trip-{name}", stdin=path)
    out = done("consume", f"trip-{name}", "--from", "earliest", "--until-end")
    assert out == NASTY[name]


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_every_compression_comes_out_the_same(done: Done, compression: str) -> None:
    topic = f"packed-{compression}"
    data = NASTY["crlf"] + NASTY["million"] + NASTY["not-utf8"]
    done("produce", topic, "--compression", compression, stdin=data)
    assert done("consume", topic, "--until-end") == data
    dumped = done("log", "dump", topic, "--partition", 0).decode()
    assert f"compresscodec: {compression}" in dumped


def test_a_pipe_through_both_at_once(environment: dict[str, str]) -> None:
    data = b"".join(b"line %d\n" % number for number in range(20_000))
    produce = subprocess.run(
        [*COMMAND, "produce", "piped"], input=data, env=environment, check=False
    )
    assert produce.returncode == 0
    consume = subprocess.Popen(
        [*COMMAND, "consume", "piped", "--until-end"], env=environment, stdout=subprocess.PIPE
    )
    out, _ = consume.communicate()
    assert (consume.returncode, out) == (0, data)


def test_the_last_line_needs_no_lf(done: Done) -> None:
    done("produce", "no-lf", stdin=b"a\nb")
    assert done("consume", "no-lf", "--until-end") == b"a\nb\n"


def test_an_empty_input_makes_an_empty_topic(done: Done) -> None:
    done("produce", "nothing", stdin=b"")
    assert b'"high_watermark": 0' in done("topic", "describe", "nothing", "--json")


def test_a_long_line_is_refused_with_its_number_and_the_rest_is_there(
    run: Command, done: Done
) -> None:
    done("topic", "create", "short", "--config", "max.message.bytes=2000")
    ended = run("produce", "short", stdin=b"one\ntwo\n" + b"x" * 2001 + b"\nfour\n")
    assert ended.returncode == 1
    assert b"line 3 " in ended.stderr
    assert ended.stderr.count(b"\n") == 1
    assert done("consume", "short", "--until-end") == b"one\ntwo\n"


def test_keys_are_split_off_and_shown(run: Command, done: Done) -> None:
    done("produce", "keyed", "--key-separator", ":", stdin=b"k1:v1\nk2:v2:x\n:v3\n")
    out = done("consume", "keyed", "--until-end", "--format", "key-value", "--key-separator", "=")
    assert out == b"k1=v1\nk2=v2:x\n=v3\n"
    ended = run("produce", "keyed", "--key-separator", ":", stdin=b"k4:v4\nnone\nk6:v6\n")
    assert ended.returncode == 1
    assert b"line 2 " in ended.stderr
    assert done("consume", "keyed", "--until-end").endswith(b"v3\nv4\n")


def test_a_reader_that_goes_away_ends_the_command(done: Done, environment: dict[str, str]) -> None:
    done("produce", "left", stdin=b"x" * 99 + b"\n" + b"y" * 200_000 + b"\n" * 200_000)
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [*COMMAND, "consume", "left", "--until-end"],
        env=environment,
        stdout=writing,
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    os.read(reading, 10)
    os.close(reading)
    _, stderr = process.communicate()
    assert (process.returncode, stderr) == (141, b"")
