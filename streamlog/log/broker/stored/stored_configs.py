"""Records of settings in one namespace of the KV store, as this node knows them.

Reads never wait. A change goes to the KV store by compare-and-set first, then into the cache; the
changes of other nodes come by a watch. A value counts only where its revision is newer than the
cached one, so that neither can put an older value into force.

A record that cannot be read (a newer version wrote it, or it is damaged) keeps the values that were
in force, and refuses changes: it must not end the node, and its contents must not be lost. Where no
record was read before, as at a start, its values are unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from streamlog.errors import RevisionCompacted, StreamlogError, Unavailable, ValueConflict
from streamlog.log.broker.broker_record import decode_configs, encode_configs
from streamlog.model.kv import Key, KVChange, KVClient, Value

log = logging.getLogger(__name__)

PAGE = 1000
RETRY_S = 1.0

Configs = Mapping[str, str]
Change = Callable[[Configs], Configs]


@dataclass(frozen=True, slots=True)
class CachedConfigs:
    """`error`: why the stored record is not what `configs` has. `is_unknown`: no record was read
    before it, either."""

    configs: Configs
    revision: int
    error: StreamlogError | None = None
    is_unknown: bool = False


_NOTHING = CachedConfigs({}, 0)


class StoredConfigs:
    """`subject`: whose settings they are, for people. `on_change(name)` is called after each change
    of a record."""

    def __init__(
        self, kv: KVClient, namespace: str, subject: str, on_change: Callable[[bytes], None]
    ) -> None:
        self._kv = kv
        self._namespace = namespace
        self._subject = subject
        self._on_change = on_change
        self._records: dict[bytes, CachedConfigs] = {}
        self._watch_from = 1
        self._failure = ""
        """Why the watch does not run; empty while it does."""

    def of(self, name: bytes) -> Configs:
        """What was set under the name; empty where nothing was."""
        return self._records.get(name, _NOTHING).configs

    def is_unknown(self, name: bytes) -> bool:
        """Whether something is stored under the name, and nothing of it was ever read."""
        return self._records.get(name, _NOTHING).is_unknown

    def names(self) -> list[bytes]:
        """Those under which something is set, sorted."""
        return sorted(name for name, cached in self._records.items() if cached.configs)

    async def alter(self, name: bytes, change: Change) -> None:
        """Stores what `change` makes of the settings, durable on return.

        It is called again with newer ones if they were changed at the same time, so that changes of
        different settings all take effect. Errors: those of `change`; Corrupt or UnsupportedVersion
        of a record that cannot be read; Unavailable, OutcomeUnknown.
        """
        key = Key(name, self._namespace)
        while True:
            cached = self._records.get(name, _NOTHING)
            if cached.error is not None:
                raise cached.error
            data = encode_configs(change(cached.configs))
            try:
                stored = await self._kv.compare_and_set_kv(key, data, cached.revision)
            except ValueConflict:
                await self._refresh(key)
                continue
            self._put(name, Value(data, stored.revision))
            return

    async def _refresh(self, key: Key) -> None:
        cached = self._records.get(key.name)
        value = await self._kv.get_kv(key)
        if value is not None:
            self._put(key.name, value)
        elif cached is not None and self._records.get(key.name) is cached:
            self._drop(key.name)

    async def load(self) -> None:
        """Fills the cache from the KV store; call it before `follow`.

        The watch begins past the highest revision of the first page: what was changed later has a
        higher one.
        """
        before = dict(self._records)
        stored: dict[bytes, Value] = {}
        after: bytes | None = None
        while True:
            page = await self._kv.list_kv(self._namespace, after=after, limit=PAGE)
            if after is None:
                self._watch_from = 1 + max((entry.value.revision for entry in page), default=0)
            stored.update({entry.key.name: entry.value for entry in page})
            if len(page) < PAGE:
                break
            after = page[-1].key.name
        for name, cached in before.items():
            if name not in stored and self._records.get(name) is cached:
                self._drop(name)
        for name, value in stored.items():
            self._put(name, value)

    async def follow(self) -> None:
        """Applies the changes of other nodes, without end.

        A watch or a store that fails is tried again every second; a log line tells the first
        failure and its end, and `alarms` tells it meanwhile.
        """
        while True:
            try:
                if self._failure:
                    await self.load()
                    log.info("changes of %s are followed again", self._subject)
                    self._failure = ""
                await self._watch()
                raise Unavailable(f"the watch of {self._subject} ended")
            except StreamlogError as error:
                if not self._failure:
                    log.warning("changes of %s are not followed: %s", self._subject, error)
                self._failure = f"{type(error).__name__}: {error}"
                await asyncio.sleep(RETRY_S)

    async def _watch(self) -> None:
        while True:
            try:
                async for change in self._kv.watch_kv(
                    self._namespace, from_revision=self._watch_from
                ):
                    self._apply(change)
                    self._watch_from = change.revision + 1
                return
            except RevisionCompacted as error:
                await self.load()
                # What changes from here on has a revision above the oldest one that is kept.
                self._watch_from = max(self._watch_from, int(error.fields["oldest"]))

    def alarms(self) -> list[str]:
        """That changes are not followed, and which stored settings cannot be read."""
        reasons = [str(cached.error) for cached in self._records.values() if cached.error]
        if self._failure:
            reasons.append(f"changes are not followed: {self._failure}")
        return reasons

    def _apply(self, change: KVChange) -> None:
        if change.value is not None:
            self._put(change.key.name, Value(change.value.data, change.revision))
            return
        cached = self._records.get(change.key.name)
        if cached is not None and cached.revision < change.revision:
            self._drop(change.key.name)

    def _put(self, name: bytes, value: Value) -> None:
        cached = self._records.get(name, _NOTHING)
        if cached.revision >= value.revision:
            return
        try:
            self._records[name] = CachedConfigs(decode_configs(name, value.data), value.revision)
        except StreamlogError as error:
            log.warning("%s; the settings that were in force stay so", error)
            is_unknown = cached is _NOTHING or cached.is_unknown
            self._records[name] = CachedConfigs(cached.configs, value.revision, error, is_unknown)
        self._on_change(name)

    def _drop(self, name: bytes) -> None:
        del self._records[name]
        self._on_change(name)
