"""Each command as a script sees it: stdout, stderr, exit code, JSON."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from streamlog.cli import main
from streamlog.client import Admin
from streamlog.demo.node import NodeProcess
from tests.cli.conftest import COMMAND, Command

Done = Callable[..., bytes]


def _json(done: Done, *arguments: str | int, stdin: bytes = b"") -> Any:
    return json.loads(done(*arguments, "--json", stdin=stdin))


def _json_lines(done: Done, *arguments: str | int) -> list[Any]:
    return [json.loads(line) for line in done(*arguments, "--json").splitlines()]


def test_topic_from_create_to_delete(run: Command, done: Done) -> None:
    done("topic", "create", "life", "--partitions", 3, "--config", "retention.ms=60000")
    listed = {topic["name"]: topic["partitions"] for topic in _json(done, "topic", "list")}
    assert listed["life"] == 3
    topic = _json(done, "topic", "describe", "life")
    assert topic["configs"]["retention.ms"] == "60000"
    assert [partition["partition"] for partition in topic["partitions"]] == [0, 1, 2]
    done("topic", "alter", "life", "--partitions", 4, "--config", "retention.ms=70000")
    topic = _json(done, "topic", "describe", "life")
    assert (len(topic["partitions"]), topic["configs"]["retention.ms"]) == (4, "70000")
    done("topic", "alter", "life", "--unset", "retention.ms")
    assert "retention.ms" not in _json(done, "topic", "describe", "life")["configs"]
    assert b"life" in done("topic", "list")
    done("topic", "delete", "life")
    assert "life" not in {topic["name"] for topic in _json(done, "topic", "list")}
    assert run("topic", "describe", "life").returncode == 1


@pytest.mark.parametrize(
    ("configs", "says"),
    [
        ((), None),
        (("log.type=unified",), b"in files on its leader's disk alone: losing that disk loses it"),
        (
            ("log.type=unified", "remote.storage.enable=true"),
            b"in files on its leader's disk, older segments also in the object store, and no",
        ),
    ],
    ids=["shared", "unified", "tiered"],
)
def test_a_topic_says_what_a_lost_disk_costs(
    run: Command, done: Done, configs: tuple[str, ...], says: bytes | None
) -> None:
    options = [part for config in configs for part in ("--config", config)]
    created = run("topic", "create", "kept", *options)
    assert (created.returncode, created.stdout) == (0, b"")
    described = done("topic", "describe", "kept")
    for told in (created.stderr, described):
        assert (b"kept  " in told or b"is kept" in told) is (says is not None)
        assert says is None or says in told
    done("topic", "delete", "kept")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("topic", "describe", "no-such-topic"), ("UnknownTopicOrPartition", "no-such-topic")),
        (("topic", "create", "a/b"), ("InvalidName",)),
        (("topic", "create", "t", "--config", "retention.sm=1"), ("InvalidConfig", "retention.ms")),
        (("kv", "get", "no-such-key"), ("KeyNotFound", "no-such-key")),
        (("object", "show", "no/such/object"), ("InvalidName",)),
        (("stream", "describe", "999999999"), ("StreamNotFound", "streamlog stream list")),
        (("stream", "fetch", "999999999"), ("StreamNotFound", "streamlog stream list")),
        (("consume", "no-such-topic", "--until-end"), ("UnknownTopicOrPartition",)),
    ],
)
def test_a_failure_is_exit_code_1_and_one_line(
    run: Command, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    ended = run(*arguments)
    stderr = ended.stderr.decode()
    assert (ended.returncode, ended.stdout) == (1, b""), stderr
    assert stderr.count("\n") == 1
    assert stderr.startswith("streamlog: ")
    assert all(word in stderr for word in words), stderr
    as_json = run(*arguments, "--json")
    error = json.loads(as_json.stderr)["error"]
    assert as_json.returncode == 1
    assert error["name"] == words[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-command",),
        ("topic", "create"),
        ("topic", "create", "t", "--partitions", "0"),
        ("topic", "alter", "t"),
        ("consume", "t", "--from", "tomorrow"),
        ("consume", "t", "--from", "timestamp:x"),
        ("consume", "t", "--follow", "--until-end"),
        ("produce", "t", "--compression", "rar"),
        ("produce", "t", "--key-separator", ""),
        ("config", "show", "--topic", "t", "--broker", "0"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "Usage: streamlog" in output.err


def test_a_node_that_is_not_there_is_named(environment: dict[str, str]) -> None:
    ended = subprocess.run(
        [*COMMAND, "--server", "127.0.0.1:1", "status", "--timeout", "1"],
        env=environment,
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 1
    assert b"127.0.0.1:1" in ended.stderr
    assert ended.stderr.count(b"\n") == 1


def test_an_option_after_the_command_wins(done: Done, environment: dict[str, str]) -> None:
    server = environment["STREAMLOG_SERVER"]
    done("--server", "127.0.0.1:1", "status", "--server", server)
    before = json.loads(done("--json", "status"))
    assert before["server"] == server


def test_status_says_what_the_node_holds(done: Done) -> None:
    status = _json(done, "status")
    assert status["wal"] == "disk"
    assert status["cluster_id"]
    assert status["rss_bytes"] > 0
    assert b"cluster_id" in done("status")


def test_status_shows_where_the_node_listens(done: Done, environment: dict[str, str]) -> None:
    listeners = {entry["protocol"]: entry for entry in _json(done, "status")["listeners"]}
    assert listeners["grpc"]["address"] == environment["STREAMLOG_SERVER"]
    assert listeners["grpc"]["advertised"] == environment["STREAMLOG_SERVER"]
    assert listeners["http"]["address"]
    assert f"grpc {environment['STREAMLOG_SERVER']}".encode() in done("status")


def test_status_shows_alarms_first(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is well; what it answers is changed on the way."""
    ask = Admin.status

    def status(client: Admin) -> Any:
        status = ask(client)
        status.alarms.extend(["disk-full: /data has no room", "store: silent for 12 s"])
        return status

    monkeypatch.setattr(Admin, "status", status)
    shown = run("status").stdout.decode().splitlines()
    assert shown[:2] == ["ALARM  disk-full: /data has no room", "ALARM  store: silent for 12 s"]
    assert json.loads(run("status", "--json").stdout)["alarms"][0].startswith("disk-full")


