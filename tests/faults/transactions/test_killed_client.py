"""A client killed before or after any request of a transaction leaves all of it, or nothing.

The client is a process, and so is the node, which lives on: the next instance of the id and the
readers find what the dead client has left. `test_steps.py` has the node's own steps.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from streamlog.client import Consumer
from streamlog.demo import child
from tests.faults.transactions import mortal_client
from tests.faults.transactions.mortal_client import (
    MOMENTS,
    PARTITIONS,
    REQUESTS,
    STRUCK,
    transaction,
)
from tests.kafka_clients.differential.calls import CreateTopic
from tests.kafka_clients.differential.transactions.side import TransactionalSide
from tests.support.command import ROOT
from tests.support.node import NodeProcess

# One worker has the nodes.
pytestmark = pytest.mark.xdist_group("killed_client")

BEFORE, AFTER = b"before", b"after"
"""What the transactions before and after that of the killed client write to every partition."""
ENDED = {"commit": "CompleteCommit", "abort": "CompleteAbort"}


LEFT = {0: ENDED["commit"], 1: "Empty", 2: "Ongoing", 3: "Ongoing", 4: "Ongoing"}
"""The state of the id by the requests that the dead client had answers to: all but the last."""


class Served(NamedTuple):
    node: NodeProcess
    kafka: str
    """The address of its Kafka listener."""


@pytest.fixture(scope="module", params=["disk", "object"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    data = tmp_path_factory.mktemp("node") / "data"
    with NodeProcess(data, request.param, ("--kafka-listen", "127.0.0.1:0")) as node:
        (kafka,) = (
            listener["address"]
            for listener in node.banner["listeners"]
            if listener["protocol"] == "kafka"
        )
        yield Served(node, kafka)


@pytest.fixture
def side(served: Served) -> Iterator[TransactionalSide]:
    made = TransactionalSide("survivor", served.kafka)
    yield made
    made.close()


def _killed(server: str, topic: str, end: str, point: str) -> None:
    """A client's transaction up to the point where SIGKILL ends it."""
    client = subprocess.Popen(
        [sys.executable, "-m", mortal_client.__name__, server, topic, end, point],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert client.stdin is not None
    assert client.stdout is not None
    with client.stdin, client.stdout:
        reached = client.stdout.readline()
        child.kill(client)
    assert reached == f"{point}\n"


def _read(server: str, topic: str) -> list[list[bytes | None]]:
    """What a read_committed reader sees of each partition, up to the log's end."""
    seen: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
    partitions = [(topic, number) for number in range(PARTITIONS)]
    with Consumer(server, isolation_level="read_committed", fetch_max_wait_ms=50) as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        while any(consumer.position(*place) < end for place, end in ends.items()):
            for record in consumer.poll(0.2):
                seen[record.partition].append(record.value)
    return seen


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_each_request_leaves_all_or_nothing(
    served: Served, side: TransactionalSide, end: str, name: str, moment: str
) -> None:
    topic = f"{end}-{moment}-{name}".replace(" ", "-")
    assert CreateTopic(7, topic, PARTITIONS, ()).on(side)["error"] == 0
    transaction(side, topic, BEFORE, is_commit=True)
    side.await_settled(topic)

    _killed(served.kafka, topic, end, f"{moment} {name}")
    answered = REQUESTS.index(name) + (moment == "after")
    side.await_settled(topic)
    assert side.transaction(topic)["state"] == LEFT.get(answered, ENDED[end])
    is_there = end == "commit" and answered == len(REQUESTS)
    visible = [BEFORE, STRUCK] if is_there else [BEFORE]
    assert _read(served.node.server, topic) == [visible] * PARTITIONS

    transaction(side, topic, AFTER, is_commit=True)
    side.await_settled(topic)
    for _, stable, log_end in side.offsets(topic, PARTITIONS):
        assert stable == log_end, "a transaction is open"
    assert _read(served.node.server, topic) == [[*visible, AFTER]] * PARTITIONS
