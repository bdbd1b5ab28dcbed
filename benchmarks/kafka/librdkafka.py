"""A librdkafka producer or consumer in a process of its own; it prints what it did as JSON.

python -m benchmarks.kafka.librdkafka produce SERVER TOPIC RECORD_BYTES TOTAL_BYTES [NAME=VALUE …]
python -m benchmarks.kafka.librdkafka consume SERVER TOPIC PARTITIONS RECORDS
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from benchmarks.node import own_cpu_s

MESSAGES_QUEUED_MAX = 400_000
POLL_EVERY = 2000
CONSUME_AT_ONCE = 10_000
CONSUME_WAIT_S = 0.05
IDLE_TIMEOUT_S = 60.0
CHILD_TIMEOUT_S = 600.0

Figures = dict[str, float]
"""records, bytes, seconds, cpu_s."""


def is_there() -> bool:
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        return False
    return True


def produce(
    server: str, topic: str, record_bytes: int, total_bytes: int, settings: Mapping[str, str]
) -> Figures:
    """An idempotent producer, in a child process; every delivery is checked."""
    given = (f"{name}={value}" for name, value in settings.items())
    return _child("produce", server, topic, str(record_bytes), str(total_bytes), *given)


def consume(server: str, topic: str, partitions: int, records: int) -> Figures:
    """Reads `records` records from the beginning of the topic, in a child process; timed from the
    first one on."""
    return _child("consume", server, topic, str(partitions), str(records))


def _child(*arguments: str) -> Figures:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kafka.librdkafka", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        timeout=CHILD_TIMEOUT_S,
        check=True,
    )
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def _produce(
    server: str, topic: str, record_bytes: int, total_bytes: int, settings: Sequence[str]
) -> Figures:
    from confluent_kafka import Producer

    lost: list[str] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            lost.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": server,
            "enable.idempotence": True,
            "queue.buffering.max.messages": MESSAGES_QUEUED_MAX,
            "queue.buffering.max.kbytes": 1 << 20,
            # Successes are counted, not called back one by one: that would be the client's cost.
            "delivery.report.only.error": True,
            "on_delivery": delivered,
            **dict(setting.split("=", 1) for setting in settings),
        }
    )
    value = bytes(range(256)) * (record_bytes // 256 + 1)
    value = value[:record_bytes]
    producer.produce(topic, value)
    if producer.flush(IDLE_TIMEOUT_S) or lost:
        raise RuntimeError(f"the first record was not stored: {lost}")
    count = max(1, total_bytes // record_bytes)
    cpu, began = own_cpu_s(), time.perf_counter()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, value)
                break
            except BufferError:
                producer.poll(0.01)
        if not number % POLL_EVERY:
            producer.poll(0)
    if producer.flush(CHILD_TIMEOUT_S) or lost:
        raise RuntimeError(f"records were not stored: {lost[:1]}")
    seconds = time.perf_counter() - began
    return {
        "records": count,
        "bytes": count * record_bytes,
        "seconds": seconds,
        "cpu_s": own_cpu_s() - cpu,
    }


def _consume(server: str, topic: str, partitions: int, records: int) -> Figures:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": server,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 1 << 20,
            "queued.max.messages.kbytes": 1 << 18,
            # With as many messages as it wants it stands still for a second otherwise.
            "fetch.queue.backoff.ms": 1,
        }
    )
    consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in range(partitions)])
    # It asks for its first offsets half a second late, whatever the server is.
    first = consumer.poll(IDLE_TIMEOUT_S)
    if first is None or first.error():
        raise RuntimeError(f"none of {records} records came: {first and first.error()}")
    cpu, began = own_cpu_s(), time.perf_counter()
    seen, size = 1, 0
    last = began
    while seen < records:
        # It waits until there are as many, or the time is up.
        messages = consumer.consume(CONSUME_AT_ONCE, CONSUME_WAIT_S)
        if messages:
            last = time.perf_counter()
        elif time.perf_counter() - last > IDLE_TIMEOUT_S:
            raise RuntimeError(f"{seen} of {records} records came")
        for message in messages:
            if message.error():
                raise RuntimeError(str(message.error()))
            size += len(message.value())
        seen += len(messages)
    seconds = time.perf_counter() - began
    figures = {
        "records": seen, "bytes": size, "seconds": seconds, "cpu_s": own_cpu_s() - cpu,
    }  # fmt: skip
    consumer.close()
    return figures


def main(arguments: Sequence[str]) -> None:
    what, server, topic, first, second, *settings = arguments
    if what == "produce":
        figures = _produce(server, topic, int(first), int(second), settings)
    else:
        figures = _consume(server, topic, int(first), int(second))
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
