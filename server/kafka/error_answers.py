"""The answer of any API to a request that failed as a whole, made from the shape of its messages.

A node may refuse a request that no handler has seen, such as one above the bound on requests. Each
API has its own place for an error: beside the whole answer, with each topic, or with each partition
that the request names. `_SHAPES` says which parts of a request come back in its answer; the
innermost of them, and the answer itself, carry the error where their class has a field for it.

Where a request that names nothing asks for all, an answer in which nothing can carry the error
would say that there is nothing: no topics, no log directories. Clients take that as it is, so the
connection ends in its place, and they ask again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from streamlog.errors import StreamlogError
from streamlog.kafka.protocol.apis import APIS, ApiKey
from streamlog.kafka.protocol.errors import ErrorAnswer, answer_to
from streamlog.server.kafka.call import CloseConnection, KafkaCall, Message


class _Part(NamedTuple):
    """Elements of the request's field `asked` come back as `cls` in the answer's field `answered`.

    `named` maps fields of the one to fields of the other; an element that is a plain value has the
    name "".
    """

    asked: str
    answered: str
    cls: str
    named: Mapping[str, str]
    inner: _Part | None = None
    may_be_unnamed: bool = True
    """Whether a topic that was asked for by its id alone may come back so."""


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


_RESOURCES = _same("resource_type", "resource_name")
_SHAPES: dict[ApiKey, tuple[_Part, ...]] = {
    ApiKey.PRODUCE: (
        _Part(
            *("topic_data", "responses", "TopicProduceResponse", _same("name", "topic_id")),
            inner=_Part(
                *("partition_data", "partition_responses", "PartitionProduceResponse"),
                _same("index"),
            ),
        ),
    ),
    ApiKey.FETCH: (
        _Part(
            *("topics", "responses", "FetchableTopicResponse", _same("topic", "topic_id")),
            inner=_Part(
                *("partitions", "partitions", "PartitionData", {"partition": "partition_index"})
            ),
        ),
    ),
    ApiKey.LIST_OFFSETS: (
        _Part(
            *("topics", "topics", "ListOffsetsTopicResponse", _same("name")),
            inner=_Part(
                *("partitions", "partitions", "ListOffsetsPartitionResponse"),
                _same("partition_index"),
            ),
        ),
    ),
    ApiKey.METADATA: (
        # Versions 10 and 11 have an id, and no way to say that there is no name. Kafka leaves the
        # name empty in all versions.
        _Part(
            *("topics", "topics", "MetadataResponseTopic", _same("name", "topic_id")),
            may_be_unnamed=False,
        ),
    ),
    ApiKey.CREATE_TOPICS: (_Part("topics", "topics", "CreatableTopicResult", _same("name")),),
    ApiKey.DELETE_TOPICS: (
        # By id or name from version 6 on, by name before.
        _Part("topics", "responses", "DeletableTopicResult", _same("name", "topic_id")),
        _Part("topic_names", "responses", "DeletableTopicResult", {"": "name"}),
    ),
    ApiKey.DELETE_RECORDS: (
        _Part(
            *("topics", "topics", "DeleteRecordsTopicResult", _same("name")),
            inner=_Part(
                *("partitions", "partitions", "DeleteRecordsPartitionResult"),
                _same("partition_index"),
            ),
        ),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (
        _Part(
            *("topics", "topics", "OffsetForLeaderTopicResult", _same("topic")),
            inner=_Part("partitions", "partitions", "EpochEndOffset", _same("partition")),
        ),
    ),
    ApiKey.DESCRIBE_CONFIGS: (_Part("resources", "results", "DescribeConfigsResult", _RESOURCES),),
    ApiKey.ALTER_CONFIGS: (
        _Part("resources", "responses", "AlterConfigsResourceResponse", _RESOURCES),
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        _Part("resources", "responses", "AlterConfigsResourceResponse", _RESOURCES),
    ),
    ApiKey.CREATE_PARTITIONS: (
        _Part("topics", "results", "CreatePartitionsTopicResult", _same("name")),
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: (_Part("entries", "entries", "EntryData", _same("entity")),),
    ApiKey.DESCRIBE_PRODUCERS: (
        _Part(
            *("topics", "topics", "TopicResponse", _same("name")),
            inner=_Part(
                "partition_indexes", "partitions", "PartitionResponse", {"": "partition_index"}
            ),
        ),
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (
        _Part("topics", "topics", "DescribeTopicPartitionsResponseTopic", _same("name")),
    ),
}
"""APIs that are not here have one error for the whole answer."""
_WHOLE_FROM = {ApiKey.METADATA: 13, ApiKey.DESCRIBE_LOG_DIRS: 3}
"""The first version whose whole answer has an error; without an entry: all that have the field."""
ALL_OF_NOTHING = (ApiKey.METADATA, ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.DESCRIBE_LOG_DIRS)
"""A request that names nothing asks for all."""
_ACKS_NONE = 0


def error_response(
    call: KafkaCall,
    request: Message,
    error: StreamlogError,
    answer_of: Callable[[StreamlogError], ErrorAnswer] = answer_to,
) -> Message:
    """The API's response in which everything that the request asked for has the error.

    `answer_of`: the code and message of the API for it.

    Errors: CloseConnection, where the request has no answer (`acks=0`), or one that cannot carry
    the error.
    """
    if getattr(request, "acks", None) == _ACKS_NONE:
        raise CloseConnection(f"a request with acks=0 failed: {error}")
    api = ApiKey(call.api)
    module = import_module(f"streamlog.kafka.messages.{api.name.lower()}_response")
    answer = answer_of(error)
    response = getattr(module, f"{APIS[api].name}Response")()
    _set_error(response, answer)
    fields: dict[str, list[Any]] = {}
    for part in _SHAPES.get(api, ()):
        fields.setdefault(part.answered, []).extend(_parts(module, part, request, answer))
    has_whole = "error_code" in response.__slots__ and call.version >= _WHOLE_FROM.get(api, 0)
    if api in ALL_OF_NOTHING and not has_whole and not any(fields.values()):
        raise CloseConnection(
            f"the answer of {APIS[api].name} in version {call.version} cannot say: {error}"
        )
    for name, parts in fields.items():
        setattr(response, name, parts)
    return response


def _parts(module: ModuleType, part: _Part, asked: Any, answer: ErrorAnswer) -> list[Any]:
    cls = getattr(module, part.cls)
    parts = []
    for element in getattr(asked, part.asked) or ():
        named = {
            field: getattr(element, name) if name else element for name, field in part.named.items()
        }
        if "name" in named and named["name"] is None and not part.may_be_unnamed:
            named["name"] = ""
        one = cls(**named)
        if part.inner is None:
            _set_error(one, answer)
        else:
            setattr(one, part.inner.answered, _parts(module, part.inner, element, answer))
        parts.append(one)
    return parts


def _set_error(message: Any, answer: ErrorAnswer) -> None:
    if "error_code" in message.__slots__:
        message.error_code = answer.code
    if "error_message" in message.__slots__:
        message.error_message = answer.message
