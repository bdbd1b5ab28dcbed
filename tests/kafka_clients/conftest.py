"""Brokers that live as long as the test process, and the clients' runs against them.

Their tests share one worker (`xdist_group`): the brokers are started once, and a tap notes what one
client does at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.kafka_clients.checks")

from tests.kafka_clients.brokers import Broker, running_kafka, running_node  # noqa: E402
from tests.kafka_clients.runs import Runs  # noqa: E402

ALL = "TEST_KAFKA_CLIENTS"
"""Set by `make test-kafka`, which runs what takes too long for each change."""

collect_ignore = [] if os.environ.get(ALL) == "all" else ["more"]


@pytest.fixture(scope="session")
def broker_named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Broker]]:
    """Brokers by name, started when they are first asked for."""
    start: dict[str, Callable[[Path], AbstractContextManager[Broker]]] = {
        "kafka": running_kafka,
        "streamlog": running_node,
    }
    started: dict[str, Broker] = {}
    with ExitStack() as stack:

        def named(name: str) -> Broker:
            if name not in started:
                folder = tmp_path_factory.mktemp(name)
                started[name] = stack.enter_context(start[name](folder))
            return started[name]

        yield named


@pytest.fixture
def broker(request: pytest.FixtureRequest, broker_named: Callable[[str], Broker]) -> Broker:
    """The broker that the test is parametrised with."""
    return broker_named(request.param)


@pytest.fixture
def kafka(broker_named: Callable[[str], Broker]) -> Broker:
    return broker_named("kafka")


@pytest.fixture
def node(broker_named: Callable[[str], Broker]) -> Broker:
    return broker_named("streamlog")


@pytest.fixture(scope="session")
def runs() -> Runs:
    return Runs()
