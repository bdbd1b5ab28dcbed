"""librdkafka, through confluent-kafka."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.kafka_clients.outages.programs.telling import (
    PARTITIONS,
    arguments,
    name_of,
    tell,
    timed_call,
)

ARGUMENTS = arguments()
PREFIX = ARGUMENTS.prefix
stopping = threading.Event()
ended = threading.Event()


def settings(role: str, **short: object) -> dict[str, Any]:
    """`short`: what is set for short time-outs."""
    common = {
        "bootstrap.servers": ARGUMENTS.bootstrap,
        "client.id": role,
        "error_cb": lambda error: tell("error", role, f"{error.name()}: {error.str()}"),
    }
    chosen = short if ARGUMENTS.is_short else {}
    return {**common, **{name.replace("_", "."): value for name, value in chosen.items()}}


def write(role: str, topic: str) -> None:
    def delivered(error: KafkaError | None, message: Any) -> None:
        name = name_of(message.value())
        # Of a record that was sent again librdkafka may know that it is there, and not where.
        offset = -1 if message.offset() is None else message.offset()
        if error is not None:
            tell("failed", role, name, f"{error.name()}: {error.str()}")
        else:
            tell("acked", role, message.partition(), offset, name)

    producer = Producer(
        {**settings(role, request_timeout_ms=3000), "enable.idempotence": True, "linger.ms": 5}
    )
    next_at = time.monotonic()
    for number in count():
        if stopping.is_set():
            break
        value = ARGUMENTS.value(role, number)
        try:
            producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=delivered)
        except (BufferError, KafkaException) as error:
            tell("failed", role, name_of(value), f"{type(error).__name__}: {error}")
        next_at += ARGUMENTS.interval_s
        # Serves answers meanwhile.
        while (left_s := next_at - time.monotonic()) > 0:
            producer.poll(left_s)
    while producer.flush(1.0) and not ended.is_set():
        pass
    tell("flushed", role)


def read(role: str, topic: str) -> None:
    consumer = Consumer(
        {
            **settings(role),
            "group.id": "none: it is assigned its partitions",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    while not ended.is_set():
        for message in consumer.consume(1000, 0.2):
            error = message.error()
            if error is not None:
                tell("error", role, f"{error.name()}: {error.str()}")
            else:
                value = name_of(message.value())
                tell("read", role, message.partition(), message.offset(), value)
    consumer.close()


def calls(admin: AdminClient) -> Iterator[tuple[str, Callable[[], object]]]:
    """The time of a call is the admin client's own default, a minute."""
    place = ConfigResource(ResourceType.TOPIC, f"{PREFIX}-admin")
    numbers = count()

    def result(futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result()

    def create() -> Any:
        return result(admin.create_topics([NewTopic(f"{PREFIX}-new-{next(numbers)}", 1, 1)]))

    def alter() -> Any:
        entry = ConfigEntry(
            "retention.ms", "900000000", incremental_operation=AlterConfigOpType.SET
        )
        changed = ConfigResource(ResourceType.TOPIC, f"{PREFIX}-admin", incremental_configs=[entry])
        return result(admin.incremental_alter_configs([changed]))

    first = TopicPartition(f"{PREFIX}-admin", 0)
    yield "create_topic", create
    yield "alter_configs", alter
    yield "describe_configs", lambda: result(admin.describe_configs([place]))
    yield "list_offsets", lambda: result(admin.list_offsets({first: OffsetSpec.latest()}))
    yield (
        "delete_records",
        lambda: result(admin.delete_records([TopicPartition(f"{PREFIX}-admin", 0, 1)])),
    )
    yield "list_topics", lambda: admin.list_topics(timeout=60)


def administer(name: str, call: Callable[[], object]) -> None:
    while not ended.wait(ARGUMENTS.pause_s):
        with timed_call(name):
            call()


def start(work: Callable[..., None], *words: object) -> None:
    threading.Thread(target=work, args=words, daemon=True).start()


def main() -> None:
    start(write, "writer", PREFIX)
    start(read, "reader", PREFIX)
    admin = AdminClient(settings("admin", socket_timeout_ms=6000))
    for name, call in calls(admin):
        start(administer, name, call)
    tell("ready")
    for line in sys.stdin:
        if line.strip() == "late":
            start(write, "late-writer", f"{PREFIX}-late")
            start(read, "late-reader", PREFIX)
        elif line.strip() == "stop":
            stopping.set()
    ended.set()


main()
