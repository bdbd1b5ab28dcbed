"""kafka-python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.errors import (
    InvalidPartitionsError,
    InvalidTopicError,
    KafkaError,
    MessageSizeTooLargeError,
    ProducerFencedError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from tests.kafka_clients.programs.running import (
    BASE_MS,
    CODECS,
    SHORT_TIMEOUT_MS,
    TOO_LONG_MS,
    TRANSACTION_PARTITIONS,
    TRANSACTIONS,
    Record,
    arguments,
    expect,
    expect_records,
    expect_soon,
    run,
    transactional_values,
)
from tests.kafka_clients.programs.running import RECORDS as ALL_RECORDS

TIMEOUT_MS = 20_000
# It takes no null for a header's value.
RECORDS = [
    record._replace(headers=[header for header in record.headers if header[1] is not None])
    for record in ALL_RECORDS
]
BOOTSTRAP, PREFIX = arguments()
COMMON: dict[str, Any] = {"bootstrap_servers": BOOTSTRAP, "client_id": "kafka-python"}
admin = KafkaAdminClient(**COMMON)


def topic(name: str, partitions: int = 1, config: dict[str, str] | None = None) -> str:
    full = f"{PREFIX}-{name}"
    admin.create_topics([NewTopic(full, partitions, 1, topic_configs=config or {})])
    expect_soon(lambda: len(admin.describe_topics([full])[0]["partitions"]), partitions)
    return full


def produce(name: str, records: Sequence[Record] = RECORDS, **settings: Any) -> list[int]:
    """The offsets of the records."""
    producer = KafkaProducer(**COMMON, linger_ms=20, **settings)
    try:
        sent = [
            producer.send(name, record.value, record.key, record.headers, 0, record.timestamp_ms)
            for record in records
        ]
        producer.flush(TIMEOUT_MS / 1000)
        return [one.get(TIMEOUT_MS / 1000).offset for one in sent]
    finally:
        producer.close()


def consume(name: str, count: int) -> list[tuple[int, Record]]:
    consumer = _consumer(name)
    try:
        return _got(consumer, count)
    finally:
        consumer.close()


def _consumer(name: str) -> KafkaConsumer:
    consumer = KafkaConsumer(
        **COMMON, auto_offset_reset="earliest", consumer_timeout_ms=TIMEOUT_MS, group_id=None
    )
    consumer.assign([TopicPartition(name, 0)])
    return consumer


def _got(consumer: KafkaConsumer, count: int) -> list[tuple[int, Record]]:
    got = [message for _, message in zip(range(count), consumer, strict=False)]
    expect(len(got), count)
    return [
        (one.offset, Record(one.key, one.value, list(one.headers), one.timestamp)) for one in got
    ]


def fails(kind: type[KafkaError], work: Callable[[], object]) -> None:
    try:
        work()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


def codecs() -> None:
    for codec in CODECS:
        name = topic(codec)
        produce(name, compression_type=None if codec == "none" else codec)
        expect_records([record for _, record in consume(name, len(RECORDS))], RECORDS)


def acks() -> None:
    name = topic("acks")
    for setting in (0, 1, "all"):
        produce(name, acks=setting, enable_idempotence=False)
    seen = consume(name, 3 * len(RECORDS))
    expect([offset for offset, _ in seen], list(range(3 * len(RECORDS))))
    expect_records([record for _, record in seen], RECORDS * 3)


def idempotent() -> None:
    name = topic("idempotent")
    records = [Record(None, str(number).encode(), [], BASE_MS) for number in range(500)]
    expect(produce(name, records, enable_idempotence=True, batch_size=600), list(range(500)))
    expect_records([record for _, record in consume(name, len(records))], records)


def auto_create() -> None:
    name = f"{PREFIX}-auto"
    expect(produce(name, RECORDS[:1]), [0])
    expect_records([record for _, record in consume(name, 1)], RECORDS[:1])


def positions() -> None:
    name = topic("positions")
    produce(name)
    partition = TopicPartition(name, 0)
    consumer = _consumer(name)
    try:
        found = consumer.offsets_for_times({partition: BASE_MS + 2000})
        expect(found[partition].offset, 2)
        consumer.seek(partition, 2)
        expect(_got(consumer, 1)[0][0], 2)
        consumer.seek_to_beginning(partition)
        expect(_got(consumer, 1)[0][0], 0)
        consumer.seek_to_end(partition)
        expect(consumer.position(partition), 5)
    finally:
        consumer.close()


def metadata() -> None:
    name = topic("metadata", partitions=3)
    (found,) = admin.describe_topics([name])
    expect(sorted(part["partition_index"] for part in found["partitions"]), [0, 1, 2])
    expect(name in admin.list_topics(), True)


def topics() -> None:
    name = topic("topics", partitions=2)
    fails(TopicAlreadyExistsError, lambda: admin.create_topics([NewTopic(name, 1, 1)]))
    fails(InvalidTopicError, lambda: admin.create_topics([NewTopic("not/a/name", 1, 1)]))
    none = NewTopic(f"{PREFIX}-no-partitions", 0, 1)
    fails(InvalidPartitionsError, lambda: admin.create_topics([none]))
    admin.create_partitions({name: NewPartitions(4)})
    fails(InvalidPartitionsError, lambda: admin.create_partitions({name: NewPartitions(3)}))
    admin.delete_topics([name])
    fails(UnknownTopicOrPartitionError, lambda: admin.delete_topics([name]))


def delete_records() -> None:
    name = topic("delete-records")
    produce(name)
    admin.delete_records({TopicPartition(name, 0): 3})
    expect(consume(name, 1)[0][0], 3)


def offsets() -> None:
    name = topic("offsets")
    produce(name)
    partition = TopicPartition(name, 0)
    consumer = _consumer(name)
    try:
        expect(consumer.beginning_offsets([partition]), {partition: 0})
        expect(consumer.end_offsets([partition]), {partition: 5})
        found = consumer.offsets_for_times({partition: BASE_MS + 1500})
        expect(found[partition].offset, 2)
        expect(consumer.offsets_for_times({partition: BASE_MS + 9999}), {partition: None})
    finally:
        consumer.close()


def configs() -> None:
    name = topic("configs", config={"retention.ms": "1000000"})

    def alter(value: str) -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": value})
        return str(admin.alter_configs([resource]))

    expect_soon(lambda: "1000000" in str(_retention(name)), True)
    alter("2000000")
    expect_soon(lambda: "2000000" in str(_retention(name)), True)
    expect("InvalidConfig" in alter("soon"), True)


def _retention(name: str) -> Any:
    return admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])


def too_large() -> None:
    name = topic("too-large", config={"max.message.bytes": "10000"})
    large = Record(None, bytes(20_000), [], BASE_MS)
    fails(MessageSizeTooLargeError, lambda: produce(name, [large]))
    expect(produce(name, RECORDS[:1]), [0])


def cluster() -> None:
    described = admin.describe_cluster()
    expect(bool(described["cluster_id"]), True)


def _transactional(tx: str, timeout_ms: int = 60_000) -> KafkaProducer:
    return KafkaProducer(
        **COMMON,
        linger_ms=20,
        transactional_id=f"{PREFIX}-{tx}",
        transaction_timeout_ms=timeout_ms,
    )


def _begun(tx: str, timeout_ms: int = 60_000) -> KafkaProducer:
    producer = _transactional(tx, timeout_ms)
    producer.init_transactions()
    return producer


def _read(name: str, partition: int, count: int, isolation: str) -> list[tuple[int, bytes]]:
    consumer = KafkaConsumer(
        **COMMON,
        auto_offset_reset="earliest",
        consumer_timeout_ms=TIMEOUT_MS,
        group_id=None,
        isolation_level=isolation,
    )
    try:
        consumer.assign([TopicPartition(name, partition)])
        return [(offset, record.value or b"") for offset, record in _got(consumer, count)]
    finally:
        consumer.close()


def transactions() -> None:
    name = topic("transactions", TRANSACTION_PARTITIONS)
    producer = _begun("tx")
    for letter, is_committed in TRANSACTIONS:
        producer.begin_transaction()
        for partition in range(TRANSACTION_PARTITIONS):
            producer.send(name, f"{letter}{partition}".encode(), partition=partition)
        producer.flush(TIMEOUT_MS / 1000)
        if is_committed:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()
    for partition in range(TRANSACTION_PARTITIONS):
        for isolation, are_committed in (("read_committed", True), ("read_uncommitted", False)):
            wanted = transactional_values(partition, are_committed=are_committed)
            expect(_read(name, partition, len(wanted), isolation), wanted)


def fencing() -> None:
    name = topic("fencing")
    old = _begun("fenced")
    new = _begun("fenced")
    old.begin_transaction()
    old.send(name, b"old", partition=0)
    fails(ProducerFencedError, old.commit_transaction)
    old.close(0)
    new.begin_transaction()
    new.send(name, b"new", partition=0)
    new.commit_transaction()
    new.close()
    expect(_read(name, 0, 1, "read_uncommitted"), [(0, b"new")])
    slow = _transactional("slow", TOO_LONG_MS)
    fails(KafkaError, slow.init_transactions)
    slow.close(0)


def transaction_timeout() -> None:
    name = topic("transaction-timeout")
    producer = _begun("late", SHORT_TIMEOUT_MS)
    producer.begin_transaction()
    producer.send(name, b"late", partition=0).get(TIMEOUT_MS / 1000)
    expect(produce(name, [Record(None, b"behind", [], BASE_MS)]), [1])
    expect(_read(name, 0, 1, "read_committed"), [(1, b"behind")])
    fails(ProducerFencedError, producer.commit_transaction)
    producer.close(0)


run(
    {
        case.__name__: case
        for case in (
            *(codecs, acks, idempotent, auto_create, positions, metadata, topics),
            *(delete_records, offsets, configs, too_large),
            *(transactions, fencing, transaction_timeout, cluster),
        )
    }
)
