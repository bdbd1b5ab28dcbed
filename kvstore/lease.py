"""Leases: their deadlines, and the keys attached to each.

Deadlines are monotonic seconds. A key leaves its lease when it is deleted or rewritten.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from streamlog.kvstore.interface import StoredKeyValue, WatchBatch

STALE_MAX = 1000
"""Earlier deadlines that the heap may hold beside one for each lease."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Ends at `deadline` (monotonic seconds) unless kept alive."""

    lease_id: int
    ttl_ms: int
    deadline: float


class LeaseTable:
    """The durable leases of one store."""

    def __init__(self) -> None:
        self.next_id = 1
        """Ids are never given twice."""
        self._leases: dict[int, Lease] = {}
        self._keys: dict[int, set[bytes]] = {}
        self._deadlines: list[tuple[float, int]] = []
        """A heap. Each lease is in it with its deadline, and perhaps with earlier ones, which count
        no more: each commit asks for the next deadline, and there may be 10,000 leases."""

    def __len__(self) -> int:
        return len(self._leases)

    def get(self, lease_id: int) -> Lease | None:
        return self._leases.get(lease_id)

    def keys_of(self, lease_id: int) -> Set[bytes]:
        return self._keys.get(lease_id, frozenset())

    def due(self, now: float) -> list[Lease]:
        """Leases that have ended, oldest deadline first."""
        ended = [lease for lease in self._leases.values() if lease.deadline <= now]
        return sorted(ended, key=lambda lease: (lease.deadline, lease.lease_id))

    def next_deadline(self) -> float:
        """Infinity if there is no lease."""
        while self._deadlines:
            deadline, lease_id = self._deadlines[0]
            lease = self._leases.get(lease_id)
            if lease is not None and lease.deadline == deadline:
                return deadline
            heapq.heappop(self._deadlines)
        return math.inf

    def attach(self, kv: StoredKeyValue) -> None:
        if kv.lease_id:
            self._keys.setdefault(kv.lease_id, set()).add(kv.key)

    def apply(
        self, leases: Mapping[int, Lease | None], next_id: int, batches: Iterable[WatchBatch]
    ) -> None:
        """Applies the effects of a staging."""
        self.next_id = next_id
        for batch in batches:
            for change in batch.changes:
                if change.previous is not None and change.previous.lease_id:
                    self._keys.get(change.previous.lease_id, set()).discard(change.key)
                if change.kv is not None:
                    self.attach(change.kv)
        for lease_id, lease in leases.items():
            if lease is None:
                self._leases.pop(lease_id, None)
                self._keys.pop(lease_id, None)
            else:
                self._leases[lease_id] = lease
                heapq.heappush(self._deadlines, (lease.deadline, lease_id))
        if len(self._deadlines) > 2 * len(self._leases) + STALE_MAX:
            self._deadlines = [(lease.deadline, one) for one, lease in self._leases.items()]
            heapq.heapify(self._deadlines)
