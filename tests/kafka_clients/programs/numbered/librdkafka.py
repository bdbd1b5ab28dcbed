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
    FLUSH_S,
    LINGER_MS,
    PAUSE_S,
    Numbering,
    await_start,
)


class Writer:
    def __init__(self) -> None:
        self._numbers = Numbering()
        self._producer = Producer(
            {
                "bootstrap.servers": self._numbers.bootstrap,
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
            if self._numbers.has_room:
                self._send_burst()
            sys.stdout.flush()
            self._producer.poll(PAUSE_S)
        left = self._producer.flush(FLUSH_S)
        assert left == 0, f"{left} records are without an answer"

    def _send_burst(self) -> None:
        for number, partition in self._numbers.burst():
            self._producer.produce(
                self._numbers.topic,
                b"librdkafka %d" % number,
                partition=partition,
                on_delivery=partial(self._delivered, partition, number),
            )

    def _delivered(self, partition: int, number: int, error: Any, message: Any) -> None:
        if error is not None:
            self._numbers.failed(partition, number, error)
        else:
            self._numbers.acked(message.partition(), number, message.offset())


Writer().run()
