"""`log dump --segment`: a partition as a file of Kafka's log, from a node and from its files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from streamlog.cli.records import kafka_segment
from streamlog.cli.records.kafka_segment import write_segments
from streamlog.client import Admin, Producer
from streamlog.codec.batch import placed, scan
from streamlog.codec.records import encode_values
from streamlog.demo.node import NodeProcess
from streamlog.errors import Invalid
from tests.cli.conftest import Command
from tests.client.fake_node import FakeNode
from tests.support.command import run as run_process
from tests.support.node import NodeProcess as StoppableNode

WAIT_S = 30


def _batches(*sizes: int) -> list[bytes]:
    """Batches one behind the other, of so many records."""
    offset, made = 0, []
    for size in sizes:
        batch = encode_values([b"value"] * size, timestamp_ms=1000).data
        made.append(b"".join(placed(memoryview(batch), offset, 3)))
        offset += size
    return made


@contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    with path.open("wb") as file:
        yield file


def test_a_segment_holds_the_batches_as_they_are_stored(run: Command, tmp_path: Path) -> None:
    run("produce", "cut", stdin=b"a\nb\n")
    run("produce", "cut", "--compression", "zstd", stdin=b"c\n" * 100)
    shown = run("log", "dump", "cut", "--partition", 0, "--json").stdout.splitlines()
    ended = run("log", "dump", "cut", "--partition", 0, "--segment", tmp_path / "any.log")
    assert ended.returncode == 0, ended.stderr
    assert b"Kafka wants the name 00000000000000000000.log" in ended.stderr
    batches = scan((tmp_path / "any.log").read_bytes())
    assert [
        (batch.header.base_offset, batch.header.crc, batch.header.size_bytes) for batch in batches
    ] == [(line["baseOffset"], line["crc"], line["size"]) for line in map(json.loads, shown)]


def test_a_folder_gets_kafkas_names(run: Command, node: NodeProcess, tmp_path: Path) -> None:
    run("produce", "folded", stdin=b"a\n")
    run("produce", "folded", stdin=b"b\nc\n")
    with Admin(node.server) as admin:
        admin.delete_records("folded", 0, 2)
    ended = run("log", "dump", "folded", "--partition", 0, "--segment", tmp_path, "--json")
    written = json.loads(ended.stdout)
    # Offset 2 lies in the batch that begins at offset 1.
    assert Path(written["path"]) == tmp_path / "00000000000000000001.log"
    assert (written["base_offset"], written["next_offset"], written["batches"]) == (1, 3, 1)
    below = run("log", "dump", "folded", "--partition", 0, "--from", 0)
    assert below.stdout.splitlines()[1] == b"Log starting offset: 2"


def test_batches_that_are_deleted_during_a_dump_end_it(run: Command, tmp_path: Path) -> None:
    class DeletesBeforeRead(FakeNode):
        def Fetch(self, request: Any, context: Any) -> Any:
            self.topics["gone"].partitions[0].start_offset = 1
            return super().Fetch(request, context)

    with DeletesBeforeRead() as node:
        node.create("gone")
        with Producer(node.server) as producer:
            for value in (b"a", b"b"):
                producer.send("gone", value).result(WAIT_S)
        dump = ("log", "dump", "gone", "--partition", 0, "--server", node.server)
        ended = run(*dump, "--segment", tmp_path / "some.log")
    assert ended.returncode == 1
    assert b"OffsetOutOfRange: offset 0" in ended.stderr
    assert not (tmp_path / "some.log").exists()


def test_a_dump_ends_where_the_partition_ended_at_its_start(run: Command) -> None:
    class GrowsBeforeRead(FakeNode):
        def Fetch(self, request: Any, context: Any) -> Any:
            with Producer(self.server) as producer:
                producer.send("growing", b"later").result(WAIT_S)
            return super().Fetch(request, context)

    with GrowsBeforeRead() as node:
        node.create("growing")
        with Producer(node.server) as producer:
            for value in (b"a", b"b"):
                producer.send("growing", value).result(WAIT_S)
        dump = ("log", "dump", "growing", "--partition", 0, "--json", "--server", node.server)
        shown = [json.loads(line)["baseOffset"] for line in run(*dump).stdout.splitlines()]
    assert shown == [0, 1]


def test_an_empty_partition_is_an_empty_segment(run: Command, tmp_path: Path) -> None:
    run("topic", "create", "hollow")
    assert run("log", "dump", "hollow", "--partition", 0, "--segment", tmp_path).returncode == 0
    assert (tmp_path / "00000000000000000000.log").read_bytes() == b""


def test_a_dump_from_behind_the_end_is_refused(run: Command, tmp_path: Path) -> None:
    run("produce", "ends_early", stdin=b"a\nb\n")
    dump = ("log", "dump", "ends_early", "--partition", 0, "--segment", tmp_path, "--from")
    ended = run(*dump, 3)
    assert (ended.returncode, list(tmp_path.iterdir())) == (1, [])
    assert b"OffsetOutOfRange: ends_early-0 holds offsets 0 to 2 (exclusive), not 3" in ended.stderr
    assert run(*dump, 2).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["00000000000000000002.log"]


def test_a_stopped_nodes_data_gives_the_same_file(tmp_path: Path) -> None:
    data, live, offline = tmp_path / "data", tmp_path / "live.log", tmp_path / "offline.log"
    node = StoppableNode(data)
    node.start()
    dump = ("log", "dump", "kept", "--partition", 0, "--segment")
    try:
        assert run_process("produce", "kept", server=node.server, stdin=b"a\nb\n").returncode == 0
        transactional = ("produce", "kept", "--transactional-id", "kept")
        assert run_process(*transactional, server=node.server, stdin=b"c\n").returncode == 0
        assert run_process(*dump, live, server=node.server).returncode == 0
        in_use = run_process(*dump, offline, "--data", data)
        assert in_use.returncode == 1
        assert not offline.exists()
    finally:
        node.stop()
    ended = run_process(*dump, offline, "--data", data)
    assert ended.returncode == 0, ended.stderr
    # The last one is the marker of the transaction.
    assert [batch.header.is_control for batch in scan(live.read_bytes())] == [False, False, True]
    assert offline.read_bytes() == live.read_bytes()
    from_two = run_process(*dump, offline, "--data", data, "--from", 1)
    assert from_two.returncode == 0, from_two.stderr
    assert offline.read_bytes() == live.read_bytes()
    assert run_process(*dump, offline, "--data", data, "--from", 2).returncode == 0
    assert [batch.header.base_offset for batch in scan(offline.read_bytes())] == [2, 3]
    behind = run_process(*dump, offline, "--data", data, "--from", 5)
    assert behind.returncode == 1
    assert b"kept-0 holds offsets 0 to 4 (exclusive), not 5" in behind.stderr


def test_a_folder_gets_as_many_segments_as_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = _batches(1, 2, 1, 1)
    monkeypatch.setattr(kafka_segment, "ROLL_BYTES", len(batches[0]) + len(batches[1]))
    written = write_segments(tmp_path, 0, [b"".join(batches[:3]), batches[3]], _new_file)
    assert [(one.path.name, one.base_offset, one.next_offset) for one in written] == [
        ("00000000000000000000.log", 0, 3),
        ("00000000000000000003.log", 3, 5),
    ]
    assert b"".join(one.path.read_bytes() for one in written) == b"".join(batches)


def test_one_file_is_not_filled_beyond_what_kafka_can_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = _batches(1, 1)
    monkeypatch.setattr(kafka_segment, "SEGMENT_BYTES_MAX", len(batches[0]))
    with pytest.raises(Invalid, match="at offset 1: give a folder"):
        write_segments(tmp_path / "one.log", 0, batches, _new_file)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--segment", "x", "--records"), b"--records shows batches, --segment writes them"),
        (("--segment", "no/such/folder/x"), b"there is no folder"),
        (("--meta", "memory://"), b"--meta needs --store"),
    ],
)
def test_wrong_options_are_refused(run: Command, arguments: tuple[str, ...], words: bytes) -> None:
    run("produce", "cut")
    ended = run("log", "dump", "cut", "--partition", 0, *arguments)
    assert ended.returncode == 2
    assert words in b" ".join(ended.stderr.split())
