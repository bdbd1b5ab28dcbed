"""librdkafka, through confluent-kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.kafka_clients.programs.running import (
    BASE_MS,
    CODECS,
    RECORDS,
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

TIMEOUT_S = 20.0
BOOTSTRAP, PREFIX = arguments()
COMMON = {"bootstrap.servers": BOOTSTRAP, "client.id": "librdkafka"}
admin = AdminClient(COMMON)


def result(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(TIMEOUT_S)


def topic(name: str, partitions: int = 1, config: dict[str, str] | None = None) -> str:
    full = f"{PREFIX}-{name}"
    result(admin.create_topics([NewTopic(full, partitions, 1, config=config or {})]))
    expect_soon(lambda: _partitions(full), partitions)
    return full


def _partitions(name: str) -> int:
    """0: the broker has not heard of the topic yet."""
    try:
        return len(result(admin.describe_topics(TopicCollection([name]))).partitions)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        return 0


def produce(name: str, records: Sequence[Record] = RECORDS, **settings: object) -> list[int]:
    """The offsets of the records."""
    offsets: list[int] = []
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Any) -> None:
        if error is not None:
            errors.append(error)
        else:
            offsets.append(message.offset())

    producer = Producer({**COMMON, **{key.replace("_", "."): v for key, v in settings.items()}})
    for record in records:
        producer.produce(
            name, record.value, record.key, partition=0, timestamp=record.timestamp_ms,
            headers=record.headers or None, on_delivery=delivered,
        )  # fmt: skip
    expect(producer.flush(TIMEOUT_S), 0)
    if errors:
        raise KafkaException(errors[0])
    return offsets


def consume(name: str, count: int, offset: int = OFFSET_BEGINNING) -> list[tuple[int, Record]]:
    consumer = Consumer({**COMMON, "group.id": "unused", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(name, 0, offset)])
        return [_polled(consumer, name) for _ in range(count)]
    finally:
        consumer.close()


def _polled(consumer: Consumer, name: str) -> tuple[int, Record]:
    message = consumer.poll(TIMEOUT_S)
    if message is None:
        raise TimeoutError(f"no record of {name} came")
    if message.error():
        raise KafkaException(message.error())
    record = Record(message.key(), message.value(), message.headers() or [], message.timestamp()[1])
    return message.offset(), record


def fails(code: int, work: Callable[[], object]) -> None:
    try:
        work()
    except KafkaException as error:
        expect(error.args[0].code(), code)
        return
    raise AssertionError(f"no error {code}")


def codecs() -> None:
    for codec in CODECS:
        name = topic(codec)
        produce(name, compression_type=codec, linger_ms=50)
        expect_records([record for _, record in consume(name, len(RECORDS))])


def acks() -> None:
    name = topic("acks")
    for setting in ("0", "1", "all"):
        produce(name, acks=setting)
    seen = consume(name, 3 * len(RECORDS))
    expect([offset for offset, _ in seen], list(range(3 * len(RECORDS))))
    expect_records([record for _, record in seen], RECORDS * 3)


def idempotent() -> None:
    name = topic("idempotent")
    records = [Record(None, str(number).encode(), [], BASE_MS) for number in range(2000)]
    offsets = produce(name, records, enable_idempotence=True, batch_num_messages=50)
    expect(offsets, list(range(len(records))))
    expect_records([record for _, record in consume(name, len(records))], records)


def auto_create() -> None:
    name = f"{PREFIX}-auto"
    expect(produce(name, RECORDS[:1]), [0])
    expect_records([record for _, record in consume(name, 1)], RECORDS[:1])


def positions() -> None:
    name = topic("positions")
    produce(name)
    expect([offset for offset, _ in consume(name, 5)], [0, 1, 2, 3, 4])
    consumer = Consumer({**COMMON, "group.id": "unused", "enable.auto.commit": False})
    try:
        asked = TopicPartition(name, 0, BASE_MS + 2000)
        (found,) = consumer.offsets_for_times([asked], timeout=TIMEOUT_S)
        expect(found.offset, 2)
        expect(consumer.get_watermark_offsets(TopicPartition(name, 0), TIMEOUT_S), (0, 5))
        consumer.assign([TopicPartition(name, 0, OFFSET_END)])
        _await_end(consumer, TopicPartition(name, 0), 5)
        produce(name, RECORDS[:1])
        expect(_polled(consumer, name)[0], 5)
    finally:
        consumer.close()


def _await_end(consumer: Consumer, partition: TopicPartition, end: int) -> None:
    """Polls until the consumer has fetched at the end: from then on it misses nothing."""
    give_up_at = time.monotonic() + TIMEOUT_S
    while consumer.get_watermark_offsets(partition, cached=True)[1] != end:
        expect(consumer.poll(0.1), None)
        expect(time.monotonic() < give_up_at, True)


def metadata() -> None:
    name = topic("metadata", partitions=3)
    found = admin.list_topics(name, timeout=TIMEOUT_S).topics[name]
    expect(sorted(found.partitions), [0, 1, 2])
    nodes = admin.list_topics(timeout=TIMEOUT_S).brokers
    expect({part.leader in nodes for part in found.partitions.values()}, {True})
    described = result(admin.describe_topics(TopicCollection([name])))
    expect([part.id for part in described.partitions], [0, 1, 2])
    missing = admin.describe_topics(TopicCollection([f"{PREFIX}-missing"]))
    fails(KafkaError.UNKNOWN_TOPIC_OR_PART, lambda: result(missing))


def topics() -> None:
    name = topic("topics", partitions=2)
    again = admin.create_topics([NewTopic(name, 1, 1)])
    fails(KafkaError.TOPIC_ALREADY_EXISTS, lambda: result(again))
    wrong = admin.create_topics([NewTopic("not/a/name", 1, 1)])
    fails(KafkaError.TOPIC_EXCEPTION, lambda: result(wrong))
    none = admin.create_topics([NewTopic(f"{PREFIX}-no-partitions", 0, 1)])
    fails(KafkaError.INVALID_PARTITIONS, lambda: result(none))
    result(admin.create_partitions([NewPartitions(name, 4)]))
    fewer = admin.create_partitions([NewPartitions(name, 3)])
    fails(KafkaError.INVALID_PARTITIONS, lambda: result(fewer))
    result(admin.delete_topics([name]))
    gone = admin.delete_topics([name])
    fails(KafkaError.UNKNOWN_TOPIC_OR_PART, lambda: result(gone))


def delete_records() -> None:
    name = topic("delete-records")
    produce(name)
    deleted = result(admin.delete_records([TopicPartition(name, 0, 3)]))
    expect(deleted.low_watermark, 3)
    expect(consume(name, 1)[0][0], 3)
    beyond = admin.delete_records([TopicPartition(name, 0, 99)])
    fails(KafkaError.OFFSET_OUT_OF_RANGE, lambda: result(beyond))


def offsets() -> None:
    name = topic("offsets")
    produce(name)
    for spec, wanted in (
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 5),
        (OffsetSpec.for_timestamp(BASE_MS + 1500), 2),
        (OffsetSpec.for_timestamp(BASE_MS + 9999), -1),
        (OffsetSpec.max_timestamp(), 4),
    ):
        expect(result(admin.list_offsets({TopicPartition(name, 0): spec})).offset, wanted)


def configs() -> None:
    name = topic("configs", config={"retention.ms": "1000000"})

    def retention() -> tuple[str, int] | None:
        """None: the broker has not heard of the topic yet."""
        try:
            entries = result(admin.describe_configs([ConfigResource(ResourceType.TOPIC, name)]))
        except KafkaException as error:
            expect(error.args[0].code(), KafkaError.UNKNOWN_TOPIC_OR_PART)
            return None
        entry = entries["retention.ms"]
        return entry.value, entry.source

    def alter(operation: AlterConfigOpType, value: str | None) -> None:
        entry = ConfigEntry("retention.ms", value, incremental_operation=operation)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[entry])
        result(admin.incremental_alter_configs([resource]))

    expect_soon(retention, ("1000000", 1))
    alter(AlterConfigOpType.SET, "2000000")
    expect_soon(retention, ("2000000", 1))
    alter(AlterConfigOpType.DELETE, None)
    expect_soon(retention, ("604800000", 5))
    fails(KafkaError.INVALID_CONFIG, lambda: alter(AlterConfigOpType.SET, "soon"))


def too_large() -> None:
    name = topic("too-large", config={"max.message.bytes": "10000"})
    large = Record(None, bytes(20_000), [], BASE_MS)
    fails(KafkaError.MSG_SIZE_TOO_LARGE, lambda: produce(name, [large]))
    expect(produce(name, RECORDS[:1]), [0])


def cluster() -> None:
    described = admin.describe_cluster().result(TIMEOUT_S)
    expect(bool(described.cluster_id), True)
    expect(described.controller.id in {node.id for node in described.nodes}, True)


def transactional(tx: str, timeout_ms: int = 60_000) -> Producer:
    settings = {"transactional.id": f"{PREFIX}-{tx}", "transaction.timeout.ms": timeout_ms}
    return Producer({**COMMON, **settings, "log_level": 0})


def begun(tx: str, timeout_ms: int = 60_000) -> Producer:
    producer = transactional(tx, timeout_ms)
    producer.init_transactions(TIMEOUT_S)
    return producer


def _read(name: str, partition: int, count: int, isolation: str) -> list[tuple[int, bytes]]:
    settings = {"group.id": "unused", "enable.auto.commit": False, "isolation.level": isolation}
    consumer = Consumer({**COMMON, **settings})
    try:
        consumer.assign([TopicPartition(name, partition, OFFSET_BEGINNING)])
        seen = [_polled(consumer, name) for _ in range(count)]
        return [(offset, record.value or b"") for offset, record in seen]
    finally:
        consumer.close()


def transactions() -> None:
    name = topic("transactions", TRANSACTION_PARTITIONS)
    producer = begun("tx")
    for letter, is_committed in TRANSACTIONS:
        producer.begin_transaction()
        for partition in range(TRANSACTION_PARTITIONS):
            producer.produce(name, f"{letter}{partition}".encode(), partition=partition)
        # What is aborted is not sent otherwise.
        expect(producer.flush(TIMEOUT_S), 0)
        if is_committed:
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.abort_transaction(TIMEOUT_S)
    for partition in range(TRANSACTION_PARTITIONS):
        for isolation, are_committed in (("read_committed", True), ("read_uncommitted", False)):
            wanted = transactional_values(partition, are_committed=are_committed)
            expect(_read(name, partition, len(wanted), isolation), wanted)


def _is_fenced(work: Callable[[], object]) -> None:
    try:
        work()
    except KafkaException as error:
        expect((error.args[0].code(), error.args[0].fatal()), (KafkaError._FENCED, True))
        return
    raise AssertionError("it is not fenced")


def fencing() -> None:
    name = topic("fencing")
    old = begun("fenced")
    new = begun("fenced")
    old.begin_transaction()
    old.produce(name, b"old", partition=0)
    _is_fenced(lambda: old.commit_transaction(TIMEOUT_S))
    new.begin_transaction()
    new.produce(name, b"new", partition=0)
    new.commit_transaction(TIMEOUT_S)
    expect(_read(name, 0, 1, "read_uncommitted"), [(0, b"new")])
    slow = transactional("slow", TOO_LONG_MS)
    fails(KafkaError.INVALID_TRANSACTION_TIMEOUT, lambda: slow.init_transactions(TIMEOUT_S))


def transaction_timeout() -> None:
    name = topic("transaction-timeout")
    producer = begun("late", SHORT_TIMEOUT_MS)
    producer.begin_transaction()
    producer.produce(name, b"late", partition=0)
    expect(producer.flush(TIMEOUT_S), 0)
    expect(produce(name, [Record(None, b"behind", [], BASE_MS)]), [1])
    expect(_read(name, 0, 1, "read_committed"), [(1, b"behind")])
    _is_fenced(lambda: producer.commit_transaction(TIMEOUT_S))


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
