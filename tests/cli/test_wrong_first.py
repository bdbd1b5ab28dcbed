"""A newcomer's mistakes on the command line: each error suggests what was meant."""

from __future__ import annotations

import json

import pytest

from streamlog.cli import main
from tests.cli.conftest import Command


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("comsume t", "Did you mean 'streamlog consume'?"),
        ("create t", "Did you mean 'streamlog topic create'?"),
        ("topic creat t", "Did you mean 'streamlog topic create'?"),
        ("kv git k", "Did you mean 'streamlog kv get'?"),
        ("spark exprt", "Did you mean 'streamlog spark export'?"),
        ("xyzzy", "No such command 'xyzzy'."),
    ],
)
def test_a_wrong_command_names_the_one_that_was_meant(
    capsys: pytest.CaptureFixture[str], arguments: str, meant: str
) -> None:
    assert main.run(arguments.split()) == 2
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize("arguments", ["-h", "topic -h", "topic create -h", "dev -h"])
def test_h_is_help(capsys: pytest.CaptureFixture[str], arguments: str) -> None:
    assert main.run(arguments.split()) == 0
    assert capsys.readouterr().out.startswith("Usage: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("status --server x:y", "'y' is not a port"),
        ("status --server a..b:9644", "'a..b:9644' is not HOST:PORT"),
        ("status --timeout nan", "nan is no number of seconds"),
        (f"consume t --from {'1' * 5000}", "is none of: earliest, latest"),
        ("dev --listen 9644", "'9644' is not HOST:PORT"),
        ("dev --http-listen a:b", "'b' is not a port"),
        ("serve --listen http://x:1 --data d", "--listen"),
        ("serve", "where is the data? give --data DIR"),
        ("serve --data d --store memory://", "give --data DIR or --store URL, not both"),
        ("doctor", "where is the data? give --data DIR"),
        ("fsck", "where is the data? give --data DIR"),
        ("recover", "where is the data? give --data DIR"),
        ("consume t --from yesterday", "-10m (the last 10 minutes"),
        ("consume t --format vlaue", "is none of value, key-value, json"),
        ("consume t --format %q", "'%q' is none of"),
        ("produce t --header =v", "is not NAME=VALUE"),
        ("backup --out /no-such-folder/file", "there is no folder /no-such-folder"),
        ("topic alter t --config retention.ms=1 --unset retention.ms", "give --config or --unset"),
        ("topic create t --config a=1 --config a=2", "a is given twice"),
        ("topic alter t", "give --partitions, --config, --unset, --append or --subtract"),
        ("topic create t --partitions 5000000000", "5000000000 is not in the range 1<=x<="),
        ("topic alter t --partitions 5000000000", "5000000000 is not in the range 1<=x<="),
        ("bench produce --partitions 5000000000", "5000000000 is not in the range 1<=x<="),
        ("stream append 1 --records 5000000000", "5000000000 is not in the range 1<=x<="),
        (f"stream append 1 --expected-next-offset {1 << 63}", "is not in the range 0<=x<="),
        (f"stream set-token 1 t --expected-next-offset {1 << 63}", "is not in the range 0<=x<="),
        (f"stream trim 1 --to {1 << 63}", "is not in the range 0<=x<="),
        ("stream fetch 1 --from 3 --to 1", "--to 1 is before --from 3"),
        (f"stream fetch 1 --from {1 << 63}", "is not in the range 0<=x<="),
        (f"stream describe {1 << 64}", "is not in the range 0<=x<="),
        ("bench produce --mib inf", "is not in the range 0.01<=x<="),
        ("bench produce --mib nan", "nan is no number of use here"),
        ("bench verify --mib inf", "is not in the range 0.01<=x<="),
        ("demo --mib nan", "nan is no number of use here"),
        ("recover --grace inf", "is not in the range 0<=x<="),
        ("recover --grace nan", "nan is no number of use here"),
        ("recover --grace 1e300", "is not in the range 0<=x<="),
        (f"kv put k v --expected-revision {1 << 63}", "is not in the range 0<=x<="),
        (f"kv watch --from-revision {1 << 63}", "is not in the range 1<=x<="),
        (f"log token t --partition {1 << 63}", "is not in the range 0<=x<="),
        (f"log set-token t x --partition {1 << 63}", "is not in the range 0<=x<="),
        (f"txn list --producer-id {1 << 63}", "is not in the range 0<=x<="),
    ],
)
def test_contradictory_options_are_refused_before_anything_is_opened(
    capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    assert main.run(arguments.split()) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert words in " ".join(output.err.split())


@pytest.mark.parametrize(
    "command", ["consume {} --until-end", "topic describe {}", "log dump {} --partition 0"]
)
def test_a_wrong_topic_names_the_nearest(run: Command, command: str) -> None:
    assert run("produce", "orders").returncode == 0
    ended = run(*command.format("order").split())
    assert ended.returncode == 1
    assert b"did you mean orders?" in ended.stderr


@pytest.mark.parametrize("command", ["produce", "consume", "log dump"])
def test_a_wrong_partition_is_refused_without_any_input(run: Command, command: str) -> None:
    assert run("produce", "narrow").returncode == 0
    ended = run(*command.split(), "narrow", "--partition", 9)
    assert ended.returncode == 2
    assert b"narrow has partitions 0 to 0, not 9" in ended.stderr


def test_a_server_may_be_given_as_a_url_or_without_its_port(run: Command) -> None:
    plain = run("status", "--json").stdout
    server = json.loads(plain)["server"]
    assert run("--server", f"http://{server}/", "status").returncode == 0


@pytest.mark.parametrize("seconds", ["inf", "1e300", "1e9"])
def test_a_time_limit_may_be_as_long_as_wanted(run: Command, seconds: str) -> None:
    for command in ("produce t", "topic list", "kv list", "stream list", "consume t --count 0"):
        ended = run(*command.split(), "--timeout", seconds)
        assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize(
    "command",
    ["topic create {}", "topic describe {}", "consume {}", "produce {}", "kv get k --namespace {}"],
)
def test_a_name_that_is_no_utf8_is_refused_in_one_line(run: Command, command: str) -> None:
    """As Python gives an argument of other bytes to the command."""
    ended = run(*command.format("x\udcff").split())
    assert ended.returncode == 1
    assert ended.stderr.decode() == ("streamlog: Invalid: 'x\\udcff' cannot be written as utf-8\n")
