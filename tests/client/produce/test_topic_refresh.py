"""A producer refreshes a topic's metadata: failed and old answers change nothing."""

from __future__ import annotations

import logging
import threading
from typing import Any

from streamlog.client import Producer
from streamlog.errors import Invalid
from tests.client.fake_node import FakeNode

WAIT_S = 20


class RefreshSeen:
    """A logger's filter that sees that a look-up of a topic failed."""

    def __init__(self) -> None:
        self.failed = threading.Event()

    def filter(self, record: Any) -> bool:
        if record.getMessage() == "metadata not refreshed":
            self.failed.set()
        return True


def test_a_refresh_that_fails_leaves_a_guess_a_guess(node: FakeNode) -> None:
    for number in range(10):
        node.create(f"t{number}", batch_bytes_max=4 << 20)
    failure_filter = RefreshSeen()
    logger = logging.getLogger("streamlog.client.produce.sender")
    logger.addFilter(failure_filter)
    try:
        with Producer(node.server, linger_ms=0, metadata_max_age_ms=1) as producer:
            for number in range(10):
                producer.send(f"t{number}", b"v").result(WAIT_S)
            node.list_topics_error = Invalid("refused on command")
            while not failure_filter.failed.wait(0.01):
                producer.send("t9", b"v").result(WAIT_S)
            node.list_topics_error = None
            assert producer.send("t9", b"x" * 2_000_000).result(WAIT_S).offset > 0
    finally:
        logger.removeFilter(failure_filter)


def test_an_old_answer_about_a_topic_takes_no_partition_away(node: FakeNode) -> None:
    node.create("t", partitions=2)
    with Producer(node.server, linger_ms=0, metadata_max_age_ms=1) as producer:
        producer.send("t", b"0", partition=1).result(WAIT_S)
        both = node.topics["t"].partitions
        node.topics["t"].partitions = both[:1]
        look_ups = node.calls.count("DescribeConfigs")
        while node.calls.count("DescribeConfigs") < look_ups + 2:
            producer.send("t", b"v", partition=0).result(WAIT_S)
        node.topics["t"].partitions = both
        assert producer.send("t", b"1", partition=1).result(WAIT_S).offset == 1
