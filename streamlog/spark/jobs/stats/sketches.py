"""The number of distinct keys, and the frequent keys, in bounded memory; parts can be merged.

`Distinct` is HyperLogLog with 4096 registers: within 5 % in 99 of 100 cases. `Frequent` is the
mergeable summary of Misra and Gries: the true count of a key that it names lies between `count` and
`count + missed`, and no other key is more frequent than `missed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

INDEX_BITS = 12
REGISTERS = 1 << INDEX_BITS
_REST_BITS = 64 - INDEX_BITS
_ALPHA = 0.7213 / (1 + 1.079 / REGISTERS)

KEYS_MAX = 1000


@dataclass
class Distinct:
    registers: Any = field(default_factory=lambda: np.zeros(REGISTERS, np.uint8))

    def add(self, hashes: Any) -> None:
        """`hashes`: 64 bits each, as a numpy array."""
        index = (hashes >> np.uint64(_REST_BITS)).astype(np.int64)
        rest = hashes & np.uint64((1 << _REST_BITS) - 1)
        # A float64 holds the 52 bits exactly; its exponent gives the highest bit that is set.
        rank = (_REST_BITS + 1 - np.frexp(rest.astype(np.float64))[1]).astype(np.uint8)
        np.maximum.at(self.registers, index, rank)

    def merge(self, other: Distinct) -> None:
        np.maximum(self.registers, other.registers, out=self.registers)

    def estimate(self) -> int:
        raw = _ALPHA * REGISTERS**2 / float(np.exp2(-self.registers.astype(np.float64)).sum())
        zeros = int((self.registers == 0).sum())
        if raw <= 2.5 * REGISTERS and zeros:
            return round(REGISTERS * float(np.log(REGISTERS / zeros)))
        return round(raw)


@dataclass
class Frequent:
    counts: dict[bytes, int] = field(default_factory=dict)
    missed: int = 0

    def add(self, keys: Sequence[bytes], counts: Any) -> None:
        """`keys` are distinct; `counts` is a numpy array."""
        least = 0
        if len(keys) > KEYS_MAX:
            least = int(np.partition(counts, len(counts) - KEYS_MAX - 1)[-KEYS_MAX - 1])
        chosen = np.flatnonzero(counts > least)
        part = Frequent({keys[n]: int(counts[n]) - least for n in chosen.tolist()}, least)
        self.merge(part)

    def merge(self, other: Frequent) -> None:
        counts = self.counts
        for key, count in other.counts.items():
            counts[key] = counts.get(key, 0) + count
        self.missed += other.missed
        if len(counts) > KEYS_MAX:
            least = sorted(counts.values(), reverse=True)[KEYS_MAX]
            self.counts = {key: count - least for key, count in counts.items() if count > least}
            self.missed += least

    def top(self, most: int) -> list[tuple[bytes, int]]:
        """(key, count at least), the most frequent first."""
        return sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))[:most]
