"""Quotas of clients as a real Kafka has them: the same throttles, answers and refusals."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer, ThrottleEvent
from confluent_kafka.admin import AdminClient, NewTopic

from streamlog.kafka.protocol.errors import KafkaError
from tests.kafka_clients.brokers import BROKERS, Broker
from tests.kafka_clients.raw_client import RawClient, part, request
from tests.kafka_clients.wire import request_frame
from tests.support.server_harness import batch

pytestmark = [
    pytest.mark.xdist_group("kafka_clients"),
    pytest.mark.parametrize("broker", BROKERS, indirect=True),
]

TIMEOUT_S = 60.0
PRODUCE = 0


def alter(
    client: RawClient, entity: Mapping[str, str | None], ops: Mapping[str, float | None]
) -> int:
    """The answer's code; None removes a quota."""
    api = "alter_client_quotas"
    entry = part(
        api,
        "EntryData",
        entity=[
            part(api, "EntityData", entity_type=kind, entity_name=name)
            for kind, name in entity.items()
        ],
        ops=[
            part(api, "OpData", key=key, value=value or 0.0, remove=value is None)
            for key, value in ops.items()
        ],
    )
    [answered] = client.call(api, 1, request(api, entries=[entry])).entries
    return int(answered.error_code)


def described(client: RawClient, client_id: str | None) -> dict[str, float]:
    api = "describe_client_quotas"
    match = {"match_type": 1} if client_id is None else {"match_type": 0}
    component = part(api, "ComponentData", entity_type="client-id", match=client_id, **match)
    answer = client.call(api, 1, request(api, components=[component], strict=True))
    assert answer.error_code == 0
    return {one.key: one.value for entry in answer.entries for one in entry.values}


@contextmanager
def quota(broker: Broker, client_id: str, **quotas: float) -> Iterator[None]:
    """In force within; a Kafka's brokers hear of it a little later than it is made."""
    with RawClient(broker.server) as client:
        try:
            assert alter(client, {"client-id": client_id}, quotas) == 0
            give_up_at = time.monotonic() + TIMEOUT_S
            while described(client, client_id) != quotas:
                assert time.monotonic() < give_up_at
                time.sleep(0.02)
            yield
        finally:
            alter(client, {"client-id": client_id}, dict.fromkeys(quotas))


def create(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for made in admin.create_topics([NewTopic(topic, 1)]).values():
        made.result(TIMEOUT_S)


def test_librdkafka_hears_of_its_throttle_and_everything_is_delivered(broker: Broker) -> None:
    create(broker, "quota-librdkafka")
    throttles: list[float] = []

    def throttled(event: ThrottleEvent) -> None:
        throttles.append(event.throttle_time)

    failed: list[Any] = []
    with quota(broker, "quota-librdkafka", producer_byte_rate=50_000):
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "client.id": "quota-librdkafka",
                "throttle_cb": throttled,
                "linger.ms": 0,
                "batch.size": 50_000,
            }
        )
        # Half a million bytes are free; the rest takes some two seconds.
        for number in range(60):
            producer.produce(
                "quota-librdkafka",
                number.to_bytes(4, "big") * 2500,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            producer.poll(0)
        assert producer.flush(TIMEOUT_S) == 0
    assert failed == []
    assert max(throttles) > 0.1, throttles
    assert max(throttles) < 11


def test_a_burst_is_throttled_as_by_kafka(broker: Broker) -> None:
    create(broker, "quota-burst")
    api = "produce"
    partition = part(api, "PartitionProduceData", index=0, records=batch(bytes(100_000)))
    topic = part(api, "TopicProduceData", name="quota-burst", partition_data=[partition])
    message = request(api, acks=-1, timeout_ms=10_000, topic_data=[topic])
    size = len(request_frame(PRODUCE, 9, 1, "quota-burst", message)) - 4
    rate = 25_000.0
    with (
        quota(broker, "quota-burst", producer_byte_rate=rate),
        RawClient(broker.server, "quota-burst") as client,
    ):
        throttles = [client.call(api, 9, message).throttle_time_ms for _ in range(3)]
    assert throttles[:2] == [0, 0]
    # Ten seconds count for the first moment; what has passed since begins the next one.
    assert 3 * size / rate * 1000 - 10_999 <= throttles[2] <= 3 * size / rate * 1000 - 10_000


RATE = {"producer_byte_rate": 1000.0}


@pytest.mark.parametrize(
    ("entity", "ops"),
    [
        ({}, RATE),
        ({"group": "g"}, RATE),
        ({"client-id": ""}, RATE),
        ({"client-id": "c"}, {"producer_byte_rate": 0.0}),
        ({"client-id": "c"}, {"consumer_byte_rate": -1.0}),
        ({"client-id": "c"}, {"request_percentage": -1.0}),
        ({"client-id": "c"}, {"producer_byte_rate": 1.5}),
        ({"client-id": "c"}, {"producer_byte_rate": 1e30}),
        ({"client-id": "c"}, {"no_quota": 1.0}),
    ],
)
def test_what_kafka_refuses_is_refused(
    broker: Broker, entity: Mapping[str, str | None], ops: Mapping[str, float | None]
) -> None:
    with RawClient(broker.server) as client:
        assert alter(client, entity, ops) == KafkaError.INVALID_REQUEST
        assert described(client, "c") == {}


def test_filters_find_what_they_find_in_kafka(broker: Broker) -> None:
    api = "describe_client_quotas"
    exact, default, specified = range(3)

    def found(*components: tuple[str, int, str | None], strict: bool) -> set[str | None]:
        asked = [
            part(api, "ComponentData", entity_type=kind, match_type=match, match=name)
            for kind, match, name in components
        ]
        answer = client.call(api, 1, request(api, components=asked, strict=strict))
        assert answer.error_code == 0
        return {one.entity_name for entry in answer.entries for one in entry.entity}

    with (
        quota(broker, "quota-a", producer_byte_rate=1000),
        quota(broker, "quota-b", consumer_byte_rate=1000),
        RawClient(broker.server) as client,
    ):
        both: set[str | None] = {"quota-a", "quota-b"}
        for strict in (False, True):
            of_ids = ("client-id", specified, None)
            assert found(("client-id", exact, "quota-a"), strict=strict) == {"quota-a"}
            assert found(("client-id", default, None), strict=strict) == set()
            assert found(of_ids, strict=strict) == both
            assert found(("user", specified, None), strict=strict) == set()
            assert found(of_ids, ("user", specified, None), strict=strict) == set()
        assert found(strict=False) == both
        assert found(strict=True) == set()
