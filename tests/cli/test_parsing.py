"""Arguments are understood, or refused before anything is opened."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from streamlog.cli.addresses import listen_address, server_address
from streamlog.cli.parsing import StartPosition, parse_start
from streamlog.cli.records.record_format import compile_pattern
from streamlog.client import ConsumerRecord

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("127.0.0.1:9000", "127.0.0.1:9000"),
        ("log.example", "log.example:9644"),
        ("http://log.example:9000/", "log.example:9000"),
        ("grpc://log.example", "log.example:9644"),
        ("[::1]:9000", "[::1]:9000"),
        ("[::1]", "[::1]:9644"),
        ("::1", "[::1]:9644"),
        (" localhost:1 ", "localhost:1"),
    ],
)
def test_a_server_address_is_understood(typed: str, meant: str) -> None:
    assert server_address(typed) == meant


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("ftp://log.example", "ftp is unknown"),
        ("host:port", "'port' is not a port"),
        ("host:65536", "'65536' is not a port"),
        ("host:0", "from 1 to 65535"),
        (":9644", "is not HOST:PORT"),
        ("", "is not HOST:PORT"),
        ("host:9644/path", "is not a port"),
        ("a host:9644", "is not HOST:PORT"),
        ("[::1:9644", "is not HOST:PORT"),
    ],
)
def test_a_wrong_server_address_is_refused_with_a_hint(typed: str, words: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        server_address(typed)
    assert words in str(raised.value)


def test_a_listen_address_has_a_port_of_its_own() -> None:
    assert listen_address("127.0.0.1:0") == "127.0.0.1:0"
    assert listen_address("[::]:9644") == "[::]:9644"
    for typed in ("9644", "127.0.0.1", ":9644", "127.0.0.1:x", "::1", "http://a:1"):
        with pytest.raises(ValueError, match=r"HOST:PORT|not a port"):
            listen_address(typed)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("earliest", StartPosition("earliest")),
        ("latest", StartPosition("latest")),
        ("17", StartPosition("offset", 17)),
        ("-100", StartPosition("last", 100)),
        ("-90s", StartPosition("timestamp", NOW_MS - 90_000)),
        ("-10m", StartPosition("timestamp", NOW_MS - 600_000)),
        ("-2h", StartPosition("timestamp", NOW_MS - 7_200_000)),
        ("-1d", StartPosition("timestamp", NOW_MS - 86_400_000)),
        ("-1w", StartPosition("timestamp", NOW_MS - 604_800_000)),
        ("-999999w", StartPosition("timestamp", 0)),
        ("timestamp:5", StartPosition("timestamp", 5)),
        ("2026-01-31T12:00:00Z", StartPosition("timestamp", 1_769_860_800_000)),
        ("2026-01-31T12:00:00.250+01:00", StartPosition("timestamp", 1_769_857_200_250)),
    ],
)
def test_a_start_is_understood(typed: str, meant: StartPosition) -> None:
    assert parse_start(typed, NOW_MS) == meant


def test_a_time_without_a_zone_is_in_this_machines_zone() -> None:
    there = datetime(2026, 1, 31, 12, 0, 0).astimezone(UTC)
    assert parse_start("2026-01-31T12:00:00", NOW_MS) == StartPosition(
        "timestamp", int(there.timestamp() * 1000)
    )


@pytest.mark.parametrize(
    "typed",
    ["tomorrow", "-10y", "-", "--5", "1.5", "timestamp:x", "timestamp:-1", "9" * 19, "1969-01-01Z"],
)
def test_a_wrong_start_position_is_refused(typed: str) -> None:
    assert parse_start(typed, NOW_MS) is None


def test_a_pattern_writes_each_part_of_a_record() -> None:
    headers = [("a", b"1"), ("a", None)]
    record = ConsumerRecord("t", 3, 17, 5, b"k", None, headers)
    write = compile_pattern(r"%t/%p@%o %T %k(%K)=%s(%S) [%h] 100%%\x21\\\t\n")
    assert write(record) == b"t/3@17 5 k(1)=(-1) [a=1,a] 100%!\\\t\n"


@pytest.mark.parametrize(("pattern", "sign"), [("%x", "%x"), ("%o%", "%"), (r"%o\q", r"\q")])
def test_a_pattern_with_an_unknown_letter_is_refused(pattern: str, sign: str) -> None:
    with pytest.raises(ValueError, match="is none of") as raised:
        compile_pattern(pattern)
    assert sign in str(raised.value)
