"""The compaction counter, and which objects the last compactions replaced.

A compactor that was overtaken by another one learns from it whether its outputs still match their
inputs.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Sequence
from itertools import islice

COMPACTIONS_MAX = 1000
INPUTS_MAX = 1 << 16


class CompactionHistory:
    """The compaction counter, and the inputs of the last 1,000 compactions (65,536 ids in all)."""

    def __init__(self, counter: int = 0, inputs: Sequence[array[int]] = ()) -> None:
        self.counter = counter
        self._inputs = deque(inputs)
        self._ids = sum(map(len, inputs))

    @property
    def inputs(self) -> list[array[int]]:
        """The inputs of each of the last compactions, the newest last."""
        return list(self._inputs)

    def add(self, inputs: array[int]) -> None:
        self.counter += 1
        self._inputs.append(inputs)
        self._ids += len(inputs)
        while len(self._inputs) > COMPACTIONS_MAX or self._ids > INPUTS_MAX:
            self._ids -= len(self._inputs.popleft())

    def replaced_since(self, counter: int, inputs: Collection[int]) -> bool:
        """Whether a compaction after that counter value replaced one of these objects.

        True also where the history does not reach back that far.
        """
        since = self.counter - counter
        if since > len(self._inputs):
            return True
        wanted = frozenset(inputs)
        newer = islice(self._inputs, len(self._inputs) - since, None)
        return any(not wanted.isdisjoint(replaced) for replaced in newer)
