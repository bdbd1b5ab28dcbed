"""librdkafka, through confluent-kafka."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from confluent_kafka import Producer

from tests.kafka_clients.programs.numbered.protocol import (
    BACKOFF_MS,
    BACKOFF_MS_MAX,
    BATCH_BYTES,
    BURST,
    FLUSH_S,
    LINGER_MS,
    PAUSE_S,
    UNANSWERED_MAX,
    arguments,
    await_start,
    tell,
)


class Writer:
    def __init__(self) -> None:
        bootstrap, self._topic, self._partitions = arguments()
        self._sent = self._answered = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": LINGER_MS,
                "batch.size": BATCH_BYTES,
                "reconnect.backoff.ms": BACKOFF_MS,
                "reconnect.backoff.max.ms": BACKOFF_MS_MAX,
                "retry.backoff.ms": BACKOFF_MS,
                "retry.backoff.max.ms": BACKOFF_MS_MAX,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        stopping = await_start()
        while not stopping.is_set():
            if self._sent * self._partitions - self._answered < UNANSWERED_MAX:
                self._send_burst()
            sys.stdout.flush()
            self._producer.poll(PAUSE_S)
        left = self._producer.flush(FLUSH_S)
        assert left == 0, f"{left} records are without an answer"

    def _send_burst(self) -> None:
        first, self._sent = self._sent, self._sent + BURST
        tell("sent", self._sent)
        for number in range(first, self._sent):
            for partition in range(self._partitions):
                self._producer.produce(
                    self._topic,
                    b"librdkafka %d" % number,
                    partition=partition,
                    on_delivery=partial(self._delivered, partition, number),
                )

    def _delivered(self, partition: int, number: int, error: Any, message: Any) -> None:
        self._answered += 1
        if error is not None:
            tell("failed", partition, number, error)
        else:
            tell("acked", message.partition(), number, message.offset())


Writer().run()
