"""The allocator: what is handed out without being cleared."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from streamlog.runtime.allocator import uncleared


@pytest.mark.parametrize("size", [0, 1, 4096, 1 << 20])
def test_uncleared_memory_is_a_bytearray_of_its_size(size: int) -> None:
    memory = uncleared(size)
    assert type(memory) is bytearray
    assert len(memory) == size
    memory[:] = bytes([7]) * size
    assert memory == bytes([7]) * size
    memory.extend(b"more")
    assert memory[size:] == b"more"


def test_uncleared_memory_costs_nothing_by_its_size() -> None:
    size = 64 << 20

    def best_of(make: Callable[[int], bytearray]) -> float:
        seconds = []
        for _ in range(5):
            began = time.thread_time()
            make(size)
            seconds.append(time.thread_time() - began)
        return min(seconds)

    assert best_of(uncleared) * 10 < best_of(bytearray)
