"""Commands' errors when a node returns bytes that are no record batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from streamlog.cli import main
from streamlog.codec.batch import CONTROL, HEADER_BYTES, pack_header
from streamlog.codec.records import encode_values
from tests.client.fake_node import FakeNode


@pytest.fixture
def damaged(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNode]:
    """A node whose topic t has the batches 0 to 0, 1 to 2 (no batch any more) and 3 to 3."""
    with FakeNode() as node:
        node.create("t")
        store(node, [b"one"])
        store(node, [b"two", b"three"])
        store(node, [b"four"])
        batches = node.topics["t"].partitions[0].batches
        header, data = batches[1]
        batches[1] = (header, pack_header(header._replace(magic=1)) + data[HEADER_BYTES:])
        monkeypatch.setenv("STREAMLOG_SERVER", node.server)
        yield node


def store(node: FakeNode, values: list[bytes | None]) -> None:
    batch = encode_values(values, timestamp_ms=1000)
    node.topics["t"].partitions[0].append(bytes(batch.data), 1 << 30)


def test_consume_names_the_place_and_the_command_that_goes_on(
    damaged: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["consume", "t", "--until-end"]) == 1
    shown = capfd.readouterr()
    assert shown.out == "one\n"
    assert "t-0: what the server sent from offset 1 on is no record batch" in shown.err
    assert "streamlog consume t --partition 0 --from 3" in shown.err
    assert main.run(["consume", "t", "--partition", "0", "--from", "3", "--until-end"]) == 0
    assert capfd.readouterr().out == "four\n"


def test_log_dump_names_the_place_and_the_command_that_goes_on(
    damaged: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["log", "dump", "t", "--partition", "0"]) == 1
    shown = capfd.readouterr()
    assert "baseOffset: 0 lastOffset: 0" in shown.out
    assert "streamlog log dump t --partition 0 --from 3" in shown.err
    assert main.run(["log", "dump", "t", "--partition", "0", "--from", "3"]) == 0
    assert "baseOffset: 3 lastOffset: 3" in capfd.readouterr().out


def test_until_end_ends_behind_markers_of_transactions(
    damaged: FakeNode, capfd: pytest.CaptureFixture[str]
) -> None:
    """The last batch below the end is a marker, which no consumer returns."""
    batches = damaged.topics["t"].partitions[0].batches
    for index in (1, 2):
        header = batches[index][0]._replace(attributes=CONTROL)
        batches[index] = (header, pack_header(header) + batches[index][1][HEADER_BYTES:])
    assert main.run(["consume", "t", "--until-end", "--timeout", "20"]) == 0
    assert capfd.readouterr().out == "one\n"
    assert main.run(["log", "dump", "t", "--partition", "0", "--timeout", "20"]) == 0