def test_consume_begins_and_ends_at_the_given_positions(run: Command, done: Done) -> None:
    done("produce", "places", stdin=b"".join(b"%d\n" % number for number in range(100)))
    read = ("consume", "places", "--until-end")
    assert done(*read, "--from", 97) == b"97\n98\n99\n"
    assert done(*read, "--from", "latest") == b""
    assert done(*read, "--from", 100) == b""
    assert done("consume", "places", "--from", 5, "--count", 2) == b"5\n6\n"
    assert done("consume", "places", "--count", 0) == b""
    assert done(*read, "--from", "timestamp:0", "--count", 1) == b"0\n"
    assert done(*read, "--from", "timestamp:99999999999999") == b""
    ended = run(*read, "--from", 101)
    assert ended.returncode == 1
    assert b"0 to 100" in ended.stderr
    assert run("consume", "places", "--partition", 1, "--until-end").returncode == 2


def test_consume_as_json_tells_null_text_and_bytes(done: Done) -> None:
    done("produce", "shown", "--key-separator", ":", stdin=b"k:text\n\xff:\xfe\n")
    done("produce", "shown", stdin=b"\xc3\xa9\n")
    first, second, third = _json_lines(done, "consume", "shown", "--until-end")
    assert (first["key"], first["value"], first["offset"]) == ("k", "text", 0)
    assert (second["key_base64"], second["value_base64"]) == ("/w==", "/g==")
    assert (third["key"], third["value"], third["headers"]) == (None, "é", [])
    assert third["timestamp_ms"] >= first["timestamp_ms"] > 1_600_000_000_000


