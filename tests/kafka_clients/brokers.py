"""The two brokers that clients are driven against: a real Kafka, and a node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kafka_clients.raw_client import ConnectionEnded, RawClient, request
from tests.kafka_clients.tap import Tap
from tests.support.kafka_server import DAY_MS, FEATURES, KafkaServer
from tests.support.node import NodeProcess

BROKERS = ("kafka", "streamlog")
READY_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Broker:
    """`server` is its own address; it tells clients that of the tap before it."""

    name: str
    server: str
    tap: Tap
    grpc: str
    """The address of a node's own protocol; empty for Kafka."""

    @property
    def bootstrap(self) -> str:
        """What a client is given: the tap."""
        return self.tap.address


@contextmanager
def running_kafka(folder: Path, features: Mapping[str, int] = FEATURES) -> Iterator[Broker]:
    """Apache Kafka, behind a tap."""
    with Tap() as tap, KafkaServer(folder, tap.address, features) as server:
        tap.target = server.server
        _await_controller(server.server)
        _await_coordinators(server.server)
        yield Broker("kafka", server.server, tap, "")


@contextmanager
def running_node(
    folder: Path,
    look_at: Callable[[bytes], None] = lambda frame: None,
    log_type: str = "shared",
) -> Iterator[Broker]:
    """A node in a process of its own, behind a tap, which calls `look_at` with each request.

    `log_type`: the kind of its topics, unless they say another.
    """
    with Tap(look_at) as tap:
        listening = ("--kafka-listen", "127.0.0.1:0", "--kafka-advertise", tap.address)
        # Records of tests are old, and stay: nothing is deleted by time.
        kept = ("--set", f"broker.log.retention.check.interval.ms={DAY_MS}")
        late = "broker.transaction.abort.timed.out.transaction.cleanup.interval.ms=200"
        kind = ("--set", f"topic-defaults.log.type={log_type}")
        with NodeProcess(folder, arguments=(*listening, *kept, *kind, "--set", late)) as node:
            (server,) = (
                listener["address"]
                for listener in node.banner["listeners"]
                if listener["protocol"] == "kafka"
            )
            tap.target = server
            yield Broker("streamlog", server, tap, node.server)


def _await_coordinators(server: str) -> None:
    """Kafka makes the topics of its coordinators when a client first looks for one."""
    give_up_at = time.monotonic() + READY_TIMEOUT_S
    with RawClient(server) as client:
        for key_type in (0, 1):
            message = request("find_coordinator", key_type=key_type, coordinator_keys=["a"])
            while client.call("find_coordinator", 6, message).coordinators[0].error_code:
                assert time.monotonic() < give_up_at, f"the broker at {server} has no coordinator"
                time.sleep(0.05)


def _await_controller(server: str) -> None:
    """Kafka's port is open before its broker is registered; until then topics cannot be made."""
    give_up_at = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            with RawClient(server) as client:
                answer = client.call("metadata", 12, request("metadata", topics=()))
            if answer.brokers and answer.controller_id >= 0:
                return
        except (ConnectionEnded, OSError):
            pass
        assert time.monotonic() < give_up_at, f"the broker at {server} has no controller"
        time.sleep(0.05)
