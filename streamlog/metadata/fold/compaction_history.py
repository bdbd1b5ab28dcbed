"""The compactions of late: how many there were, and which objects the last ones replaced.

From this a compactor that another one overtook knows whether its outputs still stand for what they
were made of.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Sequence
from itertools import islice

COMPACTIONS_MAX = 1000
INPUTS_MAX = 1 << 16


class CompactionHistory:
    """`counter` is `x`; inputs are kept of the last 1,000 compactions, of 65,536 ids together."""

    def __init__(self, counter: int = 0, inputs: Sequence[array[int]] = ()) -> None:
        self.counter = counter
        self._inputs = deque(inputs)
        self._ids = sum(map(len, inputs))

    @property
    def inputs(self) -> list[array[int]]:
        """Of the last compactions, the newest last."""
        return list(self._inputs)

    def add(self, inputs: array[int]) -> None:
        self.counter += 1
        self._inputs.append(inputs)
        self._ids += len(inputs)
        while len(self._inputs) > COMPACTIONS_MAX or self._ids > INPUTS_MAX:
            self._ids -= len(self._inputs.popleft())

    def replaced_since(self, counter: int, inputs: Collection[int]) -> bool:
        """Whether a compaction after that value of `x` replaced one of these objects, or may have.

        What is not known any more may have.
        """
        since = self.counter - counter
        if since > len(self._inputs):
            return True
        wanted = frozenset(inputs)
        newer = islice(self._inputs, len(self._inputs) - since, None)
        return any(not wanted.isdisjoint(one) for one in newer)
