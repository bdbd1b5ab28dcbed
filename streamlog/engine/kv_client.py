"""EngineKVClient: users' keys inside the metadata's key space.

    <prefix>u/<namespace>/<name>      version u8 (1), then the user's bytes

A namespace has no `/`, so the first one after it ends it and a name may hold any byte.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from streamlog.errors import (
    Corrupt,
    Invalid,
    InvalidName,
    MessageTooLarge,
    UnsupportedVersion,
    ValueConflict,
)
from streamlog.kvstore.interface import (
    Change,
    Delete,
    Get,
    KVStore,
    Put,
    RevisionIs,
    StoredKeyValue,
    prefix_end,
)
from streamlog.model.kv import Key, KeyValue, KVChange, Value

VALUE_VERSION = 1
NAME_BYTES_MAX = 1024
VALUE_BYTES_MAX = 1 << 20
LIST_LIMIT_MAX = 10_000

_VERSION_BYTE = bytes([VALUE_VERSION])
_NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")


class EngineKVClient:
    """`prefix` is the cluster's: `/sl/<cluster>/`. A put is durable on return."""

    def __init__(self, kv: KVStore, prefix: bytes) -> None:
        self._kv = kv
        self._prefix = prefix + b"u/"

    async def put_kv_if_absent(self, key: Key, data: bytes) -> Value:
        """Errors, here and in all puts: InvalidName, MessageTooLarge, MetadataUnavailable,
        OutcomeUnknown.
        """
        path = self._path(key)
        result = await self._kv.txn(
            (RevisionIs(path, 0),), (Put(path, _encode(key, data)),), (Get(path),)
        )
        if result.succeeded:
            return Value(data, result.revision)
        return _decode(result.responses[0][0])

    async def put_kv(self, key: Key, data: bytes) -> Value:
        result = await self._kv.txn((), (Put(self._path(key), _encode(key, data)),))
        return Value(data, result.revision)

    async def compare_and_set_kv(self, key: Key, data: bytes, expected_revision: int) -> Value:
        """Fields of ValueConflict: `expected_revision`, `actual_revision` (0: absent)."""
        path = self._path(key)
        compares = (_revision_is(path, expected_revision),)
        result = await self._kv.txn(compares, (Put(path, _encode(key, data)),), (Get(path),))
        if result.succeeded:
            return Value(data, result.revision)
        raise _conflict(key, expected_revision, result.responses[0])

    async def get_kv(self, key: Key) -> Value | None:
        stored = await self._kv.get(self._path(key))
        return None if stored is None else _decode(stored)

    async def del_kv(self, key: Key, expected_revision: int | None = None) -> Value | None:
        path = self._path(key)
        if expected_revision is None:
            result = await self._kv.txn((), (Delete(path),))
        else:
            compares = (_revision_is(path, expected_revision),)
            result = await self._kv.txn(compares, (Delete(path),), (Get(path),))
            if not result.succeeded:
                raise _conflict(key, expected_revision, result.responses[0])
        removed = result.responses[0]
        return _decode(removed[0]) if removed else None

    async def list_kv(
        self, namespace: str, prefix: bytes = b"", *, after: bytes | None = None, limit: int = 1000
    ) -> list[KeyValue]:
        if not 1 <= limit <= LIST_LIMIT_MAX:
            raise Invalid(f"a page holds 1 to {LIST_LIMIT_MAX} keys, not {limit}")
        base, start, end = self._range(namespace, prefix)
        if after is not None:
            start = max(start, base + after + b"\0")
        page = await self._kv.range(start, end, limit=limit)
        return [KeyValue(Key(kv.key[len(base) :], namespace), _decode(kv)) for kv in page.kvs]

    async def watch_kv(
        self, namespace: str, prefix: bytes = b"", *, from_revision: int | None = None
    ) -> AsyncGenerator[KVChange, None]:
        """The watch starts when the first item is requested; "from now on" means from then."""
        base, start, end = self._range(namespace, prefix)
        if from_revision is None:
            from_revision = await self._kv.revision() + 1
        async with aclosing(self._kv.watch(start, end, from_revision=from_revision)) as watch:
            async for batch in watch:
                for change in batch.changes:
                    yield _change(change, Key(change.key[len(base) :], namespace))

    def _path(self, key: Key) -> bytes:
        if not 1 <= len(key.name) <= NAME_BYTES_MAX:
            raise InvalidName(
                f"a key has 1 to {NAME_BYTES_MAX} bytes, not {len(key.name)}",
                namespace=check_namespace(key.namespace),
            )
        return self._base(key.namespace) + key.name

    def _base(self, namespace: str) -> bytes:
        return self._prefix + check_namespace(namespace).encode() + b"/"

    def _range(self, namespace: str, prefix: bytes) -> tuple[bytes, bytes, bytes]:
        """The prefix of all names; start and end (exclusive) of the keys."""
        base = self._base(namespace)
        if len(prefix) > NAME_BYTES_MAX:
            raise InvalidName(f"a key has 1 to {NAME_BYTES_MAX} bytes, the prefix {len(prefix)}")
        return base, base + prefix, prefix_end(base + prefix)


def check_namespace(namespace: str) -> str:
    """Returns `namespace`. Errors: InvalidName."""
    if not _NAMESPACE.match(namespace):
        raise InvalidName(
            f"{namespace[:80]!r} is no namespace: 1 to 64 of A-Z a-z 0-9 . _ - (the empty name is "
            "not one)"
        )
    return namespace


def stored_value(data: bytes) -> bytes:
    """A user's value as the metadata store keeps it."""
    return _VERSION_BYTE + data


def _encode(key: Key, data: bytes) -> bytes:
    if len(data) > VALUE_BYTES_MAX:
        raise MessageTooLarge(
            f"a value has at most {VALUE_BYTES_MAX} bytes, that of {key.name!r} has {len(data)}; "
            "put it in a stream",
            size_bytes=len(data),
            max_bytes=VALUE_BYTES_MAX,
        )
    return stored_value(data)


def _decode(stored: StoredKeyValue) -> Value:
    version = stored.value[:1]
    if version == _VERSION_BYTE:
        return Value(stored.value[1:], stored.mod_revision)
    if not version:
        raise Corrupt(f"the value of {stored.key!r} has no version byte")
    raise UnsupportedVersion(
        f"the value of {stored.key!r} has version {version[0]}, this release reads "
        f"{VALUE_VERSION}; use a newer release",
        found=version[0],
        supported=VALUE_VERSION,
    )


def _revision_is(path: bytes, expected: int) -> RevisionIs:
    if expected < 0:
        raise Invalid(f"no key has revision {expected}; 0 stands for an absent key")
    return RevisionIs(path, expected)


def _conflict(key: Key, expected_revision: int, stored: Sequence[StoredKeyValue]) -> ValueConflict:
    actual = stored[0].mod_revision if stored else 0
    return ValueConflict(
        f"key {key.name!r} in {key.namespace!r} is at revision {actual}, not "
        f"{expected_revision}; read it again",
        namespace=key.namespace,
        expected_revision=expected_revision,
        actual_revision=actual,
    )


def _change(change: Change, key: Key) -> KVChange:
    value = None if change.kv is None else _decode(change.kv)
    return KVChange(key, value, change.revision)
