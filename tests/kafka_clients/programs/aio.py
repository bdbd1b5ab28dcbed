"""aiokafka: a pure Python client with older versions of most messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    ProducerFenced,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    for_code,
)

from tests.kafka_clients.programs.running import (
    BASE_MS,
    CODECS,
    RECORDS,
    SHORT_TIMEOUT_MS,
    SOON_S,
    TOO_LONG_MS,
    TRANSACTION_PARTITIONS,
    TRANSACTIONS,
    Record,
    arguments,
    expect,
    expect_records,
    run_async,
    transactional_values,
)

TIMEOUT_S = 20.0
BOOTSTRAP, PREFIX = arguments()
INVALID_TOPIC = 17
INVALID_PARTITIONS = 37
INVALID_CONFIG = 40
INVALID_TRANSACTION_TIMEOUT = 50


class Cases:
    def __init__(self, admin: AIOKafkaAdminClient) -> None:
        self._admin = admin

    async def _topic(
        self, name: str, partitions: int = 1, config: dict[str, str] | None = None
    ) -> str:
        full = f"{PREFIX}-{name}"
        await self._create(full, partitions, config)
        await _expect_soon(lambda: self._partitions(full), partitions)
        return full

    async def _partitions(self, name: str) -> int:
        """0: the broker has not heard of the topic yet."""
        (found,) = await self._admin.describe_topics([name])
        return len(found["partitions"])

    async def _create(
        self, name: str, partitions: int, config: dict[str, str] | None = None
    ) -> None:
        new = NewTopic(name, partitions, 1, topic_configs=config or {})
        _check((await self._admin.create_topics([new])).topic_errors)

    async def codecs(self) -> None:
        for codec in CODECS:
            name = await self._topic(codec)
            await _produce(name, compression_type=None if codec == "none" else codec)
            expect_records([record for _, record in await _consume(name, len(RECORDS))])

    async def acks(self) -> None:
        name = await self._topic("acks")
        for setting in (0, 1, "all"):
            await _produce(name, acks=setting)
        seen = await _consume(name, 3 * len(RECORDS))
        expect([offset for offset, _ in seen], list(range(3 * len(RECORDS))))
        expect_records([record for _, record in seen], RECORDS * 3)

    async def idempotent(self) -> None:
        name = await self._topic("idempotent")
        records = [Record(None, str(number).encode(), [], BASE_MS) for number in range(500)]
        offsets = await _produce(name, records, enable_idempotence=True, max_batch_size=600)
        expect(offsets, list(range(len(records))))
        expect_records([record for _, record in await _consume(name, len(records))], records)

    async def auto_create(self) -> None:
        name = f"{PREFIX}-auto"
        expect(await _produce(name, RECORDS[:1]), [0])
        expect_records([record for _, record in await _consume(name, 1)], RECORDS[:1])

    async def positions(self) -> None:
        name = await self._topic("positions")
        await _produce(name)
        partition = TopicPartition(name, 0)
        async with _consumer(name) as consumer:
            found = await consumer.offsets_for_times({partition: BASE_MS + 2000})
            expect(found[partition].offset, 2)
            consumer.seek(partition, 2)
            expect((await _got(consumer))[0], 2)
            await consumer.seek_to_beginning(partition)
            expect((await _got(consumer))[0], 0)
            await consumer.seek_to_end(partition)
            expect(await consumer.position(partition), 5)
            await _produce(name, RECORDS[:1])
            expect((await _got(consumer))[0], 5)

    async def metadata(self) -> None:
        name = await self._topic("metadata", partitions=3)
        (found,) = await self._admin.describe_topics([name])
        expect(sorted(part["partition"] for part in found["partitions"]), [0, 1, 2])
        nodes = {node["node_id"] for node in (await self._admin.describe_cluster())["brokers"]}
        expect({part["leader"] in nodes for part in found["partitions"]}, {True})
        expect(name in await self._admin.list_topics(), True)

    async def topics(self) -> None:
        name = await self._topic("topics", partitions=2)
        await _fails(TopicAlreadyExistsError.errno, self._create(name, 1))
        await _fails(INVALID_TOPIC, self._create("not/a/name", 1))
        await _fails(INVALID_PARTITIONS, self._create(f"{PREFIX}-no-partitions", 0))
        await self._grow(name, 4)
        await _fails(INVALID_PARTITIONS, self._grow(name, 3))
        await self._delete(name)
        await _fails(UnknownTopicOrPartitionError.errno, self._delete(name))

    async def _grow(self, name: str, partitions: int) -> None:
        grown = await self._admin.create_partitions({name: NewPartitions(partitions)})
        _check(grown.topic_errors)

    async def _delete(self, name: str) -> None:
        _check((await self._admin.delete_topics([name])).topic_error_codes)

    async def delete_records(self) -> None:
        name = await self._topic("delete-records")
        await _produce(name)
        partition = TopicPartition(name, 0)
        deleted = await self._admin.delete_records({partition: RecordsToDelete(before_offset=3)})
        expect(deleted, {partition: 3})
        expect((await _consume(name, 1))[0][0], 3)

    async def offsets(self) -> None:
        name = await self._topic("offsets")
        await _produce(name)
        partition = TopicPartition(name, 0)
        async with _consumer(name) as consumer:
            expect(await consumer.beginning_offsets([partition]), {partition: 0})
            expect(await consumer.end_offsets([partition]), {partition: 5})
            found = await consumer.offsets_for_times({partition: BASE_MS + 1500})
            expect(found[partition].offset, 2)
            expect(await consumer.offsets_for_times({partition: BASE_MS + 9999}), {partition: None})

    async def configs(self) -> None:
        name = await self._topic("configs", config={"retention.ms": "1000000"})
        await self._expect_retention(name, "1000000")
        await self._alter(name, {"retention.ms": "2000000"})
        await self._expect_retention(name, "2000000")
        await self._alter(name, {})
        await self._expect_retention(name, "604800000")
        await _fails(INVALID_CONFIG, self._alter(name, {"retention.ms": "soon"}))

    async def _expect_retention(self, name: str, wanted: str) -> None:
        await _expect_soon(lambda: self._retention(name), wanted)

    async def _retention(self, name: str) -> str | None:
        """None: the broker has not heard of the topic yet."""
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        (answer,) = await self._admin.describe_configs([resource])
        ((code, message, _, _, entries),) = answer.resources
        if code == UnknownTopicOrPartitionError.errno:
            return None
        _check([(name, code, message)])
        return next(str(entry[1]) for entry in entries if entry[0] == "retention.ms")

    async def _alter(self, name: str, values: dict[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, name, configs=values)
        (answer,) = await self._admin.alter_configs([resource])
        _check([(entry[3], entry[0], entry[1]) for entry in answer.resources])

    async def too_large(self) -> None:
        name = await self._topic("too-large", config={"max.message.bytes": "10000"})
        large = Record(None, bytes(20_000), [], BASE_MS)
        await _fails(MessageSizeTooLargeError.errno, _produce(name, [large]))
        expect(await _produce(name, RECORDS[:1]), [0])

    async def transactions(self) -> None:
        name = await self._topic("transactions", TRANSACTION_PARTITIONS)
        async with _transactional("tx") as producer:
            for letter, is_committed in TRANSACTIONS:
                await producer.begin_transaction()
                for partition in range(TRANSACTION_PARTITIONS):
                    value = f"{letter}{partition}".encode()
                    await producer.send_and_wait(name, value, partition=partition)
                if is_committed:
                    await producer.commit_transaction()
                else:
                    await producer.abort_transaction()
        for partition in range(TRANSACTION_PARTITIONS):
            for isolation, are_committed in (("read_committed", True), ("read_uncommitted", False)):
                wanted = transactional_values(partition, are_committed=are_committed)
                expect(await _read(name, partition, len(wanted), isolation), wanted)

    async def fencing(self) -> None:
        name = await self._topic("fencing")
        async with _transactional("fenced") as old, _transactional("fenced") as new:
            await old.begin_transaction()
            await _is_fenced(old.send_and_wait(name, b"old", partition=0))
            await new.begin_transaction()
            await new.send_and_wait(name, b"new", partition=0)
            await new.commit_transaction()
        expect(await _read(name, 0, 1, "read_uncommitted"), [(0, b"new")])
        slow = _transactional_producer("slow", TOO_LONG_MS)
        await _fails(INVALID_TRANSACTION_TIMEOUT, slow.start())
        await slow.stop()

    async def transaction_timeout(self) -> None:
        name = await self._topic("transaction-timeout")
        async with _transactional("late", SHORT_TIMEOUT_MS) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(name, b"late", partition=0)
            expect(await _produce(name, [Record(None, b"behind", [], BASE_MS)]), [1])
            expect(await _read(name, 0, 1, "read_committed"), [(1, b"behind")])
            await _is_fenced(producer.commit_transaction())

    async def cluster(self) -> None:
        described = await self._admin.describe_cluster()
        expect(bool(described["cluster_id"]), True)
        nodes = {node["node_id"] for node in described["brokers"]}
        expect(described["controller_id"] in nodes, True)


def _transactional_producer(tx: str, timeout_ms: int) -> AIOKafkaProducer:
    return AIOKafkaProducer(
        bootstrap_servers=BOOTSTRAP,
        client_id="aiokafka",
        transactional_id=f"{PREFIX}-{tx}",
        transaction_timeout_ms=timeout_ms,
    )


@asynccontextmanager
async def _transactional(tx: str, timeout_ms: int = 60_000) -> AsyncIterator[AIOKafkaProducer]:
    producer = _transactional_producer(tx, timeout_ms)
    await producer.start()
    try:
        yield producer
    finally:
        # It commits what is open, which a fenced one cannot.
        with suppress(KafkaError):
            await producer.stop()


async def _is_fenced(work: Awaitable[object]) -> None:
    try:
        await work
    except ProducerFenced:
        return
    raise AssertionError("it is not fenced")


async def _read(name: str, partition: int, count: int, isolation: str) -> list[tuple[int, bytes]]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=BOOTSTRAP,
        client_id="aiokafka",
        auto_offset_reset="earliest",
        isolation_level=isolation,
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(name, partition)])
        seen = [await _got(consumer) for _ in range(count)]
        return [(offset, record.value or b"") for offset, record in seen]
    finally:
        await consumer.stop()


async def _produce(
    name: str, records: Sequence[Record] = RECORDS, **settings: Any
) -> list[int | None]:
    """The offsets of the records."""
    producer = AIOKafkaProducer(
        bootstrap_servers=BOOTSTRAP, client_id="aiokafka", linger_ms=20, **settings
    )
    await producer.start()
    try:
        sent = [
            await producer.send(
                name, record.value, record.key, partition=0, timestamp_ms=record.timestamp_ms,
                headers=record.headers,
            )
            for record in records
        ]  # fmt: skip
        answers = [await asyncio.wait_for(one, TIMEOUT_S) for one in sent]
        return [None if answer is None else answer.offset for answer in answers]
    finally:
        await producer.stop()


@asynccontextmanager
async def _consumer(name: str) -> AsyncIterator[AIOKafkaConsumer]:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=BOOTSTRAP, client_id="aiokafka", auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        consumer.assign([TopicPartition(name, 0)])
        yield consumer
    finally:
        await consumer.stop()


async def _consume(name: str, count: int) -> list[tuple[int, Record]]:
    async with _consumer(name) as consumer:
        return [await _got(consumer) for _ in range(count)]


async def _got(consumer: AIOKafkaConsumer) -> tuple[int, Record]:
    got = await asyncio.wait_for(consumer.getone(), TIMEOUT_S)
    return got.offset, Record(got.key, got.value, list(got.headers), got.timestamp)


def _check(errors: Sequence[tuple[Any, ...]]) -> None:
    """Raises the first error among (name, code, …)."""
    for _, code, *_ in errors:
        if code:
            raise for_code(code)


async def _expect_soon(look: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Kafka answers a change before its brokers have heard of it."""
    give_up_at = time.monotonic() + SOON_S
    seen = await look()
    while seen != wanted and time.monotonic() < give_up_at:
        seen = await look()
    expect(seen, wanted)


async def _fails(code: int, work: Awaitable[object]) -> None:
    try:
        await work
    except KafkaError as error:
        expect(error.errno, code)
        return
    raise AssertionError(f"no error {code}")


async def main() -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=BOOTSTRAP, client_id="aiokafka")
    await admin.start()
    try:
        cases = Cases(admin)
        names = [name for name in vars(Cases) if not name.startswith("_")]
        await run_async({name: getattr(cases, name) for name in names})
    finally:
        await admin.close()


asyncio.run(main())
