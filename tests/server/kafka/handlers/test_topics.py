"""CreateTopics, DeleteTopics and CreatePartitions over a real engine, in every version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

from streamlog.errors import MetadataUnavailable, Overloaded
from streamlog.kafka.messages.create_partitions_request import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from streamlog.kafka.messages.create_topics_request import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from streamlog.kafka.messages.create_topics_response import CreatableTopicResult
from streamlog.kafka.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from streamlog.kafka.protocol.apis import APIS, ApiKey
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.kafka.protocol.primitives import ZERO_UUID
from streamlog.server.context import Authorize, Operation, RequestContext, allow_all
from streamlog.server.kafka.call import KafkaCall
from streamlog.server.kafka.handlers.table import handlers, join
from streamlog.settings import Settings
from streamlog.settings.limits import LimitsConfig
from tests.kafka_clients.wire import error_codes
from tests.support.kafka_handlers import KafkaHandlers, all_but, kafka_handlers

TIMEOUT_MS = 30_000
SET_ON_TOPIC, DEFAULT = 1, 5
Test = Callable[[KafkaHandlers], Awaitable[None]]


def run(test: Test, authorize: Authorize = allow_all) -> None:
    async def body() -> None:
        async with kafka_handlers(authorize=authorize) as kafka:
            await test(kafka)

    asyncio.run(body())


def new(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    configs: Mapping[str, str | None] | None = None,
    assignments: Mapping[int, Sequence[int]] | None = None,
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=key, value=v) for key, v in (configs or {}).items()],
        assignments=[
            CreatableReplicaAssignment(partition_index=number, broker_ids=list(ids))
            for number, ids in (assignments or {}).items()
        ],
    )


async def create(
    kafka: KafkaHandlers,
    *topics: CreatableTopic,
    version: int = 7,
    timeout_ms: int = TIMEOUT_MS,
    validate_only: bool = False,
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(
        topics=list(topics), timeout_ms=timeout_ms, validate_only=validate_only
    )
    response = await kafka.ask(ApiKey.CREATE_TOPICS, version, request)
    return list(response.topics)


def partitions_of(kafka: KafkaHandlers, name: str) -> int | None:
    topic = kafka.logs.topic(name)
    return None if topic is None else topic.partitions


@pytest.mark.parametrize("version", range(2, 8))
def test_every_version_makes_topics(version: int) -> None:
    async def test(kafka: KafkaHandlers) -> None:
        configs = {"retention.ms": "1000"}
        topics = [new("a", 3, configs=configs), new("b", -1, -1), new("c", 1, 3)]
        results = await create(kafka, *topics, version=version)
        assert [(one.name, one.error_code, one.error_message) for one in results] == [
            (name, 0, None) for name in "abc"
        ]
        assert [partitions_of(kafka, name) for name in "abc"] == [3, 1, 1]
        topic = kafka.logs.topic("a")
        assert topic is not None
        assert topic.configs == {"retention.ms": "1000"}
        first = results[0]
        assert first.topic_id == (kafka.topic_id("a") if version >= 7 else ZERO_UUID)
        if version < 5:
            return
        assert [one.num_partitions for one in results] == [3, 1, 1]
        assert [one.replication_factor for one in results] == [1, 1, 1]
        assert first.configs is not None
        shown = {one.name: (one.value, one.config_source) for one in first.configs}
        assert shown["retention.ms"] == ("1000", SET_ON_TOPIC)
        assert shown["segment.ms"][1] == DEFAULT
        assert shown["cleanup.policy"] == ("delete", DEFAULT)

    run(test)


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        (new("a", 0), KafkaError.INVALID_PARTITIONS),
        (new("a", -2), KafkaError.INVALID_PARTITIONS),
        (new("a", 1_000_000), KafkaError.INVALID_PARTITIONS),
        (new("a", 1, 0), KafkaError.INVALID_REPLICATION_FACTOR),
        (new("a", 1, -2), KafkaError.INVALID_REPLICATION_FACTOR),
        (new("a b"), KafkaError.INVALID_TOPIC_EXCEPTION),
        (new(""), KafkaError.INVALID_TOPIC_EXCEPTION),
        (new("__consumer_offsets"), KafkaError.INVALID_TOPIC_EXCEPTION),
        (new("there"), KafkaError.TOPIC_ALREADY_EXISTS),
        (new("a", configs={"retention.ms": "soon"}), KafkaError.INVALID_CONFIG),
        (new("a", configs={"no.such": "1"}), KafkaError.INVALID_CONFIG),
        (new("a", configs={"retention.ms": None}), KafkaError.INVALID_CONFIG),
        (new("a", 1, -1, assignments={0: [1]}), KafkaError.INVALID_REQUEST),
        (new("a", -1, 1, assignments={0: [1]}), KafkaError.INVALID_REQUEST),
        (new("a", -1, -1, assignments={1: [1]}), KafkaError.INVALID_REPLICA_ASSIGNMENT),
        (new("a", -1, -1, assignments={0: []}), KafkaError.INVALID_REPLICA_ASSIGNMENT),
        (new("a", -1, -1, assignments={0: [1, 1]}), KafkaError.INVALID_REPLICA_ASSIGNMENT),
        (new("a", -1, -1, assignments={0: [1], 1: [2]}), KafkaError.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_a_wrong_topic_is_refused_and_others_are_made(
    topic: CreatableTopic, error: KafkaError
) -> None:
    async def test(kafka: KafkaHandlers) -> None:
        await kafka.logs.create_topic("there")
        for validate_only in (True, False):
            wrong, right = await create(kafka, topic, new("fine"), validate_only=validate_only)
            assert (wrong.name, wrong.error_code) == (topic.name, error)
            assert wrong.error_message
            assert (wrong.num_partitions, wrong.replication_factor) == (-1, -1)
            assert (wrong.topic_id, wrong.configs) == (ZERO_UUID, [])
            assert right.error_code == 0
        assert kafka.logs.topic("a") is None

    run(test)


def test_an_assignment_gives_the_count_of_partitions() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        (result,) = await create(kafka, new("a", -1, -1, assignments={1: [1], 0: [1]}))
        assert (result.error_code, result.num_partitions) == (0, 2)

    run(test)


def test_a_topic_that_is_named_twice_is_not_made() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        results = await create(kafka, new("a"), new("b"), new("a", 2))
        assert {one.name: one.error_code for one in results} == {
            "a": KafkaError.INVALID_REQUEST,
            "b": 0,
        }
        assert len(results) == 2
        assert kafka.logs.topic("a") is None

    run(test)


def test_what_is_only_checked_is_described_and_not_made() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        topic = new("a", 5, configs={"retention.ms": "7"})
        (result,) = await create(kafka, topic, validate_only=True)
        assert (result.error_code, result.num_partitions) == (0, 5)
        assert result.topic_id == ZERO_UUID
        shown = {one.name: one.value for one in result.configs or ()}
        assert shown["retention.ms"] == "7"
        assert kafka.logs.topic("a") is None

    run(test)


def test_work_that_is_not_done_in_time_goes_on() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        for timeout_ms in (0, -1):
            name = f"a{timeout_ms}"
            (result,) = await create(kafka, new(name, 2), timeout_ms=timeout_ms)
            assert result.error_code == KafkaError.REQUEST_TIMED_OUT
            await kafka.until_made(name)
            assert partitions_of(kafka, name) == 2

    run(test)


def test_clients_are_made_to_ask_again_while_the_metadata_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise MetadataUnavailable("the metadata store does not answer")

    async def test(kafka: KafkaHandlers) -> None:
        await kafka.logs.create_topic("a", 1)
        with monkeypatch.context() as patch:
            for call in ("create_topic", "delete_topic", "create_partitions"):
                patch.setattr(kafka.logs, call, away)
            again = KafkaError.NOT_CONTROLLER
            (made,) = await create(kafka, new("b"))
            (deleted,) = await delete(kafka, ["a"])
            assert (made.error_code, deleted.error_code) == (again, again)
            assert "does not answer" in (made.error_message or "")
            assert await grow(kafka, ("a", 2)) == {"a": again}
        (made,) = await create(kafka, new("b"))
        assert made.error_code == 0

    run(test)


@pytest.mark.parametrize(
    ("api", "message"),
    [
        (ApiKey.CREATE_TOPICS, CreateTopicsRequest(topics=[new("a")])),
        (ApiKey.DELETE_TOPICS, DeleteTopicsRequest(topics=[DeleteTopicState(name="a")])),
        (
            ApiKey.CREATE_PARTITIONS,
            CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="a", count=2)]),
        ),
    ],
)
def test_clients_are_made_to_ask_again_where_no_handler_saw_the_request(
    api: ApiKey, message: Any
) -> None:
    async def test(kafka: KafkaHandlers) -> None:
        respond = join(handlers(kafka.services))[api].error_response
        assert respond is not None
        version = APIS[api].last
        call = KafkaCall(RequestContext(), api, version, 1, "kafka", ("h", 1), 100)
        answer = respond(call, message, Overloaded("20000 requests are under way"))
        assert list(error_codes(answer)) == [KafkaError.NOT_CONTROLLER]

    run(test)


def test_rights_are_those_of_each_topic() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        refused, unseen, fine = await create(kafka, new("refused"), new("unseen", 2), new("fine"))
        assert refused.error_code == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert (unseen.error_code, unseen.topic_id) == (0, kafka.topic_id("unseen"))
        assert unseen.topic_config_error_code == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert (unseen.num_partitions, unseen.replication_factor) == (-1, -1)
        assert unseen.configs is None
        assert fine.topic_config_error_code == 0
        assert kafka.logs.topic("refused") is None
        (kept, gone) = await delete(kafka, ["unseen", "fine"])
        assert (kept.error_code, gone.error_code) == (KafkaError.TOPIC_AUTHORIZATION_FAILED, 0)
        assert kafka.logs.topic("unseen") is not None
        assert await grow(kafka, ("unseen", 9)) == {"unseen": KafkaError.TOPIC_AUTHORIZATION_FAILED}
        assert partitions_of(kafka, "unseen") == 2

    run(
        test,
        all_but(
            (Operation.CREATE, "refused"),
            (Operation.DESCRIBE_CONFIGS, "unseen"),
            (Operation.DELETE, "unseen"),
            (Operation.ALTER, "unseen"),
        ),
    )


async def delete(
    kafka: KafkaHandlers,
    names: Sequence[str] = (),
    *,
    ids: Sequence[bytes] = (),
    both: Sequence[tuple[str | None, bytes]] = (),
    version: int = 6,
    timeout_ms: int = TIMEOUT_MS,
) -> list[Any]:
    topics = [*((name, ZERO_UUID) for name in names), *((None, one) for one in ids), *both]
    request = DeleteTopicsRequest(timeout_ms=timeout_ms)
    if version < 6:
        request.topic_names = list(names)
    else:
        request.topics = [DeleteTopicState(name=name, topic_id=one) for name, one in topics]
    response = await kafka.ask(ApiKey.DELETE_TOPICS, version, request)
    return list(response.responses)


@pytest.mark.parametrize("version", range(1, 7))
def test_every_version_deletes_topics_by_name(version: int) -> None:
    async def test(kafka: KafkaHandlers) -> None:
        await kafka.logs.create_topic("a")
        topic_id = kafka.topic_id("a")
        gone, unknown, wrong = await delete(kafka, ["a", "b", "c d"], version=version)
        assert [one.name for one in (gone, unknown, wrong)] == ["a", "b", "c d"]
        assert gone.error_code == 0
        assert gone.topic_id == (topic_id if version >= 6 else ZERO_UUID)
        for one in (unknown, wrong):
            assert one.error_code == KafkaError.UNKNOWN_TOPIC_OR_PARTITION
            assert bool(one.error_message) is (version >= 5)
        assert kafka.logs.list_topics() == []

    run(test)


@pytest.mark.parametrize("version", [5, 6])
def test_a_topic_that_is_named_twice_is_not_deleted(version: int) -> None:
    async def test(kafka: KafkaHandlers) -> None:
        for name in "ab":
            await kafka.logs.create_topic(name)
        results = await delete(kafka, ["a", "none", "a", "b", "none"], version=version)
        assert [(one.name, one.error_code) for one in results] == [
            ("a", KafkaError.INVALID_REQUEST),
            ("none", KafkaError.INVALID_REQUEST),
            ("b", 0),
        ]
        assert [topic.name for topic in kafka.logs.list_topics()] == ["a"]

    run(test)


def test_topics_are_deleted_by_their_ids() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        for name in "abcd":
            await kafka.logs.create_topic(name)
        first, second = kafka.topic_id("a"), kafka.topic_id("b")
        gone, unknown = await delete(kafka, ids=[first, b"?" * 16])
        assert (gone.name, gone.topic_id, gone.error_code) == ("a", first, 0)
        assert (unknown.name, unknown.error_code) == (None, KafkaError.UNKNOWN_TOPIC_ID)
        # A name and its id are one topic; both in one element, or neither, say nothing.
        results = await delete(
            kafka,
            ["b"],
            ids=[second],
            both=[("c", kafka.topic_id("c")), (None, ZERO_UUID)],
        )
        assert [one.error_code for one in results] == [KafkaError.INVALID_REQUEST] * 4
        assert [topic.name for topic in kafka.logs.list_topics()] == ["b", "c", "d"]
        (refused,) = await delete(kafka, ids=[kafka.topic_id("d")])
        assert (refused.name, refused.error_code) == (None, KafkaError.TOPIC_AUTHORIZATION_FAILED)

    run(test, all_but((Operation.DESCRIBE, "d")))


def test_an_id_never_deletes_the_next_topic_of_the_name() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        await kafka.logs.create_topic("a")
        old = kafka.topic_id("a")
        await kafka.logs.delete_topic("a")
        await kafka.logs.create_topic("a")
        (result,) = await delete(kafka, ids=[old])
        assert result.error_code == KafkaError.UNKNOWN_TOPIC_ID
        assert kafka.logs.topic("a") is not None

    run(test)


async def grow(
    kafka: KafkaHandlers,
    *topics: tuple[str, int] | tuple[str, int, Sequence[Sequence[int]]],
    version: int = 3,
    timeout_ms: int = TIMEOUT_MS,
    validate_only: bool = False,
) -> dict[str, int]:
    request = CreatePartitionsRequest(timeout_ms=timeout_ms, validate_only=validate_only)
    request.topics = [
        CreatePartitionsTopic(
            name=name,
            count=count,
            assignments=[CreatePartitionsAssignment(broker_ids=list(ids)) for ids in given[0]]
            if given
            else None,
        )
        for name, count, *given in topics
    ]
    response = await kafka.ask(ApiKey.CREATE_PARTITIONS, version, request)
    assert all(bool(one.error_message) is (one.error_code != 0) for one in response.results)
    return {one.name: one.error_code for one in response.results}


@pytest.mark.parametrize("version", range(4))
def test_every_version_adds_partitions_and_answers_for_each_topic(version: int) -> None:
    async def test(kafka: KafkaHandlers) -> None:
        for name in "abcd":
            await kafka.logs.create_topic(name, 2)
        assert await grow(
            kafka, ("a", 3), ("b", 2), ("c", 1), ("d", 4), ("d", 5), ("e", 9), version=version
        ) == {
            "a": 0,
            "b": KafkaError.INVALID_PARTITIONS,
            "c": KafkaError.INVALID_PARTITIONS,
            "d": KafkaError.INVALID_REQUEST,
            "e": KafkaError.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert [partitions_of(kafka, name) for name in "abcd"] == [3, 2, 2, 2]

    run(test)


def test_partitions_are_added_with_an_assignment_or_checked_alone() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        await kafka.logs.create_topic("a", 1)
        wrong = {"a": KafkaError.INVALID_REPLICA_ASSIGNMENT}
        assert await grow(kafka, ("a", 3, [[1]])) == wrong
        assert await grow(kafka, ("a", 3, [])) == wrong
        assert await grow(kafka, ("a", 3, [[1], [2]])) == wrong
        assert await grow(kafka, ("a", 3, [[1], [1]]), validate_only=True) == {"a": 0}
        too_many = {"a": KafkaError.INVALID_PARTITIONS}
        assert await grow(kafka, ("a", 1_000_000), validate_only=True) == too_many
        assert partitions_of(kafka, "a") == 1
        assert await grow(kafka, ("a", 3, [[1], [1]])) == {"a": 0}
        assert partitions_of(kafka, "a") == 3

    run(test)


def test_a_request_of_too_many_topics_makes_none() -> None:
    async def body() -> None:
        settings = Settings(limits=LimitsConfig(partitions_per_request_max=2))
        async with kafka_handlers(settings) as kafka:
            results = await create(kafka, new("a"), new("b"), new("c"))
            assert {one.name: one.error_code for one in results} == dict.fromkeys(
                "abc", KafkaError.POLICY_VIOLATION
            )
            assert "limits.partitions_per_request_max" in (results[0].error_message or "")
            assert list(kafka.logs.list_topics()) == []
            results = await create(kafka, new("a"), new("b"))
            assert [one.error_code for one in results] == [0, 0]

    asyncio.run(body())


def test_topics_of_one_answer_share_the_settings_that_they_do_not_set() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        route = join(handlers(kafka.services))[ApiKey.CREATE_TOPICS]
        call = KafkaCall(RequestContext(), ApiKey.CREATE_TOPICS, 7, 1, "kafka", ("h", 1), 100)
        topics = [new("a"), new("b", configs={"retention.ms": "1000"})]
        request = CreateTopicsRequest(topics=topics, timeout_ms=TIMEOUT_MS, validate_only=True)
        first, second = (await route.handle(call, request)).topics
        pairs = list(zip(first.configs, second.configs, strict=True))
        assert [one.name for one, other in pairs if one is not other] == ["retention.ms"]

    run(test)


def test_many_topics_are_answered_for_at_once() -> None:
    async def test(kafka: KafkaHandlers) -> None:
        names = [f"t{number:02}" for number in range(40)]
        results = await create(kafka, *(new(name) for name in names))
        # Some 30 settings each: the answer is encoded off the loop.
        assert sum(len(one.configs or ()) for one in results) > 1000
        assert [(one.name, one.error_code) for one in results] == [(name, 0) for name in names]
        assert [topic.name for topic in kafka.logs.list_topics()] == names

    run(test)
