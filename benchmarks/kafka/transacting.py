"""A librdkafka producer in a process of its own: plain, idempotent, or in transactions.

python -m benchmarks.kafka.transacting write SERVER TOPIC KIND RECORDS
python -m benchmarks.kafka.transacting commit SERVER TOPIC PARTITIONS TRANSACTIONS
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import count

from benchmarks.kafka.librdkafka import (
    CHILD_TIMEOUT_S,
    IDLE_TIMEOUT_S,
    MESSAGES_QUEUED_MAX,
    POLL_EVERY,
    Figures,
)
from benchmarks.node import own_cpu_s
from benchmarks.report import percentile

PLAIN, IDEMPOTENT, TRANSACTIONAL = "plain", "idempotent", "transactional"
RECORD_BYTES = 1024
TRANSACTION_RECORDS = 1000
UNDER_WAY = {"batch.size": "131072", "linger.ms": "5", "max.in.flight.requests.per.connection": "5"}
"""The same for all kinds: an idempotent producer has five requests under way at most."""


def write(server: str, topic: str, kind: str, records: int) -> Figures:
    """Records of one kind of producer; every delivery is checked. In a child process."""
    return _child("write", server, topic, kind, str(records))


def commit(server: str, topic: str, partitions: int, transactions: int) -> Figures:
    """Transactions of one delivered record in each partition: how long their commits take."""
    return _child("commit", server, topic, str(partitions), str(transactions))


def _child(*arguments: str) -> Figures:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kafka.transacting", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        timeout=CHILD_TIMEOUT_S,
        check=True,
    )
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


class _Producer:
    def __init__(self, server: str, topic: str, kind: str) -> None:
        from confluent_kafka import Producer

        self._lost: list[str] = []
        self._topic = topic
        settings = {
            "bootstrap.servers": server,
            "enable.idempotence": kind != PLAIN,
            "acks": "all",
            "queue.buffering.max.messages": MESSAGES_QUEUED_MAX,
            "queue.buffering.max.kbytes": 1 << 20,
            # Successes are counted, not called back one by one: that would be the client's cost.
            "delivery.report.only.error": True,
            "on_delivery": self._delivered,
            **UNDER_WAY,
        }
        if kind == TRANSACTIONAL:
            settings["transactional.id"] = f"bench-{topic}"
        self._client = Producer(settings)
        self._is_transactional = kind == TRANSACTIONAL
        if self._is_transactional:
            self._client.init_transactions(IDLE_TIMEOUT_S)

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self._lost.append(str(error))

    def begin(self) -> None:
        if self._is_transactional:
            self._client.begin_transaction()

    def send(self, value: bytes, partition: int | None = None) -> None:
        where = {} if partition is None else {"partition": partition}
        while True:
            try:
                self._client.produce(self._topic, value, **where)
                return
            except BufferError:
                self._client.poll(0.01)

    def poll(self) -> None:
        self._client.poll(0)

    def commit(self) -> None:
        if self._is_transactional:
            self._client.commit_transaction(IDLE_TIMEOUT_S)

    def flush(self) -> None:
        if self._client.flush(CHILD_TIMEOUT_S) or self._lost:
            raise RuntimeError(f"records were not stored: {self._lost[:1]}")


def _value() -> bytes:
    return bytes(range(256)) * (RECORD_BYTES // 256)


def _write(server: str, topic: str, kind: str, records: int) -> Figures:
    producer, value = _Producer(server, topic, kind), _value()
    producer.begin()
    producer.send(value)
    producer.commit()
    producer.flush()
    cpu, began = own_cpu_s(), time.perf_counter()
    for number in range(records):
        if not number % TRANSACTION_RECORDS:
            if number:
                producer.commit()
            producer.begin()
        producer.send(value)
        if not number % POLL_EVERY:
            producer.poll()
    producer.commit()
    producer.flush()
    seconds = time.perf_counter() - began
    return {
        "records": records,
        "bytes": records * RECORD_BYTES,
        "seconds": seconds,
        "cpu_s": own_cpu_s() - cpu,
    }


def _commit(server: str, topic: str, partitions: int, transactions: int) -> Figures:
    producer, value = _Producer(server, topic, TRANSACTIONAL), _value()
    taken_ms: list[float] = []
    for number in count():
        producer.begin()
        for partition in range(partitions):
            producer.send(value, partition)
        producer.flush()
        began = time.perf_counter()
        producer.commit()
        # The first ones find logs and connections closed.
        if number >= transactions // 10:
            taken_ms.append((time.perf_counter() - began) * 1e3)
        if len(taken_ms) == transactions:
            break
    return {"p50_ms": percentile(taken_ms, 0.5), "p99_ms": percentile(taken_ms, 0.99)}


def main(arguments: Sequence[str]) -> None:
    what, server, topic, first, second = arguments
    if what == "write":
        figures = _write(server, topic, first, int(second))
    else:
        figures = _commit(server, topic, int(first), int(second))
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
