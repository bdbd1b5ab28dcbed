"""KVClient over a dictionary, with a hook that makes changes durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from streamlog.errors import RevisionCompacted, ValueConflict
from streamlog.model.kv import Key, KeyValue, KVChange, Value


class BasicKV:
    """Keeps the newest `changes_held_max` changes for watches."""

    def __init__(self, *, changes_held_max: int = 10_000) -> None:
        self._values: dict[tuple[str, bytes], Value] = {}
        self._revision = 0
        self._changes: list[KVChange] = []
        self._changes_held_max = changes_held_max
        self._oldest = 1
        self._changed = asyncio.Condition()
        self._writing = asyncio.Lock()

    async def _save(self, change: KVChange) -> None:
        """Makes the change durable; in memory there is nothing to do."""

    async def put_kv_if_absent(self, key: Key, data: bytes) -> Value:
        async with self._writing:
            return self._values.get((key.namespace, key.name)) or await self._put(key, data)

    async def put_kv(self, key: Key, data: bytes) -> Value:
        async with self._writing:
            return await self._put(key, data)

    async def compare_and_set_kv(self, key: Key, data: bytes, expected_revision: int) -> Value:
        async with self._writing:
            self._check_revision(key, expected_revision)
            return await self._put(key, data)

    async def get_kv(self, key: Key) -> Value | None:
        return self._values.get((key.namespace, key.name))

    async def del_kv(self, key: Key, expected_revision: int | None = None) -> Value | None:
        async with self._writing:
            if expected_revision is not None:
                self._check_revision(key, expected_revision)
            found = self._values.get((key.namespace, key.name))
            if found is not None:
                await self._change(KVChange(key, None, self._revision + 1))
            return found

    async def list_kv(
        self, namespace: str, prefix: bytes = b"", *, after: bytes | None = None, limit: int = 1000
    ) -> list[KeyValue]:
        names = sorted(
            name
            for space, name in self._values
            if space == namespace and name.startswith(prefix) and (after is None or name > after)
        )
        return [
            KeyValue(Key(name, namespace), self._values[namespace, name]) for name in names[:limit]
        ]

    async def watch_kv(
        self, namespace: str, prefix: bytes = b"", *, from_revision: int | None = None
    ) -> AsyncIterator[KVChange]:
        position = self._revision + 1 if from_revision is None else from_revision
        while True:
            if position < self._oldest:
                raise RevisionCompacted(
                    f"changes before revision {self._oldest} are gone", oldest=self._oldest
                )
            for change in self._changes[max(position - self._oldest, 0) :]:
                position = change.revision + 1
                if change.key.namespace == namespace and change.key.name.startswith(prefix):
                    yield change
            async with self._changed:
                wanted = position
                await self._changed.wait_for(lambda: self._revision >= wanted)  # noqa: B023

    def _check_revision(self, key: Key, expected: int) -> None:
        found = self._values.get((key.namespace, key.name))
        actual = found.revision if found else 0
        if actual != expected:
            raise ValueConflict(
                f"key {key.name!r} is at revision {actual}, not {expected}",
                expected_revision=expected,
                actual_revision=actual,
            )

    async def _put(self, key: Key, data: bytes) -> Value:
        value = Value(data, self._revision + 1)
        await self._change(KVChange(key, value, value.revision))
        return value

    async def _change(self, change: KVChange) -> None:
        await self._save(change)
        self._apply(change)
        async with self._changed:
            self._changed.notify_all()

    def _apply(self, change: KVChange) -> None:
        self._revision = change.revision
        if change.value is None:
            del self._values[change.key.namespace, change.key.name]
        else:
            self._values[change.key.namespace, change.key.name] = change.value
        self._changes.append(change)
        if len(self._changes) > self._changes_held_max:
            del self._changes[: self._changes_held_max // 2]
            self._oldest = self._changes[0].revision
