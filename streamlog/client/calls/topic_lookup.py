"""Ids and partition counts of topics by name, in few calls that open no partition.

ListTopics answers from memory, a thousand topics at a time, from any name on. One topic is a page
of one from just before its name; many topics are found with a page for each stretch of names, so
that the number of calls does not grow with the number of topics.

    blocking: run(steps, lambda call: caller.run_once(call, …))
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
"""Up to so many names are looked up one by one, more of them by whole pages."""


class TopicEntry(NamedTuple):
    name: str
    topic_id: str
    partitions: int


TopicEntries = dict[str, TopicEntry]
Result = TypeVar("Result")


def just_before(name: str) -> str:
    """A text that sorts before `name` and behind all topic names that sort before it."""
    # "~" sorts behind every character that names may have.
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
    """As `page`, for clients that may not list topics. It opens the topics' partitions."""
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


def find_topics(names: Iterable[str]) -> Generator[Call, Any, TopicEntries]:
    """Name → entry of the topics that exist. A generator of calls, each sent its result."""
    todo = sorted(set(names))
    found_entries: TopicEntries = {}
    while todo:
        limit = PAGE if len(todo) > FEW else 1
        try:
            page_entries: TopicEntries = yield page(just_before(todo[0]), limit)
            last = next(reversed(page_entries)) if len(page_entries) >= limit else None
            count = sum(last is None or name <= last for name in todo)
        except (Unauthorized, UnsupportedVersion):
            count = min(PAGE, len(todo))
            page_entries = yield describe(todo[:count])
        found_entries.update(
            (name, page_entries[name]) for name in todo[:count] if name in page_entries
        )
        del todo[: max(1, count)]
    return found_entries


def run(steps: Generator[Call, Any, Result], call: Callable[[Call], Any]) -> Result:
    """The generator's return value. Errors: those of `call` that it does not catch."""
    try:
        call_made = next(steps)
        while True:
            try:
                result = call(call_made)
            except StreamlogError as error:
                call_made = steps.throw(error)
            else:
                call_made = steps.send(result)
    except StopIteration as end:
        final: Result = end.value
        return final


async def run_async(
    steps: Generator[Call, Any, Result], call: Callable[[Call], Awaitable[Any]]
) -> Result:
    """As `run`."""
    try:
        call_made = next(steps)
        while True:
            try:
                result = await call(call_made)
            except StreamlogError as error:
                call_made = steps.throw(error)
            else:
                call_made = steps.send(result)
    except StopIteration as end:
        final: Result = end.value
        return final