def test_follow_shows_what_comes_and_ends_at_ctrl_c(
    done: Done, environment: dict[str, str]
) -> None:
    done("produce", "followed", stdin=b"one\n")
    process = subprocess.Popen(
        [*COMMAND, "consume", "followed", "--follow"], env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"one\n"
    done("produce", "followed", stdin=b"two\n")
    assert process.stdout.readline() == b"two\n"
    process.send_signal(signal.SIGINT)
    process.stdout.close()
    assert process.wait(30) == 130


def test_a_partition_can_be_chosen(done: Done) -> None:
    done("topic", "create", "parts", "--partitions", 3)
    for partition in range(3):
        done("produce", "parts", "--partition", partition, stdin=b"to %d\n" % partition)
    assert done("consume", "parts", "--partition", 1, "--until-end") == b"to 1\n"
    everything = done("consume", "parts", "--until-end").splitlines()
    assert sorted(everything) == [b"to 0", b"to 1", b"to 2"]


def test_streams_below_topics(run: Command, done: Done) -> None:
    created = _json(done, "stream", "create", "--tag", "kind=test")
    stream = created["stream_id"]
    assert created["tags"] == {"kind": "test"}
    payload = b"\x00\xffone\n\r\n"
    assert _json(done, "stream", "append", stream, stdin=payload) == {
        "base_offset": 0,
        "end_offset": 1,
    }
    done("stream", "append", stream, "--records", 5, "--expected-next-offset", 1, stdin=b"five")
    done("stream", "append", stream, "--lines", stdin=b"six\nseven\n")
    assert done("stream", "fetch", stream) == payload + b"fivesixseven"
    end = _json(done, "stream", "describe", stream)["confirm_offset"]
    assert done("stream", "fetch", stream, "--from", end) == b""
    beyond = run("stream", "fetch", stream, "--from", end + 1)
    assert beyond.returncode == 1
    assert f"holds offsets 0 to {end} (exclusive), not {end + 1}".encode() in beyond.stderr
    batches = _json_lines(done, "stream", "fetch", stream, "--from", 1)
    assert [(batch["base_offset"], batch["record_count"]) for batch in batches] == [
        (1, 5),
        (6, 1),
        (7, 1),
    ]
    done("stream", "trim", stream, "--to", 6)
    info = _json(done, "stream", "describe", stream)
    assert (info["start_offset"], info["confirm_offset"]) == (6, 8)
    assert stream in [info["stream_id"] for info in _json_lines(done, "stream", "list")]
    done("stream", "delete", stream)
    assert stream not in [info["stream_id"] for info in _json_lines(done, "stream", "list")]


def test_an_append_at_the_wrong_tail_is_a_conflict(run: Command, done: Done) -> None:
    stream = _json(done, "stream", "create")["stream_id"]
    ended = run("stream", "append", stream, "--expected-next-offset", 7, stdin=b"x")
    assert ended.returncode == 1
    assert b"OffsetConflict" in ended.stderr


def test_a_fencing_token_refuses_appends_with_another_token(run: Command, done: Done) -> None:
    stream = _json(done, "stream", "create")["stream_id"]
    assert _json(done, "stream", "describe", stream)["fencing_token"] == ""
    done("stream", "set-token", stream, "writer-1", "--expected", "")
    done("stream", "append", stream, "--fencing-token", "writer-1", stdin=b"one ")
    done("stream", "set-token", stream, "hex:00ff", "--expected", "writer-1")
    assert _json(done, "stream", "describe", stream)["fencing_token"] == "hex:00ff"
    for refused in (
        ("append", stream, "--fencing-token", "writer-1"),
        ("set-token", stream, "writer-1", "--expected", "writer-1"),
        ("clear-token", stream, "--expected", ""),
    ):
        ended = run("stream", *refused, stdin=b"x")
        assert ended.returncode == 1
        assert b"TokenMismatch" in ended.stderr
    done("stream", "append", stream, "--fencing-token", "hex:00ff", "--lines", stdin=b"two\n")
    done("stream", "clear-token", stream)
    done("stream", "append", stream, "--fencing-token", "", stdin=b" three")
    assert done("stream", "fetch", stream) == b"one two three"
    wrong = (("hex:0", "pairs of hex digits"), ("x" * 65, "at most 64 bytes"), ("", "clear-token"))
    for token, reason in wrong:
        ended = run("stream", "set-token", stream, token)
        assert ended.returncode == 2
        assert reason in ended.stderr.decode()


def test_small_values_under_names(run: Command, done: Done) -> None:
    value = b"\x00\xff\r\n"
    done("kv", "put", "a/1", stdin=value)
    assert done("kv", "get", "a/1") == value
    done("kv", "put", "a/2", "two")
    revision = _json(done, "kv", "put", "a/2", "zwei")["revision"]
    assert _json(done, "kv", "put", "a/2", "other", "--if-absent")["value"] == "zwei"
    assert run("kv", "put", "a/2", "x", "--expected-revision", revision - 1).returncode == 1
    done("kv", "put", "a/2", "deux", "--expected-revision", revision)
    listed = _json_lines(done, "kv", "list", "--prefix", "a/")
    assert [(entry["key"], entry.get("value")) for entry in listed] == [
        ("a/1", None),
        ("a/2", "deux"),
    ]
    assert done("kv", "list", "--prefix", "a/", "--namespace", "elsewhere") == b""
    done("kv", "delete", "a/1")
    assert run("kv", "get", "a/1").returncode == 1


def test_watch_shows_changes_from_a_revision(done: Done) -> None:
    first = _json(done, "kv", "put", "w/1", "one")["revision"]
    done("kv", "delete", "w/1")
    changes = [
        json.loads(line)
        for line in done(
            *("kv", "watch", "--prefix", "w/", "--from-revision", first, "--count", 2, "--json")
        ).splitlines()
    ]
    assert [(entry["key"], entry["value"]) for entry in changes] == [("w/1", "one"), ("w/1", None)]


def test_log_dump_prints_as_kafkas_tool(done: Done) -> None:
    done("produce", "dumped", stdin=b"a\nb\nc\n")
    done("produce", "dumped", stdin=b"d\n")
    lines = done("log", "dump", "dumped", "--partition", 0, "--records").decode().splitlines()
    assert lines[:2] == ["Dumping dumped-0", "Log starting offset: 0"]
    first = lines[2]
    assert first.startswith("baseOffset: 0 lastOffset: 2 count: 3 baseSequence: 0 lastSequence: 2 ")
    assert " isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty " in first
    assert " position: 0 CreateTime: " in first
    assert " magic: 2 compresscodec: none crc: " in first
    assert first.endswith(" isvalid: true")
    assert "keySize: -1 valueSize: 1 sequence: 1 headerKeys: []" in lines[4]
    assert lines[4].endswith("payload: b")
    batches = _json_lines(done, "log", "dump", "dumped", "--partition", 0)
    assert [batch["baseOffset"] for batch in batches] == [0, 3]
    assert batches[1]["position"] == batches[0]["size"]


def test_config_shows_values_and_their_sources(
    done: Done, run: Command, environment: dict[str, str]
) -> None:
    done("topic", "create", "set", "--config", "retention.ms=1234567")
    shown = _json(done, "config", "show", "--topic", "set")
    assert shown["retention.ms"]["value"] == "1234567"
    described = done("config", "describe", "retention.ms", "--topic", "set").decode()
    assert described.startswith("retention.ms = 1234567")
    node_id = _json(done, "status")["node_id"]
    assert _json(done, "config", "show", "--broker", node_id)
    local = subprocess.run(
        [*COMMAND, "config", "show", "--json"],
        env=environment | {"STREAMLOG_LISTEN": "127.0.0.1:7777"},
        capture_output=True,
        check=True,
    )
    assert json.loads(local.stdout)["node.listen"] == {
        "value": "127.0.0.1:7777",
        "source": "environment STREAMLOG_LISTEN",
    }


def test_config_alter_changes_settings_of_all_nodes_a_node_and_a_topic(
    done: Done, run: Command
) -> None:
    done("topic", "create", "altered")
    node_id = _json(done, "status")["node_id"]
    everywhere, here = ("--all-brokers",), ("--broker", node_id)
    name = "leader.replication.throttled.replicas"
    try:
        done("config", "alter", *everywhere, "--config", "log.retention.ms=5000")
        shown = _json(done, "config", "show", "--topic", "altered")["retention.ms"]
        assert shown == {"value": "5000", "source": "all brokers at run time"}
        done("config", "alter", *here, "--config", "log.retention.ms=6000")
        assert _json(done, "config", "show", *here)["broker.log.retention.ms"]["value"] == "6000"
        shown = _json(done, "config", "show", *everywhere)["broker.log.retention.ms"]
        assert shown["value"] == "5000"
        done("config", "alter", "--topic", "altered", "--append", f"{name}=0:1,1:1")
        done("topic", "alter", "altered", "--subtract", f"{name}=0:1")
        assert _json(done, "config", "show", "--topic", "altered")[name]["value"] == "1:1"
        valid = _json(
            done, "config", "alter", *here, "--unset", "log.retention.ms", "--validate-only"
        )
        assert valid == {"altered": False, "valid": True}
        assert _json(done, "config", "show", *here)["broker.log.retention.ms"]["value"] == "6000"
    finally:
        for resource in (everywhere, here):
            done("config", "alter", *resource, "--unset", "log.retention.ms")
        done("topic", "delete", "altered")
    for wrong, says in (
        ((*everywhere, "--config", "node.listen=x"), b"restart"),
        ((*everywhere, "--config", "num.partitions=x"), b"InvalidConfig"),
        (everywhere, b"nothing to change"),
        (("--config", "num.partitions=1"), b"whose settings"),
        ((*everywhere, *here, "--config", "num.partitions=1"), b"exclude each other"),
        ((*here, "--config", "a=1", "--unset", "a"), b"not both"),
    ):
        ended = run("config", "alter", *wrong)
        assert ended.returncode != 0
        assert says in ended.stderr


def test_config_alter_sets_the_quotas_of_clients(done: Done, run: Command) -> None:
    of_one, of_others = ("--client", "etl"), ("--client-default",)
    rate, share = "producer_byte_rate", "request_percentage"
    try:
        done("config", "alter", *of_one, "--config", f"{rate}=1000000")
        done("config", "alter", *of_others, "--config", f"{share}=12.5")
        assert _json(done, "config", "show", *of_one) == {
            rate: {"value": "1000000", "source": "client id"},
            "consumer_byte_rate": {"value": "", "source": "not set"},
            share: {"value": "12.5", "source": "default client id"},
        }
        described = done("config", "describe", "producer", *of_one).decode()
        assert f"{rate} = 1000000  (client id, default none)" in described
        assert "Bytes a second" in described
    finally:
        done("config", "alter", *of_one, "--unset", rate)
        done("config", "alter", *of_others, "--unset", share)
    for wrong, says in (
        ((*of_one, "--config", f"{rate}=0"), b"greater than 0"),
        ((*of_one, "--config", "retention.ms=0"), b"unknown quota"),
        ((*of_one, *of_others, "--config", f"{rate}=1"), b"exclude each other"),
    ):
        ended = run("config", "alter", *wrong)
        assert ended.returncode != 0
        assert says in ended.stderr


def test_objects_are_listed_and_shown(done: Done, run: Command) -> None:
    listed = _json_lines(done, "object", "list")
    assert run("object", "list").returncode == 0
    for row in listed[:3]:
        shown = _json(done, "object", "show", row["key"])
        assert shown["key"] == row["key"]
        assert shown["size_bytes"] == row["size_bytes"] > 0


def test_bench_loads_and_verifies(run: Command, done: Done) -> None:
    loaded = _json(done, "bench", "produce", "--topic", "load", "--mib", 2, "--partitions", 2)
    assert loaded["records"] >= 2048
    assert loaded["ack_p99_ms"] >= loaded["ack_p50_ms"] > 0
    small = _json(done, "bench", "produce", "--topic", "small", "--mib", "0.1")
    assert small["records"] == 103  # of 1 KiB
    read = _json(done, "bench", "consume", "--topic", "load")
    assert read["records"] == loaded["records"]
    chained = ("bench", "verify", "--topic", "chained", "--mib", "0.5", "--partitions", 2)
    done(*chained, "--phase", "write")
    checked = _json(done, "bench", "verify", "--topic", "chained", "--phase", "check")
    assert checked["faults"] == []
    assert checked["records"] >= 512
    done("produce", "chained", "--partition", 1, stdin=b"not of the chain\n")
    ended = run("bench", "verify", "--topic", "chained", "--phase", "check")
    assert ended.returncode == 1
    assert b"partition 1, record " in ended.stderr


def test_ctrl_c_while_reading_stdin(done: Done, environment: dict[str, str]) -> None:
    done("topic", "create", "interrupted")
    process = subprocess.Popen(
        [*COMMAND, "produce", "interrupted"], stdin=subprocess.PIPE, env=environment
    )
    assert process.stdin is not None
    process.stdin.write(b"line\n")
    process.stdin.flush()
    # The line is stored while the input stays open: produce does not wait for more.
    assert done("consume", "interrupted", "--count", 1) == b"line\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    process.stdin.close()


def test_a_missing_node_is_reported_soon_with_what_to_do(run: Command) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = f"127.0.0.1:{free.getsockname()[1]}"
        ended = run("status", "--server", server, "--timeout", "0.3")
    assert ended.returncode == 1
    assert ended.stderr.count(b"\n") == 1
    assert f"no node answers at {server}".encode() in ended.stderr
    assert b"streamlog dev" in ended.stderr


def test_the_http_port_is_refused_with_a_hint(run: Command, node: NodeProcess) -> None:
    ended = run("status", "--server", str(node.banner["http"]))
    assert ended.returncode == 1
    assert b"speaks HTTP/1, not gRPC" in ended.stderr


def test_an_unknown_setting_is_an_error_with_the_nearest_name(run: Command) -> None:
    ended = run("config", "describe", "engine.wal.wal_byte_max")
    assert ended.returncode == 1
    assert b"did you mean engine.wal.wal_bytes_max?" in ended.stderr


@pytest.mark.parametrize(
    ("wal", "dollars", "setting"),
    [
        ("object", "129.60", "engine.flush.put_rate_max_per_s"),
        ("disk", "12.96", "engine.upload.upload_interval_ms"),
    ],
)
def test_config_show_says_what_puts_cost_at_most(wal: str, dollars: str, setting: str) -> None:
    environment = {"STREAMLOG_STORE": "s3://bucket/prefix", "STREAMLOG_WAL": wal}
    command = [*COMMAND, "config", "show"]
    text = subprocess.run(command, capture_output=True, env=environment, check=True).stdout
    last = text.decode().splitlines()[-1]
    assert last.startswith(f"PUTs of small batches cost at most ${dollars} a month: {setting} ")
    assert ("up to 100 ms" in last) == (wal == "object")
    command.append("--json")
    shown = json.loads(
        subprocess.run(command, capture_output=True, env=environment, check=True).stdout
    )
    assert shown["cost.put_dollars_per_month_max"] == {"value": dollars, "source": setting}


def test_config_show_names_no_cost_of_a_local_store() -> None:
    ended = subprocess.run(
        [*COMMAND, "config", "show"],
        capture_output=True,
        env={"STREAMLOG_STORE": "local:///data"},
        check=True,
    )
    assert b"cost" not in ended.stdout


def test_a_partition_refuses_appends_whose_condition_does_not_hold(
    run: Command, done: Done
) -> None:
    done("topic", "create", "fenced")
    place = ("fenced", "--partition", 0)
    assert _json(done, "log", "token", *place) == {"fencing_token": "", "next_offset": 0}
    stored = _json(done, "log", "append", *place, "--expected-next-offset", 0, stdin=b"a\nb\n")
    assert stored == {"base_offset": 0, "end_offset": 2}
    done("log", "set-token", "fenced", "one", "--partition", 0, "--expected", "")
    keyed = ("--fencing-token", "one", "--expected-next-offset", 2, "--key", "k")
    done("log", "append", *place, *keyed, stdin=b"c\n")
    for error, *refused in (
        ("OffsetConflict", "append", *place, "--expected-next-offset", 2),
        ("TokenMismatch", "append", *place, "--fencing-token", "two"),
        ("TokenMismatch", "set-token", "fenced", "two", "--partition", 0, "--expected", ""),
        ("OffsetConflict", "set-token", "fenced", "x", *place[1:], "--expected-next-offset", 1),
        ("TokenMismatch", "clear-token", *place, "--expected", "two"),
        ("UnknownTopicOrPartition", "token", "fenced", "--partition", 7),
    ):
        ended = run("log", *refused, stdin=b"no\n")
        assert ended.returncode == 1
        assert error in ended.stderr.decode()
    assert _json(done, "log", "token", *place) == {"fencing_token": "one", "next_offset": 3}
    assert done("log", "token", *place) == b"one\n"
    described = _json(done, "topic", "describe", "fenced")
    assert described["partitions"][0]["fencing_token"] == "one"
    done("log", "clear-token", *place, "--expected", "one")
    done("log", "append", *place, "--fencing-token", "", stdin=b"d\n")
    assert done("consume", "fenced", "--until-end") == b"a\nb\nc\nd\n"
    assert run("log", "append", *place, stdin=b"").returncode == 2
    assert run("log", "set-token", "fenced", "", "--partition", 0).returncode == 2
