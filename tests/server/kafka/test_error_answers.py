"""A request that failed as a whole is answered in its API's own words, in every version."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from streamlog.errors import Overloaded
from streamlog.kafka.messages.delete_topics_request import DeleteTopicsRequest, DeleteTopicState
from streamlog.kafka.messages.fetch_request import FetchPartition, FetchRequest, FetchTopic
from streamlog.kafka.messages.metadata_request import MetadataRequest, MetadataRequestTopic
from streamlog.kafka.messages.produce_request import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from streamlog.kafka.protocol.apis import APIS, ApiKey, decode_response, response_codec
from streamlog.kafka.protocol.errors import KafkaError
from streamlog.server.context import RequestContext
from streamlog.server.kafka.call import CloseConnection, KafkaCall
from streamlog.server.kafka.error_answers import ALL_OF_NOTHING, error_response

ERROR = Overloaded("20000 requests are under way")
CODE = KafkaError.KAFKA_STORAGE_ERROR
TOPIC_ID = bytes(range(16))
OWN = (ApiKey.FIND_COORDINATOR, ApiKey.ADD_PARTITIONS_TO_TXN)
"""Their handlers bring answers to errors with them, whose places differ between versions."""


def answer(api: ApiKey, version: int, request: Any) -> Any:
    """The error's answer, as a client reads it."""
    call = KafkaCall(RequestContext(), api, version, 1, "kafka", ("h", 1), 100)
    response = error_response(call, request, ERROR)
    encoded = b"".join(response_codec(api).encode(response, version))
    return decode_response(api, version, memoryview(encoded), 0)


@pytest.mark.parametrize("api", [api for api in APIS if api not in OWN])
def test_an_answer_that_names_nothing_says_the_error_or_the_connection_ends(api: ApiKey) -> None:
    """No client takes an error for "there is nothing". Where a request that names nothing asks for
    nothing, an answer with nothing in it is right."""
    module = import_module(f"streamlog.kafka.messages.{api.name.lower()}_request")
    for version in range(APIS[api].first, APIS[api].last + 1):
        request = getattr(module, f"{APIS[api].name}Request")()
        if api is ApiKey.PRODUCE:
            request.acks = 1
        try:
            response = answer(api, version, request)
        except CloseConnection:
            assert api in ALL_OF_NOTHING
            continue
        assert api not in ALL_OF_NOTHING or response.error_code == CODE, version


@pytest.mark.parametrize("version", [3, 8, 12, 13])
def test_produce_has_the_error_in_every_partition(version: int) -> None:
    parts = [PartitionProduceData(index=3, records=b""), PartitionProduceData(index=4, records=b"")]
    topic = TopicProduceData(name="t", topic_id=TOPIC_ID, partition_data=parts)
    response = answer(
        ApiKey.PRODUCE, version, ProduceRequest(acks=-1, topic_data=[topic], timeout_ms=1)
    )
    (told,) = response.responses
    assert told.topic_id == TOPIC_ID if version >= 13 else told.name == "t"
    assert [part.index for part in told.partition_responses] == [3, 4]
    assert {part.error_code for part in told.partition_responses} == {CODE}


def test_produce_without_an_answer_ends_the_connection() -> None:
    with pytest.raises(CloseConnection, match="under way"):
        answer(ApiKey.PRODUCE, 9, ProduceRequest(acks=0, topic_data=[], timeout_ms=1))


@pytest.mark.parametrize("version", [4, 7, 12, 18])
def test_fetch_has_the_error_in_every_partition_and_beside_the_whole(version: int) -> None:
    topic = FetchTopic(topic="t", topic_id=TOPIC_ID, partitions=[FetchPartition(partition=2)])
    response = answer(ApiKey.FETCH, version, FetchRequest(topics=[topic]))
    (part,) = response.responses[0].partitions
    assert (part.partition_index, part.error_code) == (2, CODE)
    assert response.error_code == (CODE if version >= 7 else 0)


def test_metadata_of_all_topics_say_the_error_in_the_version_that_can() -> None:
    with pytest.raises(CloseConnection, match="Metadata in version 12 cannot say"):
        answer(ApiKey.METADATA, 12, MetadataRequest(topics=None))
    assert answer(ApiKey.METADATA, 13, MetadataRequest(topics=None)).error_code == CODE
    named = MetadataRequest(topics=[MetadataRequestTopic(name="t", topic_id=TOPIC_ID)])
    (topic,) = answer(ApiKey.METADATA, 12, named).topics
    assert (topic.name, topic.topic_id, topic.error_code) == ("t", TOPIC_ID, CODE)


@pytest.mark.parametrize("version", [10, 11, 12, 13])
def test_metadata_of_a_topic_by_its_id_has_an_answer_in_every_version_with_ids(
    version: int,
) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(topic_id=TOPIC_ID, name=None)])
    (topic,) = answer(ApiKey.METADATA, version, request).topics
    assert (topic.name, topic.topic_id, topic.error_code) == ("", TOPIC_ID, CODE)


def test_topics_are_named_as_the_request_named_them() -> None:
    by_name = DeleteTopicsRequest(topic_names=["a", "b"], timeout_ms=1)
    old = answer(ApiKey.DELETE_TOPICS, 5, by_name)
    assert [one.name for one in old.responses] == ["a", "b"]
    assert {one.error_message for one in old.responses} == {ERROR.message}
    by_id = DeleteTopicsRequest(topics=[DeleteTopicState(topic_id=TOPIC_ID)], timeout_ms=1)
    (one,) = answer(ApiKey.DELETE_TOPICS, 6, by_id).responses
    assert (one.name, one.topic_id, one.error_code) == (None, TOPIC_ID, CODE)
