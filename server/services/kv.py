"""Small values for clients, in namespaces; those of the engine cannot be reached."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum

from streamlog.errors import Invalid, InvalidName, MessageTooLarge
from streamlog.model.kv import NAMESPACE_DEFAULT, Key, KeyValue, KVChange, KVClient, Value
from streamlog.server.context import Authorize, Operation, RequestContext, Resource, ResourceType
from streamlog.settings.limits import KV_NAME_BYTES_MAX, NAMESPACE_BYTES_MAX, LimitsConfig

_NAMESPACE = re.compile(r"[a-zA-Z0-9.-][a-zA-Z0-9._-]*")

ANSWER_BYTES_MAX = 4 << 20
"""Bytes of values in one answer; the value that passes it is in it."""
READ_AT_ONCE = 16
"""Keys of a list that are read at once, before anyone knows how large their values are."""


class PutMode(Enum):
    ALWAYS = 1
    IF_ABSENT = 2
    COMPARE_AND_SET = 3


class KVService:
    """`revision`: the current revision of the KV store."""

    def __init__(
        self,
        kv: KVClient,
        revision: Callable[[], Awaitable[int]],
        *,
        authorize: Authorize,
        limits: LimitsConfig,
    ) -> None:
        self._kv = kv
        self._revision = revision
        self._authorize = authorize
        self._limits = limits

    async def get(self, context: RequestContext, key: Key) -> Value | None:
        return await self._kv.get_kv(self._checked(context, Operation.READ, key))

    async def put(
        self,
        context: RequestContext,
        key: Key,
        data: bytes,
        mode: PutMode = PutMode.ALWAYS,
        expected_revision: int = 0,
    ) -> Value:
        """The value now stored. Errors: ValueConflict, InvalidName, MessageTooLarge."""
        key = self._checked(context, Operation.WRITE, key)
        if len(data) > self._limits.kv_value_bytes_max:
            raise MessageTooLarge(
                f"the value has {len(data)} bytes; at most {self._limits.kv_value_bytes_max} are "
                "allowed (put larger ones into a stream)",
                size_bytes=len(data),
                max_bytes=self._limits.kv_value_bytes_max,
            )
        if mode is PutMode.IF_ABSENT:
            return await self._kv.put_kv_if_absent(key, data)
        if mode is PutMode.COMPARE_AND_SET:
            return await self._kv.compare_and_set_kv(key, data, expected_revision)
        return await self._kv.put_kv(key, data)

    async def delete(self, context: RequestContext, key: Key) -> Value | None:
        """The value removed."""
        return await self._kv.del_kv(self._checked(context, Operation.DELETE, key))

    async def list(
        self,
        context: RequestContext,
        namespace: str,
        prefix: bytes,
        after: bytes | None,
        limit: int,
    ) -> tuple[list[KeyValue], bool]:
        """A page of `limit` keys at most, and whether there may be more behind it.

        It ends behind the value with which it has ANSWER_BYTES_MAX.
        """
        namespace = self._namespace(context, Operation.READ, namespace)
        page: list[KeyValue] = []
        size_bytes = 0
        while len(page) < limit:
            step = min(READ_AT_ONCE, limit - len(page))
            found = await self._kv.list_kv(namespace, prefix, after=after, limit=step)
            for entry in found:
                page.append(entry)
                size_bytes += len(entry.value.data)
                if size_bytes >= ANSWER_BYTES_MAX:
                    return page, True
            if len(found) < step:
                return page, False
            after = found[-1].key.name
        return page, True

    async def watch(
        self, context: RequestContext, namespace: str, prefix: bytes, from_revision: int | None
    ) -> tuple[int, AsyncIterator[KVChange]]:
        """The first revision of the changes (by default the next one), and the changes."""
        namespace = self._namespace(context, Operation.READ, namespace)
        start = await self._revision() + 1 if from_revision is None else max(from_revision, 0)
        return start, self._kv.watch_kv(namespace, prefix, from_revision=start)

    def _checked(self, context: RequestContext, operation: Operation, key: Key) -> Key:
        if not key.name:
            raise InvalidName("the key's name is empty")
        if len(key.name) > KV_NAME_BYTES_MAX:
            raise InvalidName(
                f"the key's name has {len(key.name)} bytes; at most {KV_NAME_BYTES_MAX} are allowed"
            )
        return Key(key.name, self._namespace(context, operation, key.namespace))

    def _namespace(self, context: RequestContext, operation: Operation, namespace: str) -> str:
        namespace = namespace or NAMESPACE_DEFAULT
        if namespace.startswith("_"):
            raise InvalidName("namespaces that start with _ are the engine's own; choose another")
        is_dots = namespace in (".", "..")
        if is_dots or len(namespace) > NAMESPACE_BYTES_MAX or not _NAMESPACE.fullmatch(namespace):
            raise InvalidName(
                f"namespace {namespace[:80]!r}: use 1 to {NAMESPACE_BYTES_MAX} of the letters "
                "a-z A-Z 0-9 . _ -"
            )
        self._authorize(context, operation, Resource(ResourceType.NAMESPACE, namespace))
        return namespace


def checked_limit(limit: int, most: int = 10_000, default: int = 1000) -> int:
    """0 is the default. Errors: Invalid below 0; above the most it is cut."""
    if limit < 0:
        raise Invalid(f"limit is {limit}; give 0 (the default, {default}) or more")
    return min(limit or default, most)
