"""The lines that count as stored are the first ones, up to the first that is not."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from streamlog.cli.records.line_sender import LineSender
from streamlog.client import Producer
from streamlog.client.produce.partitioner import partition_for_key
from streamlog.errors import Closed, Invalid
from tests.client.fake_node import FakeNode

WAIT_S = 20
SMALL_ROOM: dict[str, Any] = dict(
    linger_ms=0, batch_size_bytes=1024, batch_size_max_bytes=1024, buffer_memory_bytes=20_000
)
KEYS = [
    next(b"%d" % key for key in range(100) if partition_for_key(b"%d" % key, 2) == partition)
    for partition in range(2)
]


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as node:
        node.create("t", 2)
        yield node


def line_sender(producer: Producer, key_separator: bytes | None = None) -> LineSender:
    return LineSender(producer, "t", partition=None, key_separator=key_separator, headers=[])


def test_lines_behind_a_refused_one_do_not_count(node: FakeNode) -> None:
    node.refusal = lambda _topic, partition: None if partition else Invalid("refused on command")
    with Producer(node.server) as producer:
        sender = line_sender(producer, b":")
        sender.send([KEYS[0] + b":refused"])
        sender.send([KEYS[1] + b":stored"])
        with pytest.raises(Invalid):
            sender.finish()
        sender.stop(WAIT_S)
    assert node.values("t", 1) == [b"stored"]
    assert (sender.sent, sender.stored, sender.refused) == (2, 0, 1)
    assert sender.outcome() == (
        "no line is surely stored; 1 more were sent, and each of these may be stored or not; "
        "1 of those sent are not stored"
    )


@pytest.mark.parametrize("headers", [(), (("name", b"value"),)])
def test_lines_that_are_surely_not_stored_are_told_as_such(
    node: FakeNode, headers: Sequence[tuple[str, bytes | None]]
) -> None:
    node.refusal = lambda _topic, _partition: Invalid("refused on command")
    with Producer(node.server) as producer:
        sender = LineSender(producer, "t", partition=0, key_separator=None, headers=headers)
        sender.send([b"a", b"b", b"c"])
        with pytest.raises(Invalid):
            sender.finish()
        sender.stop(WAIT_S)
    assert (sender.sent, sender.stored, sender.refused) == (3, 0, 3)
    assert sender.outcome() == "no line is stored"


@pytest.mark.parametrize("key", [b"", KEYS[0] + b":"])
def test_lines_of_a_send_that_is_ended_soon_count_once_they_are_stored(
    node: FakeNode, key: bytes
) -> None:
    """A node that is slow, and no more than that: what was sent is stored while the send ends."""
    node.hold.clear()
    with Producer(node.server, **SMALL_ROOM) as producer:
        sender = line_sender(producer, b":" if key else None)
        sender.send([key + b"first"])

        def end_when_full() -> None:
            pause = threading.Event()
            while producer.metrics()["buffered_bytes"] < 18_500:
                pause.wait(0.001)
            sender.end_soon(WAIT_S)

        ending = threading.Thread(target=end_when_full)
        ending.start()
        with pytest.raises(Closed):
            sender.send([key + b"x" * 900] * 60)
        ending.join()
        node.hold.set()
        sender.stop(WAIT_S)
    stored = sum(len(node.values("t", partition)) for partition in range(2))
    assert 1 < stored < 61
    assert (sender.sent, sender.stored) == (stored, stored)
    assert sender.outcome() == f"the first {stored} lines are stored"
