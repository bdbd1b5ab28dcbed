"""Ids and partition counts of topics by name, in few calls that open no partition.

ListTopics answers from memory, a thousand topics at a time, from any name on. One topic is a page
of one from just before its name; many topics are found with a page for each stretch of names, so
that the number of calls does not grow with the number of topics.

    plain:    run(steps, lambda call: caller.run_once(call, …))
    asyncio:  the same steps, each call awaited
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import Any, NamedTuple, TypeVar

from streamlog.client.channel import Call
from streamlog.errors import StreamlogError, Unauthorized, UnsupportedVersion
from streamlog.v1 import admin_pb2

PAGE = 1000
FEW = 4
"""So many names are asked for one by one; above, whole pages are."""


class TopicEntry(NamedTuple):
    name: str
    topic_id: str
    partitions: int


Found = dict[str, TopicEntry]
Result = TypeVar("Result")


def just_before(name: str) -> str:
    """A text that sorts behind all topic names below `name`, and before it."""
    # Names have no "~", which sorts behind all that they have.
    return name[:-1] + chr(max(0, ord(name[-1]) - 1)) + "~" if name else ""


def page(after: str, limit: int) -> Call:
    """Result: name → entry, in order."""
    request = admin_pb2.ListTopicsRequest(after=after, limit=limit)
    return Call(
        "AdminService/ListTopics",
        request,
        admin_pb2.ListTopicsResponse,
        lambda response: {
            topic.name: TopicEntry(topic.name, topic.topic_id, topic.partitions)
            for topic in response.topics
        },
    )


def describe(names: Iterable[str]) -> Call:
    """As `page` for clients that may not list: it opens the topics' partitions."""
    request = admin_pb2.DescribeTopicsRequest(names=names)
    return Call(
        "AdminService/DescribeTopics",
        request,
        admin_pb2.DescribeTopicsResponse,
        lambda response: {
            topic.name: TopicEntry(topic.name, topic.topic_id, len(topic.partitions))
            for topic in response.topics
            if not topic.HasField("error")
        },
    )


def find_topics(names: Iterable[str]) -> Generator[Call, Any, Found]:
    """Name → entry of those that exist. A generator of calls, sent their results."""
    todo = sorted(set(names))
    found: Found = {}
    while todo:
        limit = PAGE if len(todo) > FEW else 1
        try:
            entries: Found = yield page(just_before(todo[0]), limit)
            last = next(reversed(entries)) if len(entries) >= limit else None
            count = sum(last is None or name <= last for name in todo)
        except (Unauthorized, UnsupportedVersion):
            count = min(PAGE, len(todo))
            entries = yield describe(todo[:count])
        found.update((name, entries[name]) for name in todo[:count] if name in entries)
        del todo[: max(1, count)]
    return found


def run(steps: Generator[Call, Any, Result], call: Callable[[Call], Any]) -> Result:
    """What the generator returns. Errors: those of `call`, where it does not take them."""
    try:
        asked = next(steps)
        while True:
            try:
                result = call(asked)
            except StreamlogError as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(result)
    except StopIteration as end:
        final: Result = end.value
        return final


async def run_async(
    steps: Generator[Call, Any, Result], call: Callable[[Call], Awaitable[Any]]
) -> Result:
    """As `run`."""
    try:
        asked = next(steps)
        while True:
            try:
                result = await call(asked)
            except StreamlogError as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(result)
    except StopIteration as end:
        final: Result = end.value
        return final
