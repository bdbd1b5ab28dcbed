"""The KVClient protocol: small values under names, linearizable (KIP-1183)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

NAMESPACE_DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Key:
    """A name inside a namespace; namespaces that start with `_` are the engine's own."""

    name: bytes
    namespace: str = NAMESPACE_DEFAULT


@dataclass(frozen=True, slots=True)
class Value:
    """A stored value; `revision` rises with every change in the whole store."""

    data: bytes
    revision: int = 0


@dataclass(frozen=True, slots=True)
class KeyValue:
    key: Key
    value: Value


@dataclass(frozen=True, slots=True)
class KVChange:
    """`value` None: the key was deleted."""

    key: Key
    value: Value | None
    revision: int


class KVClient(Protocol):
    async def put_kv_if_absent(self, key: Key, data: bytes) -> Value:
        """Stores `data` if the key is absent; the value now stored."""
        ...

    async def put_kv(self, key: Key, data: bytes) -> Value:
        """Stores `data`; the value now stored."""
        ...

    async def compare_and_set_kv(self, key: Key, data: bytes, expected_revision: int) -> Value:
        """Stores if the key's revision is the expected one (0: absent). Errors: ValueConflict."""
        ...

    async def get_kv(self, key: Key) -> Value | None: ...

    async def del_kv(self, key: Key, expected_revision: int | None = None) -> Value | None:
        """Removes the value; None where there was none.

        With `expected_revision` only a value of that revision is removed. Errors: ValueConflict.
        """
        ...

    async def list_kv(
        self, namespace: str, prefix: bytes = b"", *, after: bytes | None = None, limit: int = 1000
    ) -> list[KeyValue]:
        """Entries by key, beginning with the first key above `after`."""
        ...

    def watch_kv(
        self, namespace: str, prefix: bytes = b"", *, from_revision: int | None = None
    ) -> AsyncIterator[KVChange]:
        """Changes in revision order, from from_revision (inclusive) or from now on.

        Errors: RevisionCompacted.
        """
        ...
