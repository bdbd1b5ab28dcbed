"""MemoryKVStore: the contract over a dict and a sorted list of keys. It ends with the process."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from streamlog.kvstore.interface import StoredKeyValue
from streamlog.kvstore.lease import LeaseTable
from streamlog.kvstore.settings import KVSettings
from streamlog.kvstore.store import LocalStore
from streamlog.kvstore.transaction import Staging
from streamlog.runtime.clock import Clock

T = TypeVar("T")


class MemoryKVStore(LocalStore):
    """Operations take effect at the call, without waiting."""

    def __init__(self, clock: Clock, settings: KVSettings | None = None) -> None:
        super().__init__(clock, 1, settings or KVSettings(), is_new=True)
        self._base = _MemoryBase()
        self._leases = LeaseTable()

    async def _submit(self, work: Callable[[Staging, float], T], size_bytes: int) -> T:
        now = self._clock.monotonic()
        if now >= self._next_deadline:
            self._run(lambda staging, now: staging.expire(now), now)
        return self._run(work, now)

    def _run(self, work: Callable[[Staging, float], T], now: float) -> T:
        staging = Staging(self._base, self._leases, self._revision)
        result = work(staging, now)
        self._base.apply(staging.effects)
        self._leases.apply(staging.lease_effects, staging.next_lease_id, staging.batches)
        self._publish(staging.batches, staging.revision, self._leases.next_deadline())
        return result

    async def _read_key(self, key: bytes) -> StoredKeyValue | None:
        return self._base.get(key)

    async def _read_range(
        self, start: bytes, end: bytes, limit: int
    ) -> tuple[Sequence[StoredKeyValue], int]:
        return self._base.first(start, end, limit), self._revision

    async def _close_backend(self) -> None:
        pass


class _MemoryBase:
    def __init__(self) -> None:
        self._kvs: dict[bytes, StoredKeyValue] = {}
        self._keys: list[bytes] = []

    def get(self, key: bytes) -> StoredKeyValue | None:
        return self._kvs.get(key)

    def first(self, start: bytes, end: bytes, limit: int) -> Sequence[StoredKeyValue]:
        low, high = bisect_left(self._keys, start), bisect_left(self._keys, end)
        if limit:
            high = min(high, low + limit)
        return tuple(self._kvs[key] for key in self._keys[low:high])

    def scan(self, start: bytes, end: bytes) -> Iterator[StoredKeyValue]:
        return iter(self.first(start, end, 0))

    def apply(self, effects: dict[bytes, StoredKeyValue | None]) -> None:
        for key, kv in effects.items():
            if kv is None:
                if self._kvs.pop(key, None) is not None:
                    del self._keys[bisect_left(self._keys, key)]
            else:
                if key not in self._kvs:
                    insort(self._keys, key)
                self._kvs[key] = kv
