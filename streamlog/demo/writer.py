"""Sends rounds of lines by one producer, and counts which of them are acknowledged."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

from streamlog.client import ManyDeliveries, Producer
from streamlog.demo.corpus import Source

AHEAD_BYTES = 12 << 20
"""How many bytes are sent and unanswered when the node is killed."""

ROUNDS_AHEAD = 4
"""How many rounds are unanswered before the node is killed."""

REQUEST_S = 10.0


class RoundWriter:
    """A round is every line of every source, in order, each source into its own topic."""

    def __init__(self, producer: Producer, sources: Sequence[Source]) -> None:
        self._producer = producer
        self._sources = sources
        self._round_bytes = sum(source.size_bytes for source in sources)
        self._pending: deque[tuple[ManyDeliveries, int]] = deque()
        self.rounds = 0
        self.records_sent = 0
        self.bytes_sent = 0
        self.bytes_acknowledged = 0

    def write_until(self, size_bytes: int) -> None:
        """Whole rounds until size_bytes were sent in all; returns when all are acknowledged."""
        while self.bytes_sent < size_bytes:
            self.send_round()
            while len(self._pending) > ROUNDS_AHEAD * len(self._sources):
                self.await_one()
        while self._pending:
            self.await_one()

    def send_ahead(self) -> None:
        """Sends rounds without waiting, until much more is sent than the node can have answered."""
        goal = self.bytes_sent + max(AHEAD_BYTES, self._round_bytes)
        while self.bytes_sent < goal:
            self.send_round()

    def send_round(self) -> None:
        for source in self._sources:
            sent = self._producer.send_many(source.topic, source.lines, partition=0)
            self._pending.append((sent, source.size_bytes))
            self.records_sent += len(source.lines)
            self.bytes_sent += source.size_bytes
        self.rounds += 1

    def await_one(self) -> None:
        """Waits for the oldest send. Errors: why the producer gave it up."""
        sent, size_bytes = self._pending[0]
        sent.result()
        self._pending.popleft()
        self.bytes_acknowledged += size_bytes

    def await_unacknowledged(self) -> None:
        """Waits for the oldest send that is not acknowledged now."""
        while len(self._pending) > 1 and self._pending[0][0].done():
            self.await_one()
        self.await_one()

    def await_request(self) -> int:
        """The number of requests under way, once there are any: the producer may be connecting.

        0 when all are answered, or none was sent for REQUEST_S.
        """
        ends_at = time.monotonic() + REQUEST_S
        while True:
            requests = int(self._producer.metrics()["messages_in_flight"])
            if requests or not self.records_unacknowledged() or time.monotonic() > ends_at:
                return requests
            # The producer's thread needs the interpreter to go on.
            time.sleep(0)

    def records_unacknowledged(self) -> int:
        return self.records_sent - int(self._producer.metrics()["records_acked"])
