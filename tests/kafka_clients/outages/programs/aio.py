"""aiokafka. Its log, too, is what its users see: it tells there what it repeats."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, KafkaTimeoutError, for_code

from tests.kafka_clients.outages.programs.telling import (
    PARTITIONS,
    arguments,
    name_of,
    tell,
    timed_call,
)

ARGUMENTS = arguments()
PREFIX = ARGUMENTS.prefix
CALL_S = 60.0
START_RETRY_S = 1.0
stopping = asyncio.Event()


class _Log(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        tell("error", "log", f"{record.name}: {record.getMessage()}")


def settings(role: str) -> dict[str, Any]:
    common = {"bootstrap_servers": ARGUMENTS.bootstrap, "client_id": role}
    return {**common, "request_timeout_ms": 3000} if ARGUMENTS.is_short else common


async def started(role: str, make: Callable[[], Any]) -> Any:
    """A client's `start` raises what it meets; its users call it again."""
    while True:
        client = make()
        try:
            await client.start()
            return client
        except KafkaError as error:
            tell("error", role, f"start: {type(error).__name__}: {error}")
            await client.stop()
            await asyncio.sleep(START_RETRY_S)


async def write(role: str, topic: str) -> None:
    producer = await started(
        role, lambda: AIOKafkaProducer(**settings(role), enable_idempotence=True, linger_ms=5)
    )
    for number in count():
        if stopping.is_set():
            break
        value = ARGUMENTS.value(role, number)
        sent = await _sent(role, producer, topic, number % PARTITIONS, value)
        sent.add_done_callback(partial(_delivered, role, name_of(value)))
        await asyncio.sleep(ARGUMENTS.interval_s)
    await producer.flush()
    tell("flushed", role)


async def _sent(
    role: str, producer: AIOKafkaProducer, topic: str, partition: int, value: bytes
) -> asyncio.Future[Any]:
    """A record that `send` had no room for is not taken; its user sends it again."""
    while True:
        try:
            sent: asyncio.Future[Any] = await producer.send(topic, value, partition=partition)
        except KafkaTimeoutError as error:
            tell("error", role, f"send: {type(error).__name__}")
        else:
            return sent


def _delivered(role: str, name: str, done: asyncio.Future[Any]) -> None:
    error = done.exception()
    if error is not None:
        tell("failed", role, name, f"{type(error).__name__}: {error}")
    else:
        tell("acked", role, done.result().partition, done.result().offset, name)


async def read(role: str, topic: str) -> None:
    consumer = await started(
        role, lambda: AIOKafkaConsumer(**settings(role), auto_offset_reset="none")
    )
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(partitions)
    for partition in partitions:
        consumer.seek(partition, 0)
    while True:
        try:
            got = await consumer.getmany(timeout_ms=200, max_records=1000)
        except KafkaError as error:
            tell("error", role, f"{type(error).__name__}: {error}")
            continue
        for partition, records in got.items():
            for record in records:
                tell("read", role, partition.partition, record.offset, name_of(record.value))


class Admin:
    def __init__(self, client: AIOKafkaAdminClient) -> None:
        self._client = client
        self._numbers = count()
        self._place = f"{PREFIX}-admin"

    async def create_topic(self) -> None:
        name = f"{PREFIX}-new-{next(self._numbers)}"
        _check((await self._client.create_topics([NewTopic(name, 1, 1)])).topic_errors)

    async def alter_configs(self) -> None:
        values = {"retention.ms": "900000000"}
        resource = ConfigResource(ConfigResourceType.TOPIC, self._place, configs=values)
        (answer,) = await self._client.alter_configs([resource])
        _check([(entry[3], entry[0]) for entry in answer.resources])

    async def describe_configs(self) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, self._place)
        (answer,) = await self._client.describe_configs([resource])
        _check([(self._place, found[0]) for found in answer.resources])

    async def delete_records(self) -> None:
        before = RecordsToDelete(before_offset=1)
        await self._client.delete_records({TopicPartition(self._place, 0): before})

    async def list_topics(self) -> None:
        await self._client.list_topics()


def _check(errors: Any) -> None:
    for _, code, *_ in errors:
        if code:
            raise for_code(code)


async def list_offsets() -> None:
    """The consumer's: the admin client has no such call."""
    consumer = AIOKafkaConsumer(**settings("offsets"))
    await consumer.start()
    try:
        await consumer.end_offsets([TopicPartition(f"{PREFIX}-admin", 0)])
    finally:
        await consumer.stop()


async def administer(name: str, call: Callable[[], Awaitable[object]]) -> None:
    while True:
        await asyncio.sleep(ARGUMENTS.pause_s)
        with timed_call(name):
            async with asyncio.timeout(CALL_S):
                await call()


async def main() -> None:
    log = logging.getLogger("aiokafka")
    log.addHandler(_Log(logging.WARNING))
    log.propagate = False
    admin = await started("admin", lambda: AIOKafkaAdminClient(**settings("admin")))
    calls = Admin(admin)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write("writer", PREFIX))
        tasks.create_task(read("reader", PREFIX))
        for call in (
            *(calls.create_topic, calls.alter_configs, calls.describe_configs),
            *(calls.delete_records, calls.list_topics, list_offsets),
        ):
            tasks.create_task(administer(call.__name__, call))
        tell("ready")
        while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
            if line == "late":
                tasks.create_task(write("late-writer", f"{PREFIX}-late"))
                tasks.create_task(read("late-reader", PREFIX))
            elif line == "stop":
                stopping.set()
        raise SystemExit


asyncio.run(main())
